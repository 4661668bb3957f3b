"""Waiting for a lock in asyncio."""

from __future__ import annotations

import asyncio

import pytest

from django_zklock.exceptions import LockLost
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from tests.contract.cancellation import BEFORE, Canceller, nothing_left
from tests.toolbox.locks.pools import MakePool, is_idle
from tests.toolbox.timing import wait_until
from tests.toolbox.zookeeper.observer import Observer


@pytest.mark.shows("faults#an-exception-is-raised-at-any-instruction")
def test_aacquire__cancelled(pool: Pool, observer: Observer) -> None:
    """Cancelling the first use of a session, or before the loop has begun with the task, leaves no node.

    What comes later is cancelled for locks of every kind in `test_kinds`.
    """
    lock = Lock("k", pool)

    async def before_it_begins() -> None:
        task = asyncio.create_task(lock.aacquire())
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(Canceller(lock).cancel("asleep", BEFORE))
    asyncio.run(before_it_begins())
    observer.wait_empty(lock.paths[0])
    wait_until(lambda: nothing_left(pool))


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


async def test_held__async_with(pool: Pool, observer: Observer) -> None:
    """`async with await lock.aacquire()` releases at the end, and reports a loss."""
    lock = Lock("k", pool)

    async with await lock.aacquire() as held:
        held.check()
    assert held.released
    with pytest.raises(LockLost):
        async with await lock.aacquire() as held:
            await asyncio.to_thread(pool.close)
    observer.wait_empty(lock.paths[0])
