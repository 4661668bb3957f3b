"""Surveys as text: tables for people, JSON for programs."""

from __future__ import annotations

import json
import time
from collections.abc import Mapping, Sequence
from datetime import datetime, timezone
from typing import Any

from django_zklock import facts
from django_zklock.management.table import Column, table
from django_zklock.management.terminal import Terminal
from django_zklock.zk import display
from django_zklock.zk.inspection.obstacles import Obstacles
from django_zklock.zk.inspection.survey import Line, Place

# Names of foreign nodes that a table gives; JSON has all.
FOREIGN_SHOWN = 10
# Runs of positions likewise.
RUNS_SHOWN = 3

ALIAS = Column(name="ALIAS")
LIST = (
    Column(name="KEY", elastic=True),
    Column(name="STATE", coloured=True),
    Column(name="KIND"),
    Column(name="AGE"),
    Column(name="WAITERS"),
    Column(name="TOKEN"),
    Column(name="HOLDER", elastic=True),
)
LINE = (
    Column(name="POSITION"),
    Column(name="STATE", coloured=True),
    Column(name="KIND"),
    Column(name="AGE"),
    Column(name="WAITS FOR"),
    Column(name="HOLDER"),
    # What is rather for copying comes last: a terminal has no room for it, and breaks the row here.
    Column(name="SINCE (UTC)"),
    Column(name="TOKEN"),
    Column(name="NODE"),
)

Found = Mapping[str, Sequence[Line]]
"""What was found, by alias."""


def lines_as_table(found: Found, terminal: Terminal) -> str:
    """Give one row for each lock, with a column for the alias if there is more than one."""
    now = time.time()
    columns: Sequence[Column] = (ALIAS, *LIST)
    rows = [(alias, *_list_row(line, now)) for alias, lines in found.items() for line in lines]
    if len(found) == 1:
        columns, rows = columns[1:], [row[1:] for row in rows]
    return table(columns, rows, width=terminal.width, emphasis=terminal.emphasis)


def line_as_table(line: Line, terminal: Terminal) -> str:
    """Give one row for each place in the line of one lock, and below what does not fit into it."""
    if not line.nodes and not line.foreign:
        return f"Lock {display.visible(line.key)} is free: nobody holds it and nobody waits for it.\n"
    text = places_as_table(line, line.places, terminal) if line.places else ""
    for place in line.places:
        if place.revoked is not None:
            text += f"Position {place.position} was asked to let go: {place.revoked}\n"
    if line.foreign:
        text += f"Nodes of no recipe known here: {_foreign(line.foreign)}\n"
    return text


def places_as_table(line: Line, places: Sequence[Place], terminal: Terminal) -> str:
    """Give one row for each of some places in ``line``."""
    now = time.time()
    obstacles = Obstacles(line)
    rows = [_line_row(place, obstacles, now) for place in places]
    # Nothing is cut: who it is has to be read, and the node to be copied.
    return table(LINE, rows, width=None, emphasis=terminal.emphasis)


def lines_as_json(found: Found) -> str:
    """Give every lock with its whole line, as one JSON object; each lock is a line of text."""
    now = time.time()
    # Without indentation the encoder is many times faster.
    locks = [_ascii(facts.lock(alias, line, now)) for alias, lines in found.items() for line in lines]
    return '{"locks": [' + ",".join(f"\n  {lock}" for lock in locks) + ("\n" if locks else "") + "]}\n"


def as_json(value: dict[str, Any]) -> str:
    """Give one JSON object."""
    return _ascii(value, indent=2) + "\n"


def _ascii(value: dict[str, Any], indent: int | None = None) -> str:
    # All but ASCII is escaped, so nothing in it can act on a terminal.
    return json.dumps(value, ensure_ascii=True, indent=indent)


def _list_row(line: Line, now: float) -> tuple[str, ...]:
    holders = line.holders
    who = display.who(holders[0]) if holders else "-"
    if line.holding > 1:
        who += f" and {line.holding - 1} more"
    return (
        display.visible(line.key),
        "revoked" if any(map(_is_revoked, holders)) else display.state(line),
        display.kind(line) or "-",
        display.age(now - holders[0].since) if holders else "-",
        str(line.waiting),
        str(holders[0].token) if holders else "-",
        who,
    )


def _line_row(place: Place, obstacles: Obstacles, now: float) -> tuple[str, ...]:
    return (
        str(place.position),
        ("revoked" if _is_revoked(place) else "held") if place.held else "waiting",
        place.kind if place.limit is None else f"{place.kind} of {place.limit}",
        display.age(now - place.since),
        _runs(obstacles.of(place)),
        display.who(place),
        f"{datetime.fromtimestamp(place.since, timezone.utc):%Y-%m-%d %H:%M:%S}",
        str(place.token),
        display.visible(place.node),
    )


def _is_revoked(place: Place) -> bool:
    return place.revoked is not None


def _runs(runs: Sequence[tuple[int, int]]) -> str:
    shown = [str(first) if first == last else f"{first}-{last}" for first, last in runs[:RUNS_SHOWN]]
    if len(runs) > RUNS_SHOWN:
        shown.append("…")
    return ", ".join(shown) or "-"


def _foreign(names: Sequence[str]) -> str:
    text = ", ".join(map(display.visible, names[:FOREIGN_SHOWN]))
    return text if len(names) <= FOREIGN_SHOWN else f"{text} and {len(names) - FOREIGN_SHOWN} more"
