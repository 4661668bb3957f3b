"""What is told of locks in the background: few threads, nothing left out, nothing held up."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

import pytest

from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.background import BackgroundCalls
from django_zklock.zk.held import Held
from django_zklock.zk.listener import LockListener, LockValue
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import LISTENER_THREADS, Pool
from tests.toolbox.locks.losses import Losses
from tests.toolbox.locks.pools import MakePool, actions_of
from tests.toolbox.network.tcp_proxy import Proxy
from tests.toolbox.threads import waiting_in
from tests.toolbox.timing import wait_until
from tests.toolbox.zookeeper.observer import Observer

LOCKS = 2_000
NAMES = ("zklock-actions", "zklock-listeners")


class Threads(Losses):
    """Keeps by which threads it is told."""

    def __init__(self) -> None:
        super().__init__()
        self.threads: set[threading.Thread] = set()

    def notify(self, event: str, lock: LockValue, /, **facts: Any) -> None:
        if event == "lost":
            self.threads.add(threading.current_thread())
        super().notify(event, lock, **facts)


class Blocked(LockListener):
    """Blocks the threads that tell it, until the test lets them go on."""

    def __init__(self) -> None:
        self.called: list[Held] = []
        self.go_on = threading.Event()

    def notify(self, event: str, _lock: object, /, **facts: Any) -> None:
        if event == "lost":
            self.called.append(facts["held"])
            assert self.go_on.wait(60)


@pytest.fixture
def blocked() -> Iterator[Blocked]:
    listener = Blocked()
    yield listener
    listener.go_on.set()


@pytest.fixture
def shortage(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Start no thread for notifications until the event is set."""
    over = threading.Event()
    start = threading.Thread.start

    def start_if_possible(thread: threading.Thread) -> None:
        if thread.name in NAMES and not over.is_set():
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", start_if_possible)
    return over


def hold(pool: Pool, count: int, listener: LockListener) -> list[Held]:
    return [Lock(f"k{number}", pool, listener=listener).acquire(timeout=120) for number in range(count)]


@pytest.mark.shows("faults#it-loses-all-its-locks-at-once-and-no-thread-can-be-started")
def test_loss__of_many_at_once(make_pool: MakePool, observer: Observer) -> None:
    """Of two thousand locks that are lost at once each is told, by a few threads."""
    listener = Threads()
    called: list[Held] = []
    pool = make_pool(session_timeout=20.0)
    holds = hold(pool, LOCKS, listener)
    for held in holds:
        held._when_lost(lambda held=held: called.append(held))  # type: ignore[misc]
    observer.end_session(pool)
    wait_until(lambda: len(listener.notified) == LOCKS, 60)
    assert {held for held, _reason in listener.notified} == set(called) == set(holds)
    assert len(listener.threads) <= LISTENER_THREADS
    assert len(called) == LOCKS
    for held in reversed(holds):
        held.release()


@pytest.mark.shows("faults#it-loses-all-its-locks-at-once-and-no-thread-can-be-started")
def test_loss__where_threads_are_short(make_pool: MakePool, observer: Observer, shortage: threading.Event) -> None:
    """What cannot be told for want of a thread stays queued, and is told when there is one, without further news."""
    listener = Losses()
    pool = make_pool()
    holds = hold(pool, 30, listener)
    observer.end_session(pool)
    wait_until(lambda: all(held.lost for held in holds))
    wait_until(lambda: actions_of(pool).waiting == len(holds))
    assert listener.notified == []
    shortage.set()
    wait_until(lambda: len(listener.notified) == len(holds))
    assert {held for held, _reason in listener.notified} == set(holds)


@pytest.mark.shows("faults#it-loses-all-its-locks-at-once-and-no-thread-can-be-started")
def test_loss__listeners_block(make_pool: MakePool, observer: Observer, blocked: Blocked) -> None:
    """Listeners that block keep no other lock's body from being interrupted."""
    count = 3 * LISTENER_THREADS
    pool = make_pool()
    holds = hold(pool, count, blocked)
    interrupted: list[Held] = []
    for held in holds:
        held._when_lost(lambda held=held: interrupted.append(held))  # type: ignore[misc]
    observer.end_session(pool)
    wait_until(lambda: len(interrupted) == count)
    wait_until(lambda: len(blocked.called) == LISTENER_THREADS)
    blocked.go_on.set()
    wait_until(lambda: len(blocked.called) == count)


@pytest.mark.shows("faults#it-loses-all-its-locks-at-once-and-no-thread-can-be-started")
def test_loss__one_listener_blocks(make_pool: MakePool, observer: Observer, blocked: Blocked) -> None:
    """A listener that blocks does not keep the others from hearing."""
    listener = Losses()
    pool = make_pool()
    first = Lock("first", pool, listener=blocked).acquire(timeout=120)
    holds = hold(pool, 20, listener)
    observer.end_session(pool)
    wait_until(lambda: len(listener.notified) == len(holds))
    assert blocked.called == [first]


@pytest.mark.shows("faults#a-callback-raises")
def test_loss__a_call_raises(pool: Pool, observer: Observer, caplog: pytest.LogCaptureFixture) -> None:
    """An error in one call keeps neither the others nor the listener from hearing, and is logged."""

    def fail() -> None:
        raise ValueError("no good")

    listener = Losses()
    held = Lock("k", pool, listener=listener).acquire(timeout=120)
    notified = threading.Event()
    held._when_lost(fail)
    held._when_lost(notified.set)
    observer.end_session(pool)
    wait_until(lambda: listener.notified)
    assert notified.is_set()
    assert "event=when_lost_failed" in caplog.text


class Faulty:
    """A listener of a session that fails in each of its methods."""

    def __getattr__(self, name: str) -> Any:
        def fail(*_arguments: object) -> None:
            raise ValueError(name)

        return fail


@pytest.mark.shows("faults#a-callback-raises")
def test_listener__raises(
    testserver: ZooKeeperServer, make_pool: MakePool, observer: Observer, caplog: pytest.LogCaptureFixture
) -> None:
    """A listener of a session that raises does not make the waiters behind it deaf, and is named in the log."""
    holder = make_pool()
    held = Lock("k", holder).acquire(timeout=120)
    with Proxy(testserver.address) as proxy:
        pool = make_pool(proxy.hosts)
        session = pool.session("/")
        faulty: Any = Faulty()
        attached = threading.Event()
        session.post(lambda: session.add_listener(faulty))
        session.post(attached.set)
        assert attached.wait(10)
        waiter = waiting_in(Lock("k", pool))
        observer.wait_count(held.lock.paths[0], 2)
        epoch = session.epoch
        proxy.cut()
        wait_until(lambda: session.epoch > epoch and session.connected)
        held.release()
        waiter.result().release()
        assert "event=listener_failed" in caplog.text
        session.post(lambda: session.listeners.pop(faulty))


# The threads themselves.


def test_calls__threads_end() -> None:
    """Threads without work end; later work has new ones."""
    calls = BackgroundCalls("zklock-test", threads=3)
    seen: list[threading.Thread] = []
    for _ in range(2):
        done = threading.Event()
        calls.submit(lambda: seen.append(threading.current_thread()))
        calls.submit(done.set)
        assert done.wait(10)
        wait_until(lambda: not any(thread.name == "zklock-test" for thread in threading.enumerate()))
    assert len({id(thread) for thread in seen}) == 2


def test_calls__at_most_so_many_threads() -> None:
    """No more threads start than are allowed, and each call that blocks has one of them as long as there are any."""
    calls = BackgroundCalls("zklock-test", threads=3)
    go_on, begun = threading.Event(), threading.Semaphore(0)

    def block() -> None:
        begun.release()
        assert go_on.wait(60)

    for _ in range(10):
        calls.submit(block)
    for _ in range(3):
        assert begun.acquire(timeout=120)
    assert calls.waiting == 7
    go_on.set()
    for _ in range(7):
        assert begun.acquire(timeout=120)
    assert calls.flush(10)


def test_calls__raise(caplog: pytest.LogCaptureFixture) -> None:
    """A call that raises, even to end its thread, is logged, and those behind it are made."""
    calls = BackgroundCalls("zklock-test")
    for error in (ValueError, SystemExit):

        def fail(error: type[BaseException] = error) -> None:
            raise error

        calls.submit(fail)
    assert calls.flush(10)
    assert caplog.text.count("event=call_failed") == 2


def test_flush__without_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can be started, the thread that waits for the calls makes them."""

    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    calls = BackgroundCalls("zklock-test")
    monkeypatch.setattr(threading.Thread, "start", fail)
    made: list[int] = []
    for number in range(3):
        calls.submit(lambda number=number: made.append(number))  # type: ignore[misc]
    assert made == []
    assert calls.flush(10)
    assert made == [0, 1, 2]


def test_submit__tries_again(shortage: threading.Event) -> None:
    """Where there is no timer to try again, the next call does."""
    calls = BackgroundCalls(NAMES[0], call_later=None)
    first, second = threading.Event(), threading.Event()
    calls.submit(first.set)
    shortage.set()
    calls.submit(second.set)
    assert first.wait(10)
    assert second.wait(10)
