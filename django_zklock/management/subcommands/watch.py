"""``zklock watch``: follow the changes of locks."""

from __future__ import annotations

import shutil
import time
from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any

from django.core.management.base import CommandError

from django_zklock.connections import connections
from django_zklock.exceptions import ZkLockError
from django_zklock.management.subcommands import _common, _watch, arguments
from django_zklock.management.subcommands._output import Terminal
from django_zklock.management.subcommands._watch import EventLog, LiveView
from django_zklock.management.subcommands.exit_codes import COULD_NOT_RUN, OK
from django_zklock.zk import paths
from django_zklock.zk.ops import search, snapshots
from django_zklock.zk.ops.search import LockFilter, Ordering, Search
from django_zklock.zk.ops.snapshots import LockSnapshot
from django_zklock.zk.pool import Pool
from django_zklock.zk.waiting import monotonic

HELP = "follow the changes of locks, until Ctrl-C"

DEFAULT_INTERVAL = 2.0
MIN_INTERVAL = 0.2
# Of more locks a terminal gets only those that it has room for, so that not all are read each time.
MANY = 1000


def add_arguments(parser: ArgumentParser) -> None:
    parser.add_argument("key", metavar="KEY", nargs="?", help="the queue of this lock; without it, the list of locks")
    parser.add_argument("--match", metavar="KEYPATTERN", help="only locks whose key contains or matches this")
    arguments.add_filters(parser)
    arguments.add_alias(parser)
    parser.add_argument("--format", choices=("text", "json"), help="write changes, also on a terminal")
    arguments.add_json(parser)
    parser.add_argument(
        "--interval",
        metavar="SECONDS",
        type=_interval,
        default=DEFAULT_INTERVAL,
        help="time between two reads (default: %(default)g)",
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
    lock_filter, ordering = arguments.parse_filters(match, options)
    if key is not None and lock_filter != search.ALL:
        raise CommandError("filters have no meaning with KEY", returncode=COULD_NOT_RUN)
    with _common.as_command_errors():
        pool = connections[using]
        if key is not None:
            paths.check_key(key)
    view: LiveView | EventLog
    find: Callable[..., list[LockSnapshot]]
    if terminal.is_a_tty and format is None:
        view = LiveView(terminal, using, key, interval)
        find = partial(_find_for_screen, view, pool, lock_filter, ordering, options["limit"])
    else:
        # Only the key filters the read. A lock that stops matching another filter was not released, and one that
        # starts to match was not just taken: the log needs the states before and after.
        find = partial(search.find, pool, LockFilter(key=lock_filter.key))
        format_event = partial(_watch.event_json, using) if format == "json" else _watch.event_text
        view = EventLog(terminal, lock_filter, format_event)
    # An outage is shown and the watch goes on; wrong settings end it.
    with _common.as_command_errors(), suppress(KeyboardInterrupt):
        while not terminal.closed:
            next_read = monotonic() + interval
            try:
                timeout = _common.answer_timeout(pool, terminal)
                locks = find(timeout=timeout) if key is None else [snapshots.one_lock(pool, key, timeout=timeout)]
                view.show(locks)
            except ZkLockError as error:
                view.show_error(_common.one_line(error))
            time.sleep(max(0.0, next_read - monotonic()))
    return OK


def _find_for_screen(
    view: LiveView, pool: Pool, lock_filter: LockFilter, ordering: Ordering, limit: int | None, *, timeout: float
) -> list[LockSnapshot]:
    """Return the locks to be shown: of very many those that the terminal has room for."""
    found = Search(pool, lock_filter, ordering, limit=limit, whole=False, timeout=timeout)
    if len(found.list_names()) > MANY:
        rows = shutil.get_terminal_size().lines
        found.limit = rows if limit is None else min(limit, rows)
    locks = list(found)
    view.unread = found.progress.total - found.progress.read if limit is None else 0
    return locks


def _interval(text: str) -> float:
    value = arguments.seconds(text)
    if value is None or value < MIN_INTERVAL:
        raise ArgumentTypeError(f"must be a finite time of at least {MIN_INTERVAL:g} s, got {text!r}")
    return value
