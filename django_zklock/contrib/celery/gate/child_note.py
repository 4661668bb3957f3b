"""What has become of a task since it was granted its lock, written into the nodes of the lock.

A node is created before a child has the task, so its data names the main process. Most tasks end before anybody looks,
and their nodes are never written to. A task that runs for ``DELAY`` seconds may be the one that hangs, and the operator
needs the process that runs it, also when neither the broker nor the worker answers. So its nodes are written once: one
read and one write for each key, again after an outage. The waiters that watch the node list their queue again, once for
each session. The same is written about a task that was granted its lock and waits so long for a slot of its worker, and
at once when a task that is in the nodes has got its slot, and when Celery has forgotten a task that runs.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from django_zklock.zk import node_data, wire

if TYPE_CHECKING:
    from django_zklock.zk.contender import Contender
    from django_zklock.zk.session import Session
    from django_zklock.zk.wire import KazooException, ZnodeStat

# Seconds for which a task has run when its child is written into the nodes, and after which a write that has no answer
# is repeated: no reply is called when the connection is lost.
DELAY = 5.0

Change = Callable[[bytes], "bytes | None"]


class ChildNote:
    """What is written into the nodes of one run. Nothing waits for it.

    ``write`` is called in the gate's loop, the replies come in the threads of the session. ``facts`` are those that
    were written last, or are being written.
    """

    __slots__ = ("_change", "_next", "_settled", "facts")

    def __init__(self) -> None:
        self.facts: dict[str, Any] = {}
        # Writes the facts. What an earlier change has read, or was told, is void: it must not undo this one.
        self._change: Change | None = None
        # The nodes that are written, or cannot be.
        self._settled: set[str] = set()
        # The earliest time of the next attempt (monotonic clock).
        self._next = 0.0

    def write(self, contender: Contender, *, now: float, **facts: Any) -> None:
        """Write ``facts``, the arguments of ``node_data.add_run``, into each node of ``contender``, unless it is done.

        ``now`` is on the monotonic clock.
        """
        if facts != self.facts:
            self.facts, self._change = facts, partial(node_data.add_run, **facts)
            self._settled, self._next = set(), now
        if now < self._next:
            return
        self._next = now + DELAY
        assert self._change is not None
        for path in contender.node_paths.values():
            if path not in self._settled:
                contender.session.post(partial(self._read, contender.session, path, self._change))

    def _read(self, session: Session, path: str, change: Change) -> None:
        if session.connected and change is self._change:
            session.wire.get(path, partial(self._write, session, path, change))

    def _write(
        self,
        session: Session,
        path: str,
        change: Change,
        value: tuple[bytes, ZnodeStat] | None,
        error: KazooException | None,
    ) -> None:
        if change is not self._change:
            return
        if value is None:
            # The node shows what it has shown before.
            self._settle(path, change, error)
            return
        data, stat = value
        changed = change(data)
        if changed is None or changed == data or stat.ephemeralOwner != session.id:
            self._settle(path, change, None)
        else:
            session.wire.set(path, changed, partial(self._written, session, path, change), version=stat.version)

    def _written(
        self, session: Session, path: str, change: Change, _value: object, error: KazooException | None
    ) -> None:
        if isinstance(error, wire.BadVersionError):
            # A request to release was written meanwhile.
            self._read(session, path, change)
        else:
            self._settle(path, change, error)

    def _settle(self, path: str, change: Change, error: KazooException | None) -> None:
        if change is self._change and (error is None or not wire.is_temporary(error)):
            self._settled.add(path)
