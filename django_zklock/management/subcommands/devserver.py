"""``zklock devserver``: run a ZooKeeper for development."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError

from django_zklock.management.subcommands._common import one_line
from django_zklock.management.subcommands._output import Terminal
from django_zklock.management.subcommands.exit_codes import COULD_NOT_RUN, OK
from django_zklock.testing.server import serve

HELP = "run a ZooKeeper for development, in memory, until Ctrl-C"

add_arguments = serve.add_arguments


def run(terminal: Terminal, *, host: str, port: int, allow_remote: bool, **_options: Any) -> int:
    try:
        serve.run(host, port, allow_remote=allow_remote, write=terminal.write)
    except serve.CannotServeError as error:
        raise CommandError(one_line(error), returncode=COULD_NOT_RUN) from error
    return OK
