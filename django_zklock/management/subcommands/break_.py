"""``zklock break``: take a lock away from its holder."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from django_zklock import operations
from django_zklock.exceptions import NotHeld
from django_zklock.management.subcommands import _common, _output, arguments
from django_zklock.management.subcommands._output import Terminal
from django_zklock.management.subcommands.exit_codes import COULD_NOT_RUN, FOUND_PROBLEM, OK
from django_zklock.zk.formatting import escape_controls, program
from django_zklock.zk.ops.snapshots import QueueEntry

HELP = "take a lock away from its holder, without stopping the holder's work"

WARNING = """\
Breaking does not stop the holder's work: it can go on while the next holder works.
End it first, or request its release: manage.py zklock revoke
"""


def add_arguments(parser: ArgumentParser) -> None:
    arguments.add_holder(parser)
    parser.add_argument("--yes", action="store_true", help="do not ask for confirmation")


def run(
    terminal: Terminal, *, key: str, using: str, node: str | None, reason: str | None, yes: bool, **_options: Any
) -> int:
    snapshot, holders = _common.find_holders(terminal, using, key, node)
    if not holders:
        return FOUND_PROBLEM
    if not yes and not terminal.can_ask:
        message = "this is not a terminal; --yes breaks the lock without asking for confirmation"
        raise CommandError(message, returncode=COULD_NOT_RUN)
    terminal.write(_output.entry_table(snapshot, holders, terminal))
    if len(holders) > 1:
        message = f"lock {escape_controls(key)} has {len(holders)} holders; choose one by its node, with --node"
        raise CommandError(message, returncode=COULD_NOT_RUN)
    terminal.write(_output.several_text(holders[0]) + program.spell(WARNING) + _output.end_text(holders[0]))
    reason = _common.require_reason(reason, terminal)
    if not yes and not _confirmed(holders[0], terminal):
        terminal.write("Nothing was broken.\n")
        return FOUND_PROBLEM
    holder = holders[0]
    with _common.as_command_errors():
        try:
            operations.break_lock(holder, reason, by=_common.operator(), using=using)
        except NotHeld as error:
            terminal.write(f"Nothing was broken: {_common.one_line(error)}.\n")
            _common.write_holders(operations.show_lock(key, using=using), terminal)
            return FOUND_PROBLEM
    terminal.write(f"Lock {escape_controls(key)} was broken; it was held by {holder.owner_text}.\n")
    return OK


def _confirmed(holder: QueueEntry, terminal: Terminal) -> bool:
    return terminal.ask(f'Break the lock of {holder.owner_text}? Type "yes": ') == "yes"
