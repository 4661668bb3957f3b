"""``zklock run``: run a command under a lock."""

from __future__ import annotations

import os
import shutil
from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from typing import Any

from django.core.management.base import CommandError

from django_zklock import signals
from django_zklock.connections import connections
from django_zklock.exceptions import LockLost, LockTimeout, ZkLockError, ZooKeeperUnavailable
from django_zklock.management.subcommands import _common, arguments, exit_codes
from django_zklock.management.subcommands._locked_process import LockedProcess
from django_zklock.management.subcommands._output import Terminal
from django_zklock.zk.formatting import escape_controls
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work

HELP = "run a command under a lock"

DEFAULT_GRACE = 10.0
# The exit code for each error of acquiring the lock; the nearest base class counts.
FAILURES = {
    LockTimeout: exit_codes.CONFLICT,
    ZooKeeperUnavailable: exit_codes.UNAVAILABLE,
    LockLost: exit_codes.LOST,
    ZkLockError: exit_codes.COULD_NOT_RUN,
}


def add_arguments(parser: ArgumentParser) -> None:
    parser.usage = "%(prog)s KEY [options] -- COMMAND [ARGUMENT ...]"
    arguments.add_lock(parser)
    add_waiting(parser)
    parser.add_argument(
        "--grace",
        type=arguments.seconds,
        default=DEFAULT_GRACE,
        metavar="SECONDS",
        help="time between SIGTERM and SIGKILL when the lock is lost, and for the rest of the process group when the "
        "command has ended after a signal (default: %(default)g)",
    )


def add_waiting(parser: ArgumentParser) -> None:
    """Add the options that say how long to wait for the lock; see :func:`acquire`."""
    parser.add_argument(
        "--timeout", type=arguments.seconds, metavar="SECONDS", help="how long to wait for the lock (default: for ever)"
    )
    parser.add_argument(
        "--on-conflict",
        choices=("wait", "fail"),
        default="wait",
        help="what to do if the lock is held by another process (default: %(default)s)",
    )


def acquire(lock: Lock, timeout: float | None, on_conflict: str, *, waiting: Callable[[], None] | None = None) -> Held:
    """Return the hold; raise ``CommandError`` with the exit code of the failure.

    ``waiting`` is called before the command begins to wait.
    """
    try:
        if on_conflict == "fail":
            return lock.acquire(0)
        if waiting is not None:
            if (held := lock.try_acquire()) is not None:
                return held
            waiting()
        return lock.acquire(timeout)
    except ZkLockError as error:
        code = next(FAILURES[kind] for kind in type(error).__mro__ if kind in FAILURES)
        raise CommandError(_common.one_line(error), returncode=code) from error


def check_waiting(timeout: float | None, on_conflict: str) -> None:
    """Raise ``CommandError`` for options that contradict each other."""
    if on_conflict == "fail" and timeout is not None:
        raise CommandError("--timeout has no meaning with --on-conflict fail", returncode=exit_codes.COULD_NOT_RUN)


def run(
    _terminal: Terminal,
    *,
    key: str,
    using: str,
    timeout: float | None,
    on_conflict: str,
    grace: float | None,
    command: Sequence[str],
    **_options: Any,
) -> int:
    _check_command(command)
    check_waiting(timeout, on_conflict)
    with _common.as_command_errors():
        # Without the arguments: they may contain secrets, and every client can read this.
        work = Work(kind="command", name=os.path.basename(command[0]))  # noqa: PTH119 - not always a path
        lock = Lock(key, connections[using], listener=signals.listener, work=lambda: work)
    process = LockedProcess(command, lock=lock, grace=grace)
    with process.forwarding_signals():
        held = acquire(lock, timeout, on_conflict)
        try:
            status = process.run(held)
        finally:
            # The release of a lost lock needs no confirmation, and ZooKeeper may not be reachable for one.
            held.release(wait=process.loss is None)
    if process.loss is not None:
        raise CommandError(
            f"lock {escape_controls(key)} was lost while the command ran: {process.loss}", returncode=exit_codes.LOST
        )
    return status


def _check_command(command: Sequence[str]) -> None:
    """Raise ``CommandError`` for a command that cannot be started, before waiting for the lock."""
    if not command:
        raise CommandError('give the command to run after "--"', returncode=exit_codes.COULD_NOT_RUN)
    if shutil.which(command[0]) is None:
        if os.path.sep in command[0] and os.path.exists(command[0]):  # noqa: PTH110 - may be any argument
            raise CommandError(f"{command[0]}: not executable", returncode=exit_codes.NOT_EXECUTABLE)
        raise CommandError(f"{command[0]}: command not found", returncode=exit_codes.NOT_FOUND)
