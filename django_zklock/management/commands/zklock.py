"""``manage.py zklock``: show live locks and act on them, run a command under one, or a ZooKeeper for development."""

from __future__ import annotations

import errno
import io
import logging
import os
import sys
from argparse import SUPPRESS, ArgumentError, ArgumentParser, ArgumentTypeError, Namespace, _SubParsersAction
from collections import UserDict
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, TextIO, cast

from django.core.management.base import BaseCommand, CommandError, CommandParser, OutputWrapper

from django_zklock.conf import did_you_mean
from django_zklock.management.subcommands import (
    break_,
    devserver,
    doctor,
    history,
    manage,
    migrate,
    prune,
    revoke,
    run,
    sent,
    show,
    watch,
)
from django_zklock.management.subcommands import list as list_
from django_zklock.management.subcommands._output import Terminal
from django_zklock.management.subcommands.exit_codes import COULD_NOT_RUN, INTERRUPTED, OK

# Each module has a text HELP, a function `add_arguments` that adds options to a parser, and a function `run` that takes
# a terminal and these options and returns the exit code.
SUBCOMMANDS: Mapping[str, ModuleType] = {
    module.__name__.rpartition(".")[2].rstrip("_"): module
    for module in (list_, show, watch, sent, history, revoke, break_, prune, doctor, run, manage, migrate, devserver)
}

# These ask, and that there is nothing is an answer. The others do something, or find what is wrong.
QUESTIONS = {"list", "show", "sent", "history"}

# These take the words after "--" as they are.
WITH_COMMAND = {"run", "manage", "migrate"}


class _SubcommandParser(CommandParser):
    """Has Django's own options too, and does not parse the command of `run` and others, which follows "--".

    argparse would drop a second "--" that belongs to the command.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        django = self.add_argument_group("options of all commands of Django")
        # Without a default: what stands before the subcommand must stay.
        django.add_argument("-v", "--verbosity", type=int, choices=[0, 1, 2, 3], default=SUPPRESS, help="has no effect")
        django.add_argument("--settings", metavar="MODULE", default=SUPPRESS, help="the settings module")
        django.add_argument("--pythonpath", metavar="FOLDER", default=SUPPRESS, help="a folder to import from")
        for name, text in (
            ("--traceback", "show the traceback of an error"),
            ("--no-color", "do not colour states"),
            ("--force-color", "colour states, also in a pipe"),
        ):
            django.add_argument(name, action="store_true", default=SUPPRESS, help=text)

    # argparse has this overloaded by the namespace's type.
    def parse_known_args(  # type: ignore[override]
        self, args: Sequence[str] | None = None, namespace: Namespace | None = None
    ) -> tuple[Namespace, list[str]]:
        own, command = list(args or ()), list[str]()
        name = self.prog.rpartition(" ")[2]
        if name in WITH_COMMAND:
            own, command = _split(own)
            if name != "migrate" and command and command[0].startswith("-"):
                # No command is named like that, so it is the key.
                own, command = [*own, "--", command[0]], _split(command[1:])[1]
        parsed, unknown = super().parse_known_args(own, namespace)
        if unknown:
            # Here, and not by the parser of all subcommands: an error shows the usage of its parser.
            advice = did_you_mean(unknown[0], self._option_string_actions) if unknown[0].startswith("-") else ""
            if unknown[0] in {"--json", "--format"}:
                advice = f"; zklock {name} writes text alone"
            if name in WITH_COMMAND and not command:
                what = "what is passed on to migrate" if name == "migrate" else "the command to run"
                advice = f'; {what} stands after "--"'
            self.error(f"unrecognized arguments: {' '.join(unknown)}{advice}")
        parsed.command = command
        return parsed, unknown


class _AnyName(UserDict[str, CommandParser]):
    """The parsers of subcommands by name; argparse does not refuse other names, which it would by a list alone."""

    def __contains__(self, _name: object) -> bool:
        return True


if TYPE_CHECKING:
    _SubcommandsAction = _SubParsersAction[CommandParser]
else:
    _SubcommandsAction = _SubParsersAction


class _Subcommands(_SubcommandsAction):
    """The subcommands; a wrong name is answered with one that is like it."""

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        names = _AnyName()
        names.data = self._name_parser_map
        self.choices = cast("dict[str, CommandParser]", names)

    def __call__(
        self, parser: ArgumentParser, namespace: Namespace, values: Any, option_string: str | None = None
    ) -> None:
        if values[0] not in SUBCOMMANDS:
            known = ", ".join(SUBCOMMANDS)
            raise ArgumentError(self, f"there is no {values[0]!r}{did_you_mean(values[0], SUBCOMMANDS)}: {known}")
        super().__call__(parser, namespace, values, option_string)


class UnsuccessfulError(CommandError):
    """A subcommand called from code has not done what it was called for; its output says why.

    ``returncode`` is what it exits with on a command line.
    """


class _NoOutput(io.StringIO):
    """A standard stream that the shell has closed, as by ``>&-``; Python has none then."""

    def write(self, _text: str) -> int:
        raise OSError(errno.EBADF, os.strerror(errno.EBADF))


def _discard(stream: TextIO | None) -> None:
    """Discard what is left in the buffer of a standard stream: Python would fail to write it once more, at exit."""
    if stream is not None:
        os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words before the first "--" and those after it."""
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end + 1 :]


class Command(BaseCommand):
    """Show live locks and act on them, run a command under one, or a ZooKeeper for development."""

    help = "Shows the locks in ZooKeeper, revokes and breaks them, runs a command under one, or a development server."
    # In an emergency a check of another app must not stop this command. It reports wrong settings itself.
    requires_system_checks = ()
    exit_code = OK
    _is_program = False
    _parsers: Mapping[str, CommandParser]

    def add_arguments(self, parser: CommandParser) -> None:
        parsers = parser.add_subparsers(
            action=_Subcommands, dest="subcommand", required=True, metavar="SUBCOMMAND", parser_class=_SubcommandParser
        )
        self._parsers = {name: parsers.add_parser(name, help=each.HELP) for name, each in SUBCOMMANDS.items()}
        for name, subcommand in SUBCOMMANDS.items():
            subcommand.add_arguments(self._parsers[name])

    def run_from_argv(self, argv: list[str]) -> None:
        """Run the command line, and exit with the code of the subcommand."""
        self._is_program = True
        if sys.stdout is None:
            self.stdout = OutputWrapper(_NoOutput())
        if sys.stderr is None:
            self.stderr = OutputWrapper(_NoOutput())
        try:
            super().run_from_argv(argv)
        except KeyboardInterrupt:
            # Ctrl-C is no error and needs no traceback.
            self.exit_code = INTERRUPTED
        except OSError as error:
            # Django could not write the error.
            if not isinstance(error.__context__, CommandError):
                raise
            self.exit_code = error.__context__.returncode
            _discard(sys.stderr)
        if self.exit_code:
            sys.exit(self.exit_code)

    def handle(self, *args: Any, subcommand: str, force_color: bool, **options: Any) -> None:  # noqa: ARG002 - Django's
        if subcommand != "devserver":
            # The error is printed once, by Django. Without a handler Python would print the log records as well.
            logging.getLogger("django_zklock").addHandler(logging.NullHandler())
        # Django checks sys.stdout for a terminal; self.stdout may be another stream.
        coloured = force_color or self.stdout.isatty()
        terminal = Terminal(self.stdout, self.style if coloured else None, self.stderr)
        if not self._is_program:
            self._convert(subcommand, options)
        try:
            self.exit_code = SUBCOMMANDS[subcommand].run(terminal, **options)
        finally:
            if terminal.closed and self._is_program:
                _discard(sys.stdout)
        if terminal.failure is not None:
            raise CommandError(
                f"standard output cannot be written: {terminal.failure.strerror or terminal.failure}; "
                f"without that, zklock {subcommand} would have ended with {self.exit_code}",
                returncode=COULD_NOT_RUN,
            )
        # `call_command` returns nothing, and a program must not exit because there is no lock.
        if self.exit_code and not self._is_program and subcommand not in QUESTIONS:
            raise UnsuccessfulError(
                f"zklock {subcommand} has ended with {self.exit_code}; its output says why", returncode=self.exit_code
            )

    def _convert(self, subcommand: str, options: dict[str, Any]) -> None:
        """Convert what code has given in the notation of a command line: Django parses no keyword of ``call_command``.

        Raises ``CommandError`` for a wrong value.
        """
        for action in self._parsers[subcommand]._actions:  # noqa: SLF001 - as Django's own `call_command`
            value = options.get(action.dest)
            if isinstance(value, str) and callable(action.type):
                try:
                    options[action.dest] = action.type(value)
                except ArgumentTypeError as error:
                    raise CommandError(f"{action.dest} {error}", returncode=COULD_NOT_RUN) from error
