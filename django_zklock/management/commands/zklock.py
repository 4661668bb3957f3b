"""``manage.py zklock``: look at live locks, run a command under one, or a ZooKeeper for development."""

from __future__ import annotations

import logging
import os
import shutil
import sys
from argparse import ArgumentTypeError, Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from django.core.exceptions import ImproperlyConfigured
from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_zklock.conf import DEFAULT_ALIAS
from django_zklock.connections import connections
from django_zklock.exceptions import LockLost, LockTimeout, ZkLockError, ZooKeeperUnavailable
from django_zklock.locks import zk_lock
from django_zklock.management import rendering
from django_zklock.management.child import CannotStartError, Child
from django_zklock.testing import foreground
from django_zklock.zk import deadline, display, survey
from django_zklock.zk.held import Held
from django_zklock.zk.identity import Work
from django_zklock.zk.lock import Lock

# Of every action.
NOBODY_HOLDS = 1
COULD_NOT_RUN = 2
# Of `run`, beside the command's own: the codes of sysexits.h, and the shell's for what cannot be started.
UNAVAILABLE = os.EX_UNAVAILABLE
CONFLICT = os.EX_TEMPFAIL
LOST = os.EX_PROTOCOL
NOT_EXECUTABLE = 126
NOT_FOUND = 127

DEFAULT_GRACE = 10.0


class _ActionParser(CommandParser):
    """Leaves alone what follows "--": argparse would drop a second one, which is the command's."""

    # argparse has this overloaded by the namespace's type.
    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        own = list(args or ())
        command: list[str] = []
        if "--" in own:
            end = own.index("--")
            own, command = own[:end], own[end + 1 :]
        parsed, unknown = super().parse_known_args(own, namespace)
        parsed.command = command
        return parsed, unknown


class Command(BaseCommand):
    """Look at live locks, run a command under one, or a ZooKeeper for development."""

    help = "Looks at the locks in ZooKeeper, runs commands under one, and a ZooKeeper for development."
    # At 3 a.m. a check of some other app must not stand in the way; wrong settings are reported all the same.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        actions = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=_ActionParser)
        listing = actions.add_parser("list", help="list the locks that are held or waited for")
        showing = actions.add_parser("show", help="show the whole line of one lock")
        showing.add_argument("key", metavar="KEY")
        running = actions.add_parser(
            "run", help="run a command under a lock", usage="%(prog)s KEY [options] -- COMMAND [ARGUMENT ...]"
        )
        running.add_argument("key", metavar="KEY")
        serving = actions.add_parser("devserver", help="run a ZooKeeper for development, in memory, until Ctrl-C")
        foreground.add_arguments(serving)
        for action in (listing, showing, running):
            action.add_argument(
                "--using",
                metavar="ALIAS",
                default=DEFAULT_ALIAS,
                help="the ensemble, by its name in ZKLOCK (default: %(default)s)",
            )
        for action in (listing, showing):
            action.add_argument("--format", choices=("table", "json"), default="table", help="(default: %(default)s)")
        running.add_argument("--timeout", type=_seconds, metavar="SECONDS", help="how long to wait (default: for ever)")
        running.add_argument(
            "--on-conflict",
            choices=("wait", "fail"),
            default="wait",
            help="what to do if somebody else holds the lock (default: %(default)s)",
        )
        running.add_argument(
            "--grace",
            type=_seconds,
            default=DEFAULT_GRACE,
            metavar="SECONDS",
            help="from SIGTERM to SIGKILL when the lock is lost (default: %(default)g)",
        )

    def handle(self, *args: Any, action: str, **options: Any) -> None:  # noqa: ARG002 - Django's signature
        if action != "devserver":
            # What cannot be done is said once, by the error. Without a handler Python would print the log too.
            logging.getLogger("django_zklock").addHandler(logging.NullHandler())
        if action != "run" and options["command"]:
            raise CommandError(f'{action} takes nothing after "--"', returncode=COULD_NOT_RUN)
        actions: dict[str, Callable[..., None]] = {
            "list": self.list,
            "show": self.show,
            "run": self.run,
            "devserver": self.devserver,
        }
        actions[action](**options)

    def list(self, *, using: str, format: str, **_options: Any) -> None:  # noqa: A002 - the option's name
        with _failing_with(COULD_NOT_RUN):
            pool = connections[using]
            lines = survey.lines(pool, timeout=pool.options.connect_timeout)
        if format == "json":
            self._write(rendering.lines_as_json(using, lines))
        elif lines:
            self._write(rendering.lines_as_table(lines, width=self._width))
        else:
            hosts, root = pool.options.connection.hosts, pool.options.root
            self._write(f"No locks are in use under {root} at {hosts}.\n")

    def show(self, *, key: str, using: str, format: str, **_options: Any) -> None:  # noqa: A002
        with _failing_with(COULD_NOT_RUN):
            pool = connections[using]
            line = survey.line(pool, key, timeout=pool.options.connect_timeout)
        if format == "json":
            self._write(rendering.line_as_json(using, line))
        elif line.places or line.foreign:
            self._write(rendering.line_as_table(line, width=self._width))
        else:
            self._write(f"Lock {display.visible(key)} is free: nobody holds it and nobody waits for it.\n")
        if not line.holders:
            sys.exit(NOBODY_HOLDS)

    def run(
        self,
        *,
        key: str,
        using: str,
        timeout: float | None,
        on_conflict: str,
        grace: float | None,
        command: Sequence[str],
        **_options: Any,
    ) -> None:
        _check_command(command)
        if on_conflict == "fail":
            if timeout is not None:
                raise CommandError("--timeout has no meaning with --on-conflict fail", returncode=COULD_NOT_RUN)
            timeout = 0
        with _failing_with(COULD_NOT_RUN):
            # Without its arguments: they may hold secrets, and everybody may read who holds a lock.
            work = Work(kind="command", name=os.path.basename(command[0]))  # noqa: PTH119 - not always a path
            lock = zk_lock(key, using=using, work=lambda: work)
        child = Child(command, lock=lock, grace=grace)
        with child.watching():
            held = _acquire(lock, timeout)
            try:
                status = child.run(held)
            except CannotStartError as error:
                raise CommandError(str(error), returncode=error.status) from error
            finally:
                # Of a lock that is lost there is nothing to confirm, and perhaps nobody to do it.
                held.release(wait=child.loss is None)
        if child.loss is not None:
            raise CommandError(
                f"lock {display.visible(key)} was lost while the command ran: {child.loss}", returncode=LOST
            )
        if status:
            sys.exit(status)

    def devserver(self, *, host: str, port: int, allow_remote: bool, **_options: Any) -> None:
        try:
            foreground.run(host, port, allow_remote=allow_remote, write=self._write)
        except foreground.CannotServeError as error:
            raise CommandError(_one_line(error), returncode=COULD_NOT_RUN) from error

    @property
    def _width(self) -> int | None:
        return shutil.get_terminal_size().columns if self.stdout.isatty() else None

    def _write(self, text: str) -> None:
        encoding = getattr(self.stdout, "encoding", None) or "utf-8"
        try:
            # A terminal that cannot show a sign of a key gets its number.
            self.stdout.write(text.encode(encoding, "backslashreplace").decode(encoding), ending="")
            self.stdout.flush()
        except BrokenPipeError:
            # The reader has seen enough (`| head`). Python would complain again when it flushes at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _acquire(lock: Lock, timeout: float | None) -> Held:
    try:
        return lock.acquire(timeout)
    except LockTimeout as error:
        raise CommandError(_one_line(error), returncode=CONFLICT) from error
    except ZooKeeperUnavailable as error:
        raise CommandError(_one_line(error), returncode=UNAVAILABLE) from error
    except LockLost as error:
        raise CommandError(_one_line(error), returncode=LOST) from error
    except ZkLockError as error:
        raise CommandError(_one_line(error), returncode=COULD_NOT_RUN) from error


def _check_command(command: Sequence[str]) -> None:
    """Refuse what cannot be started before waiting for a lock, not after."""
    if not command:
        raise CommandError('give the command to run after "--"', returncode=COULD_NOT_RUN)
    if shutil.which(command[0]) is None:
        if os.path.sep in command[0] and os.path.exists(command[0]):  # noqa: PTH110 - a word of a command line
            raise CommandError(f"{command[0]}: not executable", returncode=NOT_EXECUTABLE)
        raise CommandError(f"{command[0]}: command not found", returncode=NOT_FOUND)


@contextmanager
def _failing_with(status: int) -> Iterator[None]:
    try:
        yield
    except (ZkLockError, ImproperlyConfigured, ValueError) as error:
        raise CommandError(_one_line(error), returncode=status) from error


def _one_line(error: Exception) -> str:
    return display.visible(str(error))


def _seconds(text: str) -> float | None:
    try:
        return deadline.seconds(float(text))
    except ValueError as error:
        raise ArgumentTypeError(f"must be a number of seconds, not negative, got {text!r}") from error
