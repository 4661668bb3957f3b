"""``zklock manage`` and ``zklock migrate``: run a command of Django under a lock, in this process.

So the command is the holder: what it saves is fenced, and ``current_lock()`` returns the hold.
"""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from argparse import ArgumentParser
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import takewhile
from types import FrameType
from typing import Any

from django.core.management import ManagementUtility
from django.core.management.base import CommandError

from django_zklock import interrupt, signals
from django_zklock.connections import connections
from django_zklock.exceptions import LockLost
from django_zklock.management.subcommands import _common, arguments, exit_codes
from django_zklock.management.subcommands import run as run_
from django_zklock.management.subcommands._locked_process import SIGNAL_BASE
from django_zklock.management.subcommands._output import Terminal
from django_zklock.zk.formatting import escape_controls
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work

HELP = "run a command of Django under a lock"
# What Django reads before it knows the command.
_TOO_LATE = ("--settings", "--pythonpath")


def add_arguments(parser: ArgumentParser) -> None:
    parser.usage = "%(prog)s KEY [options] -- COMMAND [ARGUMENT ...]"
    arguments.add_lock(parser)
    run_.add_waiting(parser)


def run(
    terminal: Terminal,
    *,
    key: str,
    using: str,
    timeout: float | None,
    on_conflict: str,
    command: Sequence[str],
    **_options: Any,
) -> int:
    if not command:
        raise CommandError('give the command of Django to run after "--"', returncode=exit_codes.COULD_NOT_RUN)
    run_.check_waiting(timeout, on_conflict)
    program = [os.path.basename(sys.argv[0]), *command]  # noqa: PTH119 - as Django does
    # What stands behind another "--" is for yet another program.
    own = {each.partition("=")[0] for each in takewhile("--".__ne__, command)}
    for option in _TOO_LATE:
        if option in own:
            raise CommandError(
                f'{option} comes too late after "--": this process has its settings; write it before "--"',
                returncode=exit_codes.COULD_NOT_RUN,
            )
    try:
        # Before waiting: an unknown command ends here, and Django has said why.
        loaded = ManagementUtility(program).fetch_command(command[0])
    except SystemExit as end:
        raise SystemExit(exit_codes.COULD_NOT_RUN) from end
    with _common.as_command_errors():
        work = Work(kind="command", name=command[0])
        lock = Lock(key, connections[using], listener=signals.listener, work=lambda: work)
    report = partial(_report_waiting, terminal, lock)
    with _exiting_on_signals(), run_.acquire(lock, timeout, on_conflict, waiting=report) as held:
        try:
            interrupt.run(held, partial(loaded.run_from_argv, program))
            # The command may have kept the error for itself, or ended before it came.
            held.check()
        except (LockLost, SystemExit) as error:
            # Its own end; or the loss of another lock, which it has taken itself.
            if not held.lost:
                raise
            # Django's commands wrap errors in CommandError, so a loss may come as any exit code.
            raise CommandError(
                f"lock {escape_controls(key)} was lost while the command ran: {_common.one_line(error)}",
                returncode=exit_codes.LOST,
            ) from error
        finally:
            # The next one that waits finds the lock free.
            held.release(wait=not held.lost)
    return exit_codes.OK


@contextlib.contextmanager
def _exiting_on_signals() -> Iterator[None]:
    """End by ``SystemExit`` on SIGTERM and SIGHUP, which by default end Python without the release of the lock.

    A command with handlers of its own replaces these; what ignores a signal, such as ``nohup``, is left alone.
    """

    def leave(number: int, _frame: FrameType | None) -> None:
        raise SystemExit(SIGNAL_BASE + number)

    numbers = [number for number in (signal.SIGTERM, signal.SIGHUP) if signal.getsignal(number) is signal.SIG_DFL]
    # Python has no handlers in other threads, from which a program may call a command.
    if threading.current_thread() is not threading.main_thread():
        numbers = []
    for number in numbers:
        signal.signal(number, leave)
    try:
        yield
    finally:
        for number in numbers:
            if signal.getsignal(number) is leave:
                signal.signal(number, signal.SIG_DFL)


def _report_waiting(terminal: Terminal, lock: Lock) -> None:
    holders = ", ".join(str(holder or "another client") for holder in lock.holders())
    if holders:
        terminal.write(f"Waiting for lock {escape_controls(lock.key)}, held by {escape_controls(holders)}.\n")
