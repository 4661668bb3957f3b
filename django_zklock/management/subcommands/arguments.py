"""Options that several subcommands have, and the conversion of their values."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from django_zklock.conf import DEFAULT_ALIAS
from django_zklock.zk import waiting
from django_zklock.zk.formatting import DAY, HOUR, MINUTE
from django_zklock.zk.ops.search import COLUMNS, KINDS, STATES, LockFilter, Ordering

if TYPE_CHECKING:
    # The base class of parsers and of argument groups.
    from argparse import _ActionsContainer

UNITS = {"s": 1, "m": MINUTE, "h": HOUR, "d": DAY}


def add_alias(parser: _ActionsContainer) -> None:
    """Add the option for the ensemble."""
    parser.add_argument(
        "--using",
        metavar="ALIAS",
        default=DEFAULT_ALIAS,
        help="the alias of the ensemble in ZKLOCK (default: %(default)s)",
    )


def add_lock(parser: ArgumentParser) -> None:
    """Add the argument for the key of a lock, and the option for its ensemble."""
    parser.add_argument("key", metavar="KEY")
    add_alias(parser)


def add_holder(parser: ArgumentParser) -> None:
    """Add what names a lock and chooses one of several holders, and the reason that the holder will read."""
    add_lock(parser)
    parser.add_argument("--node", metavar="NODE", help="only the holder with this node, as shown by `show`")
    parser.add_argument("--reason", metavar="TEXT", help="why; shown to the holder (default: ask on a terminal)")


def add_format(parser: ArgumentParser) -> None:
    """Add the option for the output format."""
    parser.add_argument("--format", choices=("table", "json"), default="table", help="(default: %(default)s)")
    add_json(parser)


def add_json(parser: ArgumentParser) -> None:
    """Add the short form of ``--format json``."""
    parser.add_argument("--json", dest="format", action="store_const", const="json", help="the same as --format json")


def add_filters(parser: ArgumentParser) -> None:
    """Add the options that filter, sort and limit locks; see :func:`parse_filters`."""
    parser.add_argument("--state", choices=STATES, default="", help="only locks in this state")
    parser.add_argument("--kind", choices=KINDS, default="", help="only locks with a contender of this kind")
    parser.add_argument("--host", metavar="TEXT", default="", help="only locks with a contender on such a host")
    parser.add_argument("--task", metavar="TEXT", default="", help="only locks with a contender with such work")
    parser.add_argument(
        "--older-than",
        metavar="SECONDS",
        type=age,
        default=0.0,
        help="only locks that are held, or may be held, at least this time: 90, 15m, 2h, 1d",
    )
    parser.add_argument("--sort", choices=tuple(COLUMNS), default="key", help="sort by this (default: %(default)s)")
    parser.add_argument("--reverse", action="store_true", help="sort in descending order")
    parser.add_argument("--limit", metavar="NUMBER", type=count, help="at most this number of locks")


def parse_filters(pattern: str | None, options: Mapping[str, Any]) -> tuple[LockFilter, Ordering]:
    """Return the filter and the order that the options of :func:`add_filters` describe, with a pattern for the key."""
    conditions = {name: options[name] for name in ("state", "kind", "host", "task")}
    lock_filter = LockFilter(key=pattern or "", older=options["older_than"], **conditions)
    return lock_filter, Ordering(column=options["sort"], reverse=options["reverse"])


def seconds(text: str) -> float | None:
    """Return the seconds of a time like ``90``, ``1.5``, ``90s``, ``15m``, ``2h`` or ``1d``; ``None`` is for ever."""
    unit = UNITS.get(text[-1:])
    try:
        return waiting.seconds(float(text[:-1]) * unit if unit else float(text))
    except ValueError as error:
        raise ArgumentTypeError(
            f"must be a number of seconds, not negative, or a time like 15m, 2h or 1d, got {text!r}"
        ) from error


def age(text: str) -> float:
    """Return the seconds of a time as :func:`seconds` does, but not for ever."""
    found = seconds(text)
    if found is None:
        raise ArgumentTypeError(f"must be a finite time, got {text!r}")
    return found


def count(text: str) -> int:
    """Return a positive integer."""
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise ArgumentTypeError(f"must be a positive integer, got {text!r}")
