"""``zklock migrate``: migrate on one host at a time; on the others there is nothing left to do."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Sequence
from typing import Any

from django_zklock.management.subcommands import arguments, manage
from django_zklock.management.subcommands import run as run_
from django_zklock.management.subcommands._output import Terminal

HELP = "migrate the database under a lock"

DEFAULT_KEY = "migrate"


def add_arguments(parser: ArgumentParser) -> None:
    parser.usage = "%(prog)s [options] [-- ARGUMENT ...]"
    parser.add_argument("--key", metavar="KEY", default=DEFAULT_KEY, help="the key of the lock (default: %(default)s)")
    arguments.add_alias(parser)
    run_.add_waiting(parser)


def run(terminal: Terminal, *, command: Sequence[str], **options: Any) -> int:
    # A question would stay without an answer, while the other instances wait.
    return manage.run(terminal, command=["migrate", "--no-input", *command], **options)
