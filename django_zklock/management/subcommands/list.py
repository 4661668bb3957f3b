"""``zklock list``: the locks that have a holder or a waiter."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from django_zklock.connections import connections
from django_zklock.management.subcommands import _common, _output, arguments
from django_zklock.management.subcommands._output import Terminal
from django_zklock.management.subcommands.exit_codes import COULD_NOT_RUN, FOUND_PROBLEM, OK
from django_zklock.zk.ops import search
from django_zklock.zk.ops.snapshots import LockSnapshot

HELP = "list the locks that have a holder or a waiter"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("pattern", metavar="KEYPATTERN", nargs="?", help="a part of the key, or a pattern with * and ?")
    which = parser.add_mutually_exclusive_group()
    arguments.add_alias(which)
    which.add_argument("--all", action="store_true", help="the locks of every alias")
    arguments.add_filters(parser)
    arguments.add_format(parser)


def run(
    terminal: Terminal,
    *,
    pattern: str | None,
    using: str,
    all: bool,  # noqa: A002 - the option's name
    limit: int | None,
    format: str,  # noqa: A002
    **options: Any,
) -> int:
    lock_filter, ordering = arguments.parse_filters(pattern, options)

    def find(alias: str) -> list[LockSnapshot] | CommandError:
        try:
            with _common.as_command_errors():
                pool = connections[alias]
                timeout = _common.answer_timeout(pool, terminal)
                return search.find(pool, lock_filter, ordering, limit=limit, timeout=timeout)
        except CommandError as error:
            return error

    with _common.as_command_errors():
        aliases = list(connections) if all else [using]
    results = dict(zip(aliases, search.map_parallel(find, aliases), strict=True))
    found = {alias: result for alias, result in results.items() if not isinstance(result, CommandError)}
    problems = {alias: str(result) for alias, result in results.items() if isinstance(result, CommandError)}
    if format == "json":
        terminal.write(_output.locks_json(found, problems))
    elif any(found.values()):
        terminal.write(_output.lock_table(found, terminal))
    else:
        what = "No locks" if lock_filter == search.ALL else "No matching locks"
        for pool in map(connections.__getitem__, found):
            hosts = pool.options.connection.hosts
            terminal.write(f"{what} are in use under {pool.options.root} at {hosts}.\n")
    # Raised after the output: an ensemble that cannot be reached must not hide the others.
    if problems:
        raise CommandError("; ".join(problems.values()), returncode=COULD_NOT_RUN)
    # Exit 1 if a filter matched nothing, like grep. An empty, unfiltered list is fine.
    return FOUND_PROBLEM if lock_filter != search.ALL and not any(found.values()) else OK
