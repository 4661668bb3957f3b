"""What the nodes of a task at the gate say of its child, and how the task fails if that child was killed."""

from __future__ import annotations

from functools import partial
from typing import Any

from billiard.einfo import ExceptionInfo
from billiard.exceptions import WorkerLostError

from django_zklock.exceptions import LockLost
from django_zklock.zk import node_data
from django_zklock.zk.contender import Contender
from django_zklock.zk.wire import BadVersionError

# Seconds for which a task has run when its child is written into the nodes.
DELAY = 5.0


class ChildNote:
    """Writes ``facts``, the arguments of ``node_data.add_run``, into each node of ``contender``; nothing waits for it.

    A node is created before a child has the task. A task that runs for ``DELAY`` seconds may be the one that hangs, and
    the operator needs its process, also when neither the broker nor the worker answers. Any thread may start or cancel
    it; a later note cancels the one before, whose answers may come after it, and must not undo it.
    """

    def __init__(self, contender: Contender, facts: dict[str, Any]) -> None:
        self.facts = facts
        self.is_cancelled = False
        self._contender = contender
        self._paths = list(contender.node_paths.values())
        contender.post(self._read)

    def _read(self) -> None:
        if self._paths and not self.is_cancelled:
            self._contender.ask(partial(self._contender.session.wire.get, self._paths[0]), self._write)

    def _write(self, found: Any, error: Exception | None) -> None:
        session = self._contender.session
        if error is None and found[1].ephemeralOwner == session.id and not self.is_cancelled:
            changed = node_data.add_run(found[0], **self.facts)
            if changed is not None and changed != found[0]:
                write = partial(session.wire.set, self._paths[0], changed, version=found[1].version)
                self._contender.ask(write, self._written)
                return
        # A node that cannot be read or written shows what it has shown before.
        self._written(None, error)

    def _written(self, _stat: object, error: Exception | None) -> None:
        # Until no request to release is written between the read and the write.
        if not isinstance(error, BadVersionError):
            self._paths.pop(0)
        self._read()


class ChildEndedError(LockLost, WorkerLostError):
    """``LockLost`` in the result of the task, and the loss of a child to Celery."""

    def __reduce__(self) -> tuple[object, ...]:
        return LockLost(str(self), key=self.key).__reduce__()


# The result backend stores an error by these names.
ChildEndedError.__module__ = LockLost.__module__
ChildEndedError.__name__ = ChildEndedError.__qualname__ = LockLost.__name__


def ended_child_failure(key: str) -> ExceptionInfo:
    """Return the failure of a task whose child was killed because its lock was lost."""
    text = f"lock {key!r} was lost, and its task was ended; another contender may hold it now"
    try:
        # Celery expects an exception with a traceback.
        raise ChildEndedError(text, key=key)  # noqa: TRY301
    except ChildEndedError:
        return ExceptionInfo()
