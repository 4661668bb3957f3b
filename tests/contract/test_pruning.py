"""Lines that nobody stands in."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from contextlib import closing
from functools import partial

import pytest
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Permissions

from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.zk import keys
from django_zklock.zk.inspection import pruning, survey
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from tests.server import Server
from tests.zk.onlooker import MakePool, Onlooker, wait_until
from tests.zk.runner import Runner

KEYS = 20
GUID = "01234567-89ab-cdef-0123-456789abcdef"


def prune(pool: Pool) -> list[str]:
    return pruning.remove(pool, pruning.idle(pool, timeout=5), timeout=5)


def test_prune__idle_lines_alone(pool: Pool, onlooker: Onlooker) -> None:
    """A plain node without children goes; one where somebody stands stays, whoever it is."""
    root = pool.options.root
    for name in ("idle", "held", "foreign", keys.escape("a/b" * 200)):
        onlooker.client.create(f"{root}/{name}", makepath=True)
    onlooker.client.create(f"{root}/held/_c_{GUID}-lock-", sequence=True)
    onlooker.client.create(f"{root}/foreign/readme")
    found = pruning.idle(pool, timeout=5)
    assert found == sorted(["idle", keys.escape("a/b" * 200)])
    assert pruning.remove(pool, found, timeout=5) == found
    assert survey.names(pool, timeout=5) == ["foreign", "held"]
    assert pruning.idle(pool, timeout=5) == []


def test_prune__containers_and_ephemeral_nodes(own_server: Server, make_pool: MakePool) -> None:
    """An idle container goes too, as no client can tell it; an ephemeral node is its owner's."""
    pool = make_pool(own_server.hosts)
    Lock("k", pool).acquire().release(wait=True)
    with closing(Onlooker(own_server.hosts)) as onlooker:
        onlooker.client.create(f"{pool.options.root}/short", ephemeral=True)
        assert prune(pool) == ["k"]
        assert survey.names(pool, timeout=5) == ["short"]
        with Lock("k", pool):
            assert prune(pool) == []
    pool.close()


def test_idle__gone_meanwhile(pool: Pool, onlooker: Onlooker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A line that goes while the tree is read is not idle."""
    onlooker.client.create(f"{pool.options.root}/idle", makepath=True)
    names = survey.names
    monkeypatch.setattr(survey, "names", lambda *arguments, **options: [*names(*arguments, **options), "gone"])
    assert pruning.idle(pool, timeout=5) == ["idle"]


def test_prune__nothing_there(pool: Pool) -> None:
    """A root that does not exist has no idle lines."""
    assert prune(pool) == []


def test_remove__taken_meanwhile(pool: Pool, onlooker: Onlooker) -> None:
    """A line that somebody has joined since it was found idle stays, and one that is gone by now is gone."""
    root = pool.options.root
    for name in ("taken", "gone", "idle"):
        onlooker.client.create(f"{root}/{name}", makepath=True)
    found = pruning.idle(pool, timeout=5)
    with Lock("taken", pool):
        onlooker.client.delete(f"{root}/gone")
        assert pruning.remove(pool, found, timeout=5) == ["gone", "idle"]
        assert survey.line(pool, "taken", timeout=5).holders


def test_remove__beat_keeps_what_it_has_sent(pool: Pool, onlooker: Onlooker) -> None:
    """What beat has written down below its key is no line, and stays."""
    onlooker.client.create(f"{pool.options.root}/celery-beat/sent/nightly", b"1", makepath=True)
    assert prune(pool) == []
    assert onlooker.children(f"{pool.options.root}/celery-beat/sent") == ["nightly"]


def test_prune__beside_live_traffic(make_pool: MakePool) -> None:
    """Locks are taken and given back, one holder at a time, while their lines are removed again and again."""
    pools = [make_pool() for _ in range(2)]
    for pool in pools:
        # As on a server that knows no containers: the lines stay, so that there is something to prune.
        pool.session(pool.options.root).containers = False
    inside = [threading.Lock() for _ in range(KEYS)]
    taken = [0] * KEYS
    over = threading.Event()

    def work(pool: Pool, beginning: int) -> None:
        for number in itertools.cycle([*range(beginning, KEYS), *range(beginning)]):
            if over.is_set():
                return
            with Lock(f"k{number}", pool).acquire(timeout=20):
                assert inside[number].acquire(blocking=False), "two at once"
                taken[number] += 1
                inside[number].release()

    workers = [Runner(partial(work, pool, beginning)) for pool in pools for beginning in range(0, KEYS, 4)]
    pruner = make_pool()
    removed: Counter[str] = Counter()

    def prune_once() -> bool:
        removed.update(prune(pruner))
        return len(removed) == KEYS and removed.total() >= 5 * KEYS and min(taken) >= 5

    try:
        wait_until(prune_once, 60, "lines were removed and locks were taken")
    finally:
        over.set()
    for worker in workers:
        worker.result(30)


def test_remove__many(make_pool: MakePool, onlooker: Onlooker) -> None:
    """More than fit into one turn."""
    pool = make_pool()
    onlooker.client.ensure_path(pool.options.root)
    made = [onlooker.client.create_async(f"{pool.options.root}/k{number:03}") for number in range(300)]
    for result in made:
        result.get(timeout=10)
    assert prune(pool) == [f"k{number:03}" for number in range(300)]
    assert survey.names(pool, timeout=5) == []


def test_prune__refused(make_pool: MakePool, onlooker: Onlooker) -> None:
    """Who may not delete is told so."""
    pool = make_pool()
    onlooker.client.create(f"{pool.options.root}/idle", makepath=True)
    onlooker.client.set_acls(pool.options.root, [ACL(Permissions.READ, ANYONE_ID_UNSAFE)])
    with pytest.raises(ZkLockError, match="refused to delete what is in"):
        prune(pool)


def test_prune__unreachable(make_pool: MakePool) -> None:
    """Without a server the error comes in time."""
    with pytest.raises(ZooKeeperUnavailable):
        pruning.idle(make_pool("127.0.0.1:1"), timeout=0.3)
