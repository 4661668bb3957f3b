"""The story of a world as a sequence, as text and as SVG.

It has each message with its sender and receiver, and each belief in a hold.
"""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from tests.simulation.world import Told, World

LANE, ROW, TOP, LEFT = 190, 22, 60, 80
SHORT = 46


class Line(NamedTuple):
    """One line of the drawing: from a lane to another one, or at one lane."""

    at: float
    who: int
    whom: int
    what: str


def lanes(world: World) -> list[str]:
    """Return the names of the lanes from left to right: servers in the middle, between processes and their callers."""
    told = {name for _, who, whom, _ in world.story for name in (who, whom)}
    order: list[str] = []
    for process in world.processes:
        order += [client.name for client in world.clients if client.process is process]
        order += [wire.name for wire in process.wires]
        order.append(process.name)
    order += [server.name for server in world.ensemble.servers]
    order.append("operator")
    return [name for name in order if name in told]


def lines(world: World, order: Sequence[str]) -> list[Line]:
    """Return the story, without what has no lane."""
    places = {name: number for number, name in enumerate(order)}
    found = []
    for at, who, whom, what in world.story:
        one, other = places.get(who), places.get(whom)
        if one is None and other is None:
            continue
        found.append(Line(at, one if one is not None else other or 0, other if other is not None else one or 0, what))
    return found


def as_text(story: Sequence[Told]) -> str:
    """Return the story, one line for each part of it."""
    rows = [f"{at:9.3f}  {who:10} {'' if who == whom else '-> ' + whom:14} {what}" for at, who, whom, what in story]
    return "\n".join(rows)


def as_svg(world: World, title: str) -> str:
    """Return the story as a picture: a lane for each, an arrow for each message, a bar while someone believes."""
    order = lanes(world)
    told = lines(world, order)
    width, height = LEFT + LANE * len(order), TOP + ROW * (len(told) + 2)
    head = '<path d="M0 0L8 4L0 8z" fill="#555"/>'
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif"',
        f' font-size="11" role="img"><title>{escape(title)}</title>',
        '<defs><marker id="head" markerWidth="8" markerHeight="8" refX="7" refY="4" orient="auto">',
        f"{head}</marker></defs>",
        f'<rect width="{width}" height="{height}" fill="#fff"/>',
    ]
    for number, name in enumerate(order):
        x = _x(number)
        parts += [
            f'<text x="{x}" y="{TOP - 30}" text-anchor="middle" font-weight="bold">{escape(name)}</text>',
            f'<line x1="{x}" y1="{TOP - 20}" x2="{x}" y2="{height - ROW}" stroke="#ccc"/>',
        ]
    parts += _bars(told, height)
    before = -1.0
    for row, line in enumerate(told):
        y = TOP + ROW * row
        if line.at != before:
            parts.append(f'<text x="6" y="{y + 4}" fill="#777">{line.at:.3f} s</text>')
            before = line.at
        parts += _row(line, y)
    parts.append(f'<text x="{LEFT}" y="{height - 8}" fill="#b00" font-weight="bold">{escape(title)}</text></svg>')
    return "\n".join(parts) + "\n"


def _x(lane: int) -> int:
    return LEFT + LANE * lane + LANE // 2


def _row(line: Line, y: int) -> list[str]:
    what = line.what if len(line.what) <= SHORT else line.what[: SHORT - 1] + "…"
    if line.who == line.whom:
        x = _x(line.who)
        return [
            f'<circle cx="{x}" cy="{y}" r="3" fill="#246"/>',
            f'<text x="{x + 8}" y="{y + 4}" fill="#246">{escape(what)}</text>',
        ]
    start, end = _x(line.who), _x(line.whom)
    shift = 5 if end > start else -5
    return [
        f'<line x1="{start}" y1="{y}" x2="{end - shift}" y2="{y}" stroke="#555" marker-end="url(#head)"/>',
        f'<text x="{(start + end) // 2}" y="{y - 3}" text-anchor="middle">{escape(what)}</text>',
    ]


def _bars(told: Sequence[Line], height: int) -> list[str]:
    """Return a bar for each time in which someone believes to hold."""
    began: dict[int, int] = {}
    parts = []
    for row, line in enumerate(told):
        y = TOP + ROW * row
        if line.what.startswith("believes"):
            began.setdefault(line.who, y)
        elif line.who in began and line.what.split(" ", 1)[0] in {"releases", "doubts"}:
            parts.append(_bar(line.who, began.pop(line.who), y))
    return parts + [_bar(who, y, height - ROW) for who, y in began.items()]


def _bar(lane: int, top: int, bottom: int) -> str:
    height = max(4, bottom - top)
    return f'<rect x="{_x(lane) - 4}" y="{top}" width="8" height="{height}" fill="#fb8" opacity="0.8"/>'
