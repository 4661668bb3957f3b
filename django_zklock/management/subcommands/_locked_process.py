"""A process that runs while a lock is held, and is ended when the lock is lost."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import FrameType
from typing import Any

from django.core.management.base import CommandError

from django_zklock import signals
from django_zklock.management.subcommands.exit_codes import NOT_EXECUTABLE, NOT_FOUND
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.waiting import Deadline

# Every other signal would end this process by default, and leave the command without its lock.
NOT_FORWARDED = {
    # These cannot be caught.
    *(signal.SIGKILL, signal.SIGSTOP),
    # The system sends them for an error of this process.
    *(signal.SIGABRT, signal.SIGBUS, signal.SIGFPE, signal.SIGILL, signal.SIGSEGV, signal.SIGSYS, signal.SIGTRAP),
    # By default these do nothing, or Python ignores them.
    *(signal.SIGCHLD, signal.SIGCONT, signal.SIGURG, signal.SIGWINCH, signal.SIGPIPE, signal.SIGXFSZ),
    # These stop a process.
    *(signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU),
}
FORWARDED = tuple(sorted(signal.valid_signals() - NOT_FORWARDED))
# Signals with which a command is not asked to end.
OF_THE_COMMAND = {signal.SIGUSR1, signal.SIGUSR2}
# Poll interval in seconds while processes of an ended command still run: the system does not report their ends.
POLL_INTERVAL = 0.05
# Seconds that killed processes have to end: one that hangs in the kernel cannot be waited for.
KILL_TIMEOUT = 2.0
# The exit code of a process that a signal ended is this plus the signal's number, as in a shell.
SIGNAL_BASE = 128


class LockedProcess:
    """One run of a command under a lock.

    The command runs in a new session: its process group can be signalled with it, and Ctrl-C in a terminal reaches it
    once. When the lock is lost, or the command ends after a signal, the whole group has ``grace`` seconds to end before
    it gets SIGKILL; ``None`` means no SIGKILL. Otherwise the end of the command is the end of the run.

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
        # The command was asked to end.
        self._stopping = False
        self._pending: list[int] = []
        self._ended = threading.Event()

    @contextlib.contextmanager
    def forwarding_signals(self) -> Iterator[None]:
        """Forward signals to the group and end it when the lock is lost; without a process a signal exits."""
        kept = {number: signal.signal(number, self._forward) for number in FORWARDED}
        # A process that its terminal has stopped could not keep its lock, while the command would go on. This is a
        # function and not SIG_IGN, which the command would inherit.
        for number in (signal.SIGTSTP, signal.SIGTTIN):
            kept[number] = signal.signal(number, _ignore_signal)
        # With a function the system would send it again and again. The command has no terminal that sends it.
        kept[signal.SIGTTOU] = signal.signal(signal.SIGTTOU, signal.SIG_IGN)
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
            self._send(process, number)
        status = process.wait()
        if self._stopping and self.loss is None:
            self._end_group(process)
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
        self._stopping = self._stopping or number not in OF_THE_COMMAND
        if process is not None:
            self._send(process, number)
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
            self._send(process, signal.SIGTERM)
            self._end_group(process)
        self._ended.set()

    def _end_group(self, process: subprocess.Popen[bytes]) -> None:
        """Wait until the group of ``process`` has ended, and kill it after the grace period."""
        if not _wait_for_end(process, self._grace):
            self._send(process, signal.SIGKILL)
            _wait_for_end(process, KILL_TIMEOUT)

    @staticmethod
    def _send(process: subprocess.Popen[bytes], number: int) -> None:
        # It leads its own session, so its pid is also the number of its process group.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, number)
            # A stopped process would not act on it.
            os.killpg(process.pid, signal.SIGCONT)


def _wait_for_end(process: subprocess.Popen[bytes], timeout: float | None) -> bool:
    """Wait until no process of the group of ``process`` runs; return ``False`` after ``timeout`` seconds."""
    deadline = Deadline(None) if timeout is None else Deadline.after(timeout)
    while _runs(process.pid):
        if deadline.passed:
            return False
        time.sleep(POLL_INTERVAL)
    return True


def _runs(group: int) -> bool:
    """Return whether a process of the group has not ended. One that has ended may never be reaped in a container."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        # All of them belong to another user by now.
        return True
    states = [state for state, each in _processes() if each == group]
    return not states or any(state not in {"Z", "X"} for state in states)


def _processes() -> Iterator[tuple[str, int]]:
    """Yield the state and the group of each process; nothing on a system without ``/proc``."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            # The name of the program, in parentheses, may contain anything.
            state, _parent, group, *_others = path.read_text(errors="replace").rpartition(")")[2].split()
            yield state, int(group)


def _ignore_signal(_number: int, _frame: FrameType | None) -> None: ...
