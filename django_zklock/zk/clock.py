"""Timers of one process: heartbeats, watchdogs and the ends of leases, on one thread."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from django_zklock.zk.alarm import Alarm

logger = logging.getLogger("django_zklock.clock")

_CLOCK_ID = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def lease_now() -> float:
    """Give the seconds that leases are measured in.

    CLOCK_BOOTTIME where there is one: it goes on while a machine is suspended, as the session's life at the
    server does.
    """
    return time.clock_gettime(_CLOCK_ID)


class Timer:
    """One appointment; cancelling it twice or too late does nothing."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class Clock:
    """Calls functions at their time, on its own daemon thread, started at first use.

    Any thread may call :meth:`call_later`; the functions run one after the other on the clock's thread and
    must not block.
    """

    def __init__(self) -> None:
        # What callers hand over to the clock's thread. The counter keeps equal times in order and timers out of
        # comparisons.
        self._incoming: deque[tuple[float, int, Timer]] = deque()
        self._counter = itertools.count()
        self._alarm = Alarm()
        self._stopped = False
        self._thread: threading.Thread | None = None
        # Guards _thread. Taken and given back in C, see Alarm; reentrant, for a signal handler that releases a lock.
        self._starting = threading.RLock()

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        """Call ``call`` after ``delay`` seconds (monotonic clock)."""
        timer = Timer(call)
        self._incoming.append((time.monotonic() + delay, next(self._counter), timer))
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="zklock-clock", daemon=True)
                thread.start()
                self._thread = thread
        self._alarm.ring()
        return timer

    def stop(self) -> None:
        """Do what is due now and drop the rest; later calls are done only if they are due at once."""
        self._stopped = True
        self._alarm.ring()

    def _run(self) -> None:
        # The heap is this thread's own: should an exception thrown into call_later() lead to a second thread,
        # each has its own appointments.
        heap: list[tuple[float, int, Timer]] = []
        while True:
            with contextlib.suppress(IndexError):
                while True:
                    heapq.heappush(heap, self._incoming.popleft())
            while heap and heap[0][0] <= time.monotonic():
                self._call(heapq.heappop(heap)[2])
            while heap and heap[0][2].call is None:
                heapq.heappop(heap)
            if self._stopped:
                with self._starting:
                    if not self._incoming:
                        self._thread = None
                        return
            elif not self._incoming:
                self._alarm.wait(max(0.0, heap[0][0] - time.monotonic()) if heap else None)

    def _call(self, timer: Timer) -> None:
        call = timer.call
        if call is not None:
            try:
                call()
            except Exception:
                logger.exception("event=timer_failed call=%r", call)
