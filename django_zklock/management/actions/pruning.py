"""``zklock prune``: lines that nobody stands in any more."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django_zklock.connections import connections
from django_zklock.management import arguments, failure
from django_zklock.management.statuses import FINE
from django_zklock.management.terminal import Terminal
from django_zklock.zk import display, keys
from django_zklock.zk.inspection import pruning

HELP = "remove the lines that nobody stands in, which old servers leave behind"

# So many are removed within each CONNECT_TIMEOUT at least.
PORTION = 1000


def add_arguments(parser: ArgumentParser) -> None:
    arguments.add_alias(parser)
    parser.add_argument("--dry-run", action="store_true", help="only tell what would be removed")


def run(terminal: Terminal, *, using: str, dry_run: bool, **_options: Any) -> int:
    with failure.reported():
        pool = connections[using]
        timeout = pool.options.connect_timeout
        names = pruning.idle(pool, timeout=timeout)
        if not dry_run:
            portions = [names[start : start + PORTION] for start in range(0, len(names), PORTION)]
            names = [name for portion in portions for name in pruning.remove(pool, portion, timeout=timeout)]
    terminal.write("".join(f"{display.visible(keys.readable(name))}\n" for name in names))
    count = f"{len(names)} idle {'line' if len(names) == 1 else 'lines'}"
    terminal.write(f"{'Would remove' if dry_run else 'Removed'} {count} under {pool.options.root}.\n")
    return FINE
