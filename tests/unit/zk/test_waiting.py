"""Deadlines, events and calls in daemon threads."""

from __future__ import annotations

import asyncio
import math
import os
import signal
import threading
import time
from datetime import timedelta
from types import FrameType

import pytest

from django_zklock.zk.waiting import (
    SIGNAL_CHECK_INTERVAL,
    AsyncAutoResetEvent,
    AutoResetEvent,
    DaemonCall,
    Deadline,
    boottime,
    monotonic,
    seconds,
)
from tests.toolbox.timing import GRACE, scaled


@pytest.mark.parametrize(
    ("timeout", "expected"),
    [
        (None, None),
        (0, 0.0),
        (0.25, 0.25),
        (3, 3.0),
        (timedelta(milliseconds=1500), 1.5),
        (math.inf, None),
    ],
)
def test_seconds__accepted(timeout: float | timedelta | None, expected: float | None) -> None:
    """Numbers, timedeltas, None and infinity have a meaning."""
    assert seconds(timeout) == expected


@pytest.mark.parametrize("timeout", ["1", True, False, b"1", [1], 1j])
def test_seconds__not_a_number(timeout: object) -> None:
    """What is no number is refused, and so is a bool, which is a slip."""
    with pytest.raises(TypeError, match="wait must be seconds"):
        seconds(timeout, "wait")  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [-1, -0.001, math.nan, -math.inf, timedelta(seconds=-1)])
def test_seconds__negative(timeout: float | timedelta) -> None:
    """A negative time and NaN are refused, with the two values that the caller may have meant."""
    with pytest.raises(ValueError, match=r"must not be negative.*None waits for ever, 0 tries once"):
        seconds(timeout)


def test_deadline__never() -> None:
    """A deadline without an end has no remaining time and never passes, but can be capped."""
    never = Deadline.after(None)
    assert never.remaining() is None
    assert not never.passed
    assert 0 < (never.capped(5.0).remaining() or 0) <= 5.0


def test_deadline__capped() -> None:
    """The earlier one counts; a deadline of nought has passed, and its remaining time is nought and not below."""
    now = Deadline.after(0)
    assert now.passed
    assert now.remaining() == 0.0
    assert (Deadline.after(100).capped(1.0).remaining() or 0) <= 1.0
    assert (Deadline.after(1).capped(100.0).remaining() or 0) <= 1.0


# In seconds: for what must happen, and for what must not.
TIMEOUT, MOMENT = scaled(10), 0.01


def set_in_a_thread(event: AsyncAutoResetEvent) -> None:
    """Set the event in another thread, and wait for that thread."""
    thread = threading.Thread(target=event.set)
    thread.start()
    thread.join(TIMEOUT)
    assert not thread.is_alive()


async def stays_unset(event: AsyncAutoResetEvent) -> bool:
    waiting = asyncio.ensure_future(event.wait())
    done, _ = await asyncio.wait([waiting], timeout=MOMENT)
    waiting.cancel()
    return not done


def test_set__while_it_is_waited_for() -> None:
    """An event that is set in any thread ends the wait, which resets it."""

    async def work() -> None:
        event = AsyncAutoResetEvent()
        waiting = asyncio.ensure_future(event.wait())
        assert await stays_unset(AsyncAutoResetEvent())
        set_in_a_thread(event)
        await asyncio.wait_for(waiting, TIMEOUT)
        assert await stays_unset(event)

    asyncio.run(work())


def test_set__before_it_is_waited_for() -> None:
    """An event that is set several times before the wait ends one wait."""

    async def work() -> None:
        event = AsyncAutoResetEvent()
        for _ in range(3):
            set_in_a_thread(event)
        await asyncio.wait_for(event.wait(), TIMEOUT)
        assert await stays_unset(event)

    asyncio.run(work())


def test_wait__timeout() -> None:
    """A wait ends after its time, and the next one knows nothing of that."""

    async def work() -> None:
        event = AsyncAutoResetEvent()
        await asyncio.wait_for(event.wait(MOMENT), TIMEOUT)
        assert await stays_unset(event)

    asyncio.run(work())


def test_wait__cancelled() -> None:
    """A cancellation is raised, also if it comes together with the event; the next wait works as before."""

    async def work() -> None:
        event = AsyncAutoResetEvent()
        waiting = asyncio.ensure_future(event.wait(TIMEOUT))
        await asyncio.sleep(0)
        waiting.cancel()
        event.set()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.wait_for(event.wait(), TIMEOUT)

    asyncio.run(work())


def test_set__loop_closed() -> None:
    """Setting the event of a closed loop does nothing and raises nothing."""

    async def make() -> AsyncAutoResetEvent:
        return AsyncAutoResetEvent()

    asyncio.run(make()).set()


class SignalledError(Exception):
    """Raised by the handler of a signal."""


@pytest.mark.shows("faults#an-exception-is-raised-at-any-instruction")
def test_wait__signal_that_interrupts_nothing() -> None:
    """A signal that comes when it cannot interrupt the wait, here in another thread, ends it all the same."""

    def handle(_number: int, _frame: FrameType | None) -> None:
        raise SignalledError

    def be_signalled() -> None:
        is_waiting.wait(TIMEOUT)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR1})
        os.kill(os.getpid(), signal.SIGUSR1)

    is_waiting = threading.Event()
    event = AutoResetEvent()
    # Ends a wait that would never end.
    rescue = threading.Timer(TIMEOUT, event.set)
    previous = signal.signal(signal.SIGUSR1, handle)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR1})
    other = threading.Thread(target=be_signalled)
    begin = threading.Timer(SIGNAL_CHECK_INTERVAL / 4, is_waiting.set)
    try:
        other.start()
        rescue.start()
        begin.start()
        with pytest.raises(SignalledError):
            event.wait()
    finally:
        rescue.cancel()
        other.join()
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)
        signal.signal(signal.SIGUSR1, previous)


@pytest.mark.parametrize("timeout", [0.0, MOMENT, SIGNAL_CHECK_INTERVAL + MOMENT])
def test_wait__main_thread_timeout(timeout: float) -> None:
    """The main thread waits as long as it says, beyond the interval of its looks at signals too."""
    assert threading.current_thread() is threading.main_thread()
    event = AutoResetEvent()
    began = time.monotonic()
    assert not event.wait(timeout)
    assert time.monotonic() - began >= timeout
    event.set()
    assert event.wait(timeout)


@pytest.mark.parametrize("result", [42, None])
def test_result(result: int | None) -> None:
    """What the call gives is the result, as often as it is asked for; nothing is a result too."""
    call = DaemonCall(lambda: result)
    assert call.result(Deadline.after(5)) == result
    assert call.result(Deadline.after(0)) == result


def test_result__error() -> None:
    """What the call raises is raised again."""

    def fail() -> None:
        raise ValueError("wrong")

    with pytest.raises(ValueError, match="wrong"):
        DaemonCall(fail).result(Deadline.after(5))


def test_result__too_late() -> None:
    """A call that is not over is left alone, and its result may be had later."""
    go = threading.Event()

    def wait() -> str:
        return "gone" if go.wait(30) else "never"

    call = DaemonCall(wait)
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        call.result(Deadline.after(0.05))
    assert time.monotonic() - began < GRACE
    go.set()
    assert call.result(Deadline.after(5)) == "gone"


@pytest.mark.skipif(not hasattr(time, "CLOCK_BOOTTIME"), reason="the system has no such clock")
def test_boottime__goes_on_while_the_machine_sleeps() -> None:
    """Leases are measured by the clock that counts the time in which a machine is suspended, waits by the other."""
    assert (boottime.func, boottime.args) == (time.clock_gettime, (time.CLOCK_BOOTTIME,))
    assert (monotonic.func, monotonic.args) == (time.clock_gettime, (time.CLOCK_MONOTONIC,))
