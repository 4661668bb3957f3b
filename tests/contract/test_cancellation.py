"""Waits that are ended from outside."""

from __future__ import annotations

import asyncio
import gc
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import pytest

from django_zklock.exceptions import LockCancelled, LockTimeout
from django_zklock.zk.held import Held, held_stack
from django_zklock.zk.listener import LockListener
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.waiting import Cancellation
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.threads import Runner
from tests.toolbox.timing import wait_until
from tests.toolbox.zookeeper.any_server import Server
from tests.toolbox.zookeeper.observer import Observer

pytest_plugins = ["tests.toolbox.slow_deadlines"]

LONG = 60.0
REPOSITORY = Path(__file__).resolve().parents[2]


def wait_with(lock: Lock, cancellation: Cancellation, **options: Any) -> Runner:
    """Wait for the lock in a thread, and release it as soon as it is granted; give its token."""

    def wait() -> int:
        with lock.acquire(cancellation=cancellation, **options) as held:
            return held.token

    return Runner(wait)


@pytest.fixture
def taken(pool: Pool, make_pool: MakePool) -> Iterator[Lock]:
    """Return a lock that another process holds."""
    with Lock("k", make_pool()).acquire(timeout=LONG):
        yield Lock("k", pool)


def test_cancel(taken: Lock, observer: Observer) -> None:
    """A wait without an end raises an error that has the facts, leaves the queue, and others wait on."""
    cancellation, other = Cancellation(), Cancellation()
    waiters = [wait_with(taken, each) for each in (cancellation, other)]
    observer.wait_count(taken.paths[0], 3)
    cancellation.cancel()
    with pytest.raises(LockCancelled, match=r"the wait for lock 'k'.* was cancelled after") as caught:
        waiters[0].result()
    assert (caught.value.key, caught.value.timeout) == ("k", None)
    observer.wait_count(taken.paths[0], 2)
    assert waiters[1].running
    assert (cancellation.cancelled, other.cancelled) == (True, False)
    other.cancel()
    assert isinstance(waiters[1].outcome(), LockCancelled)
    observer.wait_count(taken.paths[0], 1)


def test_cancel__names_the_holder(taken: Lock, observer: Observer) -> None:
    """A holder that is known is in the error."""

    class Curious(LockListener):
        notified = threading.Event()

        def wants(self, event: str) -> bool:
            return event == "contended"

        def notify(self, event: str, _lock: object, /, **_facts: object) -> None:
            self.notified.set()

    cancellation, lock = Cancellation(), Lock("k", taken.pool, listener=Curious())
    waiter = wait_with(lock, cancellation)
    assert Curious.notified.wait(LONG)
    cancellation.cancel()
    error = waiter.outcome()
    assert isinstance(error, LockCancelled)
    assert error.holder is not None
    assert error.holder.pid == os.getpid()
    assert f", held by {error.holder.as_holder}," in str(error)


def test_cancel__before_the_wait(pool: Pool, observer: Observer) -> None:
    """A wait that is cancelled before it begins sends nothing, whether the lock is free or not."""
    cancellation = Cancellation()
    cancellation.cancel()
    cancellation.cancel()
    lock = Lock("k", pool)
    for timeout in (None, 0, LONG):
        with pytest.raises(LockCancelled):
            lock.acquire(timeout, cancellation=cancellation)
        with pytest.raises(LockCancelled):
            asyncio.run(lock.aacquire(timeout, cancellation=cancellation))
    assert observer.client.exists(lock.paths[0]) is None
    assert held_stack() == []
    with lock as held:
        # This one need not wait.
        lock.acquire(cancellation=cancellation).release()
        held.check()


def test_cancel__a_hold(pool: Pool) -> None:
    """What is held by then is not touched."""
    cancellation = Cancellation()
    with Lock("k", pool).acquire(timeout=LONG, cancellation=cancellation) as held:
        cancellation.cancel()
        held.check()


@pytest.mark.shows("faults#a-wait-is-cancelled-at-any-instant")
def test_cancel__many(pool: Pool, make_pool: MakePool, observer: Observer) -> None:
    """One call ends the waits of threads and of tasks, for several locks, also of several keys; all others go on."""
    locks = [Lock("a", pool), Lock("b", pool), Lock(["a", "b"], pool)]
    cancellation, never = Cancellation(), Cancellation()
    with Lock(["a", "b"], make_pool()).acquire(timeout=LONG):
        cancelled = [wait_with(lock, cancellation) for lock in locks for _ in range(3)]
        others = [wait_with(lock, never) for lock in locks]

        async def wait_in_a_task(lock: Lock) -> Held:
            return await lock.aacquire(cancellation=cancellation)

        async def wait_in_tasks() -> list[Any]:
            tasks = [asyncio.create_task(wait_in_a_task(lock)) for lock in locks for _ in range(3)]
            return await asyncio.gather(*tasks, return_exceptions=True)

        tasks = Runner(lambda: asyncio.run(wait_in_tasks()))
        for key in ("a", "b"):
            observer.wait_count(pool.path(key), 1 + 2 * (3 + 3 + 1))
        cancellation.cancel()
        assert all(isinstance(each.outcome(), LockCancelled) for each in cancelled)
        assert {type(each) for each in tasks.result()} == {LockCancelled}
        for key in ("a", "b"):
            observer.wait_count(pool.path(key), 3)
    for each in others:
        each.result()
    for key in ("a", "b"):
        observer.wait_empty(pool.path(key))
    assert "of 0 waits" in repr(never)
    assert not cancellation._wakes


@pytest.mark.shows("faults#a-wait-is-cancelled-at-any-instant")
@pytest.mark.usefixtures("unhurried")
def test_cancellation__keeps_nothing(pool: Pool, taken: Lock) -> None:
    """However many waits it was given to, nothing of them stays, whatever their end was."""
    cancellation = Cancellation()
    free = Lock("free", pool)

    async def in_a_task() -> None:
        await (await free.aacquire(cancellation=cancellation)).arelease()
        with pytest.raises(LockTimeout):
            await taken.aacquire(0.01, cancellation=cancellation)
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(taken.aacquire(cancellation=cancellation), 0.01)
        waiting = taken.aacquire(cancellation=cancellation)
        task = asyncio.create_task(waiting)
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    for _ in range(10):
        with free.acquire(cancellation=cancellation) as held:
            # Kept while it is held: the hold is nothing to it.
            assert not cancellation._wakes
            held.check()
        with pytest.raises(LockTimeout):
            taken.acquire(0.01, cancellation=cancellation)
        asyncio.run(in_a_task())
        waiter = wait_with(taken, cancellation)
        wait_until(lambda: cancellation._wakes)
        waiter.throw(KeyboardInterrupt)
        # CPython delivers that when the system call has returned.
        for wake in list(cancellation._wakes.values()):
            wake()
        assert isinstance(waiter.outcome(), KeyboardInterrupt)
    assert not cancellation._wakes
    assert not cancellation.cancelled


@pytest.mark.shows("guarantees#no-way-out-leaves-a-node", "faults#a-wait-is-cancelled-at-any-instant")
@pytest.mark.parametrize("is_async", [False, True])
def test_cancel__with_the_grant(pool: Pool, make_pool: MakePool, observer: Observer, is_async: bool) -> None:
    """A wait that is cancelled while it is granted has the lock or the error, and the queue is empty afterwards."""
    lock, other = Lock("k", pool), Lock("k", make_pool())
    chance = random.Random(7)
    outcomes: list[str] = []

    def wait(cancellation: Cancellation) -> str:
        try:
            with lock.acquire(cancellation=cancellation) as held:
                held.check()
                assert held_stack() == [held]
                return "held"
        except LockCancelled:
            assert held_stack() == []
            return "cancelled"

    async def await_it(cancellation: Cancellation) -> str:
        try:
            async with await lock.aacquire(cancellation=cancellation) as held:
                held.check()
                return "held"
        except LockCancelled:
            assert held_stack() == []
            return "cancelled"

    def run_it(cancellation: Cancellation) -> str:
        return asyncio.run(await_it(cancellation))

    def cancel(cancellation: Cancellation, start: threading.Barrier, pause: float) -> None:
        start.wait(LONG)
        threading.Event().wait(pause)
        cancellation.cancel()

    for _ in range(40):
        cancellation, blocker = Cancellation(), other.acquire(timeout=LONG)
        waiter = Runner(partial(run_it if is_async else wait, cancellation))
        observer.wait_count(lock.paths[0], 2)
        start = threading.Barrier(2)
        canceller = Runner(partial(cancel, cancellation, start, chance.random() * 0.004))
        start.wait(LONG)
        blocker.release()
        canceller.result()
        outcomes.append(waiter.result())
        with other.acquire(timeout=LONG):
            pass
        observer.wait_empty(lock.paths[0])
    assert set(outcomes) <= {"held", "cancelled"}


async def test_cancel__task(taken: Lock, observer: Observer) -> None:
    """A task goes on after the error, and is not cancelled itself; any thread and any loop may end its wait."""

    def from_a_thread(cancellation: Cancellation) -> None:
        observer.wait_count(taken.paths[0], 2)
        cancellation.cancel()

    def from_a_loop(cancellation: Cancellation) -> None:
        async def cancel() -> None:
            cancellation.cancel()

        observer.wait_count(taken.paths[0], 2)
        asyncio.run(cancel())

    for way in (from_a_thread, from_a_loop):
        cancellation = Cancellation()
        canceller = Runner(partial(way, cancellation))
        with pytest.raises(LockCancelled):
            await taken.aacquire(cancellation=cancellation)
        await asyncio.to_thread(canceller.result)
    cancellation = Cancellation()
    asyncio.get_running_loop().call_later(0.05, cancellation.cancel)
    with pytest.raises(LockCancelled):
        await taken.aacquire(cancellation=cancellation)
    task = asyncio.current_task()
    assert task is not None
    assert not task.cancelling()
    observer.wait_count(taken.paths[0], 1)


def test_cancel__closed_loop(taken: Lock, observer: Observer) -> None:
    """A task that waited in a loop which is closed by now is no trouble to the others."""
    cancellation = Cancellation()
    loop = asyncio.new_event_loop()

    async def wait() -> Held:
        return await taken.aacquire(cancellation=cancellation)

    async def begin() -> asyncio.Task[Held]:
        task = asyncio.create_task(wait())
        await asyncio.sleep(0)
        assert cancellation._wakes
        return task

    task = loop.run_until_complete(begin())
    waiter = wait_with(taken, cancellation)
    observer.wait_count(taken.paths[0], 3)
    # An application that leaves its loop like this is told of the task that was destroyed.
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    loop.close()
    cancellation.cancel()
    # What waited in the loop leaves with the next news of its place, and until then it is in the queue.
    assert isinstance(waiter.outcome(), LockCancelled)


@pytest.mark.shows("faults#a-wait-is-cancelled-at-any-instant")
def test_cancel__in_a_signal_handler(taken: Lock, observer: Observer) -> None:
    """The handler of a signal ends the wait that it has interrupted."""
    cancellation = Cancellation()

    def handle(_number: int, _frame: FrameType | None) -> None:
        cancellation.cancel()

    def send() -> None:
        observer.wait_count(taken.paths[0], 2)
        os.kill(os.getpid(), signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, handle)
    try:
        sender = Runner(send)
        with pytest.raises(LockCancelled):
            taken.acquire(cancellation=cancellation)
        sender.result()
    finally:
        signal.signal(signal.SIGUSR1, before)
    observer.wait_count(taken.paths[0], 1)


@pytest.mark.shows("faults#a-wait-is-cancelled-at-any-instant")
def test_cancel__in_a_finalizer(taken: Lock, observer: Observer) -> None:
    """A finalizer that runs on the thread of the connection ends waits, and that thread goes on."""
    cancellation = Cancellation()

    class Owner:
        def __del__(self) -> None:
            cancellation.cancel()

    waiter = wait_with(taken, cancellation)
    observer.wait_count(taken.paths[0], 2)
    kept = [Owner()]
    (session,) = taken.pool.sessions()
    session.post(kept.clear)
    assert isinstance(waiter.outcome(), LockCancelled)
    observer.wait_count(taken.paths[0], 1)
    gc.collect()


def test_cancel__without_zookeeper(make_pool: MakePool) -> None:
    """A wait that ZooKeeper has not answered is ended too."""
    pool = make_pool(f"{LOOPBACK}:{free_port()}", connect_timeout=LONG)
    cancellation = Cancellation()
    waiter = wait_with(Lock("k", pool), cancellation)
    wait_until(lambda: cancellation._wakes)
    cancellation.cancel()
    assert isinstance(waiter.outcome(), LockCancelled)


@pytest.mark.parametrize("wrong", [threading.Event(), True, lambda: True], ids=["event", "bool", "call"])
def test_cancellation__of_another_type(pool: Pool, wrong: Any) -> None:
    """What cannot wake a wait is refused, before anything is sent."""
    with pytest.raises(TypeError, match=r"cancellation must be a django_zklock\.Cancellation, got"):
        Lock("k", pool).acquire(cancellation=wrong)
    with pytest.raises(TypeError, match=r"cancellation must be a django_zklock\.Cancellation, got"):
        asyncio.run(Lock("k", pool).aacquire(cancellation=wrong))
    assert held_stack() == []


GREENLETS = """
import sys
from gevent import monkey; monkey.patch_all()
import gevent, gevent.threadpool
from django_zklock.exceptions import LockCancelled
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.waiting import Cancellation
from django_zklock.zk.wire import ConnectionOptions

hosts, root, way = sys.argv[1:]
pool = Pool("p", PoolOptions(connection=ConnectionOptions(hosts=hosts, session_timeout=10.0), root=root))
lock, cancellation = Lock("k", pool), Cancellation()

def wait():
    try:
        lock.acquire(cancellation=cancellation)
    except LockCancelled:
        return "cancelled"

with lock:
    waiters = [gevent.spawn(wait) for _ in range(3)]
    while len(cancellation._wakes) < 3:
        gevent.sleep(0.005)
    if way == "greenlet":
        gevent.spawn(cancellation.cancel).get()
    else:
        gevent.get_hub().threadpool.apply(cancellation.cancel)
    print(*[each.get(timeout=60) for each in waiters])
pool.close()
"""


@pytest.mark.shows("faults#a-wait-is-cancelled-at-any-instant")
@pytest.mark.parametrize("way", ["greenlet", "thread"])
def test_cancel__greenlets(server: Server, root: str, way: str) -> None:
    """Greenlets are woken by another greenlet, and by a thread that gevent has not patched."""
    command = [sys.executable, "-c", GREENLETS, server.hosts, root, way]
    process = subprocess.run(command, check=False, capture_output=True, text=True, cwd=REPOSITORY, timeout=LONG)
    assert process.returncode == 0, process.stderr
    assert process.stdout.split() == ["cancelled"] * 3
