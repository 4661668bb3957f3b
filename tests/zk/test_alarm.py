"""Being woken by another thread, as an asyncio task."""

from __future__ import annotations

import asyncio
import threading

import pytest

from django_zklock.zk.alarm import AsyncAlarm

# In seconds: for what must happen, and for what must not.
PATIENCE, MOMENT = 10.0, 0.01


def ring_from_a_thread(alarm: AsyncAlarm) -> None:
    """Ring, and return when it has been rung."""
    thread = threading.Thread(target=alarm.ring)
    thread.start()
    thread.join(PATIENCE)
    assert not thread.is_alive()


async def is_silent(alarm: AsyncAlarm) -> bool:
    waiting = asyncio.ensure_future(alarm.wait())
    done, _ = await asyncio.wait([waiting], timeout=MOMENT)
    waiting.cancel()
    return not done


def test_ring__while_it_is_waited_for() -> None:
    """A ring from any thread ends the wait, and is used up by that."""

    async def work() -> None:
        alarm = AsyncAlarm()
        waiting = asyncio.ensure_future(alarm.wait())
        assert await is_silent(AsyncAlarm())
        ring_from_a_thread(alarm)
        await asyncio.wait_for(waiting, PATIENCE)
        assert await is_silent(alarm)

    asyncio.run(work())


def test_ring__before_it_is_waited_for() -> None:
    """Rings that nobody has waited for yet count as one."""

    async def work() -> None:
        alarm = AsyncAlarm()
        for _ in range(3):
            ring_from_a_thread(alarm)
        await asyncio.wait_for(alarm.wait(), PATIENCE)
        assert await is_silent(alarm)

    asyncio.run(work())


def test_wait__timeout() -> None:
    """A wait ends after its time, and the next one knows nothing of that."""

    async def work() -> None:
        alarm = AsyncAlarm()
        await asyncio.wait_for(alarm.wait(MOMENT), PATIENCE)
        assert await is_silent(alarm)

    asyncio.run(work())


def test_wait__cancelled() -> None:
    """A cancellation is raised, also if it comes with a ring; whoever waits next is woken as ever."""

    async def work() -> None:
        alarm = AsyncAlarm()
        waiting = asyncio.ensure_future(alarm.wait(PATIENCE))
        await asyncio.sleep(0)
        waiting.cancel()
        alarm.ring()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.wait_for(alarm.wait(), PATIENCE)

    asyncio.run(work())


def test_ring__loop_closed() -> None:
    """Who rings when the loop is gone wakes nobody, and is not told."""

    async def make() -> AsyncAlarm:
        return AsyncAlarm()

    asyncio.run(make()).ring()
