"""What the main process does in the queues for a task: it acquires the lock, and notes there which child runs it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Container
from functools import partial
from typing import Any

from django_zklock.conflict import AcquireRetries
from django_zklock.exceptions import LockConflict, LockTimeout, ZkLockError
from django_zklock.zk import node_data
from django_zklock.zk.acquire import Acquisition
from django_zklock.zk.contender import Contender, State
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work
from django_zklock.zk.queue import RULES, Node, Queue
from django_zklock.zk.scripts import OrError, RequestScript, Script
from django_zklock.zk.waiting import monotonic
from django_zklock.zk.wire import BadVersionError

# Seconds for which a task has run when its child is written into the nodes.
DELAY = 5.0


class GateAcquisition(Acquisition):
    """An acquisition whose hold is for another thread or process; ``timeout`` ends it, and no outage of ZooKeeper."""

    __slots__ = ()

    @property
    def granted(self) -> bool:
        """Whether the lock is held and its lease runs."""
        return self.contender.state is State.HELD and not self.expired

    def poll(self) -> bool:
        """Poll like every acquisition, but leave a grant with the contender."""
        # Under the monitor: a grant between the two looks would be one to the thread that polls.
        with self.contender.session.monitor:
            return self.granted or super().poll()

    def _new_contender(self) -> Contender:
        contender = super()._new_contender()
        # The request decides how long a slot waits for ZooKeeper's first answer.
        self._response_deadline = self._deadline if self.timeout else math.inf
        # The gate, and not an outage, decides how long a message waits.
        contender.has_deadline = True
        return contender


class TaskAttempts:
    """The attempts of one task to acquire its lock: with one deadline, and with the retries of a locked call.

    Started and polled under the lock of the request; any thread may end it. ``wake`` is called whenever the contender
    has changed, by the session's threads under its monitor.
    """

    def __init__(
        self, lock: Lock, timeout: float | None, work: Work, *, deadline: float | None, wake: Callable[[], None]
    ) -> None:
        # ``None`` before the first attempt.
        self.current: GateAcquisition | None = None
        # Why there is no lock.
        self.refusal: ZkLockError | None = None
        # Until when the task waits (Unix epoch), in this delivery and in others.
        self.deadline = deadline
        # When the first attempt began (monotonic clock).
        self.began = math.inf
        self._lock = lock
        self._retries = AcquireRetries(lock, timeout, work)
        self._is_retry = False
        self._has_left = False
        self._wake = wake

    def start(self) -> None:
        """Begin an attempt, and end the one before."""
        self.end()
        timeout = self._retries.timeout
        if timeout and not self._is_retry:
            if self.deadline is None:
                self.deadline = time.time() + timeout
            else:
                timeout = max(0.0, self.deadline - time.time())
        # `celery inspect zklocks` names it.
        self.current, self._has_left = GateAcquisition(self._lock, timeout, self._wake, wants_holder=True), False
        self.current.start()
        self.began = min(self.began, monotonic())

    def end(self, when_deleted: Callable[[], None] | None = None) -> None:
        """Leave the queue, or release the lock, and call ``when_deleted`` then; safe to call more than once."""
        if self.current is not None and not self._has_left:
            self.current.end()
            self._has_left = True
            if when_deleted is not None:
                contender = self.current.contender
                contender.post(partial(contender.on_deleted, when_deleted))

    def is_decided(self) -> bool:
        """Return whether the lock is granted or refused; a lock that was lost is acquired again."""
        if self.refusal is not None or self.current is None or self.current.granted:
            return True
        if self.current.expired:
            self.start()
            return False
        try:
            return self.current.poll()
        except ZkLockError as error:
            if isinstance(error, (LockTimeout, LockConflict)) and self._retries.should_retry(error):
                self._is_retry = True
                self.start()
                return False
            self.end()
            self.refusal = error.with_traceback(None)
        return True

    def if_followed(self, ours: Container[str], then: Callable[[], None]) -> None:
        """Call ``then`` if the queue has a contender that waits behind this one, and is not one of ``ours`` (paths).

        ``then`` runs under the session's monitor; not at all if the connection is lost before the answer.
        """
        attempt = self.current
        if attempt is None or not attempt.contender.session.connected:
            return
        contender = attempt.contender

        def on_queue(path: str, own: str, queue: Queue | None, _error: Exception | None) -> None:
            waiting = waiting_behind(own, queue) if queue is not None and own in queue else []
            if self.current is attempt and any(f"{path}/{each.name}" not in ours for each in waiting):
                then()

        for place in contender.places:
            contender.session.post(partial(place.listing.list_queue, partial(on_queue, place.path, place.node or "")))


def waiting_behind(own: str, queue: Queue) -> list[Node]:
    """Return the nodes behind the ``own`` one that wait for it or for another one."""
    nodes = list(queue)
    position = [node.name for node in nodes].index(own)
    return [node for node in nodes[position + 1 :] if not RULES[node.kind].holds(node.name, queue)]


class ChildNote(Script):
    """Writes ``facts``, the arguments of ``node_data.add_run``, into each node of ``contender``; nothing waits for it.

    A node is created before a child has the task. A task that runs for ``DELAY`` seconds may be the one that hangs, and
    the operator needs its process, also when neither the broker nor the worker answers. Any thread may start or cancel
    it; a later note cancels the one before, whose answers may come after it, and must not undo it.
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
                (answer,) = yield [OrError(partial(wire.get, path))]
                if isinstance(answer, Exception):
                    break
                data, stat = answer
                changed = node_data.add_run(data, **self.facts)
                if changed is None or changed == data or stat.ephemeralOwner != self.session.id:
                    break
                (answer,) = yield [OrError(partial(wire.set, path, changed, version=stat.version))]

    def ended(self, _value: object, _error: Exception | None, /) -> None:
        self.session.remove_listener(self)

    def session_ended(self, _reason: str, /) -> None:
        self.stop()
        self.session.remove_listener(self)
