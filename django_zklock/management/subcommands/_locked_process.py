"""A process that runs while a lock is held, and is ended when the lock is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
from collections.abc import Iterator, Sequence
from types import FrameType
from typing import Any

from django.core.management.base import CommandError

from django_zklock import signals
from django_zklock.management.subcommands.exit_codes import NOT_EXECUTABLE, NOT_FOUND
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock

FORWARDED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
# The exit code of a process that a signal ended is this plus the signal's number, as in a shell.
SIGNAL_BASE = 128


class LockedProcess:
    """One run of a command under a lock.

    The command runs in a new session: its child processes can be signalled with it, and Ctrl-C in a terminal reaches
    it once. ``grace`` is the time in seconds between SIGTERM and SIGKILL when the lock is lost; ``None`` means no
    SIGKILL.

    Threads: :meth:`run` must be called in the main thread, where signal handlers run; :meth:`_on_lost` is called in a
    thread of the lock. With ``_guard`` a loss during the start either prevents the start or ends the process.
    """

    def __init__(self, command: Sequence[str], *, lock: Lock, grace: float | None) -> None:
        self.loss: str | None = None
        self._command = list(command)
        self._lock = lock
        self._grace = grace
        self._guard = threading.Lock()
        # Written under _guard; signal handlers read it without, because they must not wait.
        self._process: subprocess.Popen[bytes] | None = None
        self._starting = False
        self._pending: list[int] = []
        self._exited = threading.Event()
        self._ended = threading.Event()

    @contextlib.contextmanager
    def forwarding_signals(self) -> Iterator[None]:
        """Forward signals to the process and end it when the lock is lost; without a process a signal exits."""
        kept = {number: signal.signal(number, self._forward) for number in FORWARDED}
        # A process stopped by Ctrl-Z could not keep its lock, while the command would go on. This is a function and
        # not SIG_IGN, which the command would inherit.
        kept[signal.SIGTSTP] = signal.signal(signal.SIGTSTP, _ignore_signal)
        signals.lost.connect(self._on_lost, weak=False)
        try:
            yield
        finally:
            signals.lost.disconnect(self._on_lost)
            for number, handler in kept.items():
                signal.signal(number, handler)

    def run(self, held: Held) -> int:
        """Run the command to its end and return its exit code; :attr:`loss` is set if the lock was lost meanwhile.

        A signal that ended it is returned as 128 plus its number. Raises ``CommandError`` if it cannot be started.
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
            self.loss = "its loss was noticed when the command had ended"
        return status if status >= 0 else SIGNAL_BASE - status

    def _start(self, held: Held) -> subprocess.Popen[bytes]:
        environment = {**os.environ, "ZKLOCK_KEY": held.key, "ZKLOCK_TOKEN": str(held.token)}
        try:
            return subprocess.Popen(  # noqa: S603 - the user's own command
                self._command, env=environment, start_new_session=True
            )
        except FileNotFoundError as error:
            raise CommandError(f"{self._command[0]}: command not found", returncode=NOT_FOUND) from error
        except OSError as error:
            raise CommandError(f"{self._command[0]}: {error.strerror}", returncode=NOT_EXECUTABLE) from error

    def _forward(self, number: int, _frame: FrameType | None) -> None:
        process = self._process
        if process is not None:
            self._signal(process, number)
        elif self._starting:
            self._pending.append(number)
        else:
            raise SystemExit(SIGNAL_BASE + number)

    def _on_lost(self, *, held: Held, reason: str, **_about: Any) -> None:
        if held.lock is not self._lock:
            return
        with self._guard:
            self.loss = reason
            process = self._process
        if process is not None:
            self._signal(process, signal.SIGTERM)
            self._exited.wait(self._grace)
            # Child processes of the command may still run.
            self._signal(process, signal.SIGKILL)
        self._ended.set()

    @staticmethod
    def _signal(process: subprocess.Popen[bytes], number: int) -> None:
        # It leads its own session, so its pid is also the number of its process group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)


def _ignore_signal(_number: int, _frame: FrameType | None) -> None: ...
