"""``zklock prune``: remove empty queues, and marks of calls that may be lost."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django_zklock import operations
from django_zklock.connections import connections
from django_zklock.management.subcommands import _common, arguments
from django_zklock.management.subcommands._output import Terminal
from django_zklock.management.subcommands.exit_codes import OK
from django_zklock.zk.formatting import escape_controls

HELP = "remove empty queues, which other clients such as kazoo leave behind, and marks of calls that may be lost"


def add_arguments(parser: ArgumentParser) -> None:
    arguments.add_alias(parser)
    parser.add_argument("--dry-run", action="store_true", help="only show what would be removed")
    help_text = "the marks of all calls that are sent, too: after the broker was purged"
    parser.add_argument("--sent", action="store_true", help=help_text)


def run(terminal: Terminal, *, using: str, dry_run: bool, sent: bool, **_options: Any) -> int:
    count = 0
    with _common.as_command_errors():
        pool = connections[using]
        timeout = _common.answer_timeout(pool, terminal)
        for key in operations.prune_queues(dry_run=dry_run, using=using, timeout=timeout):
            count += 1
            terminal.write(f"{escape_controls(key)}\n")
        lost = operations.prune_sent(everything=sent, dry_run=dry_run, using=using, timeout=timeout)
    for call in lost:
        terminal.write(f"{call.key}: {call.task} [{call.id}]\n")
    queues = f"{count} empty queue{'' if count == 1 else 's'}"
    terminal.write(f"{'Would remove' if dry_run else 'Removed'} {queues} under {pool.options.root}.\n")
    if lost:
        marks = f"{len(lost)} mark{'' if len(lost) == 1 else 's'}"
        terminal.write(f"{'Would remove' if dry_run else 'Removed'} {marks} of calls: the next ones are sent.\n")
    return OK
