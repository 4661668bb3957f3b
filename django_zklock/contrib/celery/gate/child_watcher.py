"""The children of a worker, as its main process sees them: what they send, and when they end.

The end of the body comes through a pipe that all children inherit, and the end of a child from the system. Celery
reports a dead child ten seconds later (``worker_lost_wait``), and its lock would not be free until then.
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
from functools import partial

from django_zklock.contrib.celery.gate.scoreboard import InheritedDescriptor, finalizer_of
from django_zklock.zk.background import note_end
from django_zklock.zk.waiting import serve

logger = logging.getLogger("django_zklock.celery")

_HOLD_ID = struct.Struct("=Q")
# Poll interval in seconds where pidfd is not available.
_POLL_INTERVAL = 0.05


class ChildWatcher:
    """Calls ``on_release`` with what a child has sent, and ``on_end`` with the child's pid, on a thread of its own."""

    def __init__(self, on_release: Callable[[int], None], on_end: Callable[[int], None]) -> None:
        self._on_release, self._on_end = on_release, on_end
        self._read_end, self._write_end = os.pipe()
        for end in (self._read_end, self._write_end):
            os.set_blocking(end, False)
        self._inherited = InheritedDescriptor(self._write_end)
        self._read = finalizer_of(self, self._read_end)
        self._selector = selectors.DefaultSelector()
        self._is_closed = False
        self._selector.register(self._read_end, selectors.EVENT_READ)
        # The descriptor of each child; one without it is polled. Guarded by _changing, reentrant for a signal handler.
        self._watched: dict[int, int | None] = {}
        self._changing = threading.RLock()
        self._thread: threading.Thread | None = None

    def add(self, pid: int) -> bool:
        """Watch the child ``pid``; return ``False`` if it has ended already."""
        with self._changing:
            if self._is_closed:
                return False
            if self._thread is None:
                self._thread = threading.Thread(target=partial(serve, self._run), name="zklock-children", daemon=True)
                self._thread.start()
            if pid in self._watched:
                return True
            try:
                descriptor = os.pidfd_open(pid)
                self._selector.register(descriptor, selectors.EVENT_READ, pid)
                self._watched[pid] = descriptor
            except ProcessLookupError:
                return False
            except (AttributeError, OSError):  # not on this system, not in this container, or no descriptor is left
                if _has_ended(pid):
                    return False
                self._watched[pid] = None
                # The thread may wait without a limit, for descriptors alone.
                self.send_release(0)
            return True

    def kill(self, pid: int) -> None:
        """Kill the child ``pid`` if it is watched and has not ended."""
        with self._changing, contextlib.suppress(ProcessLookupError, KeyError):
            if (descriptor := self._watched[pid]) is None:
                os.kill(pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)

    def close(self) -> None:
        """Watch no child any more, and end the thread: the worker has ended."""
        with self._changing:
            self._is_closed = True
            if self._thread is None:
                self._close_descriptors()
            else:
                note_end(self._thread)
                self.send_release(0)

    def _close_descriptors(self) -> None:
        with self._changing:
            for descriptor in filter(None, self._watched.values()):
                os.close(descriptor)
            self._watched.clear()
            self._selector.close()
            self._inherited.close()
            self._read()

    def _run(self) -> None:
        while not self._is_closed:
            try:
                polled = [pid for pid, descriptor in list(self._watched.items()) if descriptor is None]
                for key, _ in self._selector.select(_POLL_INTERVAL if polled else None):
                    if key.fileobj == self._read_end:
                        for (hold_id,) in _HOLD_ID.iter_unpack(os.read(self._read_end, 4096 * _HOLD_ID.size)):
                            self._call(self._on_release, hold_id)
                    else:
                        self._ended(key.data)
                for pid in filter(_has_ended, polled):
                    self._ended(pid)
            except Exception:
                logger.exception("event=child_watcher_failed")
        self._close_descriptors()

    def _ended(self, pid: int) -> None:
        with self._changing:
            if (descriptor := self._watched.pop(pid, None)) is not None:
                self._selector.unregister(descriptor)
                os.close(descriptor)
        self._call(self._on_end, pid)

    def _call(self, call: Callable[[int], None], argument: int) -> None:
        """Call ``call``; its error must not keep the other locks, of which this thread has read as well."""
        try:
            call(argument)
        except Exception:
            logger.exception("event=child_watcher_failed")

    def send_release(self, hold_id: int) -> None:
        """In a child: let the parent release the lock; it does so with the result if the pipe is full or closed."""
        with contextlib.suppress(OSError):
            os.write(self._inherited.intact, _HOLD_ID.pack(hold_id))


def _has_ended(pid: int) -> bool:
    """Return whether the child ``pid`` of this process has ended, also while Celery has not read its end yet."""
    try:
        if hasattr(os, "waitid"):
            return os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT) is not None
        # On macOS before Python 3.13: it finds a killed child until Celery has read its end, within some five seconds.
        os.kill(pid, 0)
    except (ChildProcessError, ProcessLookupError):
        return True
    return False
