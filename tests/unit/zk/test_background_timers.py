"""The timers of one process."""

from __future__ import annotations

import logging
import threading
from functools import partial
from queue import Queue

import pytest

from django_zklock.zk.background import TimerThread


def test_call_later__order() -> None:
    """Calls come at their time, not in the order of their making; equal times keep that order."""
    clock: TimerThread = TimerThread()
    calls: Queue[str] = Queue()
    for delay, name in [(0.09, "last"), (0.03, "first"), (0.06, "second"), (0.06, "third")]:
        clock.call_later(delay, partial(calls.put, name))
    clock.call_later(0, partial(calls.put, "at once"))
    assert [calls.get(timeout=60) for _ in range(5)] == ["at once", "first", "second", "third", "last"]
    clock.stop()


def test_call_later__earlier_while_asleep() -> None:
    """A new first appointment wakes a thread that sleeps for a later one."""
    clock = TimerThread()
    done = threading.Event()
    clock.call_later(60, lambda: None)
    clock.call_later(0.01, done.set)
    assert done.wait(5)
    clock.stop()


def test_cancel() -> None:
    """What was cancelled is not called, and cancelling again or too late does nothing."""
    clock = TimerThread()
    calls: Queue[str] = Queue()
    timer = clock.call_later(0.3, partial(calls.put, "cancelled"))
    timer.cancel()
    timer.cancel()
    late = clock.call_later(0.31, partial(calls.put, "called"))
    assert calls.get(timeout=60) == "called"
    late.cancel()
    assert calls.empty()
    clock.stop()


def test_call__raises(caplog: pytest.LogCaptureFixture) -> None:
    """An exception is logged and does not end the clock."""
    clock = TimerThread()
    done = threading.Event()

    def fail() -> None:
        raise ValueError("wrong")

    with caplog.at_level(logging.ERROR, "django_zklock.clock"):
        clock.call_later(0, fail)
        clock.call_later(0.01, done.set)
        assert done.wait(5)
    assert "event=timer_failed" in caplog.text
    clock.stop()


def test_stop() -> None:
    """A stopped clock drops what is not due, but still does what is due at once."""
    clock = TimerThread()
    calls: Queue[str] = Queue()
    clock.call_later(0.3, partial(calls.put, "dropped"))
    clock.stop()
    clock.call_later(0.05, partial(calls.put, "dropped too"))
    clock.call_later(0, partial(calls.put, "done"))
    assert calls.get(timeout=60) == "done"
    done = threading.Event()
    other = TimerThread()
    other.call_later(0.4, done.set)
    assert done.wait(5)
    assert calls.empty()
    other.stop()
