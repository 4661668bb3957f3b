"""``zklock list``: the locks that have a holder or a waiter."""

from __future__ import annotations

from argparse import ArgumentParser
from typing import Any

from django.core.management.base import CommandError

from django_zklock import operations
from django_zklock.connections import connections
from django_zklock.exceptions import ZkLockError
from django_zklock.management.subcommands import _common, _output, arguments
from django_zklock.management.subcommands._output import Terminal
from django_zklock.management.subcommands.exit_codes import COULD_NOT_RUN, FOUND_PROBLEM, OK
from django_zklock.operations import Search
from django_zklock.zk.ops import search, sent

HELP = "list the locks that have a holder or a waiter"


def add_arguments(parser: ArgumentParser) -> None:
    pattern = parser.add_mutually_exclusive_group()
    help_text = "a part of the key, or a pattern with * and ?"
    pattern.add_argument("pattern", metavar="KEYPATTERN", nargs="?", help=help_text)
    pattern.add_argument("--match", metavar="KEYPATTERN", help="the same, as for `watch`")
    which = parser.add_mutually_exclusive_group()
    arguments.add_alias(which)
    which.add_argument("--all", action="store_true", help="the locks of every alias")
    arguments.add_filters(parser)
    arguments.add_format(parser)


def run(
    terminal: Terminal,
    *,
    pattern: str | None,
    match: str | None,
    using: str,
    all: bool,  # noqa: A002 - the option's name
    limit: int | None,
    format: str,  # noqa: A002
    **options: Any,
) -> int:
    conditions = {name: options[name] for name in ("state", "kind", "host", "task", "older_than", "sort", "reverse")}
    wanted = pattern or match or ""
    is_json = format == "json"

    def begin(alias: str) -> Search | CommandError:
        """Return a search that has listed the names, or the error."""
        try:
            with _common.as_command_errors():
                timeout = _common.answer_timeout(connections[alias], terminal)
                found = operations.find_locks(
                    wanted, limit=limit, holders_only=not is_json, using=alias, timeout=timeout, **conditions
                )
                found.list_names()
                return found
        except CommandError as error:
            return error

    with _common.as_command_errors():
        aliases = list(connections) if all else [using]
    searches = dict(zip(aliases, search.map_parallel(begin, aliases), strict=True))
    several = sum(isinstance(each, Search) for each in searches.values()) > 1
    output = _output.LockList(terminal) if is_json else _output.LockTable(terminal, with_alias=several)
    problems: dict[str, str] = {}
    for alias, found in searches.items():
        try:
            if isinstance(found, CommandError):
                raise found
            with _common.as_command_errors():
                for batch in found.batches():
                    output.write(alias, batch)
                    terminal.note(f"{found.progress} read; Ctrl-C ends")
                    if terminal.closed:
                        return OK
        except CommandError as error:
            problems[alias] = str(error)
    terminal.clear_note()
    output.end(problems)
    is_filtered = bool(wanted) or any(conditions[name] for name in ("state", "kind", "host", "task", "older_than"))
    if output.is_empty and not is_json:
        what = "No matching locks" if is_filtered else "No locks"
        for pool in map(connections.__getitem__, [alias for alias in aliases if alias not in problems]):
            hosts = pool.options.connection.hosts
            terminal.write(f"{what} are in use under {pool.options.root} at {hosts}.\n")
    if not is_json and not is_filtered:
        for alias in [each for each in aliases if each not in problems]:
            _write_sent(terminal, alias, f" of {alias}" if several else "")
    # Raised after the output: an ensemble that cannot be reached must not hide the others.
    if problems:
        raise CommandError("; ".join(problems.values()), returncode=COULD_NOT_RUN)
    # Exit 1 if a filter matched nothing, like grep. An empty, unfiltered list is fine.
    return FOUND_PROBLEM if is_filtered and output.is_empty else OK


def _write_sent(terminal: Terminal, alias: str, where: str) -> None:
    """Write how many calls of tasks are sent and have not begun, if any are."""
    pool = connections[alias]
    try:
        count = sent.count(pool, timeout=pool.options.connect_timeout)
    except ZkLockError:  # its ACL may be another one than that of locks
        return
    if count:
        calls = f"{count} call{'' if count == 1 else 's'} of tasks{where}"
        terminal.write(f"{calls} {'is' if count == 1 else 'are'} sent and not begun: zklock sent shows them.\n")
