"""Log records of threads that must not wait, written in the background.

Heartbeats are sent by the thread of a connection, and replies and timers run under the monitor of its session. A slow
log handler there, such as a mail or a full pipe, would cost locks.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
import traceback
from functools import partial

from django_zklock.zk.background import BackgroundCalls

logger = logging.getLogger("django_zklock.logs")

# The maximum number of records that wait for a blocked handler. Later ones are counted and dropped.
MAX_RECORDS = 10_000
EXIT_TIMEOUT = 2.0


class DeferredLogger(logging.Logger):
    """Makes records at once; the logger of the same name handles them in the background, in order."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        # Looked up at import: an exception that is raised in getLogger() leaves logging locked for ever.
        self._target = logging.getLogger(name)

    def isEnabledFor(self, level: int) -> bool:  # noqa: N802 - its name in logging
        return self._target.isEnabledFor(level)

    def getEffectiveLevel(self) -> int:  # noqa: N802 - its name in logging
        return self._target.getEffectiveLevel()

    def handle(self, record: logging.LogRecord) -> None:
        _writer().put(self._target, record)


class _Writer:
    """Writes the records of one process."""

    def __init__(self) -> None:
        self._calls = BackgroundCalls("zklock-log")
        self._dropped = 0

    def put(self, target: logging.Logger, record: logging.LogRecord) -> None:
        if self._calls.waiting >= MAX_RECORDS:
            self._dropped += 1
            return
        self._log_dropped()
        self._calls.submit(partial(self._write, target, record))

    def flush(self, timeout: float) -> bool:
        self._log_dropped()
        return self._calls.flush(timeout)

    def _log_dropped(self) -> None:
        dropped, self._dropped = self._dropped, 0
        if dropped:
            line = "event=records_dropped count=%d reason=handlers_too_slow"
            self._calls.submit(partial(logger.warning, line, dropped))

    def _write(self, target: logging.Logger, record: logging.LogRecord) -> None:
        try:
            target.handle(record)
        except Exception:  # noqa: BLE001 - of a filter or a handler; logging it would fail again
            if logging.raiseExceptions:
                traceback.print_exc(file=sys.stderr)


# By process id: inherited records are written by the parent.
_writers: dict[int, _Writer] = {}


def _writer() -> _Writer:
    pid = os.getpid()
    writer = _writers.get(pid)
    # Not made at import: threading may be monkey-patched later.
    return writer if writer is not None else _writers.setdefault(pid, _Writer())


def flush(timeout: float = EXIT_TIMEOUT) -> bool:
    """Wait until all queued records are written; ``False`` if that takes longer than ``timeout`` seconds."""
    writer = _writers.get(os.getpid())
    return writer is None or writer.flush(timeout)


# Registered before the code that closes connections at exit, so it is called after that.
atexit.register(flush)
