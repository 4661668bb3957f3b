"""A wake-up call between threads that no exception can break.

``threading.Event`` and ``threading.Condition`` take their inner lock in Python code. A time limit or Ctrl-C that is
thrown into a thread right there leaves that lock taken for ever, and whoever rings next, our connection's
thread, hangs with it. A plain lock is taken and given back in C.
"""

from __future__ import annotations

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
