"""``zklock list``: the locks that are held or waited for."""

from __future__ import annotations

from argparse import ArgumentParser
from functools import partial
from typing import Any

from django.core.management.base import CommandError

from django_zklock.connections import connections
from django_zklock.management import arguments, failure, rendering
from django_zklock.management.statuses import COULD_NOT_RUN, FINDING, FINE
from django_zklock.management.terminal import Terminal
from django_zklock.together import at_once
from django_zklock.zk.inspection import search
from django_zklock.zk.inspection.selection import Ordering, Selection
from django_zklock.zk.inspection.survey import Line

HELP = "list the locks that are held or waited for"


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("pattern", metavar="KEYPATTERN", nargs="?", help="a part of the key, or a pattern with * and ?")
    which = parser.add_mutually_exclusive_group()
    arguments.add_alias(which)
    which.add_argument("--all", action="store_true", help="the locks of every alias")
    arguments.add_selection(parser)
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
    selection = arguments.selection(pattern, **options)
    ordering = arguments.ordering(**options)
    with failure.reported():
        aliases = list(connections) if all else [using]
    outcomes = at_once([partial(_find, alias, selection, ordering, limit) for alias in aliases])
    found = {alias: outcome for alias, outcome in zip(aliases, outcomes, strict=True) if isinstance(outcome, list)}
    # One ensemble that is away hides no other.
    problems = [str(outcome) for outcome in outcomes if isinstance(outcome, CommandError)]
    if format == "json":
        terminal.write(rendering.lines_as_json(found))
    elif any(found.values()):
        terminal.write(rendering.lines_as_table(found, terminal))
    else:
        what = "No locks" if selection == Selection() else "No such locks"
        for alias in found:
            pool = connections[alias].options
            terminal.write(f"{what} are in use under {pool.root} at {pool.connection.hosts}.\n")
    if problems:
        raise CommandError("; ".join(problems), returncode=COULD_NOT_RUN)
    # As grep has it; but that no locks are in use at all is in order.
    return FINDING if selection != Selection() and not any(found.values()) else FINE


def _find(alias: str, selection: Selection, ordering: Ordering, limit: int | None) -> list[Line] | CommandError:
    try:
        with failure.reported():
            pool = connections[alias]
            return search.find(pool, selection, ordering, limit=limit, timeout=pool.options.connect_timeout)
    except CommandError as error:
        return error
