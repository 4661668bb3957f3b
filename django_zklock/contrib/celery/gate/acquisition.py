"""The acquisition of a lock for a task: the third caller of a contender, after blocking and asyncio callers."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Container
from functools import partial
from typing import TYPE_CHECKING

from django_zklock.conflict import AcquireRetries
from django_zklock.exceptions import LockConflict, LockTimeout, ZkLockError
from django_zklock.zk.acquire import Acquisition
from django_zklock.zk.contender import Contender, State
from django_zklock.zk.held import Held
from django_zklock.zk.listing import SharedListing, shared_listing
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work
from django_zklock.zk.queue import LEASES, Kind, Node, Queue
from django_zklock.zk.waiting import Deadline

if TYPE_CHECKING:
    from django_zklock.zk.rules import Rule
    from django_zklock.zk.wire import KazooException


class GateAcquisition(Acquisition):
    """An acquisition whose hold is for another thread or process: the thread that polls it does not own the hold.

    ``wake`` is called when :meth:`poll` has something to do, ``on_change`` whenever the contender has changed; both by
    the session's threads, under its monitor. ``timeout`` ends it, and an outage of ZooKeeper does not.
    """

    __slots__ = ("_on_change",)

    def __init__(
        self, lock: Lock, timeout: float | None, wake: Callable[[], None], on_change: Callable[[], None]
    ) -> None:
        self._on_change = on_change
        super().__init__(lock, timeout, wake)

    @property
    def granted(self) -> bool:
        """Whether the lock is held and its lease runs."""
        contender = self.contender
        return contender.state is State.HELD and contender.lost is None and not contender.session.lease_expired

    @property
    def expired(self) -> bool:
        """Whether the lock was granted, and was lost or its lease is over."""
        contender = self.contender
        return contender.lost is not None or (contender.state is State.HELD and contender.session.lease_expired)

    @property
    def in_queue(self) -> bool:
        """Whether the node is in the queue, or was until an outage that still lasts."""
        return self.contender.answered

    @property
    def connected(self) -> bool:
        """Whether there is a connection to ZooKeeper."""
        return self.contender.session.connected

    def poll(self) -> bool:
        """Poll like every acquisition, but leave a grant with the contender."""
        return self.granted or super().poll()

    def hold(self, lock: Lock, *, waited: float, since: float) -> Held:
        """Return the hold for the calling thread or greenlet of this process."""
        held = make_hold(lock, self.contender, waited=waited, since=since)
        # The lock may have been lost meanwhile.
        self.keep(held)
        return held

    def read_followers(self, ours: Container[str], on_answer: Callable[[bool], None]) -> None:
        """Read whether a contender waits behind this one whose node is not one of ``ours`` (full paths).

        ``on_answer`` runs under the session's monitor, once for each key. It is not called if the connection is lost
        before the answer.
        """
        for path, node in self.contender.node_paths.items():
            self._read_queue(shared_listing(self.contender.session, path), node, ours, on_answer)

    def _read_queue(
        self, listing: SharedListing, node: str, ours: Container[str], on_answer: Callable[[bool], None]
    ) -> None:
        own, rule = node.rpartition("/")[2], self.contender.rule

        def on_names(names: list[str] | None, _error: KazooException | None) -> None:
            queue = Queue(listing.parse(names or ()))
            waiting = waiting_behind(rule, own, queue) if own in queue else []
            on_answer(any(f"{listing.path}/{each.name}" not in ours for each in waiting))

        self.contender.session.post(partial(listing.list_names, on_names))

    def _new_response_deadline(self) -> Deadline:
        # The request decides how long a slot waits for ZooKeeper's first answer.
        return self._deadline if self.timeout else Deadline(None)

    def _new_contender(self) -> Contender:
        contender = super()._new_contender()
        # The gate, and not an outage, decides how long a message waits.
        contender.has_deadline = True
        return contender

    def _changed(self) -> None:
        super()._changed()
        self._on_change()


class TaskAttempts:
    """The attempts of one task to acquire its lock: with one deadline, and with the retries of a locked call.

    Started and polled under the lock of the request; any thread may end it. ``wake`` and ``on_change`` are those of
    :class:`GateAcquisition`.
    """

    def __init__(
        self,
        lock: Lock,
        timeout: float | None,
        work: Work,
        *,
        deadline: float | None,
        wake: Callable[[], None],
        on_change: Callable[[], None],
    ) -> None:
        # ``None`` before the first attempt, and when the task acquires the lock in its slot.
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
        self._wake = wake
        self._on_change = on_change
        # The attempt, contender and connection for which the queue is being read.
        self._asking: object = None

    def start(self) -> None:
        """Begin an attempt."""
        timeout = self._retries.timeout
        if timeout and not self._is_retry:
            if self.deadline is None:
                self.deadline = time.time() + timeout
            else:
                timeout = max(0.0, self.deadline - time.time())
        self.current = GateAcquisition(self._lock, timeout, self._wake, self._on_change)
        self.current.start()
        self.began = min(self.began, time.monotonic())

    def _restart(self) -> None:
        self.end()
        self.start()

    def end(self) -> None:
        """Leave the queue, or release the lock; safe to call more than once."""
        if self.current is not None:
            self.current.end()

    def abandon(self) -> None:
        """Leave the queue, or release the lock, because the task acquires it in its slot."""
        self.end()
        self.current = None

    def is_decided(self) -> bool:
        """Return whether the lock is granted or refused; a lock that was lost is acquired again."""
        if self.refusal is not None or self.current is None:
            return True
        if self.current.expired:
            self._restart()
            return False
        try:
            return self.current.poll()
        except (LockTimeout, LockConflict) as error:
            if self._retries.should_retry(error):
                self._is_retry = True
                self._restart()
                return False
            self._refuse(error)
        except ZkLockError as error:
            self._refuse(error)
        return True

    def _refuse(self, error: ZkLockError) -> None:
        self.end()
        self.refusal = error.with_traceback(None)

    def if_followed(
        self, ours: Callable[[], Container[str]], post: Callable[[Callable[[], None]], None], then: Callable[[], None]
    ) -> None:
        """Post ``then`` if a contender waits behind this one whose node is not one of ``ours`` (full paths)."""
        attempt = self.current
        if attempt is None or not attempt.connected:
            return
        # If the connection is lost before the answer, the question is repeated on the next one.
        asking = (attempt, attempt.contender, attempt.contender.session.epoch)
        if self._asking == asking:
            return
        self._asking = asking

        def on_answer(followed: bool) -> None:  # noqa: FBT001 - a callback
            self._asking = None
            if followed and self.current is attempt:
                then()

        attempt.read_followers(ours(), lambda followed: post(partial(on_answer, followed)))


def waiting_behind(rule: Rule, own: str, queue: Queue) -> list[Node]:
    """Return the nodes behind the ``own`` one that wait for it or for another one."""
    nodes = list(queue)
    position = next(position for position, node in enumerate(nodes) if node.name == own)
    holding = {lease.name for lease in queue.of(LEASES)[: queue.room]} if rule.limit is not None else set()
    behind = [node for node in nodes[position + 1 :] if node.name not in holding]
    if rule.kind is not Kind.READ:
        return behind
    # Readers before the first writer hold beside this one. That writer waits, and so do the readers behind it.
    return list(itertools.dropwhile(lambda node: node.kind is Kind.READ, behind))


def make_hold(lock: Lock, contender: Contender, *, waited: float, since: float) -> Held:
    """Return a hold that was granted at ``since`` (seconds since the Unix epoch) after ``waited`` seconds."""
    held = Held(lock, contender, waited=waited)
    held.since = since
    return held
