"""A wake-up call between threads that no exception can break.

``threading.Event`` and ``threading.Condition`` take their inner lock in Python code. A time limit or Ctrl-C that is
thrown into a thread right there leaves that lock taken for ever, and whoever rings next, our connection's
thread, hangs with it. A plain lock is taken and given back in C.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading


class Alarm:
    """Rung by any thread, waited for by one. Rings that nobody has waited for yet count as one."""

    __slots__ = ("_silence",)

    def __init__(self) -> None:
        self._silence = threading.Lock()
        self._silence.acquire()

    def ring(self) -> None:
        """Wake the one who waits, or the next who does. Never blocks, never raises."""
        with contextlib.suppress(RuntimeError):  # rung already
            self._silence.release()

    def wait(self, timeout: float | None = None) -> bool:
        """Wait for a ring, which is used up by that, for at most ``timeout`` seconds; ``False`` if none came."""
        return self._silence.acquire(timeout=-1 if timeout is None else min(timeout, threading.TIMEOUT_MAX))


class AsyncAlarm:
    """Rung by any thread, waited for by one task of the loop that it was made in."""

    __slots__ = ("_loop", "_rung", "_waiting")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._rung = False
        self._waiting: asyncio.Future[None] | None = None

    def ring(self) -> None:
        """Wake the one who waits, or the next who does. Never blocks, never raises."""
        with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits there any more
            self._loop.call_soon_threadsafe(self._ring)

    def _ring(self) -> None:
        self._rung = True
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(None)

    async def wait(self, timeout: float | None = None) -> None:
        """Wait for a ring, which is used up by that, for at most ``timeout`` seconds."""
        # Not asyncio.wait_for: before Python 3.12 it can swallow a cancellation that comes with the ring.
        timer = None if timeout is None else self._loop.call_later(timeout, self._ring)
        try:
            if not self._rung:
                self._waiting = self._loop.create_future()
                await self._waiting
        finally:
            self._waiting = None
            if timer is not None:
                timer.cancel()
        self._rung = False
