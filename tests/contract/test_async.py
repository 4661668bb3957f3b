"""Waiting for a lock in asyncio."""

from __future__ import annotations

import asyncio
import time

import pytest

from django_zklock.exceptions import LockConflict, LockLost, LockTimeout
from django_zklock.zk.held import Held, current
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from tests.contract.cancellation import BEFORE, Canceller, nothing_left
from tests.toolbox.locks.pools import MakePool, is_idle
from tests.toolbox.threads import Runner
from tests.toolbox.timing import GRACE, wait_until
from tests.toolbox.zookeeper.observer import Observer

pytest_plugins = ["tests.toolbox.slow_deadlines"]


def test_async_with(pool: Pool, observer: Observer) -> None:
    """Tasks take turns in `async with`, and the loop goes on while they wait."""
    lock = Lock("k", pool)
    inside: list[int] = []

    async def work(number: int) -> None:
        async with lock as held:
            assert inside == []
            inside.append(number)
            # While others wait for this lock.
            ticked.clear()
            await asyncio.wait_for(ticked.wait(), 30)
            held.check()
            inside.clear()

    async def tick() -> None:
        while True:
            await asyncio.sleep(0.005)
            ticked.set()

    ticked = asyncio.Event()

    async def main() -> None:
        ticking = asyncio.create_task(tick())
        await asyncio.gather(*(work(number) for number in range(8)))
        ticking.cancel()

    asyncio.run(main())
    observer.wait_empty(lock.paths[0])


@pytest.mark.usefixtures("unhurried")
def test_aacquire__timeout(pool: Pool, make_pool: MakePool, observer: Observer) -> None:
    """A wait that runs out raises in time and leaves no node."""
    lock = Lock("k", pool)

    async def main() -> None:
        with pytest.raises(LockTimeout) as caught:
            await lock.aacquire(timeout=0.5)
        assert caught.value.holder is not None
        assert await lock.atry_acquire() is None

    with Lock("k", make_pool()):
        began = time.monotonic()
        asyncio.run(main())
        assert time.monotonic() - began < 0.5 + GRACE
        observer.wait_count(lock.paths[0], 1)


@pytest.mark.shows("faults#an-exception-is-raised-at-any-instruction")
def test_aacquire__cancelled(pool: Pool, make_pool: MakePool, observer: Observer) -> None:
    """Cancelling the first use of a session, or before the loop has begun with the task, leaves no node."""
    lock = Lock("k", pool)

    async def before_it_begins() -> None:
        task = asyncio.create_task(lock.aacquire())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(Canceller(lock).cancel("asleep", BEFORE))
    asyncio.run(before_it_begins())
    observer.wait_empty(lock.paths[0])
    with Lock("k", make_pool()):

        async def cancel_waiting() -> None:
            task = asyncio.create_task(lock.aacquire())
            await asyncio.to_thread(observer.wait_count, lock.paths[0], 2)
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            await asyncio.to_thread(observer.wait_count, lock.paths[0], 1)

        asyncio.run(cancel_waiting())
    observer.wait_empty(lock.paths[0])
    wait_until(lambda: nothing_left(pool))


def test_reentrant__tasks(pool: Pool) -> None:
    """A task may take its own lock again; a child task does not inherit it."""
    lock = Lock("k", pool)
    strict = Lock("k", pool, reentrant=False)

    async def child() -> None:
        assert current() is None
        assert await lock.atry_acquire() is None

    async def main() -> None:
        async with lock as outer:
            async with lock as inner:
                assert inner.token == outer.token
            outer.check()
            await asyncio.create_task(child())
            with pytest.raises(LockConflict):
                await strict.aacquire()
            assert await strict.atry_acquire() is None
        held = await lock.atry_acquire()
        assert held is not None
        await held.arelease()
        await held.arelease()

    asyncio.run(main())


@pytest.mark.shows("faults#an-event-loop-is-closed-while-a-task-waits-in-it")
def test_loop__closed_while_waiting(pool: Pool, make_pool: MakePool, observer: Observer) -> None:
    """A loop that ends with a waiter in it disturbs neither the session nor the queue."""
    lock = Lock("k", pool)

    async def main() -> None:
        task = asyncio.create_task(lock.aacquire())
        await asyncio.to_thread(observer.wait_count, lock.paths[0], 2)
        assert not task.done()

    with Lock("k", make_pool()):
        asyncio.run(main())
        observer.wait_count(lock.paths[0], 1)
    Runner(lambda: lock.acquire(timeout=60).release()).result()
    wait_until(lambda: is_idle(pool))


@pytest.mark.shows("faults#an-event-loop-is-closed-while-a-task-waits-in-it")
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_loop__closed_with_a_waiter(pool: Pool, make_pool: MakePool, observer: Observer) -> None:
    """A waiter whose loop was closed without an end of its task leaves when it is granted the lock."""
    lock = Lock("k", pool)
    loop = asyncio.new_event_loop()

    async def begin() -> asyncio.Task[Held]:
        task = asyncio.create_task(lock.aacquire())
        await asyncio.to_thread(observer.wait_count, lock.paths[0], 2)
        return task

    with Lock("k", make_pool()).acquire(timeout=60) as held:
        waiting = loop.run_until_complete(begin())
        loop.close()
        held.release(wait=True)
        observer.wait_empty(lock.paths[0])
    wait_until(lambda: is_idle(pool))
    assert not waiting.done()


def test_held__async_with(pool: Pool, observer: Observer) -> None:
    """`async with await lock.aacquire()` releases at the end, and reports a loss."""
    lock = Lock("k", pool)

    async def main() -> None:
        async with await lock.aacquire() as held:
            held.check()
        assert held.released
        with pytest.raises(LockLost):
            async with await lock.aacquire() as held:
                await asyncio.to_thread(pool.close)

    asyncio.run(main())
    observer.wait_empty(lock.paths[0])
