"""A contender for the lock of one key: one node in one queue."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from django_zklock.zk import wire
from django_zklock.zk.background import DeferredLogger
from django_zklock.zk.contender import State
from django_zklock.zk.creation import Created, LockPath
from django_zklock.zk.listing import shared_listing
from django_zklock.zk.node import NodeContender
from django_zklock.zk.predecessors import PredecessorWatches
from django_zklock.zk.queue import LEASES, Mark, Queue
from django_zklock.zk.rules import ALL, GRANTED, Rule, WatchPlan
from django_zklock.zk.session import Session

if TYPE_CHECKING:
    from django_zklock.zk.wire import KazooException

logger = DeferredLogger("django_zklock.contender")


class SingleContender(NodeContender):
    """One attempt to hold the lock of one key.

    With ``coalesces`` it leaves instead of waiting if a contender waits already that will run the same. With ``stays``
    others may leave for it: it waits until it holds.
    """

    __slots__ = ("_coalesces", "_listed_in", "_predecessors", "_waking_next", "listing")

    def __init__(
        self,
        session: Session,
        path: LockPath,
        rule: Rule,
        *,
        data: bytes,
        wait: bool,
        coalesces: Mark | None = None,
        stays: bool = False,
        notify: Callable[[], None],
    ) -> None:
        super().__init__(session, path, rule, data=data, wait=wait, notify=notify)
        self.listing = shared_listing(session, self.path)
        self._coalesces = coalesces
        self.mark = coalesces if stays else None
        self._predecessors = PredecessorWatches(self, self.listing)
        # The generation in which a listing was requested and not answered yet.
        self._listed_in: int | None = None
        # We hold a lease, and the write that wakes the lease behind ours is not answered yet.
        self._waking_next = False

    def _move_to(self, session: Session) -> None:
        self.listing = shared_listing(session, self.path)
        self._predecessors = PredecessorWatches(self, self.listing)
        super()._move_to(session)

    @property
    def is_next(self) -> bool:
        """Whether it waits, and is granted the lock without a request when its predecessor is deleted."""
        return (
            self.state is State.WAITING
            and self.session.watching
            and self._own_watch_set
            and self._predecessors.is_ready
        )

    @property
    def needs_lease(self) -> bool:
        return self.state is State.HELD or self.is_next

    # For callers.

    def refresh_holder(self) -> None:
        """Read the owner of the first node in the queue; ``holder_reads`` grows when the answer is there."""
        if self.session.connected:
            self.listing.read_first_holder(self.rule, self.node, self.on_holder)

    # SessionListener.

    def suspended(self) -> None:
        """The connection is lost, and with it all open requests. Watches that were set are set on the next one too."""
        if not self._is_watching_all:
            self._predecessors.end()
        super().suspended()
        self._own_watch_requested = self._own_watch_set
        if self.state is State.HELD and self.loss_reason_pending:
            # The reason is not worth waiting for a connection.
            self._finish()

    @property
    def _is_watching_all(self) -> bool:
        """Whether no request is open, because watches report every change that matters."""
        return (
            self.state is State.WAITING
            and self._own_watch_set
            and self._predecessors.is_set
            and not self.wants_holder
            and self._generation not in {self._listed_in, self._retry_generation}
        )

    def resumed(self) -> None:
        if not self._is_watching_all:
            self._request_unknown()

    def _request_unknown(self) -> None:
        if self._creation is not None:
            self._creation.start()
        elif self.state in {State.JOINING, State.WAITING} and self.node is not None:
            self.list_queue()
        elif self.state is State.JOINING:
            self._create()
        elif self.state is State.HELD and self._waking_next:
            self._wake_next_lease()
        elif self.state is State.LEAVING:
            self._delete()

    def session_ended(self, reason: str) -> None:
        self._predecessors.end()
        self.suspended()
        self._own_watch_requested = self._own_watch_set = False
        if self.state is State.HELD:
            self.lose(reason)
        self.node = None
        self._reset_creation()
        if self.state in {State.HELD, State.LEAVING}:
            self._finish()
        elif self.state is State.WAITING:
            self.state = State.JOINING

    # The node.

    def _release(self) -> None:
        self._predecessors.end()
        if self.node is not None:
            self._delete()
        elif not self._abandon_creation():
            self._finish()

    def _adopt(self, created: Created) -> None:
        self.node, self.token = created.names[0], created.czxid
        if self.state is State.LEAVING:
            self._delete()
        elif created.was_recovered:
            self.list_queue()

    def _finish_if_gone(self) -> None:
        self._finish()

    # The queue.

    def list_queue(self) -> None:
        """Request a listing, which decides whether the lock is granted."""
        self._listed_in = self._generation
        self.listing.list_queue(partial(self._listed, self._generation))

    def _listed(self, asked: int, queue: Queue, refusal: KazooException | None) -> None:
        if asked == self._generation:
            self._listed_in = None
            self.on_queue(queue, refusal)

    def on_queue(self, queue: Queue, refusal: KazooException | None) -> None:
        """Hold, wait or leave, as the queue demands."""
        if self.node is None or self.state not in {State.JOINING, State.WAITING}:
            return
        if refusal is not None:
            # The reason may be a node of another user that we may not read, and that may be before ours.
            self.on_refusal(refusal)
            return
        self.refusal = None
        if self.node not in queue:
            self._start_again()
            return
        plan = self.rule.evaluate(self.node, queue)
        if plan is GRANTED:
            self._grant(is_followed=self.rule.limit is not None and queue.of(LEASES)[-1].name != self.node)
        elif not self.wait:
            self.taken = True
            self._abort()
        elif self._coalesces is not None and self.state is State.JOINING:
            self._wait_or_leave(plan, self.rule.proof_of_waiter(self.node, queue, self._coalesces))
        else:
            self._wait_in_queue(plan)

    def _grant(self, *, is_followed: bool) -> None:
        """Hold. ``is_followed`` says that there may be another lease behind ours already."""
        if self.session.lease_expired:
            # This process slept after the answer was sent, or no majority has accepted a write: another contender may
            # hold by now. The queue is listed again with a new lease, because no event would report it once more.
            self._predecessors.end()
            self.session.renewal.regain(partial(self._request_again, self._generation))
            return
        if self.session.closing:
            # The holder was another contender of this process, in a session that has ended first.
            return
        self.state = State.HELD
        self._predecessors.end()
        if self.rule.conflicts == ALL:
            # No node is before ours.
            self.listing.local_head = self.node
        if is_followed and self.rule.limit is not None:
            self._wake_next_lease()
        self._notify()

    def _request_again(self, asked: int) -> None:
        if asked == self._generation:
            self._request_unknown()

    def _wake_next_lease(self) -> None:
        """Write to our own node, so that the lease behind ours lists the queue again.

        It watches only our node, and must learn that we hold: then our deletion makes room for it. We write only while
        our node has version 0. If it was written before (for example to request a release), the lease behind ours has
        noticed that and watches the whole queue.
        """
        self._waking_next = True
        done = partial(self._next_lease_woken, self._generation)
        self.session.wire.set(self._own_path, self.data, done, version=0)

    def _next_lease_woken(self, asked: int, _value: object, error: KazooException | None) -> None:
        if asked != self._generation:
            return
        if error is not None and wire.is_temporary(error):
            self.on_refusal(error)
        else:
            self._waking_next = False

    def _wait_in_queue(self, plan: WatchPlan) -> None:
        self.state, self.answered = State.WAITING, True
        if not self._own_watch_requested:
            self._watch_own_node()
        self._predecessors.update(plan)

    def _wait_or_leave(self, plan: WatchPlan, proof: tuple[str, ...]) -> None:
        """Wait, or leave while the nodes of ``proof`` exist, which prove that another contender waits."""
        if proof:
            # Check and delete in one transaction: the other waiter may be granted or leave in between.
            others = [f"{self.path}/{name}" for name in proof]
            done = partial(self._left_as_redundant, self._generation)
            self.session.wire.delete_if_all_exist(self._own_path, others, done)
        else:
            self._wait_in_queue(plan)

    def _left_as_redundant(self, asked: int, _value: object, error: KazooException | None) -> None:
        if asked != self._generation or self.state is not State.JOINING:
            return
        if error is None:
            self.node = None
            self.taken = True
            self._abort()
        elif isinstance(error, wire.NoNodeError):
            self.list_queue()
        else:
            # The reason may be a node of another user that we may not check, and could not watch either.
            self.on_refusal(error)

    # WatchOwner.

    def on_clear(self) -> None:
        """Hold at once, if the events prove as much as a listing would.

        No node can be created before ours, except by a Curator writer that becomes a reader, and behind a writer of
        Curator this is not called. So once all watched predecessors are deleted we are first. This does not hold if our
        own node may be deleted, or if the process was suspended in between.
        """
        if self.session.watching and not self.session.lease_expired and self._own_watch_set:
            self._grant(is_followed=True)
        else:
            self.on_change()

    def on_change(self) -> None:
        """List the queue, unless a listing that is newer than this change is not answered yet."""
        if self._listed_in != self._generation:
            self._listed_in = self._generation
            # The same event may grant the lock to the contender before us, if that is of our session.
            self.session.post(partial(self._list_again, self._generation))

    def _list_again(self, asked: int) -> None:
        if asked != self._generation or self.state is not State.WAITING:
            return
        following = self._predecessors.plan.watch_next
        if self.rule.limit is None and following and following[0].name == self.listing.local_head:
            # That node is the first of the queue, and our only blocker.
            self._listed_in = None
            self._predecessors.update(WatchPlan(1, following[0].name, following, grants_on_delete=True))
        else:
            if self.session.lease_expired:
                # A session that has only waited for long has no lease. The listing may grant the lock.
                self.session.renewal.prove()
            self.list_queue()

    def _start_again(self) -> None:
        """Our node was deleted while we waited, by an operator or together with its parent: create another one."""
        logger.warning("event=place_lost path=%s node=%s", self.path, self.node)
        self.node = None
        self.state = State.JOINING
        self._predecessors.end()
        self._own_watch_requested = self._own_watch_set = False
        self._create()
