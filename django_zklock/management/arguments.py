"""Options that several actions have, and how their values are read."""

from __future__ import annotations

from argparse import ArgumentParser, ArgumentTypeError
from typing import TYPE_CHECKING, Any

from django_zklock.conf import DEFAULT_ALIAS
from django_zklock.zk import deadline
from django_zklock.zk.inspection.selection import COLUMNS, KINDS, STATES, Ordering, Selection

if TYPE_CHECKING:
    # The parent of parsers and of groups of arguments.
    from argparse import _ActionsContainer

UNITS = {"s": 1, "m": 60, "h": 60 * 60, "d": 24 * 60 * 60}


def add_alias(parser: _ActionsContainer) -> None:
    """Add the option that says which ensemble."""
    parser.add_argument(
        "--using",
        metavar="ALIAS",
        default=DEFAULT_ALIAS,
        help="the ensemble, by its name in ZKLOCK (default: %(default)s)",
    )


def add_key(parser: ArgumentParser) -> None:
    """Add the key of a lock."""
    parser.add_argument("key", metavar="KEY")


def add_node(parser: ArgumentParser) -> None:
    """Add the option that says which of several holders."""
    parser.add_argument("--node", metavar="NODE", help="the holder with the node of this name, as shown by `show`")


def add_reason(parser: ArgumentParser) -> None:
    """Add the reason that the holder is told."""
    parser.add_argument("--reason", metavar="TEXT", help="why; the holder is told, and it is asked for if left out")


def add_format(parser: ArgumentParser) -> None:
    """Add the option that says how to write."""
    parser.add_argument("--format", choices=("table", "json"), default="table", help="(default: %(default)s)")


def add_selection(parser: ArgumentParser) -> None:
    """Add the options that say which locks and in what order; see :func:`selection` and :func:`ordering`."""
    parser.add_argument("--state", choices=STATES, default="", help="only locks in this state")
    parser.add_argument("--kind", choices=KINDS, default="", help="only locks that somebody takes in this way")
    parser.add_argument("--host", metavar="TEXT", default="", help="only locks with somebody on such a host")
    parser.add_argument("--task", metavar="TEXT", default="", help="only locks with work of such a name or id")
    parser.add_argument(
        "--older-than",
        metavar="SECONDS",
        type=seconds,
        default=0.0,
        help="only locks held so long: 90, 15m, 2h, 1d",
    )
    parser.add_argument("--sort", choices=tuple(COLUMNS), default="key", help="(default: %(default)s)")
    parser.add_argument("--reverse", action="store_true", help="sort downwards")
    parser.add_argument("--limit", metavar="NUMBER", type=count, help="only the first so many")


def selection(
    pattern: str | None, *, state: str, kind: str, host: str, task: str, older_than: float, **_options: Any
) -> Selection:
    """Give what the options of :func:`add_selection` choose, with a pattern for the key."""
    return Selection(key=pattern or "", state=state, kind=kind, host=host, task=task, older=older_than)


def ordering(*, sort: str, reverse: bool, **_options: Any) -> Ordering:
    """Give the order that the options of :func:`add_selection` ask for."""
    return Ordering(column=sort, reverse=reverse)


def seconds(text: str) -> float | None:
    """Read a time such as ``90``, ``1.5``, ``90s``, ``15m``, ``2h`` or ``1d``; ``None`` is for ever."""
    unit = UNITS.get(text[-1:])
    try:
        return deadline.seconds(float(text[:-1]) * unit if unit else float(text))
    except ValueError as error:
        raise ArgumentTypeError(
            f"must be a number of seconds, not negative, or such as 15m, 2h or 1d, got {text!r}"
        ) from error


def count(text: str) -> int:
    """Read a whole number from 1 on."""
    if text.isdecimal() and int(text) > 0:
        return int(text)
    raise ArgumentTypeError(f"must be a whole number from 1 on, got {text!r}")
