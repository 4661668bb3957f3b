"""Surveys as text: tables for people, JSON for programs."""

from __future__ import annotations

import json
import time
import unicodedata
from collections.abc import Sequence
from dataclasses import asdict
from datetime import datetime, timezone
from typing import Any

from django_zklock.zk import display
from django_zklock.zk.survey import Line, Place

GAP = "  "
# A column that gives way to the width of a terminal keeps at least this much.
LEAST = 12
# Longer texts stand out of their column.
WIDEST = 60

LIST_HEADER = ("KEY", "STATE", "KIND", "AGE", "WAITERS", "TOKEN", "HOLDER")
LINE_HEADER = ("POSITION", "STATE", "KIND", "SINCE (UTC)", "AGE", "TOKEN", "HOLDER", "NODE")
ELASTIC = frozenset({"KEY", "HOLDER"})


def lines_as_table(lines: Sequence[Line], *, width: int | None) -> str:
    """Give one row for each lock. With ``width`` long texts are cut so that a row fits into a terminal."""
    now = time.time()
    return _table(LIST_HEADER, [_list_row(line, now) for line in lines], width)


def line_as_table(line: Line, *, width: int | None) -> str:
    """Give one row for each place in the line of one lock."""
    now = time.time()
    rows = [
        (
            str(place.position),
            _state(place),
            place.kind,
            f"{datetime.fromtimestamp(place.since, timezone.utc):%Y-%m-%d %H:%M:%S}",
            display.age(now - place.since),
            str(place.token),
            display.who(place),
            display.visible(place.node),
        )
        for place in line.places
    ]
    # A node's name is for copying, and always the last, so cutting it would save nothing.
    text = _table(LINE_HEADER, rows, width) if rows else ""
    if line.foreign:
        text += f"Nodes of no recipe known here: {', '.join(map(display.visible, line.foreign))}\n"
    return text


def lines_as_json(alias: str, lines: Sequence[Line]) -> str:
    """Give every lock with its whole line, as one JSON object."""
    now = time.time()
    return _json({"locks": [_facts(alias, line, now) for line in lines]})


def line_as_json(alias: str, line: Line) -> str:
    """Give one lock with its whole line, as one JSON object."""
    return _json(_facts(alias, line, time.time()))


def _list_row(line: Line, now: float) -> tuple[str, ...]:
    holders = line.holders
    who = display.who(holders[0]) if holders else "-"
    if len(holders) > 1:
        who += f" and {len(holders) - 1} more"
    return (
        display.visible(line.key),
        display.state(line),
        display.kind(line) or "-",
        display.age(now - holders[0].since) if holders else "-",
        str(len(line.waiters)),
        str(holders[0].token) if holders else "-",
        who,
    )


def _facts(alias: str, line: Line, now: float) -> dict[str, Any]:
    return {
        "alias": alias,
        "key": line.key,
        "path": line.path,
        "state": display.state(line),
        "holders": len(line.holders),
        "waiters": len(line.waiters),
        "places": [
            {
                "position": place.position,
                "state": _state(place),
                "kind": place.kind,
                "token": place.token,
                "since": place.since,
                "age": round(max(0.0, now - place.since), 3),
                "session": f"0x{place.session_id:x}",
                "node": place.node,
                "identity": asdict(place.identity) if place.identity else None,
            }
            for place in line.places
        ],
        "foreign": list(line.foreign),
    }


def _state(place: Place) -> str:
    return "held" if place.held else "waiting"


def _json(facts: dict[str, Any]) -> str:
    # All but ASCII is escaped, so nothing in it can act on a terminal.
    return json.dumps(facts, indent=2, ensure_ascii=True) + "\n"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]], width: int | None) -> str:
    columns = [max(map(_width, column)) for column in zip(header, *rows, strict=True)]
    if width is None:
        # Nothing is cut for a pipe; one text of a thousand characters must not pad every other row to its length.
        columns = [min(size, WIDEST) for size in columns]
    else:
        elastic = [number for number, name in enumerate(header) if name in ELASTIC]
        _shrink(columns, elastic, sum(columns) + len(GAP) * (len(columns) - 1) - width)
    return "".join(
        GAP.join(_fit(cell, size, cut=width is not None) for cell, size in zip(row, columns, strict=True)).rstrip()
        + "\n"
        for row in (header, *rows)
    )


def _shrink(columns: list[int], elastic: Sequence[int], excess: int) -> None:
    """Take ``excess`` off the elastic columns, always from the widest, and stop where none has more to give."""
    while excess > 0:
        widest = max(elastic, key=lambda number: columns[number])
        if columns[widest] <= LEAST:
            return
        columns[widest] -= 1
        excess -= 1


def _fit(text: str, size: int, *, cut: bool) -> str:
    if cut and _width(text) > size:
        kept = ""
        for sign in text:
            if _width(kept + sign) > size - 1:
                break
            kept += sign
        text = kept + "…"
    return text + " " * (size - _width(text))


def _width(text: str) -> int:
    """Give the columns that ``text`` takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text
    )
