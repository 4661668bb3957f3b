"""The timers of one process, on one thread, and the clock of leases."""

from __future__ import annotations

import contextlib
import heapq
import itertools
import threading
import time
from collections import deque
from collections.abc import Callable

from django_zklock.zk.logs import DeferredLogger
from django_zklock.zk.waiting import AutoResetEvent

logger = DeferredLogger("django_zklock.timers")

_CLOCK_ID = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def boottime() -> float:
    """Return the time in seconds on the clock of leases: CLOCK_BOOTTIME where the system has it.

    It goes on while a machine is suspended, as the session timeout does at the server.
    """
    return time.clock_gettime(_CLOCK_ID)


class TimerHandle:
    """A call to come; cancelling it twice or too late does nothing."""

    __slots__ = ("call",)

    def __init__(self, call: Callable[[], None]) -> None:
        self.call: Callable[[], None] | None = call

    def cancel(self) -> None:
        self.call = None


class TimerThread:
    """Calls functions later, one after the other, on a daemon thread that the first call starts.

    Any thread may call :meth:`call_later`; the functions must not block.
    """

    def __init__(self) -> None:
        # What callers hand over to the thread. The counter keeps equal times in order, so timers are never compared.
        self._incoming: deque[tuple[float, int, TimerHandle]] = deque()
        self._counter = itertools.count()
        self._changed = AutoResetEvent()
        self._stopped = False
        self._thread: threading.Thread | None = None
        # Guards _thread. Reentrant, for a signal handler that releases a lock; taken and released in C.
        self._starting = threading.RLock()

    def call_later(self, delay: float, call: Callable[[], None]) -> TimerHandle:
        """Call ``call`` after ``delay`` seconds (monotonic clock)."""
        timer = TimerHandle(call)
        self._incoming.append((time.monotonic() + delay, next(self._counter), timer))
        with self._starting:
            if self._thread is None:
                thread = threading.Thread(target=self._run, name="zklock-timers", daemon=True)
                thread.start()
                self._thread = thread
        self._changed.set()
        return timer

    def stop(self) -> None:
        """Make the calls that are due and drop the others; after that only calls without a delay are made."""
        self._stopped = True
        self._changed.set()

    def _run(self) -> None:
        # The heap is local: an exception raised in call_later() can start a second thread, which has its own.
        heap: list[tuple[float, int, TimerHandle]] = []
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
                self._changed.wait(max(0.0, heap[0][0] - time.monotonic()) if heap else None)

    def _call(self, timer: TimerHandle) -> None:
        call = timer.call
        if call is not None:
            try:
                call()
            except Exception:
                logger.exception("event=timer_failed call=%r", call)
