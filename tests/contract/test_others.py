"""Our locks with those of Apache Curator and of kazoo in one queue."""

from __future__ import annotations

import ast
import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import kazoo.recipe.lock
import pytest

from django_zklock.zk.lock import Lock
from django_zklock.zk.ops import actions
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import EXCLUSIVE, READ, WRITE, Rule, semaphore
from tests.contract.other_recipes import KAZOO_LOCKS, OfCurator, OfKazoo, Other
from tests.toolbox.curator.clients import Curator
from tests.toolbox.threads import Runner, waiting_in
from tests.toolbox.timing import wait_until
from tests.toolbox.zookeeper.any_server import Server
from tests.toolbox.zookeeper.observer import Observer

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
IDS = [f"{theirs}-{ours.kind.value}" for theirs, ours, _ in PAIRS]


@pytest.fixture(params=[pytest.param("curator", marks=pytest.mark.once), "kazoo"])
def join(request: pytest.FixtureRequest, server: Server, pool: Pool) -> Iterator[Join]:
    """Return what makes contenders of another recipe, each with a session of its own, at the queue of ``k``."""
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
def test_they_hold(join: Join, pool: Pool, observer: Observer, theirs: str, ours: Rule, together: bool) -> None:
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
    observer.wait_count(lock.paths[0], 2)
    assert waiting.running
    other.release()
    held = waiting.result()
    assert not join(theirs).tries()
    held.release(wait=True)


@pytest.mark.parametrize(("theirs", "ours", "together"), PAIRS, ids=IDS)
def test_we_hold(join: Join, pool: Pool, observer: Observer, theirs: str, ours: Rule, together: bool) -> None:
    """They stay out as long as we hold what excludes them, and come in when we let go."""
    lock, other = Lock("k", pool, rule=ours), join(theirs)
    held = lock.acquire(timeout=60)
    assert other.tries() is together
    if together:
        other.release()
        held.release()
        return
    observer.wait_count(lock.paths[0], 1)
    other.start()
    observer.wait_count(lock.paths[0], 2)
    assert other.waits
    held.release()
    other.wait_granted()
    assert Runner(lock.try_acquire).result() is None
    other.release()
    lock.acquire(timeout=120).release(wait=True)


# Which lock keeps out which, as the documents have it.

PAGE = Path(__file__).parents[2] / "docs" / "howto" / "interoperate.md"
CURATOR_RECIPES = {
    "Curator `InterProcessMutex`": "mutex",
    "Curator `InterProcessMultiLock` of mutexes": "multi",
    "Curator `InterProcessReadWriteLock.readLock()`": "read",
    "Curator `InterProcessReadWriteLock.writeLock()`": "write",
    "Curator `InterProcessSemaphoreMutex`": "semaphore-mutex",
    "Curator `InterProcessSemaphoreV2`": "semaphore",
}
KAZOO_RECIPES = {"kazoo `Lock`": "mutex", "kazoo `ReadLock`": "read", "kazoo `WriteLock`": "write",
                 "kazoo `Semaphore`": "semaphore"}  # fmt: skip
OURS: dict[str, tuple[Rule, list[str]]] = {
    "`zk_lock(key)`": (EXCLUSIVE, ["k"]),
    '`mode="read"`': (READ, ["k"]),
    '`mode="write"`': (WRITE, ["k"]),
    "`limit=2`": (semaphore(2), ["k"]),
    "`zk_lock([key, …])`": (EXCLUSIVE, ["k", "l"]),
}
# Whether we wait for the other, and whether it waits for us.
WAITS = {
    "both": (True, True), "we wait": (True, False), "it waits": (False, True),
    "share": (False, False), "no": (False, False),
}  # fmt: skip


def read_table() -> dict[tuple[str, str], str]:
    """Return the cells of the table in the documents, by row and column."""
    lines = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    head, *rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {(row[0], column): cell for row in rows for column, cell in zip(head[1:], row[1:], strict=True)}


TABLE = read_table()


def test_table__is_whole() -> None:
    """The table is about every recipe that we know, and every lock of ours."""
    assert set(TABLE) == {(row, column) for row in CURATOR_RECIPES | KAZOO_RECIPES for column in OURS}


def exclusions(pool: Pool, other: Other, rule: Rule, keys: list[str]) -> tuple[bool, bool]:
    """Find out whether a lock of ours waits for one of theirs, and the other way round."""
    lock = Lock(keys, pool, rule=rule)
    other.acquire()
    ours = lock.try_acquire()
    other.release()
    if ours is not None:
        ours.release(wait=True)
    held = lock.acquire(timeout=120)
    theirs = other.tries()
    if theirs:
        other.release()
    held.release(wait=True)
    return ours is None, not theirs


@pytest.mark.shows("interoperate#what-is-tested")
@pytest.mark.once
@pytest.mark.parametrize("column", OURS)
@pytest.mark.parametrize("row", CURATOR_RECIPES)
def test_table__of_curator(curator: Curator, server: Server, pool: Pool, row: str, column: str) -> None:
    """Each cell of the table is true of Curator's own recipe."""
    with contextlib.closing(OfCurator(curator, server.hosts, CURATOR_RECIPES[row], pool.path("k"))) as other:
        assert exclusions(pool, other, *OURS[column]) == WAITS[TABLE[row, column]]


@pytest.mark.shows("interoperate#what-is-tested")
@pytest.mark.parametrize("column", OURS)
@pytest.mark.parametrize("row", KAZOO_RECIPES)
def test_table__of_kazoo(server: Server, pool: Pool, row: str, column: str) -> None:
    """Each cell of the table is true of kazoo's own recipe."""
    with contextlib.closing(OfKazoo(server.hosts, KAZOO_RECIPES[row], pool.path("k"))) as other:
        assert exclusions(pool, other, *OURS[column]) == WAITS[TABLE[row, column]]


@pytest.mark.shows("interoperate#what-is-tested")
@pytest.mark.parametrize("recipe", [kazoo.recipe.lock.Lock, kazoo.recipe.lock.ReadLock, kazoo.recipe.lock.WriteLock])
def test_kazoo__as_it_comes(observer: Observer, pool: Pool, recipe: type[kazoo.recipe.lock.Lock]) -> None:
    """A lock of kazoo that is not told of our names does not see us."""
    with Lock("k", pool):
        theirs = recipe(observer.client, pool.path("k"))
        assert theirs.acquire(blocking=False)
        theirs.release()


def test_page__names_what_kazoo_must_know() -> None:
    """The patterns in the documents are those that the table is tested with."""
    (patterns,) = re.findall(r"extra_lock_patterns=(\[.*?\])", PAGE.read_text(encoding="utf-8"))
    assert ast.literal_eval(patterns) == KAZOO_LOCKS["mutex"][1] == KAZOO_LOCKS["write"][1]
    assert {*KAZOO_LOCKS["read"][1], "__READ__"} == set(KAZOO_LOCKS["mutex"][1])


@pytest.mark.shows("interoperate#what-is-tested")
@pytest.mark.once
def test_multi_lock__each_waits_for_the_other(curator: Curator, server: Server, pool: Pool, observer: Observer) -> None:
    """A client that takes locks one by one, as InterProcessMultiLock does, can wait for us while we wait for it."""
    client = curator.connect(server.hosts)
    assert client.ask(f"acquire mutex {pool.path('a')}") == "acquired"
    both = waiting_in(Lock(["a", "b"], pool))
    observer.wait_count(pool.path("a"), 2)
    assert client.ask(f"try mutex {pool.path('b')} 300") == "busy"
    assert both.running
    assert client.ask(f"release mutex {pool.path('a')}") == "released"
    both.result().release(wait=True)
    client.close()
    client.wait_closed()


def test_fair__our_reader(join: Join, pool: Pool, observer: Observer) -> None:
    """A reader of ours waits behind a writer of theirs that waits for other readers."""
    reading, writing = Lock("k", pool, rule=READ).acquire(timeout=60), join("write")
    writing.start()
    observer.wait_count(pool.path("k"), 2)
    assert Runner(Lock("k", pool, rule=READ).try_acquire).result() is None
    late = waiting_in(Lock("k", pool, rule=READ))
    observer.wait_count(pool.path("k"), 3)
    reading.release()
    writing.wait_granted()
    assert late.running
    writing.release()
    late.result().release(wait=True)


def test_fair__their_reader(join: Join, pool: Pool, observer: Observer) -> None:
    """A reader of theirs waits behind a writer of ours that waits for other readers."""
    first, late = join("read"), join("read")
    first.acquire()
    writing = waiting_in(Lock("k", pool, rule=WRITE))
    observer.wait_count(pool.path("k"), 2)
    assert not late.tries()
    observer.wait_count(pool.path("k"), 2)
    late.start()
    observer.wait_count(pool.path("k"), 3)
    first.release()
    held = writing.result()
    assert late.waits
    held.release()
    late.wait_granted()
    late.release()


def test_their_session_ends(join: Join, pool: Pool, observer: Observer) -> None:
    """A client that ends without a word leaves the lock to us, and to the contender that waits behind us."""
    writer, reader = join("write"), join("read")
    writer.acquire()
    ours = waiting_in(Lock("k", pool, rule=WRITE))
    observer.wait_count(pool.path("k"), 2)
    reader.start()
    observer.wait_count(pool.path("k"), 3)
    writer.close()
    held = ours.result()
    assert reader.waits
    held.release()
    reader.wait_granted()


# Asking to let go, as Curator does it.


@pytest.mark.once
def test_revoke__they_ask(curator: Curator, server: Server, make_pool: Callable[..., Pool]) -> None:
    """Curator's Revoker reaches a holder of ours."""
    with Lock("k", make_pool(session_timeout=4.0)) as held:
        client = curator.connect(server.hosts)
        assert client.ask(f"revoke {held.node}") == "asked"
        assert "Apache Curator" in wait_until(lambda: held.revoked)
        client.close()
        client.wait_closed()


@pytest.mark.once
def test_revoke__we_ask(curator: Curator, server: Server, pool: Pool, observer: Observer) -> None:
    """A wish of ours reaches a holder of Curator's that listens."""
    path = pool.path("k")
    client = curator.connect(server.hosts)
    assert client.ask(f"listen {path}") == "listening"
    assert client.ask(f"acquire mutex {path}") == "acquired"
    actions.revoke(pool, f"{path}/{observer.children(path)[0]}", "please", timeout=60)
    assert client.events.get() == "REVOKED"
    client.close()
    client.wait_closed()
