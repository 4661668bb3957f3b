"""``zklock list``: the locks that have a holder or a waiter."""

from __future__ import annotations

from argparse import ArgumentParser
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

from django.core.management.base import CommandError

from django_zklock.connections import connections
from django_zklock.management.subcommands import _common, _output, arguments
from django_zklock.management.subcommands._output import Terminal
from django_zklock.management.subcommands.exit_codes import COULD_NOT_RUN, FOUND_PROBLEM, OK
from django_zklock.zk.ops import search
from django_zklock.zk.ops.search import LockFilter, Ordering
from django_zklock.zk.ops.snapshots import LockSnapshot

T = TypeVar("T")

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
    lock_filter = arguments.lock_filter(pattern, **options)
    find = partial(_find, lock_filter=lock_filter, ordering=arguments.ordering(**options), limit=limit)
    with _common.as_command_errors():
        aliases = list(connections) if all else [using]
    results = dict(zip(aliases, _map_parallel(find, aliases), strict=True))
    found = {alias: result for alias, result in results.items() if not isinstance(result, CommandError)}
    if format == "json":
        terminal.write(_output.locks_json(found))
    elif any(found.values()):
        terminal.write(_output.lock_table(found, terminal))
    else:
        what = "No locks" if lock_filter == LockFilter() else "No matching locks"
        for alias in found:
            options_of_alias = connections[alias].options
            root, hosts = options_of_alias.root, options_of_alias.connection.hosts
            terminal.write(f"{what} are in use under {root} at {hosts}.\n")
    # Raised after the output: an ensemble that cannot be reached must not hide the others.
    errors = [str(result) for result in results.values() if isinstance(result, CommandError)]
    if errors:
        raise CommandError("; ".join(errors), returncode=COULD_NOT_RUN)
    # Exit 1 if a filter matched nothing, like grep. An empty, unfiltered list is fine.
    return FOUND_PROBLEM if lock_filter != LockFilter() and not any(found.values()) else OK


def _map_parallel(function: Callable[[str], T], aliases: Sequence[str]) -> list[T]:
    """Call ``function`` for all aliases at the same time: the slowest ensemble decides how long it takes."""
    if len(aliases) <= 1:
        # In this thread, which Ctrl-C interrupts.
        return [function(alias) for alias in aliases]
    with ThreadPoolExecutor(len(aliases)) as threads:
        return list(threads.map(function, aliases))


def _find(
    alias: str, *, lock_filter: LockFilter, ordering: Ordering, limit: int | None
) -> list[LockSnapshot] | CommandError:
    try:
        with _common.as_command_errors():
            pool = connections[alias]
            return search.find(pool, lock_filter, ordering, limit=limit, timeout=pool.options.connect_timeout)
    except CommandError as error:
        return error
