"""The children of a worker's main process: their ends, and the locks that they let their parent release.

One thread waits for the end of each child (``pidfd_open``, Linux 5.3) and reads the pipe that all children inherit.
Celery reports a dead child ten seconds later (``worker_lost_wait``), and its lock would not be free until then.
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

from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError

from django_zklock.contrib.celery.gate.scoreboard import InheritedDescriptor
from django_zklock.exceptions import LockLost

logger = logging.getLogger("django_zklock.celery")

_HOLD_ID = struct.Struct("=Q")
# Of no request.
_NO_HOLD = 0
# Poll interval in seconds where pidfd is not available.
_POLL_INTERVAL = 0.05


class ChildWatcher:
    """Calls ``on_release`` with each hold_id that a child has sent, on the thread of this class."""

    def __init__(self, on_release: Callable[[int], None]) -> None:
        self._on_release = on_release
        self._read_end, self._write_end = os.pipe()
        for end in (self._read_end, self._write_end):
            os.set_blocking(end, False)
        self._inherited = InheritedDescriptor(self._write_end)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._read_end, selectors.EVENT_READ)
        # By process: its descriptor, and the callbacks for its end by hold_id. Guarded by _changing, which is reentrant
        # because a signal handler that ends the worker may interrupt the owner.
        self._watched: dict[int, tuple[int | None, dict[int, Callable[[], None]]]] = {}
        self._changing = threading.RLock()
        self._thread: threading.Thread | None = None

    # Called by the parent.

    def add(self, pid: int, hold_id: int, on_end: Callable[[], None]) -> None:
        """Call ``on_end`` when the child ``pid`` has ended, at once if it has already."""
        with self._changing:
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name="zklock-children", daemon=True)
                self._thread.start()
            with contextlib.suppress(ProcessLookupError):
                self._watch(pid)[hold_id] = on_end
                return
        on_end()

    def _watch(self, pid: int) -> dict[int, Callable[[], None]]:
        """Return the callbacks for the end of the child ``pid``; raise ``ProcessLookupError`` if it has ended."""
        if pid not in self._watched:
            descriptor: int | None = None
            try:
                descriptor = os.pidfd_open(pid)
            except ProcessLookupError:
                raise
            except (AttributeError, OSError):  # not on this system
                if _has_ended(pid):
                    raise ProcessLookupError(pid) from None
            else:
                self._selector.register(descriptor, selectors.EVENT_READ, pid)
            self._watched[pid] = (descriptor, {})
            if descriptor is None:
                # The thread may wait without a limit, for descriptors alone.
                self.send_release(_NO_HOLD)
        return self._watched[pid][1]

    def discard(self, pid: int, hold_id: int) -> None:
        """Remove the callback that :meth:`add` has added for ``hold_id``."""
        with self._changing:
            if pid in self._watched:
                self._watched[pid][1].pop(hold_id, None)

    def kill(self, pid: int) -> None:
        """Kill the child ``pid`` if it is watched and has not ended."""
        with self._changing, contextlib.suppress(ProcessLookupError, KeyError):
            descriptor, _ = self._watched[pid]
            if descriptor is None:
                os.kill(pid, signal.SIGKILL)
            else:
                signal.pidfd_send_signal(descriptor, signal.SIGKILL)

    def _run(self) -> None:
        while True:
            polled = [pid for pid, (descriptor, _) in list(self._watched.items()) if descriptor is None]
            try:
                for key, _ in self._selector.select(_POLL_INTERVAL if polled else None):
                    if key.fileobj == self._read_end:
                        for (hold_id,) in _HOLD_ID.iter_unpack(os.read(self._read_end, 4096 * _HOLD_ID.size)):
                            self._call(partial(self._on_release, hold_id))
                    else:
                        self._ended(key.data)
                for pid in polled:
                    if _has_ended(pid):
                        self._ended(pid)
            except Exception:
                logger.exception("event=child_watcher_failed")

    def _ended(self, pid: int) -> None:
        with self._changing:
            descriptor, calls = self._watched.pop(pid, (None, {}))
            if descriptor is not None:
                self._selector.unregister(descriptor)
                os.close(descriptor)
        for call in calls.values():
            self._call(call)

    def _call(self, call: Callable[[], None]) -> None:
        """Call ``call``; its error must not keep the other locks, of which this thread has read as well."""
        try:
            call()
        except Exception:
            logger.exception("event=child_watcher_failed")

    # Called by a child.

    def send_release(self, hold_id: int) -> None:
        """Let the parent release the lock of ``hold_id``.

        If the pipe is full, or the body has closed it, the parent releases the lock when it has the task's result.
        """
        if self._inherited.is_intact:
            with contextlib.suppress(OSError):
                os.write(self._write_end, _HOLD_ID.pack(hold_id))


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


class ChildEndedError(LockLost, WorkerLostError):
    """``LockLost`` in the result of the task, and the loss of a child to Celery."""

    def __reduce__(self) -> tuple[object, ...]:
        return LockLost(str(self), key=self.key).__reduce__()


# The result backend stores an error by these names.
ChildEndedError.__module__ = LockLost.__module__
ChildEndedError.__name__ = ChildEndedError.__qualname__ = LockLost.__name__


def ended_child_failure(key: str) -> ExceptionInfo:
    """Return the failure of a task whose child was killed because its lock was lost."""
    try:
        # Celery expects an exception with a traceback.
        raise ChildEndedError(  # noqa: TRY301
            f"lock {key!r} was lost, and its task was ended; another contender may hold it now", key=key
        )
    except ChildEndedError:
        return ExceptionInfo()
