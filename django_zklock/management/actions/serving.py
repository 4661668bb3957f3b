"""``zklock devserver``: a ZooKeeper for development."""

from __future__ import annotations

from typing import Any

from django.core.management.base import CommandError

from django_zklock.management.failure import one_line
from django_zklock.management.statuses import COULD_NOT_RUN, FINE
from django_zklock.management.terminal import Terminal
from django_zklock.testing import foreground
from django_zklock.testing.foreground import add_arguments

__all__ = ["HELP", "add_arguments", "run"]

HELP = "run a ZooKeeper for development, in memory, until Ctrl-C"


def run(terminal: Terminal, *, host: str, port: int, allow_remote: bool, **_options: Any) -> int:
    try:
        foreground.run(host, port, allow_remote=allow_remote, write=terminal.write)
    except foreground.CannotServeError as error:
        raise CommandError(one_line(error), returncode=COULD_NOT_RUN) from error
    return FINE
