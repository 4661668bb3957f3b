"""The child process that runs a task, and since when, written into the nodes of its lock.

A node is created before a child has the task, so its data names the main process. Most tasks end before anybody looks,
and their nodes are never written to. A task that runs for ``DELAY`` seconds may be the one that hangs, and the operator
needs the process that runs it, also when neither the broker nor the worker answers. So its nodes are written once: one
read and one write for each key. The waiters that watch the node list their queue again, once for each session.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from django_zklock.zk import node_data, wire

if TYPE_CHECKING:
    from django_zklock.zk.contender import Contender
    from django_zklock.zk.session import Session
    from django_zklock.zk.wire import KazooException, ZnodeStat

# Seconds for which a task has run when its child is written into the nodes.
DELAY = 5.0

Change = Callable[[bytes], "bytes | None"]


def write(contender: Contender, pid: int, granted: float) -> None:
    """Write into each node of ``contender`` that the child ``pid`` runs the task. Nothing waits for this.

    ``granted`` is when the lock was granted, in seconds since the Unix epoch.
    """
    session = contender.session
    for path in contender.node_paths.values():
        session.post(partial(_read, session, path, partial(node_data.add_child, pid=pid, granted=granted)))


def _read(session: Session, path: str, change: Change) -> None:
    if session.connected:
        session.wire.get(path, partial(_write, session, path, change))


def _write(
    session: Session, path: str, change: Change, value: tuple[bytes, ZnodeStat] | None, _error: KazooException | None
) -> None:
    if value is None:
        # Without an answer the node shows the main process, as before.
        return
    data, stat = value
    changed = change(data)
    if changed is not None and stat.ephemeralOwner == session.id:
        session.wire.set(path, changed, partial(_written, session, path, change), version=stat.version)


def _written(session: Session, path: str, change: Change, _value: object, error: KazooException | None) -> None:
    if isinstance(error, wire.BadVersionError):
        # A request to release was written meanwhile.
        _read(session, path, change)
