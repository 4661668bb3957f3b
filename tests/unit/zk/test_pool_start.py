"""Sessions that this process cannot start: for want of descriptors, threads or memory, now or for good."""

from __future__ import annotations

import asyncio
import errno
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.zk import pool as pool_module
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.ops import ensemble, search
from django_zklock.zk.pool import Pool
from tests.toolbox.locks.pools import MakePool, wire_of
from tests.toolbox.network.tcp_proxy import Proxy
from tests.toolbox.processes import forked_child
from tests.toolbox.threads import Runner
from tests.toolbox.timing import GRACE, wait_until
from tests.toolbox.zookeeper.any_server import Server
from tests.toolbox.zookeeper.observer import Observer
from tests.unit.session_shortage import ERRORS, Shortage

LONG = 60.0
SHORT = 0.2


@pytest.fixture(params=ERRORS, ids=["descriptors", "threads", "memory"])
def shortage(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shortage]:
    shortage = Shortage(request.param, monkeypatch)
    yield shortage
    # What the test has begun ends.
    shortage.over = True


def assert_closed(sockets: list[socket.socket]) -> None:
    wait_until(lambda: {each.fileno() for each in sockets} <= {-1})


def refusal(call: Callable[[], object], shortage: Shortage) -> ZooKeeperUnavailable:
    """Return the error of ``call``, after a look at its cause."""
    with pytest.raises(ZooKeeperUnavailable, match="this process cannot start a connection") as caught:
        call()
    assert type(caught.value.__cause__) is type(shortage.error)
    assert "raise its limits" in str(caught.value)
    return caught.value


@pytest.mark.shows("guarantees#timeouts-are-kept", "faults#it-has-no-file-descriptor-thread-or-memory-for-a-session")
@pytest.mark.parametrize("timeout", [SHORT, 0, None])
def test_start__fails(make_pool: MakePool, shortage: Shortage, timeout: float | None) -> None:
    """The caller is told in its time that ZooKeeper is unavailable, and why; nothing is left, the next one locks."""
    pool = make_pool(connect_timeout=SHORT)
    error = refusal(lambda: Lock("k", pool).acquire(timeout), shortage)
    assert (error.key, error.timeout) == ("k", timeout)
    (session,) = pool.sessions()
    assert wire_of(session)._connection._connection_routine is None
    assert_closed(shortage.sockets)
    wait_until(lambda: isinstance(shortage.error, RuntimeError) or not (session.listeners or session.used))
    shortage.over = True
    Lock("k", pool).acquire(LONG).release()
    pool.close()
    assert_closed(shortage.sockets)


@pytest.mark.shows("guarantees#timeouts-are-kept", "faults#it-has-no-file-descriptor-thread-or-memory-for-a-session")
@pytest.mark.parametrize("is_async", [False, True])
def test_start__possible_in_time(make_pool: MakePool, shortage: Shortage, is_async: bool) -> None:
    """A caller that waits tries again, and gets its lock when the process has again what it needs."""
    lock = Lock("k", make_pool(connect_timeout=LONG))

    async def acquire() -> Held:
        return await lock.aacquire(LONG)

    waiting = Runner((lambda: asyncio.run(acquire())) if is_async else (lambda: lock.acquire(LONG)))
    wait_until(lambda: shortage.attempts >= 4)
    assert waiting.running
    shortage.over = True
    waiting.result(GRACE).release()


def test_start__no_timers(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """No lock is granted without the thread of the timers, on which its heartbeats depend."""
    pool = make_pool(connect_timeout=LONG)
    refused: list[threading.Thread] = []
    start, is_over = threading.Thread.start, threading.Event()

    def refuse(thread: threading.Thread) -> None:
        if thread.name == "zklock-timers" and not is_over.is_set():
            refused.append(thread)
            raise ERRORS[1]
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(ZooKeeperUnavailable, match="this process cannot start a connection") as caught:
        Lock("k", pool).acquire(SHORT)
    assert caught.value.__cause__ is ERRORS[1]
    waiting = Runner(lambda: Lock("k", pool).acquire(LONG))
    tries = len(refused)
    wait_until(lambda: len(refused) > tries + 2)
    assert waiting.running
    is_over.set()
    waiting.result(GRACE).release()


def test_start__many_callers(make_pool: MakePool, shortage: Shortage) -> None:
    """Many threads that wait begin one session."""
    pool = make_pool(connect_timeout=LONG)
    waiting = [Runner(lambda number=number: Lock(f"k{number}", pool).acquire(LONG)) for number in range(8)]  # type: ignore[misc]
    wait_until(lambda: shortage.attempts >= 10)
    shortage.over = True
    (session,) = pool.sessions()
    for each in waiting:
        held = each.result()
        assert held._possession.contender.session is session
        held.release()


@pytest.mark.shows("faults#it-has-no-file-descriptor-thread-or-memory-for-a-session")
def test_start__of_an_overflow_session(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A contender for which the home has no room is told so, or gets its lock when there is another session."""
    pool = make_pool(budget=1, connect_timeout=LONG)
    Lock("first", pool).acquire(LONG)
    shortage = Shortage(ERRORS[0], monkeypatch)
    refusal(lambda: Lock("k", pool).acquire(SHORT), shortage)
    waiting = Runner(lambda: Lock("k", pool).acquire(LONG))
    attempts = shortage.attempts
    wait_until(lambda: shortage.attempts >= attempts + 2)
    shortage.over = True
    waiting.result().release()


@pytest.mark.shows("faults#it-has-no-file-descriptor-thread-or-memory-for-a-session")
def test_start__of_inspection(make_pool: MakePool, shortage: Shortage) -> None:
    """A caller that looks at locks is told in time, or sees them."""
    pool = make_pool(connect_timeout=LONG)
    refusal(lambda: search.find(pool, timeout=SHORT), shortage)
    waiting = Runner(lambda: search.find(pool, timeout=LONG))
    attempts = shortage.attempts
    wait_until(lambda: shortage.attempts >= attempts + 2)
    shortage.over = True
    assert waiting.result(GRACE) == []


@pytest.mark.shows("faults#it-has-no-file-descriptor-thread-or-memory-for-a-session")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_start__after_a_fork(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A forked child that has no descriptor is told so, and its parent keeps its lock."""
    pool = make_pool(connect_timeout=LONG)
    held = Lock("k", pool).acquire(LONG)

    def ask(report: Callable[[object], None]) -> None:
        Shortage(ERRORS[0], monkeypatch)
        try:
            Lock("other", pool).acquire(SHORT)
        except ZooKeeperUnavailable as error:
            report(type(error.__cause__).__name__)

    with forked_child.fork(ask) as child:
        assert child.receive() == "OSError"
    held.check()
    held.release()


def test_start__closed_meanwhile(make_pool: MakePool, shortage: Shortage) -> None:
    """A session that was closed before it could be started is not started any more."""
    pool = make_pool(connect_timeout=LONG)
    session = pool.session("/")
    assert session.start_failure is shortage.error
    assert pool.close()
    shortage.over = True
    session.start_wire()
    assert shortage.sockets == [] or not isinstance(shortage.error, OSError)
    # What another thread has begun before it was closed ends too.
    session.wire.start()
    assert_closed(shortage.sockets)
    wire_of(session)._connection._connection_routine.join(LONG)
    assert pool.sessions() == []


@pytest.mark.parametrize("operation", ["lock", "inspection"])
def test_start__never(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch, operation: str) -> None:
    """Where no thread can ever be started the caller does not wait, and nothing is left."""
    monkeypatch.setattr(pool_module, "can_start_threads", lambda: False)
    shortage = Shortage(RuntimeError("can't create new thread at interpreter shutdown"), monkeypatch)
    pool = make_pool(connect_timeout=LONG)
    with pytest.raises(ZooKeeperUnavailable, match="cannot start a connection, now or later") as caught:
        Lock("k", pool).acquire() if operation == "lock" else search.find(pool, timeout=LONG)
    assert caught.value.__cause__ is shortage.error
    assert caught.value.key == ("k" if operation == "lock" else None)
    assert (pool.sessions(), pool.inspecting) == ([], None)
    assert_closed(shortage.sockets)


@pytest.mark.parametrize("error", [RecursionError("too deep"), KeyError("a mistake"), KeyboardInterrupt()])
def test_start__other_errors(
    make_pool: MakePool, observer: Observer, monkeypatch: pytest.MonkeyPatch, error: BaseException
) -> None:
    """What says nothing about descriptors, threads and memory stays what it is."""
    shortage = Shortage(error, monkeypatch)  # type: ignore[arg-type]
    pool = make_pool()
    lock = Lock("k", pool)
    with pytest.raises(type(error)):
        lock.acquire(LONG)
    assert pool.sessions() == []
    shortage.over = True
    lock.acquire(LONG).release(wait=True)
    assert observer.children(lock.paths[0]) == []


def test_servers__no_thread(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that cannot be asked, for want of a thread, has that as its problem."""
    pool = make_pool()
    Shortage(ERRORS[1], monkeypatch)
    (found,) = ensemble.servers(pool.options.connection, timeout=LONG)
    assert found.problem == "can't start new thread"


# A process that is really out of descriptors, from its first lock on.

NO_DESCRIPTORS = """
import os, resource, sys
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.zk import background
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions

def use_up():
    used = []
    try:
        while True:
            used.append(os.open("/dev/null", os.O_RDONLY))
    except OSError:
        return used

def give_back(used):
    for number in used:
        os.close(number)

options = ConnectionOptions(hosts=sys.argv[1], session_timeout=30.0)
pool = Pool("p", PoolOptions(connection=options, root=sys.argv[2], connect_timeout=60.0))
_soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
resource.setrlimit(resource.RLIMIT_NOFILE, (128, hard))
for _ in range(2):
    used = use_up()
    try:
        Lock("k", pool).acquire(0.2)
    except ZooKeeperUnavailable as error:
        print(type(error.__cause__).__name__, error.__cause__.errno, flush=True)
    give_back(used)
    held = Lock("k", pool).acquire(60)
    print("held", flush=True)
    held.release()
    pool.close()
    background.end_threads()
held = Lock("k", pool).acquire(60)
used = use_up()
print("used up", flush=True)
input()
give_back(used)
Lock("other", pool).acquire(60).release()
print("lost", held.lost, flush=True)
pool.close()
"""


@pytest.mark.shows("faults#it-has-no-file-descriptor-thread-or-memory-for-a-session")
@pytest.mark.parametrize("host", ["127.0.0.1", "localhost"])
def test_no_descriptors(server: Server, root: str, host: str) -> None:
    """Callers are told at the first lock and at a later one; a holder keeps its lock, and connects when it can."""
    name, port = server.hosts.rsplit(":", 1)
    with Proxy((name, int(port))) as proxy:
        hosts = f"{host}:{proxy.hosts.rsplit(':', 1)[1]}"
        child = subprocess.Popen(
            [sys.executable, "-c", NO_DESCRIPTORS, hosts, root],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        with child:
            assert child.stdout is not None
            said = [child.stdout.readline().strip() for _ in range(5)]
            assert said == [f"OSError {errno.EMFILE}", "held"] * 2 + ["used up"], child.communicate()
            proxy.cut()
            rest, errors = child.communicate("\n", timeout=120)
    assert rest.split() == ["lost", "False"], errors


# Kazoo is imported at the first use, in a thread.

IMPORT = """
import threading
from django_zklock.zk import wire

def refuse(_thread):
    raise RuntimeError("can't start new thread")

threading.Thread.start = refuse
print(wire.Wire.__name__, flush=True)
"""


def test_import__no_thread() -> None:
    """Where no thread can be started the client is imported in the calling one."""
    done = subprocess.run([sys.executable, "-c", IMPORT], capture_output=True, text=True, timeout=120, check=False)
    assert done.stdout == "Wire\n", done.stderr


def test_import__fails(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An import for which there is no descriptor is an outage, with its cause."""

    def fail(*_arguments: object, **_options: object) -> Any:
        raise ERRORS[0]

    pool: Pool = make_pool(connect_timeout=LONG)
    monkeypatch.setattr(pool_module, "Session", fail)
    with pytest.raises(
        ZooKeeperUnavailable, match=r"this process cannot start a connection: .*raise its limits"
    ) as caught:
        Lock("k", pool).acquire()
    assert caught.value.__cause__ is ERRORS[0]
    assert caught.value.key == "k"
