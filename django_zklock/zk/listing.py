"""The listing of a lock's nodes: its queue, read once for all contenders of a session that ask for it.

ZooKeeper answers the requests of a connection in their order, so a listing that was requested after a node's creation
has that node in it (Programmer's Guide, "Consistency Guarantees"). That holds for every contender of the session, so
all that ask before the next write share one ``getChildren``: many contenders that join together read a queue of ten
thousand once, and not ten thousand times. Only one listing of a long queue is requested at a time. Then contenders that
join one by one share it too, when a listing takes longer than the time between two of them.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Generic, Protocol, TypeVar

from django_zklock.zk import node_data, wire
from django_zklock.zk.background import DeferredLogger
from django_zklock.zk.queue import Node, Queue, parse_name, sort_by_creation, sort_by_sequence

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


class AnyOrder(partial[None]):
    """Is called with the nodes even if their order cannot be known."""


class ListedPlace(Protocol):
    """What a listing asks a place of our session in its queue."""

    @property
    def is_open(self) -> bool:
        """Whether nodes before ours may block us."""

    @property
    def token(self) -> int | None:
        """The transaction that has created our node."""

    @property
    def blockers(self) -> tuple[str, ...]:
        """The paths of the nodes that block ours until they are deleted, as far as they are watched here."""


PlaceT = TypeVar("PlaceT", bound=ListedPlace)


class SharedListing(Generic[PlaceT]):
    """The listings of the queue at ``path`` for the contenders of one session.

    Every method runs under ``session.monitor``. The callback is called once, or never if the connection is lost before
    the answer.
    """

    __slots__ = (
        "__weakref__", "_holder_requests", "_nodes", "_posted", "_session", "_under_way", "_waiting", "local", "path",
    )  # fmt: skip

    def __init__(self, session: Session, path: str) -> None:
        self.path = path
        # The places of our session in this queue, by the names of their nodes.
        self.local: dict[str, PlaceT] = {}
        self._session = session
        # The requests that have not been sent: for the queue, and for owners.
        self._waiting: list[OnQueue] = []
        self._holder_requests: dict[str, list[OnHolder]] = {}
        self._posted = False
        # What the answer to the last shared listing is for, as long as that is not answered.
        self._under_way: list[OnQueue] | None = None
        # The nodes of the newest listing, because the next one has mostly the same names.
        self._nodes: dict[str, Node] = {}

    @property
    def blockers(self) -> tuple[str, ...]:
        """The paths of the nodes that block the first place of our session that waits; the others are behind it."""
        waiting = [place for place in self.local.values() if place.is_open]
        return min(waiting, key=lambda place: place.token or 0).blockers if waiting else ()

    def list_queue(self, use: OnQueue) -> None:
        """Request the queue; that of a lock without a node is empty."""
        self._waiting.append(use)
        # A posted call runs last before the write, so requests that are queued until then are sent before it.
        if not self._posted:
            self._posted = True
            self._session.post(self._send)

    def list_in_any_order(self, use: OnQueue) -> None:
        """Request the nodes of the queue, to look for a name among them."""
        self.list_queue(AnyOrder(use))

    def watch_queue(self, use: OnQueue, triggered: Callable[[bool], None]) -> Callable[[], None]:
        """Request the queue, and call ``triggered`` once when it changes. Return what removes the watch."""
        return self._session.wire.watch(self.path, partial(self._listed, [use], None), triggered, children=True)

    def read_holder(self, name: str, found: OnHolder) -> None:
        """Read the owner of the node with that name."""
        self._holder_requests.setdefault(name, []).append(found)
        if not self._posted:
            self._posted = True
            self._session.post(self._send)

    def disconnected(self) -> None:
        """The connection is lost: what was requested on it is requested again by its contender."""
        self._waiting, self._holder_requests, self._under_way = [], {}, None

    def _send(self) -> None:
        self._posted = False
        if not self._session.connected:
            return
        holder_requests, self._holder_requests = self._holder_requests, {}
        for name, callbacks in holder_requests.items():
            self._session.wire.get(f"{self.path}/{name}", partial(self._holder_read, callbacks))
        if self._waiting and not (self._under_way is not None and len(self._nodes) >= LONG):
            waiting, self._waiting = self._waiting, []
            self._under_way = waiting
            self._session.wire.children(self.path, partial(self._listed, waiting, None))

    def _listed(
        self, uses: list[OnQueue], czxids: dict[str, int] | None, names: list[str] | None, error: KazooException | None
    ) -> None:
        if uses is self._under_way:
            self._under_way = None
            if self._waiting:
                self._session.post(self._send)
        queue = None
        if error is None or isinstance(error, wire.NoNodeError):
            known = self._nodes
            parsed = [(name, known.get(name) or parse_name(name)) for name in names or ()]
            self._nodes = {name: node for name, node in parsed if node is not None}
            nodes, is_true = sort_by_sequence(self._nodes.values())
            if not is_true:
                self._order_by_creation(nodes, uses, czxids)
                return
            queue, error = Queue(nodes), None
        for use in uses:
            # An error in one is logged, so that the others are called too.
            self._session.wire.notify(use, queue, error)

    def _holder_read(
        self, callbacks: list[OnHolder], value: tuple[bytes, ZnodeStat] | None, error: KazooException | None
    ) -> None:
        holder = node_data.decode_identity(value[0]) if value is not None else None
        refusal = error if error is not None and wire.is_temporary(error) else None
        for found in callbacks:
            self._session.wire.notify(found, holder, refusal)

    def _order_by_creation(self, nodes: list[Node], uses: list[OnQueue], known: dict[str, int] | None) -> None:
        """Call ``uses`` with the queue in its true order, which the sequence numbers do not give.

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
                self._session.wire.children(self.path, partial(self._listed, uses, czxids))
                return
            existing = ((node, czxids[node.name]) for node in nodes if node.name in czxids)
            queue = Queue(nodes if refusals else sort_by_creation(existing))
            for use in uses:
                if refusals and not isinstance(use, AnyOrder):
                    self._session.wire.notify(use, None, refusals[0])
                else:
                    self._session.wire.notify(use, queue, None)

        for name in unread:
            self._session.wire.get(f"{self.path}/{name}", partial(read, name))
        if not unread:
            complete()
