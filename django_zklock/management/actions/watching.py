"""``zklock watch``: locks as they change."""

from __future__ import annotations

import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from django.core.management.base import CommandError

from django_zklock.connections import connections
from django_zklock.exceptions import ZkLockError
from django_zklock.management import arguments, failure, journal
from django_zklock.management.journal import Journal
from django_zklock.management.screen import Screen
from django_zklock.management.statuses import COULD_NOT_RUN, FINE
from django_zklock.management.terminal import Terminal
from django_zklock.zk import keys
from django_zklock.zk.inspection import search, survey
from django_zklock.zk.inspection.selection import Ordering, Selection
from django_zklock.zk.inspection.survey import Line
from django_zklock.zk.pool import Pool

HELP = "look at locks as they change, until Ctrl-C"

DEFAULT_INTERVAL = 2.0
LEAST_INTERVAL = 0.2

Reader = Callable[[float], Sequence[Line]]
"""Takes the seconds that it may take."""


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", nargs="?", help="the line of this lock; without it, the list of locks")
    parser.add_argument("--match", metavar="KEYPATTERN", help="only locks with this part in their key, or a pattern")
    arguments.add_selection(parser)
    arguments.add_alias(parser)
    parser.add_argument("--format", choices=("text", "json"), help="write changes, also on a terminal")
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        type=_interval,
        default=DEFAULT_INTERVAL,
        help="from one look to the next (default: %(default)g)",
    )


def run(
    terminal: Terminal,
    *,
    key: str | None,
    match: str | None,
    using: str,
    format: str | None,  # noqa: A002 - the option's name
    interval: float,
    **options: Any,
) -> int:
    selection = arguments.selection(match, **options)
    if key is not None and selection != Selection():
        raise CommandError("there is nothing to choose from in the line of one lock", returncode=COULD_NOT_RUN)
    with failure.reported():
        pool = connections[using]
        if key is not None:
            keys.check(key)
    view: Screen | Journal
    if terminal.is_a_tty and format is None:
        read = _reader(pool, key, selection, arguments.ordering(**options), options["limit"])
        view = Screen(terminal, using, key, interval)
    else:
        # All of them: one that the selection has no longer is not free, nor is one that it newly has just taken.
        read = _reader(pool, key, Selection(key=selection.key), Ordering(), None)
        view = Journal(terminal, using, selection, journal.as_json if format == "json" else journal.as_text)
    # An outage is to be lived through; what settings do not allow is not.
    with failure.reported(), suppress(KeyboardInterrupt):
        while terminal.is_heard:
            next_look = time.monotonic() + interval
            try:
                view.show(read(pool.options.connect_timeout))
            except ZkLockError as error:
                view.miss(failure.one_line(error))
            time.sleep(max(0.0, next_look - time.monotonic()))
    return FINE


def _reader(pool: Pool, key: str | None, selection: Selection, ordering: Ordering, limit: int | None) -> Reader:
    if key is not None:
        return lambda timeout: [survey.line(pool, key, timeout=timeout)]
    return lambda timeout: search.find(pool, selection, ordering, limit=limit, timeout=timeout)


def _interval(text: str) -> float:
    value = arguments.seconds(text)
    if value is None or value < LEAST_INTERVAL:
        raise ArgumentTypeError(f"must be {LEAST_INTERVAL:g} s at least, and not for ever, got {text!r}")
    return value
