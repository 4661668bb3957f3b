"""Timers of one process: heartbeats, watchdogs and the ends of leases, on one thread."""

from __future__ import annotations

import heapq
import itertools
import logging
import threading
import time
from collections.abc import Callable

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
        self._condition = threading.Condition()
        # Guarded by _condition. The counter keeps equal times in order and timers out of comparisons.
        self._heap: list[tuple[float, int, Timer]] = []
        self._counter = itertools.count()
        self._thread: threading.Thread | None = None
        self._stopped = False

    def call_later(self, delay: float, call: Callable[[], None]) -> Timer:
        """Call ``call`` after ``delay`` seconds (monotonic clock)."""
        timer = Timer(call)
        with self._condition:
            heapq.heappush(self._heap, (time.monotonic() + delay, next(self._counter), timer))
            if self._thread is None and not self._stopped:
                self._thread = threading.Thread(target=self._run, name="zklock-clock", daemon=True)
                self._thread.start()
            # Only a new earliest appointment changes how long the thread may sleep.
            if self._heap[0][2] is timer:
                self._condition.notify()
        return timer

    def stop(self) -> None:
        """End the thread; appointments not yet due are dropped."""
        with self._condition:
            self._stopped = True
            self._condition.notify()

    def _run(self) -> None:
        while True:
            with self._condition:
                while not self._stopped and (wait := self._until_due()) > 0:
                    self._condition.wait(None if wait == float("inf") else wait)
                if self._stopped:
                    return
                _, _, timer = heapq.heappop(self._heap)
            call = timer.call
            if call is not None:
                try:
                    call()
                except Exception:
                    logger.exception("event=timer_failed call=%r", call)

    def _until_due(self) -> float:
        while self._heap and self._heap[0][2].call is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] - time.monotonic() if self._heap else float("inf")
