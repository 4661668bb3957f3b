"""What a survey has found as plain values for JSON: the command writes them, and the admin's views for dashboards.

The names are documented in ``docs/reference/commands.md``: none is removed or changes its meaning.
"""

from __future__ import annotations

from typing import Any

from django_zklock.zk import display
from django_zklock.zk.inspection.obstacles import Obstacles
from django_zklock.zk.inspection.survey import Line, Place


def lock(alias: str, line: Line, now: float) -> dict[str, Any]:
    """Give one lock with everybody whose data was read; ``now`` is in seconds since the Unix epoch."""
    obstacles = Obstacles(line)
    return {
        "alias": alias,
        "key": line.key,
        "path": line.path,
        "state": display.state(line),
        "holders": line.holding,
        "waiters": line.waiting,
        "places": [_place(place, obstacles, now) for place in line.places],
        "foreign": list(line.foreign),
    }


def change(alias: str, line: Line, place: Place, now: float) -> dict[str, Any]:
    """Give one place in the line of a lock with what names the lock."""
    return {
        "alias": alias,
        "key": line.key,
        "path": line.path,
        "place": _place(place, Obstacles(line), now),
    }


def _place(place: Place, obstacles: Obstacles, now: float) -> dict[str, Any]:
    return {
        "position": place.position,
        "state": "held" if place.held else "waiting",
        "kind": place.kind,
        "token": place.token,
        "since": place.since,
        "age": round(max(0.0, now - place.since), 3),
        "session": f"0x{place.session_id:x}",
        "node": place.node,
        "identity": place.identity.facts() if place.identity else None,
        "limit": place.limit,
        "revoked": place.revoked,
        "waits_for": obstacles.of(place),
    }
