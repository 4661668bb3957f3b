"""Whoever holds a lock, for those who want it from them."""

from __future__ import annotations

import getpass
import os
import socket
from collections.abc import Sequence

from django.core.management.base import CommandError

from django_zklock.connections import connections
from django_zklock.management import failure, rendering
from django_zklock.management.statuses import COULD_NOT_RUN
from django_zklock.management.terminal import Terminal
from django_zklock.zk import display
from django_zklock.zk.inspection import survey
from django_zklock.zk.inspection.survey import Line, Place
from django_zklock.zk.pool import Pool


def find(terminal: Terminal, using: str, key: str, node: str | None) -> tuple[Pool, Line, Sequence[Place]]:
    """Give the pool of an alias, the line of a lock and who holds it, or of them the one at the node of that name.

    If that is nobody, it is written, with who holds instead. Raises ``CommandError`` if ZooKeeper cannot be read.
    """
    with failure.reported():
        pool = connections[using]
        line = survey.line(pool, key, timeout=pool.options.connect_timeout)
    found = [place for place in line.holders if node is None or place.node == node]
    if not found:
        shown = display.visible(key)
        if node is None:
            terminal.write(f"Nobody holds lock {shown}.\n")
        else:
            terminal.write(f"Nobody holds lock {shown} with node {display.visible(node)}.\n")
            tell_who_holds(line, terminal)
    return pool, line, found


def tell_who_holds(line: Line, terminal: Terminal) -> None:
    """Write who holds."""
    if line.holders:
        terminal.write(f"It is held by:\n{rendering.places_as_table(line, line.holders, terminal)}")


def reason(given: str | None, question: str, terminal: Terminal) -> str:
    """Give the reason that was given, or ask for one; raises ``CommandError`` where there is none."""
    text = given if given is not None or not terminal.can_ask else terminal.ask(question)
    if not text or not text.strip():
        raise CommandError("say why, with --reason", returncode=COULD_NOT_RUN)
    return text.strip()


def operator() -> str:
    """Give who runs this command, and where, as the holder is to read it."""
    try:
        user = getpass.getuser()
    except (KeyError, OSError):  # a container may know no name for its user; KeyError until Python 3.13
        user = f"user {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
