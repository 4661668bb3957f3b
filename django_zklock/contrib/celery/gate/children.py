"""The children of a worker's main process: which of them is gone, and what they tell.

One thread, which waits for the system to tell it: of the death of a process (``pidfd_open``, Linux 5.3), and of
words in the pipe that all children inherit. Celery finds out about a dead child too, but sits on it for ten seconds
(``worker_lost_wait``), in which nobody would get its lock.
"""

from __future__ import annotations

import contextlib
import logging
import os
import selectors
import signal
import struct
import threading
from collections.abc import Callable

logger = logging.getLogger("django_zklock.celery")

_WORD = struct.Struct("=Q")
# What the system has no descriptor for is looked at so often, in seconds.
_GLANCE = 0.05


class Children:
    """``told`` is called with each number that a child has said, in this class's thread."""

    def __init__(self, told: Callable[[int], None]) -> None:
        self._told = told
        self._ear, self._mouth = os.pipe()
        for end in (self._ear, self._mouth):
            os.set_blocking(end, False)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._ear, selectors.EVENT_READ)
        # By process: its descriptor, and whom to call when it is gone. Guarded by _changing, which is reentrant for a
        # signal handler that ends the worker.
        self._watched: dict[int, tuple[int | None, dict[int, Callable[[], None]]]] = {}
        self._changing = threading.RLock()
        self._thread: threading.Thread | None = None

    # The parent's.

    def when_gone(self, pid: int, number: int, call: Callable[[], None]) -> None:
        """Have ``call`` called once the child ``pid`` is gone, which may be now; :meth:`forget` it by ``number``."""
        with self._changing:
            self._start()
            if pid not in self._watched:
                try:
                    descriptor = self._open(pid)
                except ProcessLookupError:
                    descriptor = -1
                if descriptor != -1:
                    self._watched[pid] = (descriptor, {})
                    if descriptor is not None:
                        self._selector.register(descriptor, selectors.EVENT_READ, pid)
            if pid in self._watched:
                self._watched[pid][1][number] = call
                return
        call()

    def forget(self, pid: int, number: int) -> None:
        """Call nobody for ``number``."""
        with self._changing:
            if pid in self._watched:
                self._watched[pid][1].pop(number, None)

    def kill(self, pid: int) -> None:
        """Kill the child ``pid``, if it is still there and nobody else has its number."""
        with self._changing, contextlib.suppress(ProcessLookupError):
            descriptor, _ = self._watched.get(pid, (-1, {}))
            if descriptor is None:
                os.kill(pid, signal.SIGKILL)
            elif descriptor != -1:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)

    def _start(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="zklock-children", daemon=True)
            self._thread.start()

    @staticmethod
    def _open(pid: int) -> int | None:
        try:
            return os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except (AttributeError, OSError):  # not on this system
            os.kill(pid, 0)
            return None

    def _run(self) -> None:
        while True:
            blind = any(descriptor is None for descriptor, _ in list(self._watched.values()))
            try:
                for key, _ in self._selector.select(_GLANCE if blind else None):
                    if key.fileobj == self._ear:
                        self._listen()
                    else:
                        self._gone(key.data)
                if blind:
                    self._look_around()
            except Exception:
                logger.exception("event=children_failed")

    def _look_around(self) -> None:
        for pid, (descriptor, _) in list(self._watched.items()):
            if descriptor is None:
                try:
                    os.kill(pid, 0)
                except ProcessLookupError:
                    self._gone(pid)

    def _listen(self) -> None:
        with contextlib.suppress(BlockingIOError):
            words = os.read(self._ear, 4096 * _WORD.size)
            for (number,) in _WORD.iter_unpack(words):
                self._told(number)

    def _gone(self, pid: int) -> None:
        with self._changing:
            descriptor, calls = self._watched.pop(pid, (None, {}))
            if descriptor is not None:
                self._selector.unregister(descriptor)
                os.close(descriptor)
        for call in calls.values():
            call()

    # A child's.

    def tell(self, number: int) -> None:
        """Tell the parent ``number``; it hears of the child's end in any case, so a full pipe is no harm."""
        with contextlib.suppress(OSError):
            os.write(self._mouth, _WORD.pack(number))
