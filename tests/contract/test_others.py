"""Our locks with those of Apache Curator and of kazoo in one line."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from django_zklock.zk import revocation
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.rules import EXCLUSIVE, READ, WRITE, Rule, semaphore
from tests.contract.others import OfCurator, OfKazoo, Other
from tests.server import Server
from tests.testing.curator import Curator
from tests.zk.onlooker import Onlooker, wait_until
from tests.zk.runner import Runner, waiting_in

Join = Callable[[str], Other]

# Theirs and ours, and whether both may hold at once. Curator's mutex looks at the nodes of mutexes only, and its
# read-write lock at its own only.
PAIRS = [
    ("mutex", EXCLUSIVE, False),
    ("write", WRITE, False),
    ("write", READ, False),
    ("read", WRITE, False),
    ("read", READ, True),
]
# They do not see us, or not all of us; but we see them.
THEY_FIRST = [("mutex", WRITE), ("mutex", READ), ("mutex", semaphore(9)), ("write", EXCLUSIVE), ("read", EXCLUSIVE)]
IDS = [f"{theirs}-{ours.kind.value}" for theirs, ours, _ in PAIRS]


@pytest.fixture(params=[pytest.param("curator", marks=pytest.mark.once), "kazoo"])
def join(request: pytest.FixtureRequest, server: Server, pool: Pool) -> Iterator[Join]:
    """Give a function that makes people of another recipe, each with a session of its own, at the line of ``k``."""
    others: list[Other] = []

    def make(kind: str) -> Other:
        if request.param == "curator":
            program: Curator = request.getfixturevalue("curator")
            others.append(OfCurator(program, server.hosts, kind, pool.path("k")))
        else:
            others.append(OfKazoo(server.hosts, kind, pool.path("k")))
        return others[-1]

    yield make
    for other in others:
        other.close()


@pytest.mark.parametrize(("theirs", "ours", "together"), PAIRS, ids=IDS)
def test_they_hold(join: Join, pool: Pool, onlooker: Onlooker, theirs: str, ours: Rule, together: bool) -> None:
    """We stay out as long as they hold what excludes us, and come in when they let go."""
    lock, other = Lock("k", pool, rule=ours), join(theirs)
    other.acquire()
    tried = lock.try_acquire()
    assert (tried is not None) is together
    if tried is not None:
        tried.release(wait=True)
    waiting = waiting_in(lock)
    if together:
        waiting.result().release(wait=True)
        other.release()
        return
    onlooker.wait_count(lock.paths[0], 2)
    assert waiting.running
    other.release()
    held = waiting.result()
    assert not join(theirs).tries()
    held.release(wait=True)


@pytest.mark.parametrize(("theirs", "ours", "together"), PAIRS, ids=IDS)
def test_we_hold(join: Join, pool: Pool, onlooker: Onlooker, theirs: str, ours: Rule, together: bool) -> None:
    """They stay out as long as we hold what excludes them, and come in when we let go."""
    lock, other = Lock("k", pool, rule=ours), join(theirs)
    held = lock.acquire(timeout=5)
    assert other.tries() is together
    if together:
        other.release()
        held.release()
        return
    onlooker.wait_count(lock.paths[0], 1)
    other.start()
    onlooker.wait_count(lock.paths[0], 2)
    assert other.waits
    held.release()
    other.wait_granted()
    assert Runner(lock.try_acquire).result() is None
    other.release()
    lock.acquire(timeout=10).release(wait=True)


@pytest.mark.parametrize(
    ("theirs", "ours"), THEY_FIRST, ids=[f"{theirs}-{ours.kind.value}" for theirs, ours in THEY_FIRST]
)
def test_they_came_first(join: Join, pool: Pool, onlooker: Onlooker, theirs: str, ours: Rule) -> None:
    """We wait for what they hold also where their recipe would not wait for us."""
    lock, other = Lock("k", pool, rule=ours), join(theirs)
    other.acquire()
    assert lock.try_acquire() is None
    waiting = waiting_in(lock)
    onlooker.wait_count(lock.paths[0], 2)
    assert waiting.running
    other.release()
    waiting.result().release(wait=True)


def test_fair__our_reader(join: Join, pool: Pool, onlooker: Onlooker) -> None:
    """A reader of ours waits behind a writer of theirs that waits for other readers."""
    reading, writing = Lock("k", pool, rule=READ).acquire(timeout=5), join("write")
    writing.start()
    onlooker.wait_count(pool.path("k"), 2)
    assert Runner(Lock("k", pool, rule=READ).try_acquire).result() is None
    late = waiting_in(Lock("k", pool, rule=READ))
    onlooker.wait_count(pool.path("k"), 3)
    reading.release()
    writing.wait_granted()
    assert late.running
    writing.release()
    late.result().release(wait=True)


def test_fair__their_reader(join: Join, pool: Pool, onlooker: Onlooker) -> None:
    """A reader of theirs waits behind a writer of ours that waits for other readers."""
    first, late = join("read"), join("read")
    first.acquire()
    writing = waiting_in(Lock("k", pool, rule=WRITE))
    onlooker.wait_count(pool.path("k"), 2)
    assert not late.tries()
    onlooker.wait_count(pool.path("k"), 2)
    late.start()
    onlooker.wait_count(pool.path("k"), 3)
    first.release()
    held = writing.result()
    assert late.waits
    held.release()
    late.wait_granted()
    late.release()


def test_their_session_ends(join: Join, pool: Pool, onlooker: Onlooker) -> None:
    """Who ends without a word leaves the lock to us, and to whoever waits behind us."""
    writer, reader = join("write"), join("read")
    writer.acquire()
    ours = waiting_in(Lock("k", pool, rule=WRITE))
    onlooker.wait_count(pool.path("k"), 2)
    reader.start()
    onlooker.wait_count(pool.path("k"), 3)
    writer.close()
    held = ours.result()
    assert reader.waits
    held.release()
    reader.wait_granted()


# Asking to let go, as Curator does it.


@pytest.mark.once
def test_revoke__they_ask(curator: Curator, server: Server, make_pool: Callable[..., Pool]) -> None:
    """Curator's Revoker reaches a holder of ours."""
    with Lock("k", make_pool(session_timeout=1.5)) as held:
        client = curator.connect(server.hosts)
        assert client.ask(f"revoke {held.node}") == "asked"
        assert "Apache Curator" in wait_until(lambda: held.revoked)
        client.close()
        client.wait_closed()


@pytest.mark.once
def test_revoke__we_ask(curator: Curator, server: Server, pool: Pool, onlooker: Onlooker) -> None:
    """A wish of ours reaches a holder of Curator's that listens."""
    path = pool.path("k")
    client = curator.connect(server.hosts)
    assert client.ask(f"listen {path}") == "listening"
    assert client.ask(f"acquire mutex {path}") == "acquired"
    revocation.ask(pool, f"{path}/{onlooker.children(path)[0]}", "please", timeout=5)
    assert client.events.get() == "REVOKED"
    client.close()
    client.wait_closed()
