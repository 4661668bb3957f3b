"""What has become of a task since it was granted its lock, written into the nodes of the lock.

A node is created before a child has the task, so its data names the main process. Most tasks end before anybody looks,
and their nodes are never written to. A task that runs for ``DELAY`` seconds may be the one that hangs, and the operator
needs the process that runs it, also when neither the broker nor the worker answers. So its nodes are written once: one
read and one write for each key. The waiters that watch the node list their queue again, once for each session. The same
is written about a task that was granted its lock and waits so long for a slot of its worker, and at once when a task
that is in the nodes has got its slot, and when Celery has forgotten a task that runs.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from django_zklock.zk import node_data
from django_zklock.zk.scripts import RequestScript, Script, or_error
from django_zklock.zk.wire import BadVersionError

if TYPE_CHECKING:
    from django_zklock.zk.contender import Contender

# Seconds for which a task has run when its child is written into the nodes.
DELAY = 5.0


class ChildNote(Script):
    """Writes ``facts``, the arguments of ``node_data.add_run``, into each node of ``contender``; nothing waits for it.

    :meth:`start` and :meth:`cancel` are called in any thread. A later note cancels the one before, whose answers may
    come after it, and must not undo it.
    """

    __slots__ = ("_paths", "facts")

    def __init__(self, contender: Contender, facts: dict[str, Any]) -> None:
        super().__init__(contender.session)
        self.facts = facts
        self._paths = list(contender.node_paths.values())

    def start(self) -> None:
        """Write as soon as there is a connection."""
        self.session.post(self._join)

    def cancel(self) -> None:
        """Write no more."""
        self.session.post(partial(self.session_ended, ""))

    def _join(self) -> None:
        self.session.add_listener(self)
        self.begin(self._write())

    def _write(self) -> RequestScript[None]:
        wire = self.session.wire
        for path in self._paths:
            answer: Any = BadVersionError()
            # Until no request to release is written between the read and the write.
            while isinstance(answer, BadVersionError):
                # A node that cannot be read or written shows what it has shown before.
                (answer,) = yield [or_error(partial(wire.get, path))]
                if isinstance(answer, Exception):
                    break
                data, stat = answer
                changed = node_data.add_run(data, **self.facts)
                if changed is None or changed == data or stat.ephemeralOwner != self.session.id:
                    break
                (answer,) = yield [or_error(partial(wire.set, path, changed, version=stat.version))]

    def ended(self, _value: object, _error: Exception | None, /) -> None:
        self.session.remove_listener(self)

    def session_ended(self, _reason: str, /) -> None:
        self.stop()
        self.session.remove_listener(self)
