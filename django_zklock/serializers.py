"""Locks as plain values for JSON, for the command and for the dashboards' views of the admin.

The names are documented in ``docs/reference/commands.md``. No name is removed or changes its meaning.
"""

from __future__ import annotations

import shlex
import sys
from functools import cache
from typing import Any

from django_zklock.zk.formatting import escape_controls
from django_zklock.zk.ops.sent import SentCall
from django_zklock.zk.ops.snapshots import LockSnapshot, QueueEntry
from django_zklock.zk.ops.trail import Action


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
        "state": entry.state,
        "kind": entry.kind,
        "token": entry.token,
        "since": entry.since,
        "granted": entry.granted,
        "keys": entry.keys,
        "age": round(max(0.0, now - entry.since), 3),
        "session": f"0x{entry.session_id:x}",
        "node": entry.node,
        "identity": entry.identity.as_dict() if entry.identity else None,
        "limit": entry.limit,
        "revoked": entry.revoked,
        "waits_for": snapshot.blockers_of(entry),
        "end_command": end_command(entry),
        "kill_command": kill_command(entry),
    }


def serialize_action(alias: str, action: Action) -> dict[str, Any]:
    """Return one action of the trail."""
    values = {name: value for name, value in vars(action).items() if name not in {"at", "id", "lock"}}
    return {"alias": alias, "time": action.at} | values


def serialize_sent(alias: str, call: SentCall) -> dict[str, Any]:
    """Return one call that is sent and has not begun."""
    return {"alias": alias, "state": call.state} | {name: value for name, value in vars(call).items() if name != "path"}


def end_command(entry: QueueEntry) -> str | None:
    """Return the shell command that ends the Celery task of this entry, and not its worker.

    ``None`` for other work, for a task without a child process of its own, which nothing can end alone, and for a task
    that its worker has forgotten, which :func:`kill_command` ends.
    """
    work = entry.identity.work if entry.identity else None
    if work is None or work.child is None or work.forgotten:
        return None
    # The data may be of any client: nothing in it may become an option or a second command.
    if not work.id or work.id.startswith("-"):
        return None
    destination = f" -d {shlex.quote(work.worker)}" if work.worker and not work.worker.startswith("-") else ""
    command = f"celery -A {_celery_app()} control{destination} terminate SIGTERM {shlex.quote(work.id)}"
    return escape_controls(command)


def kill_command(entry: QueueEntry) -> str | None:
    """Return the shell command, for the host of this entry, that kills the child process of its Celery task.

    It is the second step, for a child that the first has not ended: Celery forgets the task with the first
    ``terminate``, whatever the child does, and answers a second one that the task is unknown
    (``Request._announce_revoked``). ``None`` for other work, and while the child is not known.
    """
    work = entry.identity.work if entry.identity else None
    # To `kill`, 0 and negative numbers are groups of processes.
    if work is None or work.child is None or work.child <= 1 or not work.id or work.id.startswith("-"):
        return None
    return f"kill -9 {work.child}"


def _celery_app() -> str:
    """Return the name of the project's Celery app for ``celery -A``, if this process has imported it."""
    celery_app: Any = sys.modules.get("celery.app")
    name = _module_of(celery_app.app_or_default()) if celery_app is not None else None
    return shlex.quote(name) if name else "PROJECT"


@cache
def _module_of(app: Any) -> str | None:
    """Return the module in which ``celery -A`` finds the app: its own name need not be that of a module."""
    modules = [name for name, module in list(sys.modules.items()) if _has(module, app)]
    found = {name for name in modules if name.partition(".")[0] not in {"__main__", "celery"}}
    # Celery also looks into the module `celery` of a package.
    if {app.main, f"{app.main}.celery"} & found:
        return str(app.main)
    return min(found, key=lambda name: (name.count("."), name), default=None)


def _has(module: object, value: object) -> bool:
    return any(each is value for each in list(getattr(module, "__dict__", {}).values()))
