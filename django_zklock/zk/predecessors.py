"""The watches of a waiter on its predecessors, and what follows when one is deleted."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Protocol

from django_zklock.zk import node_data, wire
from django_zklock.zk.listing import SharedListing
from django_zklock.zk.node_data import Identity
from django_zklock.zk.queue import Node, Queue
from django_zklock.zk.rules import GRANTED, Rule, WatchPlan
from django_zklock.zk.session import Session

if TYPE_CHECKING:
    from django_zklock.zk.wire import KazooException, ZnodeStat

# Stands for the children of the lock, in place of the name of a node.
CHILDREN = ""


class WatchOwner(Protocol):
    """The waiter that has the watches."""

    session: Session
    rule: Rule
    # The holder is not known yet, and to be read.
    wants_holder: bool

    def on_clear(self) -> None:
        """All predecessors are proven to be deleted."""

    def on_change(self) -> None:
        """The queue has changed and is to be listed again."""

    def on_queue(self, queue: Queue, refusal: KazooException | None, /) -> None:
        """The queue, whose children are watched."""

    def on_refusal(self, error: KazooException, /) -> None:
        """The server refuses to set the watch on a predecessor."""

    def on_holder(self, holder: Identity | None, /) -> None:
        """The owner of the first node in the queue."""


class PredecessorWatch:
    """A watch on one predecessor, or on the children, from the moment that it is requested."""

    __slots__ = ("is_set", "name", "owner", "remove", "watches")

    def __init__(self, watches: PredecessorWatches, name: str) -> None:
        self.watches = watches
        self.name = name
        # The server has the watch.
        self.is_set = False
        # The session of the node, when the watch is set.
        self.owner: int | None = None
        self.remove: Callable[[], None] = _nothing

    def __call__(self, deleted: bool) -> None:  # noqa: FBT001 - the wire's signature
        self.watches.triggered(self, deleted=deleted)


class PredecessorWatches:
    """The watches of one waiter on its predecessors. The watch on its own node is the contender's.

    Every method runs under ``session.monitor``.
    """

    __slots__ = ("_listing", "_next", "_owner", "_remaining", "_unreliable", "_watches", "plan")

    def __init__(self, owner: WatchOwner, listing: SharedListing) -> None:
        # From the newest listing.
        self.plan = GRANTED
        self._owner = owner
        self._listing = listing
        # How many watched nodes are not yet known to be deleted.
        self._remaining = 0
        # What to watch as soon as a watch is triggered.
        self._next: tuple[Node, ...] = ()
        # The watches by the name of the node. A watch that is not here any more is void.
        self._watches: dict[str, PredecessorWatch] = {}
        # The lease before ours whose client may have written to it before we watched, so the children are watched too.
        self._unreliable: str | None = None

    @property
    def is_ready(self) -> bool:
        """Whether the lock is granted without a request when the last predecessor is deleted."""
        watches = [self._watches.get(node.name) for node in self.plan.watch]
        return self.plan.grants_on_delete and all(watch is not None and watch.owner is not None for watch in watches)

    @property
    def is_set(self) -> bool:
        """Whether the server has all these watches, so that they continue on another connection."""
        return bool(self._watches) and all(watch.is_set for watch in self._watches.values())

    def update(self, plan: WatchPlan) -> None:
        """Watch what ``plan`` names, and nothing else."""
        self.plan = plan
        self._remaining = len(plan.watch)
        self._next = plan.watch_next
        wanted = {node.name for node in plan.watch}
        if plan.watch_children or self._unreliable in wanted:
            wanted.add(CHILDREN)
        for name in self._watches.keys() - wanted:
            self._watches.pop(name).remove()
        for name in wanted - self._watches.keys():
            self._watch(name)
        if self._owner.wants_holder and plan.first not in wanted:
            self._listing.read_holder(plan.first, self._owner.on_holder)

    def end(self) -> None:
        """Remove all watches."""
        while self._watches:
            self._watches.popitem()[1].remove()

    def _watch(self, name: str) -> None:
        watch = self._watches[name] = PredecessorWatch(self, name)
        if name == CHILDREN:
            watch.remove = self._listing.watch_queue(partial(self._queue_listed, watch), watch)
        else:
            path = f"{self._listing.path}/{name}"
            watch.remove = self._owner.session.wire.get(path, partial(self._set, watch), watch)

    def _keeps(self, watch: PredecessorWatch) -> bool:
        return self._watches.get(watch.name) is watch

    def _queue_listed(self, watch: PredecessorWatch, queue: Queue, refusal: KazooException | None) -> None:
        if self._keeps(watch):
            watch.is_set = refusal is None
            if refusal is not None:
                self._watches.pop(watch.name).remove()
            self._owner.on_queue(queue, refusal)

    def _set(
        self, watch: PredecessorWatch, value: tuple[bytes, ZnodeStat] | None, error: KazooException | None
    ) -> None:
        if not self._keeps(watch):
            return
        if isinstance(error, wire.NoNodeError):
            # It was deleted between the listing and the watch.
            self.triggered(watch, deleted=True)
        elif error is not None or value is None:
            # The node may belong to another user, so that we may not read it, nor watch it.
            del self._watches[watch.name]
            self._owner.on_refusal(error or wire.KazooException("a read had no outcome"))
        else:
            watch.is_set = True
            watch.owner = value[1].ephemeralOwner
            if watch.name == self.plan.first:
                self._owner.on_holder(node_data.decode_identity(value[0]))
            # It was written to since its creation: its client may have been granted before we watched it.
            if self.plan.woken_by_predecessor and value[1].version != 0:
                self._unreliable = watch.name
                if CHILDREN not in self._watches:
                    self._watch(CHILDREN)

    def triggered(self, watch: PredecessorWatch, *, deleted: bool) -> None:
        """What is watched has changed, or is ``deleted``: grant, or list again."""
        if not self._keeps(watch):
            return
        del self._watches[watch.name]
        if watch.name == CHILDREN:
            self._watch(CHILDREN)
        elif deleted and self.plan.grants_on_delete and self._is_proof(watch):
            self._remaining -= 1
            if not self._remaining:
                self._owner.on_clear()
        else:
            # In the same write as the listing that follows: the next blocker may be deleted before that is answered.
            following, self._next = self._next, ()
            for node in following:
                self._watch(node.name)
            self._owner.on_change()

    def _is_proof(self, watch: PredecessorWatch) -> bool:
        """Whether the deletion of a watched node cannot be part of the end of our own session."""
        session, path = self._owner.session, f"{self._listing.path}/{watch.name}"
        return watch.owner is not None and (watch.owner != session.id or path in session.deleting)


def _nothing() -> None:
    """Do nothing: the watch is not requested yet."""
