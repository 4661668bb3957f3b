"""Lock nodes with empty queues."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from contextlib import closing
from functools import partial

import pytest
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Permissions

from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.zk import paths, scripts
from django_zklock.zk.lock import Lock
from django_zklock.zk.ops import actions, snapshots
from django_zklock.zk.pool import Pool
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.threads import Runner
from tests.toolbox.timing import wait_until
from tests.toolbox.zookeeper.any_server import Server
from tests.toolbox.zookeeper.observer import Observer

KEYS = 20
GUID = "01234567-89ab-cdef-0123-456789abcdef"


def find_idle(pool: Pool, timeout: float = 60) -> list[str]:
    return [name for batch in actions.find_idle(pool, timeout=timeout) for name in batch]


def prune(pool: Pool) -> list[str]:
    return actions.prune(pool, find_idle(pool), timeout=60)


def test_prune__idle_queues_alone(pool: Pool, observer: Observer) -> None:
    """A persistent node without children is deleted; a node with any child stays."""
    root = pool.options.root
    for name in ("idle", "held", "foreign", paths.escape("a/b" * 200)):
        observer.client.create(f"{root}/{name}", makepath=True)
    observer.client.create(f"{root}/held/_c_{GUID}-lock-", sequence=True)
    observer.client.create(f"{root}/foreign/readme")
    found = find_idle(pool)
    assert found == sorted(["idle", paths.escape("a/b" * 200)])
    assert actions.prune(pool, found, timeout=60) == found
    assert snapshots.list_names(pool, timeout=60) == ["foreign", "held"]
    assert find_idle(pool) == []


def test_prune__containers_and_ephemeral_nodes(own_server: Server, make_pool: MakePool) -> None:
    """An idle container is deleted too, because no client can recognise it; an ephemeral node stays."""
    pool = make_pool(own_server.hosts)
    Lock("k", pool).acquire().release(wait=True)
    with closing(Observer(own_server.hosts)) as observer:
        observer.client.create(f"{pool.options.root}/short", ephemeral=True)
        assert prune(pool) == ["k"]
        assert snapshots.list_names(pool, timeout=60) == ["short"]
        with Lock("k", pool):
            assert prune(pool) == []
    pool.close()


def test_idle__gone_meanwhile(pool: Pool, observer: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lock node that is deleted while the tree is read is not idle."""
    observer.client.create(f"{pool.options.root}/idle", makepath=True)
    names = snapshots.list_names
    monkeypatch.setattr(snapshots, "list_names", lambda *arguments, **options: [*names(*arguments, **options), "gone"])
    assert find_idle(pool) == ["idle"]


def test_prune__nothing_there(pool: Pool) -> None:
    """A root that does not exist has no idle lock nodes."""
    assert prune(pool) == []


def test_remove__taken_meanwhile(pool: Pool, observer: Observer) -> None:
    """A lock node with a new contender stays; one that was deleted meanwhile counts as gone."""
    root = pool.options.root
    for name in ("taken", "gone", "idle"):
        observer.client.create(f"{root}/{name}", makepath=True)
    found = find_idle(pool)
    with Lock("taken", pool):
        observer.client.delete(f"{root}/gone")
        assert actions.prune(pool, found, timeout=60) == ["gone", "idle"]
        assert snapshots.one_lock(pool, "taken", timeout=60).holders


def test_remove__beat_keeps_what_it_has_sent(pool: Pool, observer: Observer) -> None:
    """The records of beat below its key are no lock nodes, and stay."""
    observer.client.create(f"{pool.options.root}/celery-beat/sent/nightly", b"1", makepath=True)
    assert prune(pool) == []
    assert observer.children(f"{pool.options.root}/celery-beat/sent") == ["nightly"]


def test_prune__beside_live_traffic(make_pool: MakePool) -> None:
    """Locks have one holder at a time while their nodes are deleted again and again."""
    pools = [make_pool() for _ in range(2)]
    inside = [threading.Lock() for _ in range(KEYS)]
    taken = [0] * KEYS
    over = threading.Event()

    def work(pool: Pool, beginning: int) -> None:
        for number in itertools.cycle([*range(beginning, KEYS), *range(beginning)]):
            if over.is_set():
                return
            with Lock(f"k{number}", pool).acquire(timeout=120):
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


def test_prune__in_batches(pool: Pool, observer: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each batch has the whole timeout, and an error says how many queues were read; all of them are deleted."""
    monkeypatch.setattr(actions, "BATCH_SIZE", 2)
    monkeypatch.setattr(actions, "MAX_DELETIONS", 2)
    for number in range(5):
        observer.client.create(f"{pool.options.root}/k{number}", makepath=True)
    assert [len(batch) for batch in actions.find_idle(pool, timeout=60)] == [2, 2, 1]
    found = find_idle(pool)
    batches = actions.find_idle(pool, timeout=60)
    assert next(batches) == ["k0", "k1"]
    assert actions.prune(pool, found, timeout=60) == found == [f"k{number}" for number in range(5)]

    def fail(*_arguments: object, **_options: object) -> None:
        raise ZooKeeperUnavailable("no answer")

    monkeypatch.setattr(scripts, "run", fail)
    with pytest.raises(ZooKeeperUnavailable, match="no answer; 2 of 5 queues had been read"):
        next(batches)


def test_prune__refused(make_pool: MakePool, observer: Observer) -> None:
    """A missing permission to delete is an error that says so."""
    pool = make_pool()
    observer.client.create(f"{pool.options.root}/idle", makepath=True)
    observer.client.set_acls(pool.options.root, [ACL(Permissions.READ, ANYONE_ID_UNSAFE)])
    with pytest.raises(ZkLockError, match="refused to delete what is in"):
        prune(pool)
