"""``manage.py zklock``: look at live locks, act on them, run a command under one, or a ZooKeeper for development."""

from __future__ import annotations

import logging
import sys
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from django.core.management.base import BaseCommand, CommandError, CommandParser

from django_zklock.management.actions import (
    breaking,
    examining,
    listing,
    pruning,
    revoking,
    running,
    serving,
    showing,
    watching,
)
from django_zklock.management.statuses import COULD_NOT_RUN, INTERRUPTED
from django_zklock.management.terminal import Terminal


class Action(Protocol):
    """One action; a module is one.

    ``run`` takes a terminal and the options that ``add_arguments`` has added, and gives the exit status.
    """

    HELP: str

    @property
    def add_arguments(self) -> Callable[[ArgumentParser], None]: ...

    @property
    def run(self) -> Callable[..., int]: ...


ACTIONS: Mapping[str, Action] = {
    "list": listing,
    "show": showing,
    "watch": watching,
    "revoke": revoking,
    "break": breaking,
    "prune": pruning,
    "doctor": examining,
    "run": running,
    "devserver": serving,
}


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
    """Look at live locks, act on them, run a command under one, or a ZooKeeper for development."""

    help = "Looks at the locks in ZooKeeper, revokes and breaks them, runs commands under one, or a development server."
    # At 3 a.m. a check of some other app must not stand in the way; wrong settings are reported all the same.
    requires_system_checks = ()

    def add_arguments(self, parser: CommandParser) -> None:
        parsers = parser.add_subparsers(dest="action", required=True, metavar="ACTION", parser_class=_ActionParser)
        for name, action in ACTIONS.items():
            action.add_arguments(parsers.add_parser(name, help=action.HELP))

    def handle(self, *args: Any, action: str, force_color: bool, **options: Any) -> None:  # noqa: ARG002 - Django's
        if action != "devserver":
            # What cannot be done is said once, by the error. Without a handler Python would print the log too.
            logging.getLogger("django_zklock").addHandler(logging.NullHandler())
        if action != "run" and options["command"]:
            raise CommandError(f'{action} takes nothing after "--"', returncode=COULD_NOT_RUN)
        # Django asks standard output whether it is a terminal; ours may be something else.
        coloured = force_color or self.stdout.isatty()
        try:
            status = ACTIONS[action].run(Terminal(self.stdout, self.style if coloured else None), **options)
        except KeyboardInterrupt:
            # Somebody has thought better of it, and needs no traceback.
            status = INTERRUPTED
        if status:
            sys.exit(status)
