"""Listings of a queue, shared by all contenders of one session.

ZooKeeper answers the requests of a connection in their order, so a listing that was requested after a node's creation
has that node in it (Programmer's Guide, "Consistency Guarantees"). That holds for every contender of the session, so
all that ask before the next write share one ``getChildren``: many contenders that join together read a queue of ten
thousand once, and not ten thousand times. Only one listing of a long queue is requested at a time. Then contenders
that join one by one share it too, when a listing takes longer than the time between two of them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from django_zklock.zk import node_data, wire
from django_zklock.zk.background import DeferredLogger
from django_zklock.zk.queue import (
    Node,
    Queue,
    parse_name,
    sequence_is_reliable,
    sort_by_creation,
    sort_by_sequence,
)

if TYPE_CHECKING:
    from django_zklock.zk.session import Session
    from django_zklock.zk.wire import KazooException, ZnodeStat

logger = DeferredLogger("django_zklock.listing")

# A queue with this number of names or more is long: waiting in it takes longer than a listing.
LONG = 100

OnQueue = Callable[[Any, "Exception | None"], None]
"""Takes the queue in its true order, or ``None`` and the error that the server answered."""
OnHolder = Callable[[Any, "Exception | None"], None]
"""Takes the owner of a node, or ``None`` if its data does not tell or it cannot be read; or an error that passes."""


class SharedListing:
    """The listings of the queue at ``path`` for the contenders of one session.

    Every method runs under ``session.monitor``. The callback is called once, or never if the connection is lost before
    the answer.
    """

    __slots__ = (
        "__weakref__", "_epoch", "_holder_requests", "_is_under_way", "_nodes", "_posted", "_session", "_waiting",
        "local", "path",
    )  # fmt: skip

    def __init__(self, session: Session, path: str) -> None:
        self.path = path
        # The places of our session in this queue, by the names of their nodes.
        self.local: dict[str, Any] = {}
        self._session = session
        # The requests of this epoch of the session that have not been sent: for the queue, and for owners.
        self._epoch = session.epoch
        self._waiting: list[OnQueue] = []
        self._holder_requests: dict[str, list[OnHolder]] = {}
        self._posted = False
        # A listing was requested and not answered yet.
        self._is_under_way = False
        # The nodes of the newest listing, because the next one has mostly the same names.
        self._nodes: dict[str, Node] = {}

    def list_queue(self, use: OnQueue) -> None:
        """Request the queue; that of a lock without a node is empty."""
        self._renew()
        self._waiting.append(use)
        self._post()

    def watch_queue(self, use: OnQueue, triggered: Callable[[bool], None]) -> Callable[[], None]:
        """Request the queue, and call ``triggered`` once when it changes. Return what removes the watch."""
        return self._session.wire.watch(self.path, partial(self._listed, use, None), triggered, children=True)

    def read_holder(self, name: str, found: OnHolder) -> None:
        """Read the owner of the node with that name."""
        self._renew()
        self._holder_requests.setdefault(name, []).append(found)
        self._post()

    def _parse(self, names: Iterable[str]) -> list[Node]:
        """Return the nodes with known names, in the order of their sequence numbers."""
        known = self._nodes
        parsed = [(name, known.get(name) or parse_name(name)) for name in names]
        self._nodes = {name: node for name, node in parsed if node is not None}
        return sort_by_sequence(self._nodes.values())

    def _renew(self) -> None:
        if self._epoch != self._session.epoch:
            # What was requested on an earlier connection is requested again by its contender.
            self._epoch, self._is_under_way = self._session.epoch, False
            self._waiting, self._holder_requests = [], {}

    def _post(self) -> None:
        # A posted call runs last before the write, so requests that are queued until then are sent before it.
        if not self._posted:
            self._posted = True
            self._session.post(self._ask)

    def _ask(self) -> None:
        self._posted = False
        if self._epoch != self._session.epoch or not self._session.connected:
            return
        holder_requests, self._holder_requests = self._holder_requests, {}
        for name, callbacks in holder_requests.items():
            self._session.wire.get(f"{self.path}/{name}", partial(self._holder_read, callbacks))
        if self._waiting and not (self._is_under_way and len(self._nodes) >= LONG):
            waiting, self._waiting = self._waiting, []
            self._is_under_way = True
            self._session.wire.children(self.path, partial(self._answered, waiting))

    def _answered(self, waiting: list[OnQueue], names: list[str] | None, error: KazooException | None) -> None:
        self._is_under_way = False
        if self._waiting:
            self._post()
        self._listed(partial(_call_all, waiting), None, names, error)

    def _listed(
        self, use: OnQueue, known: dict[str, int] | None, names: list[str] | None, error: KazooException | None
    ) -> None:
        if error is not None and not isinstance(error, wire.NoNodeError):
            use(None, error)
            return
        nodes = self._parse(names or ())
        if sequence_is_reliable(nodes):
            use(Queue(nodes), None)
        else:
            self._order_by_creation(nodes, use, known)

    def _holder_read(
        self, callbacks: list[OnHolder], value: tuple[bytes, ZnodeStat] | None, error: KazooException | None
    ) -> None:
        holder = node_data.decode_identity(value[0]) if value is not None else None
        _call_all(callbacks, holder, error if error is not None and wire.is_temporary(error) else None)

    def _order_by_creation(self, nodes: list[Node], use: OnQueue, known: dict[str, int] | None) -> None:
        """Call ``use`` with the queue in its true order, which the sequence numbers do not give.

        The transactions that created the nodes give it, and they are read after the list. If a node is deleted in
        between, the remaining nodes may never have been the whole queue: a node that is not in the list may have seen
        the deleted one before ours. So the queue is listed again, and ``known`` has what was read before. A node that
        only the second list has is behind all nodes of both lists, or is the read node of a client whose write node is
        deleted; so if it is deleted too, it can be left out.
        """
        if known is None:
            logger.warning("event=sequence_end path=%s consequence=ordered_by_czxid", self.path)
        czxids = dict(known or {})
        unread = [node.name for node in nodes if node.name not in czxids]
        deleted = False
        refusals: list[KazooException] = []

        def read(name: str, value: tuple[bytes, ZnodeStat] | None, error: KazooException | None) -> None:
            nonlocal deleted
            if value is not None:
                czxids[name] = value[1].czxid
            elif isinstance(error, wire.NoNodeError):
                deleted = True
            elif error is not None:
                refusals.append(error)
            # Replies come in the order of the requests, so the last one completes the set.
            if name == unread[-1]:
                complete()

        def complete() -> None:
            if deleted and known is None and not refusals:
                self._session.wire.children(self.path, partial(self._listed, use, czxids))
                return
            existing = ((node, czxids[node.name]) for node in nodes if node.name in czxids)
            use(None if refusals else Queue(sort_by_creation(existing)), refusals[0] if refusals else None)

        for name in unread:
            self._session.wire.get(f"{self.path}/{name}", partial(read, name))
        if not unread:
            complete()


def shared_listing(session: Session, path: str) -> SharedListing:
    """Return the listings of the queue at ``path`` for all contenders of ``session``. Any thread may call this."""
    # Two threads at once may make two of them. Then their contenders share less; nothing else depends on it.
    listing = session.shared.get(path)
    if listing is None:
        listing = session.shared[path] = SharedListing(session, path)
    return listing


def _call_all(callbacks: Iterable[Callable[..., None]], *values: object) -> None:
    """Call each with ``values``. An error in one is logged, so that the others are called too."""
    for callback in callbacks:
        try:
            callback(*values)
        except Exception:
            logger.exception("event=callback_failed callback=%r", callback)
