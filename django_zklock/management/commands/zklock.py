"""``manage.py zklock``: show live locks and act on them, run a command under one, or a ZooKeeper for development."""

from __future__ import annotations

import logging
import sys
from argparse import SUPPRESS, Namespace
from collections.abc import Mapping, Sequence
from types import ModuleType
from typing import Any

from django.core.management.base import BaseCommand, CommandParser

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
    show,
    watch,
)
from django_zklock.management.subcommands import list as list_
from django_zklock.management.subcommands._output import Terminal
from django_zklock.management.subcommands.exit_codes import INTERRUPTED

# Each module has a text HELP, a function `add_arguments` that adds options to a parser, and a function `run` that takes
# a terminal and these options and returns the exit code.
SUBCOMMANDS: Mapping[str, ModuleType] = {
    module.__name__.rpartition(".")[2].rstrip("_"): module
    for module in (list_, show, watch, history, revoke, break_, prune, doctor, run, manage, migrate, devserver)
}

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
        if unknown and name in WITH_COMMAND and not command:
            what = "what is passed on to migrate" if name == "migrate" else "the command to run"
            self.error(f'unrecognized arguments: {" ".join(unknown)}; {what} stands after "--"')
        parsed.command = command
        return parsed, unknown


def _split(words: list[str]) -> tuple[list[str], list[str]]:
    """Return the words before the first "--" and those after it."""
    end = words.index("--") if "--" in words else len(words)
    return words[:end], words[end + 1 :]


class Command(BaseCommand):
    """Show live locks and act on them, run a command under one, or a ZooKeeper for development."""

    help = "Shows the locks in ZooKeeper, revokes and breaks them, runs a command under one, or a development server."
    # In an emergency a check of another app must not stop this command. It reports wrong settings itself.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parsers = parser.add_subparsers(
            dest="subcommand", required=True, metavar="SUBCOMMAND", parser_class=_SubcommandParser
        )
        for name, subcommand in SUBCOMMANDS.items():
            subcommand.add_arguments(parsers.add_parser(name, help=subcommand.HELP))

    def handle(self, *args: Any, subcommand: str, force_color: bool, **options: Any) -> None:  # noqa: ARG002 - Django's
        if subcommand != "devserver":
            # The error is printed once, by Django. Without a handler Python would print the log records as well.
            logging.getLogger("django_zklock").addHandler(logging.NullHandler())
        # Django checks sys.stdout for a terminal; self.stdout may be another stream.
        coloured = force_color or self.stdout.isatty()
        try:
            code = SUBCOMMANDS[subcommand].run(Terminal(self.stdout, self.style if coloured else None), **options)
        except KeyboardInterrupt:
            # Ctrl-C is no error and needs no traceback.
            code = INTERRUPTED
        if code:
            sys.exit(code)
