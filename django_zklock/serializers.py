"""Locks as plain values for JSON, for the command and for the dashboards' views of the admin.

The names are documented in ``docs/reference/commands.md``. No name is removed or changes its meaning.
"""

from __future__ import annotations

from typing import Any

from django_zklock.zk.ops.snapshots import LockSnapshot, QueueEntry


def serialize_lock(alias: str, line: LockSnapshot, now: float) -> dict[str, Any]:
    """Return one lock with the entries of its queue whose data was read; ``now`` is the Unix time."""
    return {
        "alias": alias,
        "key": line.key,
        "path": line.path,
        "state": line.state,
        "holders": line.holder_count,
        "waiters": line.waiter_count,
        "places": [_place(line, place, now) for place in line.entries],
        "foreign": list(line.unknown_nodes),
    }


def serialize_change(alias: str, line: LockSnapshot, place: QueueEntry, now: float) -> dict[str, Any]:
    """Return one entry of the queue of a lock, and which lock it is."""
    return {
        "alias": alias,
        "key": line.key,
        "path": line.path,
        "place": _place(line, place, now),
    }


def _place(line: LockSnapshot, place: QueueEntry, now: float) -> dict[str, Any]:
    return {
        "position": place.position,
        "state": "held" if place.held else "waiting",
        "kind": place.kind,
        "token": place.token,
        "since": place.since,
        "age": round(max(0.0, now - place.since), 3),
        "session": f"0x{place.session_id:x}",
        "node": place.node,
        "identity": place.identity.as_dict() if place.identity else None,
        "limit": place.limit,
        "revoked": place.revoked,
        "waits_for": line.blockers_of(place),
    }
