"""A command that runs as long as a lock is held, and ends when it is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from django_zklock import signals
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# What a shell adds to the number of the signal that ended a process.
SIGNAL_BASE = 128


class CannotStartError(Exception):
    """The command could not be started; ``status`` is what a shell would give."""

    def __init__(self, message: str, status: int) -> None:
        super().__init__(message)
        self.status = status


class Child:
    """One run of a command under a lock.

    The command gets a session of its own, so that whatever it starts can be ended with it, and so that Ctrl-C in a
    terminal reaches it once. ``grace`` are the seconds between SIGTERM and SIGKILL when the lock is lost;
    ``None`` for no SIGKILL.

    Threads: the caller of :meth:`run` must be the main thread, where signal handlers run; :meth:`_lose` is called on
    a thread of the lock's own. ``_guard`` makes sure that a lock lost at the start either prevents it or ends it.
    """

    def __init__(self, command: Sequence[str], *, lock: Lock, grace: float | None) -> None:
        self.loss: str | None = None
        self._command = list(command)
        self._lock = lock
        self._grace = grace
        self._guard = threading.Lock()
        # Guarded by _guard, but read without it by signal handlers, which must not wait for it.
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = False
        self._pending: list[int] = []
        self._exited = threading.Event()
        self._ended = threading.Event()

    @contextlib.contextmanager
    def watching(self) -> Iterator[None]:
        """Within: hear of the lock's loss, pass on signals, and end at one as long as no command runs."""
        kept = {number: signal.signal(number, self._forward) for number in FORWARDED}
        # Stopped by Ctrl-Z, this process could not keep its lock, and the command would go on without one. A
        # function and not SIG_IGN, which the command would inherit.
        kept[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, _take_no_notice)
        signals.lost.connect(self._lose, weak=False)
        try:
            yield
        finally:
            signals.lost.disconnect(self._lose)
            for number, handler in kept.items():
                signal.signal(number, handler)

    def run(self, held: Held) -> int:
        """Run the command to its end and give its exit status; :attr:`loss` tells if the lock was lost meanwhile.

        128 and the signal's number if a signal ended it. Raises :exc:`CannotStartError`.
        """
        with self._guard:
            if self.loss is not None:
                return 0
            self._starting = True
            try:
                self._process = process = self._start(held)
            finally:
                self._starting = False
        for number in self._pending:
            self._signal(process, number)
        status = process.wait()
        self._exited.set()
        with self._guard:
            self._process = None
            lost = self.loss is not None
        if lost:
            self._ended.wait()
        elif held.lost:
            self.loss = "it was found lost when the command had ended"
        return status if status >= 0 else SIGNAL_BASE - status

    def _start(self, held: Held) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "ZKLOCK_KEY": held.key, "ZKLOCK_TOKEN": str(held.token)}
        try:
            return subprocess.Popen(  # noqa: S603 - running it is what the user asks for
                self._command, env=environment, start_new_session=True
            )
        except FileNotFoundError as error:
            raise CannotStartError(f"{self._command[0]}: command not found", 127) from error
        except OSError as error:
            raise CannotStartError(f"{self._command[0]}: {error.strerror}", 126) from error

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        process = self._process
        if process is not None:
            self._signal(process, number)
        elif self._starting:
            self._pending.append(number)
        else:
            raise SystemExit(SIGNAL_BASE + number)

    def _lose(self, *, held: Held, reason: str, **_about: Any) -> None:
        if held.lock is not self._lock:
            return
        with self._guard:
            self.loss = reason
            process = self._process
        if process is not None:
            self._signal(process, signal.SIGTERM)
            self._exited.wait(self._grace)
            # Also what the command had started and left behind.
            self._signal(process, signal.SIGKILL)
        self._ended.set()

    @staticmethod
    def _signal(process: subprocess.Popen[bytes], number: int) -> None:
        # Its session, and so its process group, has the command's number.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


def _take_no_notice(_number: int, _frame: FrameType | None) -> None: ...
