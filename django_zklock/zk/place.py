"""The place of a contender in one queue: its node, the watches on it and on its predecessors, and its turn.

The turn begins when the queue is listed, and ends when no node before ours blocks us. In between the place watches what
the rule names, and lists the queue again after each event that does not prove the end of the turn.
"""

from __future__ import annotations

import enum
import logging
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from django_zklock.zk import node_data, wire
from django_zklock.zk.background import DeferredLogger
from django_zklock.zk.queue import ALL, GRANTED, PERMITS, Queue, WatchPlan
from django_zklock.zk.scripts import Reply, Request

if TYPE_CHECKING:
    from django_zklock.zk.listing import SharedListing
    from django_zklock.zk.queue import Mark, Rule
    from django_zklock.zk.session import Session
    from django_zklock.zk.wire import KazooException

logger = DeferredLogger("django_zklock.contender")

# Stands for the children of the lock, in place of the name of a node.
CHILDREN = ""
# The plan of a place right behind another one of our session: nothing is watched.
BEHIND = WatchPlan()


class LockPath(NamedTuple):
    """The path of a lock in ZooKeeper, which is the parent of its queue, and the data of that node."""

    path: str
    parent_data: bytes = b""


class Turn(enum.Enum):
    """What a place waits for."""

    # There is no node, or its contender leaves: nothing is waited for.
    NONE = "none"
    # Nodes before ours may block us.
    OPEN = "open"
    # No node before ours blocks us.
    CLEAR = "clear"
    # We have held, and the owner has released the lock: the node is, or will be, deleted. It blocks no contender of our
    # session any more.
    RELEASED = "released"


# The contender leaves, or has left.
LEFT = (Turn.NONE, Turn.RELEASED)


class ContenderPort(Protocol):
    """What a place asks its contender, and tells it of what it finds out."""

    session: Session
    rule: Rule
    # What each node has as its data.
    data: bytes
    # Whether the contender waits for a lock that is taken.
    wait: bool
    # What the names of its nodes say about the call, if other calls may be skipped for it.
    mark: Mark | None
    # The owner of the first node is to be read when the place waits.
    wants_holder: bool
    # The last refusal that passes.
    refusal: KazooException | None
    # The transaction that has created the nodes.
    token: int | None

    @property
    def may_leave_for(self) -> Mark | None:
        """What a waiting contender will run if this one, which joins, is to leave for it; ``None`` if it stays."""

    def ask(self, request: Request, use: Reply, /) -> None:
        """Send ``request`` until there is an answer, and call ``use`` with it."""

    def leave(self, error: Exception | None, /) -> None:
        """Leave all queues, because of an error that does not pass."""

    def leave_as_taken(self, place: Place, /) -> None:
        """Leave all queues, because another contender has the lock of ``place``, or waits for it."""

    def delete_stray(self, place: Place, name: str, /) -> None:
        """Delete a node of our session before ours, unless another contender of the session knows it."""

    def lose(self, reason: str, /) -> None:
        """Note that the hold is lost: an operator of this process has deleted the node of a place."""

    def on_place_waits(self) -> None:
        """Nodes before ours block us."""

    def on_place_clear(self, place: Place, /) -> None:
        """No node before that of ``place`` blocks us."""

    def on_place_lost(self, place: Place, /) -> None:
        """The node of ``place`` was deleted, and not by us."""

    def on_own_node_watched(self, error: Exception | None, /) -> None:
        """The node of a clear place is watched, or is not there, or the server refuses for good to read it."""

    def on_data(self, place: Place, data: bytes, /) -> None:
        """Take what is written in our own node."""

    def on_holder(self, place: Place, holder: Any, error: Exception | None = None, /) -> None:
        """Take the owner of the first node in the queue."""


def _nothing() -> None:
    """Do nothing: the watch is not requested yet."""


@dataclass(slots=True, eq=False, repr=False)
class PlaceWatch:
    """A watch on our node, on one predecessor, or on the children, from the moment that it is requested."""

    place: Place
    name: str
    # The session that owns the node, or 0 for the children, when the server has the watch.
    session_id: int | None = None
    remove: Callable[[], None] = _nothing

    def request(self, reply: Reply) -> None:
        """Read what is watched."""
        place = self.place
        if not place.needs(self):
            # It was removed before an answer came, and the connection was lost.
            reply(None, None)
        elif self.name == CHILDREN:
            self.remove = place.listing.watch_queue(reply, self)
        else:
            self.remove = place.contender.session.wire.watch(f"{place.path}/{self.name}", reply, self)

    def __call__(self, deleted: bool) -> None:  # noqa: FBT001 - the wire's signature
        self.place.on_event(self, deleted=deleted)


# Thousands may wait in one process.
@dataclass(slots=True, eq=False, repr=False)
class Place:
    """A place in the queue of one lock. Every method runs under the session's monitor."""

    contender: ContenderPort
    # The path of the lock, and the data of that node.
    path: str
    parent_data: bytes
    # Set when the contender joins.
    listing: SharedListing[Place] = field(init=False)
    # The name of our node, if there is one.
    node: str | None = None
    turn: Turn = Turn.NONE
    # A listing that decides what to do was requested, or is about to be.
    is_listing: bool = False
    # The owner of the first node in the queue when it was last read.
    holder: node_data.Identity | None = None
    # Never removed: it ends with the node.
    _own_watch: PlaceWatch | None = None
    # Our node could not be read the last time.
    _is_unreadable: bool = False
    # What we watch, since the first listing that has made us wait.
    _plan: WatchPlan | None = None
    # How many nodes are not yet known to be deleted. It is 0 only if that proves the end of our turn.
    _remaining: int = 1
    # The watches by the name of the node. A watch that is not here any more is void.
    _watches: dict[str, PlaceWatch] = field(default_factory=dict)
    # The place of our session right before ours, and the one right behind ours; see :meth:`pass_on`.
    _ahead: Place | None = None
    behind: Place | None = None
    # The nodes that proved that another contender waits, until a transaction found one of them missing.
    _refuted: tuple[str, ...] = ()
    # The permit before ours whose client may have written to it before we watched, so the children are watched too.
    _unreliable: str | None = None

    @property
    def needs_lease(self) -> bool:
        """Whether our node holds, or will without a request when its predecessors are deleted."""
        if self.turn is not Turn.OPEN:
            return self.turn is Turn.CLEAR
        plan = self._plan
        if plan is None or not plan.grants_on_delete or not self._is_sure:
            return False
        watches = [self._watches.get(node.name) for node in plan.watch]
        return all(watch is not None and watch.session_id is not None for watch in watches)

    # For the listing.

    @property
    def is_open(self) -> bool:
        """Whether nodes before ours may block us."""
        return self.turn is Turn.OPEN

    @property
    def token(self) -> int | None:
        """The transaction that has created our node."""
        return self.contender.token

    @property
    def blockers(self) -> tuple[str, ...]:
        """The paths of the nodes that block ours until they are deleted, as far as they are watched here."""
        plan = self._plan
        return () if plan is None else tuple([f"{self.path}/{node.name}" for node in plan.watch or plan.permits])

    @property
    def _is_sure(self) -> bool:
        """Whether our own node surely exists as long as no event says otherwise."""
        return (
            self._own_watch is not None and self._own_watch.session_id is not None and self.contender.session.watching
        )

    # The node.

    def node_gone(self) -> None:
        """Our node does not exist any more."""
        self.end_turn()
        if self.node is not None:
            self.contender.session.deleting.discard(self.node)
            self.listing.local.pop(self.node, None)
        self.node = self._own_watch = None
        # It may have been our own node that was missing.
        self._refuted = ()
        if self.behind is not None:
            self.pass_on()

    def delete(self, reply: Reply) -> None:
        """Request the deletion of our node."""
        assert self.node is not None
        session = self.contender.session
        session.deleting.add(self.node)
        session.wire.delete(f"{self.path}/{self.node}", reply)

    def heartbeat(self) -> None:
        """Let the session watch our node, if that blocks others. Most locks are not held until a heartbeat."""
        if self._own_watch is None and (self.turn is Turn.CLEAR or self._is_unreadable):
            self.contender.session.to_watch[self._watch_unless_left] = None

    def _watch_unless_left(self) -> None:
        if self.turn not in LEFT:
            self.watch_own_node()

    def _verified(self, value: Any, error: Exception | None) -> None:
        contender = self.contender
        if self.turn in LEFT:
            return
        if value is not None and value[1].ephemeralOwner == contender.session.id:
            self._is_unreadable = False
            contender.on_data(self, value[0])
        elif value is None and not isinstance(error, wire.NoNodeError):
            # It is read again at each heartbeat.
            level = logging.DEBUG if self._is_unreadable else logging.WARNING
            self._is_unreadable = True
            logger.log(level, "event=unverified path=%s node=%s error=%r", self.path, self.node, error)
        else:
            contender.on_place_lost(self)

    def watch_own_node(self) -> None:
        """Watch our node, if that is not done, so that the contender learns at once that it is gone."""
        if self._own_watch is None:
            assert self.node is not None
            self._own_watch = watch = PlaceWatch(self, self.node)
            self.contender.ask(watch.request, partial(self.on_watched, watch))

    @property
    def is_safe(self) -> bool:
        """Whether our node, which nothing blocks, was there when the queue was listed, and still is if we watch it."""
        return self._own_watch is None or self._is_sure

    # The turn.

    def list_queue(self) -> None:
        """Request the listing that decides whether our node blocks or is blocked."""
        self.is_listing = True
        self.contender.ask(self.listing.list_queue, self._on_queue)

    def _on_queue(self, queue: Queue | None, error: Exception | None) -> None:
        """Be clear, wait or leave, as the queue demands."""
        contender, node = self.contender, self.node
        self.is_listing = False
        if node is None or self.turn is not Turn.OPEN:
            return
        if queue is None:
            # The reason may be a node of another user that we may not read, and that may be before ours.
            contender.leave(error)
            return
        contender.refusal = None
        try:
            plan = contender.rule.evaluate(node, queue)
        except LookupError:  # the node is not in the queue
            contender.on_place_lost(self)
            return
        if plan is GRANTED or ((ahead := self._local_predecessor(plan)) and ahead.turn is Turn.RELEASED):
            self._clear(is_followed=contender.rule.limit is not None and queue.of(PERMITS)[-1].name != node)
        elif not contender.wait:
            contender.leave_as_taken(self)
        elif (mark := contender.may_leave_for) is not None:
            self._wait_or_leave(plan, contender.rule.proof_of_waiter(node, queue, mark))
        else:
            self._wait(plan)

    def _wait_or_leave(self, plan: WatchPlan, proof: tuple[str, ...]) -> None:
        """Wait, or leave while the nodes of ``proof`` exist, which prove that another contender waits."""
        # What was found missing is here still: only this server has it, and it will not go.
        if not proof or proof == self._refuted:
            self._wait(plan)
            return
        # Check and delete in one transaction: the other waiter may be granted or leave in between.
        others = [f"{self.path}/{name}" for name in proof]
        own, delete = f"{self.path}/{self.node}", self.contender.session.wire.delete_if_all_exist
        self.contender.ask(partial(delete, own, others), partial(self._left, proof))

    def _left(self, proof: tuple[str, ...], _value: object, error: Exception | None) -> None:
        if error is None:
            self.node_gone()
            self.contender.leave_as_taken(self)
        elif isinstance(error, wire.NoNodeError):
            self._refuted = proof
            self.list_queue()
        else:
            # The reason may be a node of another user that we may not check, and could not watch either.
            self.contender.leave(error)

    def _wait(self, plan: WatchPlan) -> None:
        """Watch our node and what ``plan`` names, and nothing else."""
        contender = self.contender
        contender.on_place_waits()
        self.watch_own_node()
        first = plan.first
        ahead = self._local_predecessor(plan)
        if ahead is not None:
            plan = BEHIND
        self._plan, self._remaining = plan, len(plan.watch) if plan.grants_on_delete else 1
        self._set_ahead(ahead)
        # In the order of the queue, so that the same course sends the same requests.
        wanted = {node.name: None for node in plan.watch}
        if plan.watch_children or self._unreliable in wanted:
            wanted[CHILDREN] = None
        for name in [each for each in self._watches if each not in wanted]:
            self._watches.pop(name).remove()
        for name in [each for each in wanted if each not in self._watches]:
            self._watch(name)
        if contender.wants_holder and first not in wanted:
            contender.ask(partial(self.listing.read_holder, first), partial(contender.on_holder, self))

    # Between contenders of one session. T1 releases, and T2 of the same process has the next node: T2 holds at once,
    # and not when the server has told it that the node of T1 is deleted. No other node can come between, and both have
    # the same lease. For a moment the first node of the queue is one whose owner has released it.

    def _local_predecessor(self, plan: WatchPlan) -> Place | None:
        """Return the place of the node right before ours, if it is one of our session that will tell us of its end."""
        last = plan.watch_next or plan.watch
        if len(last) != 1 or self.contender.rule.conflicts != ALL:
            return None
        # T1 releases, and T2, for which calls of other processes may leave, would begin before the node of T1 is
        # deleted. Until then such a call sees T2 wait, and would be skipped for a run that has begun already.
        if self.contender.mark is not None:
            return None
        ahead = self.listing.local.get(last[0].name)
        if ahead is None or ahead.turn is Turn.NONE or ahead.contender.rule.conflicts != ALL:
            return None
        return ahead

    def _set_ahead(self, ahead: Place | None) -> None:
        if self._ahead is not None and self._ahead.behind is self:
            self._ahead.behind = None
        self._ahead = ahead
        if ahead is None:
            return
        ahead.behind = self
        if ahead.turn is Turn.RELEASED:
            ahead.pass_on()
        else:
            # An operator may delete it too.
            ahead.watch_own_node()

    def pass_on(self) -> None:
        """Let the place right behind ours go on: our node is, or will be, deleted.

        That proves the end of its turn if our contender has held until its owner has released the lock. Without a hold
        of ours other nodes may be before both; so that place lists the queue.
        """
        behind, self.behind = self.behind, None
        if behind is not None:
            behind.go_on(is_clear=self.turn is Turn.RELEASED)

    def go_on(self, *, is_clear: bool) -> None:
        """The place right before ours is left; with ``is_clear`` nothing else is before us."""
        self._ahead = None
        if is_clear:
            self._remaining = 0
            self.contender.session.post(self.advance)
        else:
            self._list_soon()

    def _watch(self, name: str) -> None:
        watch = self._watches[name] = PlaceWatch(self, name)
        self.contender.ask(watch.request, partial(self.on_watched, watch))

    def needs(self, watch: PlaceWatch) -> bool:
        """Whether ``watch`` is not void."""
        return watch is self._own_watch or self._watches.get(watch.name) is watch

    def on_watched(self, watch: PlaceWatch, value: Any, error: Exception | None) -> None:
        """Note that the server has set a watch."""
        if not self.needs(watch):
            return
        if watch is self._own_watch:
            # Without a value the server has no watch.
            self._own_watch = None if value is None else watch
            watch.session_id = None if value is None else value[1].ephemeralOwner
            self._verified(value, error)
            if self.turn is Turn.CLEAR:
                self.contender.on_own_node_watched(error)
            else:
                self.advance()
        elif watch.name == CHILDREN:
            watch.session_id = 0
            self._on_queue(value, error)
        elif isinstance(error, wire.NoNodeError):
            # It was deleted between the listing and the watch.
            self.on_event(watch, deleted=True)
        elif error is not None:
            # The node may belong to another user, so that we may not read it, nor watch it.
            self.contender.leave(error)
        else:
            assert self._plan is not None
            watch.session_id = value[1].ephemeralOwner
            if watch.session_id == self.contender.session.id and watch.name not in self.listing.local:
                self.contender.delete_stray(self, watch.name)
            if watch.name == self._plan.first:
                self.contender.on_holder(self, node_data.decode_identity(value[0]))
            # It was written to since its creation: its client may have been granted before we watched it.
            if self._plan.woken_by_predecessor and value[1].version != 0:
                self._unreliable = watch.name
                if CHILDREN not in self._watches:
                    self._watch(CHILDREN)

    def on_event(self, watch: PlaceWatch, *, deleted: bool) -> None:
        """What is watched has changed, or is ``deleted``."""
        session = self.contender.session
        if watch is self._own_watch:
            if self.turn not in LEFT:
                self._own_watch = None
                if deleted:
                    self.contender.on_place_lost(self)
                else:
                    self.watch_own_node()
            return
        if not self.needs(watch):
            return
        assert self._plan is not None
        # The end of our own session deletes the nodes of our session too, and then proves nothing.
        is_proof = watch.session_id is not None and (watch.session_id != session.id or watch.name in session.deleting)
        del self._watches[watch.name]
        if watch.name == CHILDREN:
            self._watch(CHILDREN)
        elif deleted and self._plan.grants_on_delete and is_proof:
            self._remaining -= 1
            self.advance()
        else:
            self._list_soon()

    def resumed(self) -> None:
        """List the queue again if its children are watched: the watch is set again, but an event may be missing.

        The server sends one if the newest change of the children came later than what we have seen. So it sends none
        if all that differs is that the server before had nodes that no other has (see :mod:`.strays`).
        """
        watch = self._watches.get(CHILDREN)
        if watch is not None and watch.session_id is not None:
            self._list_soon()

    def advance(self) -> None:
        """Be clear without a listing, if what has happened proves as much as a listing would; else list again.

        No node can be created before ours, except by a Curator writer that becomes a reader, and behind a writer of
        Curator no deletion is a proof. So once all watched predecessors are deleted we are first. This does not hold if
        our own node may be deleted, or if the process was suspended in between. T1 releases, and the watch of T2 of the
        same process on its own node is under way: the answer to it tells, and a listing would tell no more.
        """
        if self._remaining or self.turn is not Turn.OPEN:
            return
        own = self._own_watch
        if own is not None and own.session_id is None and self.contender.session.watching:
            return
        if self._is_sure and not self.contender.session.lease_expired:
            self._clear(is_followed=True)
        else:
            self._list_soon()

    def _list_soon(self) -> None:
        """List the queue, unless a listing that is newer than this change is not answered yet."""
        if self.is_listing or self._plan is None:
            return
        self.is_listing = True
        # In the same write as the listing: the next blocker may be deleted before that is answered.
        for node in self._plan.watch_next:
            if node.name not in self._watches:
                self._watch(node.name)
        # The same event may grant the lock to the contender before us, if that is of our session.
        self.contender.session.post(self._list_again)

    def _list_again(self) -> None:
        if self.turn is not Turn.OPEN or self._plan is None:
            return
        # A session that has only waited for long has no lease. The listing may grant the lock.
        self.contender.session.prove()
        self.list_queue()

    def _clear(self, *, is_followed: bool) -> None:
        """End the turn. ``is_followed`` says that there may be another permit behind ours already."""
        contender, session = self.contender, self.contender.session
        if session.lease_expired:
            # The session was idle, this process slept after the answer was sent, or no majority has accepted a write:
            # another contender may hold by now. The queue is listed again with a new lease, because no event would
            # report it once more.
            self.end_turn(Turn.OPEN)
            self.is_listing = True
            contender.ask(partial(session.regain, self.listing.list_queue), self._on_queue)
            return
        if session.closing:
            # The holder was another contender of this process, in a session that has ended first.
            return
        if self._plan is not None:
            # We have waited. Without a wait our creation, which is a write, has just renewed the lease.
            session.prove()
        self.end_turn(Turn.CLEAR)
        if is_followed and contender.rule.limit is not None:
            # The permit behind ours watches only our node, and must learn that we hold: then our deletion makes room
            # for it. We write only while our node has version 0. If it was written before (for example to request a
            # release), the permit behind ours has noticed that and watches the whole queue.
            wake_next = partial(session.wire.set, f"{self.path}/{self.node}", contender.data, version=0)
            contender.ask(wake_next, lambda _value, _error: None)
        contender.on_place_clear(self)

    def end_turn(self, turn: Turn = Turn.NONE) -> None:
        """Wait for nothing any more."""
        self.turn, self.is_listing = turn, False
        if self._ahead is not None:
            self._set_ahead(None)
        self._plan = self._unreliable = None
        self._remaining = 1
        while self._watches:
            self._watches.popitem()[1].remove()
