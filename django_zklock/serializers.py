"""Locks as plain values for JSON, for the command and for the dashboards' views of the admin.

The names are documented in ``docs/reference/commands.md``. No name is removed or changes its meaning.
"""

from __future__ import annotations

from typing import Any

from django_zklock.zk.ops.snapshots import LockSnapshot, QueueEntry


def serialize_lock(alias: str, snapshot: LockSnapshot, now: float) -> dict[str, Any]:
    """Return one lock with the entries of its queue whose data was read; ``now`` is the Unix time."""
    return {
        "alias": alias,
        "key": snapshot.key,
        "path": snapshot.path,
        "state": snapshot.state,
        "holders": snapshot.holder_count,
        "waiters": snapshot.waiter_count,
        "places": [serialize_entry(snapshot, entry, now) for entry in snapshot.entries],
        "foreign": list(snapshot.unknown_nodes),
    }


def serialize_entry(snapshot: LockSnapshot, entry: QueueEntry, now: float) -> dict[str, Any]:
    """Return one entry of the queue of a lock."""
    return {
        "position": entry.position,
        "state": "held" if entry.held else "waiting",
        "kind": entry.kind,
        "token": entry.token,
        "since": entry.since,
        "granted": entry.granted,
        "age": round(max(0.0, now - entry.since), 3),
        "session": f"0x{entry.session_id:x}",
        "node": entry.node,
        "identity": entry.identity.as_dict() if entry.identity else None,
        "limit": entry.limit,
        "revoked": entry.revoked,
        "waits_for": snapshot.blockers_of(entry),
    }
