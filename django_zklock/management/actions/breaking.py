"""``zklock break``: a lock taken away from its holder."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from django_zklock.exceptions import NotHeld
from django_zklock.management import arguments, failure, holders, rendering
from django_zklock.management.statuses import COULD_NOT_RUN, FINDING, FINE
from django_zklock.management.terminal import Terminal
from django_zklock.zk import display
from django_zklock.zk.inspection import breaking, survey
from django_zklock.zk.inspection.survey import Line, Place
from django_zklock.zk.pool import Pool

HELP = "take a lock away from its holder, whose work goes on"

WARNING = """\
Breaking does not end the work of the holder: it may run on beside that of the next one.
End it first, or ask it to stop: manage.py zklock revoke
"""


def add_arguments(parser: ArgumentParser) -> None:
    arguments.add_key(parser)
    arguments.add_alias(parser)
    arguments.add_node(parser)
    arguments.add_reason(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask whether to break it")


def run(
    terminal: Terminal, *, key: str, using: str, node: str | None, reason: str | None, yes: bool, **_options: Any
) -> int:
    if not yes and not terminal.can_ask:
        raise CommandError("nobody can be asked here; give --yes to break the lock unasked", returncode=COULD_NOT_RUN)
    pool, line, found = holders.find(terminal, using, key, node)
    if not found:
        return FINDING
    terminal.write(rendering.places_as_table(line, found, terminal))
    if len(found) > 1:
        raise CommandError(
            f"{len(found)} hold lock {display.visible(key)}; name the node of one with --node", returncode=COULD_NOT_RUN
        )
    terminal.write(WARNING)
    why = holders.reason(reason, "Why is it broken? ", terminal)
    if not yes and not _confirmed(found[0], terminal):
        terminal.write("Nothing was broken.\n")
        return FINDING
    return _break(terminal, pool, line, found[0], f"broken by {holders.operator()}: {why}")


def _confirmed(holder: Place, terminal: Terminal) -> bool:
    return terminal.ask(f'Take the lock away from {display.who(holder)}? Type "yes": ') == "yes"


def _break(terminal: Terminal, pool: Pool, line: Line, holder: Place, why: str) -> int:
    with failure.reported():
        try:
            breaking.remove(pool, holder.path, token=holder.token, why=why, timeout=pool.options.connect_timeout)
        except NotHeld as error:
            terminal.write(f"Nothing was broken: {failure.one_line(error)}.\n")
            holders.tell_who_holds(survey.line(pool, line.key, timeout=pool.options.connect_timeout), terminal)
            return FINDING
    terminal.write(f"Lock {display.visible(line.key)} was taken away from {display.who(holder)}.\n")
    return FINE
