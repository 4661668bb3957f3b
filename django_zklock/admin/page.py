"""The page of one lock: everybody in its line, and a bar for each that shows their time there."""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.utils.safestring import SafeString
from django.utils.timezone import now
from django.utils.translation import gettext as _

from django_zklock.admin import results, words
from django_zklock.admin.source import Source
from django_zklock.models import Lock
from django_zklock.zk import display
from django_zklock.zk.inspection.obstacles import Obstacles
from django_zklock.zk.inspection.survey import Line, Place

# A line can have ten thousand waiters; nobody reads on.
PLACES_SHOWN = 100


@dataclass(frozen=True, kw_only=True)
class Bar:
    """From when somebody got in line until now, on a scale from the first of them until now; both as SVG has it."""

    start: str
    length: str


@dataclass(frozen=True, kw_only=True)
class Row:
    """One place in the line, in words."""

    place: Place
    work: str
    where: str
    # The page of what Celery knows of the task, if it keeps that here.
    result: str
    state: Any
    kind: Any
    since: datetime
    age: SafeString
    token: str
    session: str
    node: str
    bar: Bar
    obstacles: str


def context(lock: Lock) -> dict[str, Any]:
    """Read the line of ``lock`` and give what the template shows of it."""
    source = Source(lock.alias)
    line = source.line(lock.name, PLACES_SHOWN)
    found = {"problem": source.problem, "line": line, "read_at": now()}
    if line is None:
        return found
    shown = rows(line)
    removal = source.removal(line)
    return found | {
        "path": display.visible(line.path),
        "state": words.STATES[display.state(line)],
        "kind": words.KINDS[display.kind(line)],
        "rows": shown,
        "holders": [row for row in shown if row.place.held],
        "more": len(line.nodes) - len(shown),
        "begin": min((row.since for row in shown), default=None),
        "limit": next((place.limit for place in line.holders if place.limit), None),
        "removal": removal,
        "removed_at": words.local(removal.at) if removal else None,
        "foreign": [display.visible(name) for name in line.foreign[:PLACES_SHOWN]],
        "more_foreign": len(line.foreign) - PLACES_SHOWN,
    }


def rows(line: Line) -> list[Row]:
    """Give everybody in the line whose data was read."""
    urls = results.urls(_tasks(line.places))
    obstacles = Obstacles(line)
    # Clocks differ: somebody may have come in the future.
    end = max([time.time(), *(place.since for place in line.places)])
    begin = min([place.since for place in line.places], default=end)
    return [
        Row(
            place=place,
            work=words.work(place),
            where=words.where(place),
            result=urls.get(_task(place), ""),
            state=words.STATES["held" if place.held else "waiting"],
            kind=words.KINDS[place.kind],
            since=words.local(place.since),
            age=words.age(place),
            # As text: numbers would get the thousands separators of the language.
            token=str(place.token),
            session=f"0x{place.session_id:x}",
            node=display.visible(place.node),
            bar=_bar(place.since, begin, end),
            obstacles=_text(obstacles.of(place)),
        )
        for place in line.places
    ]


def _tasks(places: Iterable[Place]) -> list[str]:
    return [task for task in map(_task, places) if task]


def _task(place: Place) -> str:
    identity = place.identity
    return identity.work.id if identity and identity.work and identity.work.kind == "task" else ""


def _bar(since: float, begin: float, end: float) -> Bar:
    """Give a bar of at least one percent, or one would not see who has just come."""
    share = (end - since) / (end - begin) if end > begin else 1.0
    length = max(1.0, share * 100)
    return Bar(start=f"{100 - length:.1f}%", length=f"{length:.1f}%")


def _text(runs: list[tuple[int, int]]) -> str:
    """Give positions as people write them: 0, 2-5."""
    texts = [str(first) if first == last else f"{first}\u2013{last}" for first, last in runs]
    return ", ".join([*texts[:3], _("and others")] if len(texts) > 3 else texts)
