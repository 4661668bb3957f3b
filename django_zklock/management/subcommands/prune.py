"""``zklock prune``: remove empty queues."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django_zklock.connections import connections
from django_zklock.management.subcommands import _common, arguments
from django_zklock.management.subcommands._output import Terminal
from django_zklock.management.subcommands.exit_codes import OK
from django_zklock.zk import paths
from django_zklock.zk.formatting import escape_controls
from django_zklock.zk.ops import actions

HELP = "remove empty queues, which other clients such as kazoo leave behind"

# Queues removed within one CONNECT_TIMEOUT.
BATCH_SIZE = 1000


def add_arguments(parser: ArgumentParser) -> None:
    arguments.add_alias(parser)
    parser.add_argument("--dry-run", action="store_true", help="only show what would be removed")


def run(terminal: Terminal, *, using: str, dry_run: bool, **_options: Any) -> int:
    with _common.as_command_errors():
        pool = connections[using]
        timeout = _common.answer_timeout(pool, terminal)
        names = actions.find_idle(pool, timeout=timeout)
        if not dry_run:
            batches = [names[start : start + BATCH_SIZE] for start in range(0, len(names), BATCH_SIZE)]
            names = [name for batch in batches for name in actions.prune(pool, batch, timeout=timeout)]
    terminal.write("".join(f"{escape_controls(paths.display_key(name))}\n" for name in names))
    count = f"{len(names)} empty queue{'' if len(names) == 1 else 's'}"
    terminal.write(f"{'Would remove' if dry_run else 'Removed'} {count} under {pool.options.root}.\n")
    return OK
