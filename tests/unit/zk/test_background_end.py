"""The end of an interpreter: its threads end before it, in bounded time, also where it is one of several."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_zklock.testing import ZooKeeperServer
from django_zklock.zk import background
from django_zklock.zk.background import BackgroundCalls, TimerThread
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.threads import Runner
from tests.toolbox.timing import GRACE, wait_until

LONG = 60.0


def ours() -> list[threading.Thread]:
    return [each for each in threading.enumerate() if "zklock" in each.name or "zk_loop" in each.name]


def run(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code, *arguments], capture_output=True, text=True, timeout=120, check=False
    )


# Several interpreters in one process, as mod_wsgi has them.

INTERPRETERS = """
import sys
if sys.version_info >= (3, 13):
    import _interpreters as interpreters
    run = interpreters.exec
    new = interpreters.create(sys.argv[2])
else:
    import _xxsubinterpreters as interpreters
    run = interpreters.run_string
    new = interpreters.create(isolated=sys.argv[2] == "isolated")
code = '''
from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.zk import background
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions

options = ConnectionOptions(hosts=%r, session_timeout=30.0)
pool = Pool("p", PoolOptions(connection=options, connect_timeout=60.0))
try:
    with Lock("k", pool).acquire(60):
        print("held", flush=True)
    kept = Lock("kept", pool).acquire(60)
except ZooKeeperUnavailable as error:
    print(type(error.__cause__).__name__, flush=True)
if %r:
    pool.close()
    background.end_threads()
'''
failure = run(new, code % (sys.argv[1], sys.argv[3] == "closed"))
if failure is not None:
    print(failure)
interpreters.destroy(new)
print("destroyed", flush=True)
"""
# Before 3.12 an interpreter that has threads cannot be asked to end, at which it would end them.
ENDS = ["closed"] if sys.version_info < (3, 12) else ["closed", "at its end"]


@pytest.mark.shows("faults#an-interpreter-ends-and-a-thread-does-not")
@pytest.mark.parametrize("end", ENDS)
def test_interpreter__of_several(own_server: ZooKeeperServer, end: str) -> None:
    """An interpreter ends while another one goes on, and frees the locks that it has kept."""
    done = run(INTERPRETERS, own_server.hosts, "legacy", end)
    assert (done.returncode, done.stdout.split()) == (0, ["held", "destroyed"]), done.stderr
    assert own_server.sessions() == []


@pytest.mark.skipif(sys.version_info < (3, 13), reason="C extensions of Python itself do not support it")
def test_interpreter__isolated(own_server: ZooKeeperServer) -> None:
    """One that allows no daemon threads has no locks, and an error that says why, without a wait."""
    done = run(INTERPRETERS, own_server.hosts, "isolated", "at its end")
    assert (done.returncode, done.stdout.split()) == (0, ["RuntimeError", "destroyed"]), done.stderr


# The end of a process.

SLOW_LISTENER = """
import sys, threading
from django_zklock.zk.listener import LockListener
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions

class Slow(LockListener):
    def notify(self, event, _lock, /, **_facts):
        if event == "lost":
            called.set()
            threading.Event().wait(600)

called = threading.Event()
options = ConnectionOptions(hosts=sys.argv[1], session_timeout=30.0)
pool = Pool("p", PoolOptions(connection=options, connect_timeout=60.0))
held = Lock("k", pool, listener=Slow()).acquire(60)
pool.session("/").post(lambda: held._possession.contender.lose("the test says so"))
assert called.wait(60)
"""


@pytest.mark.shows("faults#an-interpreter-ends-and-a-thread-does-not")
def test_exit__slow_listener(own_server: ZooKeeperServer) -> None:
    """A listener that does not come back does not keep a process from its end."""
    done = run(SLOW_LISTENER, own_server.hosts)
    assert done.returncode == 0, done.stderr
    assert own_server.sessions() == []


# Ending the threads of a process that goes on.


def test_end_threads(make_pool: MakePool) -> None:
    """After the sessions are closed no thread is left, though one has given another one something to do."""
    others = set(ours())
    pool = make_pool()
    held = Lock("k", pool).acquire(LONG)
    before = set(ours()) - others
    assert before
    pool.close(LONG)
    held.release()
    assert background.end_threads(LONG)
    assert not [each for each in before if each.is_alive()]
    # What ends is the threads, and not the pool.
    Lock("k", pool).acquire(LONG).release()
    pool.close(LONG)


def test_end_threads__calls_are_made() -> None:
    """A thread makes the calls that it has, and those that they submit."""
    first, second = BackgroundCalls("zklock-test"), BackgroundCalls("zklock-test")
    made: list[int] = []
    go_on, begun = threading.Event(), threading.Event()

    def call(number: int) -> None:
        begun.set()
        assert go_on.wait(LONG)
        made.append(number)
        if number < 3:
            second.submit(lambda: call(number + 3))

    for number in range(3):
        first.submit(lambda number=number: call(number))  # type: ignore[misc]
    assert begun.wait(LONG)
    ending = Runner(lambda: background.end_threads(LONG))
    go_on.set()
    assert ending.result() is True
    assert sorted(made) == list(range(6))
    assert not [each for each in ours() if each.name == "zklock-test"]


@pytest.mark.shows("faults#an-interpreter-ends-and-a-thread-does-not")
def test_end_threads__one_is_busy() -> None:
    """A call that does not end is waited for as long as it was said, and no longer."""
    calls = BackgroundCalls("zklock-test")
    go_on, begun = threading.Event(), threading.Event()

    def call() -> None:
        begun.set()
        assert go_on.wait(LONG + GRACE)

    calls.submit(call)
    assert begun.wait(LONG)
    assert background.end_threads(0.1) is False
    go_on.set()
    assert background.end_threads(LONG)


def test_end_threads__by_one_of_them(make_pool: MakePool) -> None:
    """A listener that ends everything does not wait for itself."""
    pool = make_pool()
    found: list[bool] = []
    Lock("k", pool).acquire(LONG).release()
    pool.listeners.submit(lambda: found.append(pool.close(LONG) and background.end_threads(LONG)))
    wait_until(lambda: found)
    assert found == [True]


# No thread of ours waits for a thread of the application that was interrupted in the middle of our code.


@pytest.fixture
def interrupted(monkeypatch: pytest.MonkeyPatch) -> Callable[[str, Callable[[], object]], None]:
    """Make a call in another thread, once, while one with that name is being started."""
    start = threading.Thread.start

    def interrupt(name: str, call: Callable[[], object]) -> None:
        def start_interrupted(thread: threading.Thread) -> None:
            if thread.name == name:
                monkeypatch.undo()
                Runner(call).result(GRACE)
            start(thread)

        monkeypatch.setattr(threading.Thread, "start", start_interrupted)

    return interrupt


@pytest.mark.shows("faults#a-finalizer-interrupts-a-thread-of-the-application-in-our-code-and-waits")
def test_submit__while_another_thread_starts_one(interrupted: Any) -> None:
    """A call is submitted without waiting for a thread that is interrupted while it starts one, and both are made."""
    calls = BackgroundCalls("zklock-test", threads=2)
    first, second = threading.Event(), threading.Event()

    def block() -> None:
        first.set()
        # The second has a thread of its own.
        assert second.wait(LONG)

    interrupted("zklock-test", lambda: calls.submit(second.set))
    calls.submit(block)
    assert first.wait(LONG)
    assert second.wait(LONG)


@pytest.mark.shows("faults#a-finalizer-interrupts-a-thread-of-the-application-in-our-code-and-waits")
def test_call_later__while_another_thread_starts_it(interrupted: Any) -> None:
    """A timer is set without waiting for a thread that is interrupted while it starts theirs."""
    timers = TimerThread()
    first, second = threading.Event(), threading.Event()
    interrupted("zklock-timers", lambda: timers.call_later(0, second.set))
    timers.call_later(0, first.set)
    assert first.wait(LONG)
    assert second.wait(LONG)
    timers.stop()


def test_call_later__no_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where no thread can be started the call is kept, and made when the next one has found a thread."""

    def fail(_thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    timers = TimerThread()
    first, second = threading.Event(), threading.Event()
    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", fail)
        timers.call_later(0, first.set)
    assert not first.is_set()
    timers.call_later(0, second.set)
    assert first.wait(LONG)
    assert second.wait(LONG)
    timers.stop()


def test_calls__after_the_end_of_the_timers() -> None:
    """A call without a delay is made after the timers were stopped, each time, though their thread ends in between."""
    timers = TimerThread()
    timers.stop()
    for _ in range(200):
        done = threading.Event()
        timers.call_later(0, done.set)
        assert done.wait(LONG)


@pytest.mark.shows("faults#a-finalizer-interrupts-a-thread-of-the-application-in-our-code-and-waits")
def test_idle_session__while_its_guard_is_taken(own_server: ZooKeeperServer) -> None:
    """A session that looks whether it is idle does not wait for a thread that is interrupted while it starts one."""
    pool = Pool("p", PoolOptions(connection=ConnectionOptions(hosts=own_server.hosts), connect_timeout=LONG))
    session = pool.inspection()
    state = pool._of_this_process()
    looked, answered = threading.Event(), threading.Event()

    def look() -> None:
        pool._close_if_idle(state, "inspection", session)
        looked.set()

    with state.home_guard:
        session.post(look)
        session.post(answered.set)
        assert looked.wait(GRACE)
        assert answered.wait(GRACE)
    assert pool.inspecting is session
    pool.close()
