"""Locks between processes: real ones, that crash, freeze, fork and exit."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from django_zklock.zk.lock import Lock
from tests.contract.programs.player import Player
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.timing import GRACE, wait_until
from tests.toolbox.zookeeper.any_server import Server
from tests.toolbox.zookeeper.observer import Observer

MakePlayer = Callable[..., Player]


@pytest.fixture
def play(server: Server, root: str) -> Iterator[MakePlayer]:
    """Return a function that starts players, ended with the test."""
    players: list[Player] = []

    def make(part: str, *arguments: object, timeout: float = 10.0, before: str = "") -> Player:
        players.append(Player(server.hosts, root, part, *arguments, timeout=timeout, before=before))
        return players[-1]

    yield make
    for player in players:
        if player.process.stdin is not None and not player.process.stdin.closed:
            player.end()


@pytest.mark.shows("guarantees#at-most-one-holder-whose-lease-runs", "guarantees#tokens-grow")
@pytest.mark.slow
@pytest.mark.timeout(400)  # hundreds of hand-overs among eight processes on however few cores there are
def test_counter__eight_processes(play: MakePlayer, kind_of_server: str, tmp_path: Path) -> None:
    """Eight processes add one many times each to a number in a plain file: none is lost, and the tokens only grow."""
    # The server for tests hands over as surely, but more slowly: it shares the cores with them.
    rounds = {"zookeeper": 100, "testserver": 50}[kind_of_server]
    counter = tmp_path / "counter"
    counter.write_text("0")
    players = [play("count", counter, rounds, timeout=20.0) for _ in range(8)]
    for player in players:
        assert player.receive() == "ready"
    for player in players:
        player.send("go")
    for player in players:
        assert player.receive(300) == "done"
    assert counter.read_text() == str(8 * rounds)
    tokens = [int(line) for line in counter.with_suffix(".grants").read_text().split()]
    assert len(tokens) == 8 * rounds
    assert all(earlier < later for earlier, later in itertools.pairwise(tokens))


@pytest.mark.shows("faults#it-dies")
def test_process__killed(play: MakePlayer, make_pool: MakePool) -> None:
    """The lock of a process that is killed is free within the session timeout and two ticks."""
    player = play("hold", timeout=2.0)
    token = int(player.receive().split()[1])
    player.process.kill()
    began = time.monotonic()
    with Lock("k", make_pool()).acquire(timeout=120) as held:
        assert time.monotonic() - began < 2.0 + 2 * 0.2 + GRACE
        assert held.token > token


@pytest.mark.shows("faults#it-dies")
@pytest.mark.parametrize(("order", "status"), [("end", 0), ("exit", 3), ("raise", 1)])
def test_process__exits(play: MakePlayer, make_pool: MakePool, order: str, status: int) -> None:
    """The lock of a process that exits, in whatever orderly way, is free at once, and the exit is not delayed."""
    player = play("hold", timeout=30.0)
    player.receive()
    began = time.monotonic()
    player.send(order)
    Lock("k", make_pool()).acquire(timeout=120).release()
    assert time.monotonic() - began < GRACE
    code, errors = player.wait()
    assert code == status
    assert ("Traceback" in errors) == (order == "raise"), errors
    assert time.monotonic() - began < GRACE + 5


RELEASES_AT_EXIT = """
import atexit, threading, time
holds = []
def release():
    while any(thread.name == "zklock-timers" for thread in threading.enumerate()):
        time.sleep(0.01)
    for held in holds:
        held.release(wait=True)
atexit.register(release)
"""


@pytest.mark.shows("faults#it-dies")
def test_process__releases_after_its_pools_are_closed(play: MakePlayer, make_pool: MakePool) -> None:
    """A release in a function that ``atexit`` calls after ours raises nothing, and the exit is not delayed."""
    player = play("hold_to_the_end", timeout=30.0, before=RELEASES_AT_EXIT)
    player.receive()
    began = time.monotonic()
    assert player.wait() == (0, "")
    assert time.monotonic() - began < GRACE
    Lock("k", make_pool()).acquire(timeout=120).release()


@pytest.mark.shows("guarantees#that-only-the-holder-writes", "faults#it-is-stopped-for-longer-than-its-session-lives")
def test_process__frozen(play: MakePlayer, make_pool: MakePool) -> None:
    """A holder that was frozen for longer than its session has lost, knows it at once, and does not recover."""
    player = play("hold", timeout=1.0)
    token = int(player.receive().split()[1])
    player.stop()
    later = Lock("k", make_pool()).acquire(timeout=120)
    # What it writes when it wakes is refused where tokens are compared.
    assert later.token > token
    player.send("check")
    player.resume()
    assert player.receive() == "lost"
    assert player.receive() == "still lost"
    assert player.wait()[0] == 0
    later.check()
    later.release()


@pytest.mark.shows(
    "guarantees#at-most-one-holder-whose-lease-runs",
    "guarantees#that-only-the-holder-writes",
    "faults#it-is-stopped-for-longer-than-its-session-lives",
)
def test_waiter__frozen(play: MakePlayer, make_pool: MakePool, observer: Observer) -> None:
    """A waiter that sleeps through its turn and its session does not believe that it holds when it wakes."""
    lock = Lock("k", make_pool())
    held = lock.acquire()
    player = play("hold", timeout=1.0)
    observer.wait_count(lock.paths[0], 2)
    player.stop()
    held.release()
    observer.wait_empty(lock.paths[0])
    other = lock.acquire()
    player.resume()
    observer.wait_count(lock.paths[0], 2)
    other.check()
    other.release()
    assert int(player.receive().split()[1]) > other.token


@pytest.mark.shows("guarantees#forked-children-hold-nothing", "faults#it-forks-inside-of-a-block")
@pytest.mark.parametrize(
    "before",
    ["", "from gevent import monkey; monkey.patch_all()", "import eventlet; eventlet.monkey_patch()"],
    ids=["plain", "gevent", "eventlet"],
)
def test_fork__inside_a_block(play: MakePlayer, before: str) -> None:
    """A forked child that leaves an inherited block, locks, and exits touches nothing of its parent's."""
    player = play("fork", timeout=2.0, before=before)
    assert [player.receive() for _ in range(7)] == [
        "child lost True",
        "child was told True",
        "child waits for parent True",
        "child has its own True True",
        "child ends True",
        "parent True True True",
        "parent again True",
    ]
    assert player.wait()[0] == 0


@pytest.mark.shows("faults#it-forks-inside-of-a-block")
def test_fork__while_the_parent_waits(play: MakePlayer) -> None:
    """A child that is forked in a waiting thread is another owner, and waits as well."""
    player = play("fork_while_it_waits")
    assert player.receive() == "child LockTimeout"
    assert player.receive() == "parent True"
    assert player.wait()[0] == 0


@pytest.mark.shows("faults#it-forks-inside-of-a-block")
@pytest.mark.parametrize("where", ["receiver", "signal handler", "beginning"])
def test_fork__of_a_waiter(play: MakePlayer, where: str) -> None:
    """A child that goes on in the call in which its parent waits gets an error: only the parent waits."""
    player = play("fork_of_the_waiter", where)
    assert player.receive() == "child True True"
    assert player.receive() == "parent True True"
    assert player.wait()[0] == 0


@pytest.mark.shows("guarantees#forked-children-hold-nothing", "faults#it-forks-inside-of-a-block")
def test_fork__that_python_is_not_told_of(play: MakePlayer) -> None:
    """A child of a fork in C, as uWSGI makes them, has a session of its own and leaves the parent's alone."""
    player = play("fork_in_c")
    assert player.receive() == "child True True True"
    assert player.receive() == "child ends True"
    assert player.receive() == "parent True True"
    assert player.wait()[0] == 0


@pytest.mark.shows("faults#it-dies")
@pytest.mark.parametrize(
    ("module", "method", "what", "status"),
    [
        ("multiprocessing", "fork", "released", 0),
        ("multiprocessing", "fork", "ends", 0),
        ("multiprocessing", "fork", "raises", 1),
        ("multiprocessing", "fork", "exits", 3),
        ("multiprocessing", "spawn", "ends", 0),
        ("multiprocessing", "forkserver", "ends", 0),
        pytest.param("billiard", "fork", "ends", 0, marks=pytest.mark.celery),
    ],
)
def test_child__ends(
    play: MakePlayer, make_pool: MakePool, kazoo_client: KazooClient, module: str, method: str, what: str, status: int
) -> None:
    """A child of multiprocessing ends past ``atexit``; its locks are free at once, and the parent's are its own."""
    pytest.importorskip(module)
    player = play("children", module, method, what, timeout=30.0)
    _, _, session = player.receive().split()
    assert player.receive(60) == f"ended {status}"
    # Nothing is left of it: neither a lock that it has released nor one that it had.
    lock = Lock("k", make_pool())
    owners = [kazoo_client.get(f"{lock.paths[0]}/{name}")[1].ephemeralOwner for name in children(kazoo_client, lock)]
    assert int(session) not in owners
    with lock.acquire(timeout=120):
        player.send("end")
    assert player.wait()[0] == 0


def children(client: KazooClient, lock: Lock) -> list[str]:
    """Return the names of all nodes in the queue of ``lock``."""
    try:
        names: list[str] = client.get_children(lock.paths[0])
    except NoNodeError:
        return []
    return names


@pytest.mark.shows("faults#an-exception-is-raised-at-any-instruction")
def test_signal__raises_at_any_instant(play: MakePlayer, make_pool: MakePool, observer: Observer) -> None:
    """Whatever instant a signal handler raises at, while another process takes turns, no node is left."""
    player = play("alarm", 1500)
    pool = make_pool()
    stop = threading.Event()

    def take_turns() -> None:
        while not stop.is_set():
            Lock("k", pool).acquire(timeout=120).release()

    turns = threading.Thread(target=take_turns)
    turns.start()
    try:
        word, count = player.receive(100).split()
    finally:
        stop.set()
        turns.join(10)
    assert word == "struck"
    assert int(count) > 100
    assert player.receive() == "alive"
    observer.wait_empty(Lock("k", pool).paths[0])
    player.send("end")
    assert player.wait()[0] == 0


def test_gevent(play: MakePlayer) -> None:
    """The hub of a patched process turns while greenlets wait, and one that gives up leaves the lock free."""
    player = play("greenlets", before="from gevent import monkey; monkey.patch_all()")
    assert player.receive() == "turned True True"
    assert player.receive() == "free GeventHandler"
    assert player.wait()[0] == 0
    wait_until(lambda: player.process.poll() is not None)


@pytest.mark.shows("faults#it-is-monkey-patched-after-the-first-lock-object")
@pytest.mark.parametrize("fork", ["no fork", "fork"])
def test_gevent__patched_after_the_pool_was_made(play: MakePlayer, fork: str) -> None:
    """A pool that was made before the process was patched, by a lock at import, waits as the patched process does."""
    player = play("patched_late", fork)
    assert player.receive() == "turned True GeventHandler"
    assert player.receive() == "notified True"
    assert player.wait()[0] == 0


@pytest.mark.shows(
    "guarantees#that-a-process-has-time-for-its-heartbeats", "faults#a-greenlet-computes-without-yielding"
)
def test_gevent__computes_without_yielding(play: MakePlayer, make_pool: MakePool) -> None:
    """A greenlet that computes for longer than the session stops the heartbeats, and finds its loss by the clock."""
    player = play("compute", timeout=2.0, before="from gevent import monkey; monkey.patch_all()")
    assert player.receive(80) == "lost True"
    assert player.wait()[0] == 0
    Lock("k", make_pool()).acquire(timeout=120).release()
