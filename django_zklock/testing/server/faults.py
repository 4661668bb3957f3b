"""Faults on demand: those of networks, servers and operators, at the moment that a test chooses."""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Literal, Protocol, TypeVar

from .connection import ClientConnection
from .network import Cut, Delay, Direction, Hole
from .protocol import Opcode, RefusedError
from .replica import LaggingReplica
from .requestlog import RequestLog
from .service import Service
from .tree import SequenceSet
from .znode import NodeKind

if TYPE_CHECKING:
    from typing import Self

T = TypeVar("T")

DirectionName = Literal["requests", "replies", "both"]


class FaultyServer(Protocol):
    """The server that faults act on."""

    service: Service
    connections: dict[ClientConnection, None]

    def call(self, function: Callable[[], T]) -> T:
        """Call a function in the thread of the event loop, and return its result."""
        ...

    def settle(self, function: Callable[[], object]) -> None:
        """Call a function in the thread of the event loop, or here if the server is stopped."""
        ...

    def refuse(self) -> None:
        """Accept no new connections."""
        ...

    def accept(self) -> None:
        """Take one refusal back."""
        ...


class Faults:
    """Every method returns when its fault is in effect. A lasting fault is also a context manager, which ends it.

    ``heal`` ends all lasting faults. Faults of the same kind add up, and each ends separately. ``session`` is the
    number of a session, such as ``ZooKeeperServer.owner`` returns for a node; without it the fault affects all
    sessions. Any thread may call any method. The methods raise RuntimeError while the server is stopped; ending a
    lasting fault works even then.
    """

    def __init__(self, server: FaultyServer) -> None:
        """Keep the server that the faults act on."""
        self._server = server
        self._lasting: list[Fault] = []

    def expire(self, session: int | None = None) -> int:
        """Expire a session, or all sessions; return their number."""

        def expire() -> int:
            ended = [each for each in self._service.sessions if session in {None, each.id}]
            for each in ended:
                self._service.end(each)
            return len(ended)

        return self._server.call(expire)

    def drop(self, session: int | None = None) -> int:
        """Reset the connection of a session, or all connections; return their number.

        The sessions stay open: clients reconnect to them.
        """

        def drop() -> int:
            dropped = self._connections(session)
            for connection in dropped:
                connection.abort()
            return len(dropped)

        return self._server.call(drop)

    def black_hole(self, direction: DirectionName = "both", *, session: int | None = None) -> BlackHole:
        """Hold everything back without closing connections; ``heal`` or the end of the context lets it through.

        ``"requests"`` is the direction to the server: it receives nothing, so sessions expire. ``"replies"`` is the
        direction back: the server executes the requests, and no client gets a reply. Everything held back keeps its
        order on each connection, the close of the connection included: requests of a client that has given up are
        still executed, late. ``BlackHole.requests`` is the log of the requests in it.
        """
        hole = Hole(_directions(direction), session)
        holes = self._service.network.holes

        def end() -> None:
            holes.remove(hole)
            self._heal_connections()

        self._server.call(partial(holes.append, hole))
        return BlackHole(self._lasting, partial(self._server.settle, end), hole.requests)

    def delay(self, seconds: float, *, direction: DirectionName = "both") -> Fault:
        """Delay everything by this time in each direction: a round trip takes twice as long.

        The end of the fault lets delayed data through at once.
        """
        # This refuses infinity and NaN too, which no timer accepts.
        if not 0 <= seconds < math.inf:
            msg = f"a delay is a finite number of seconds, not negative, got {seconds!r}"
            raise ValueError(msg)
        delay = Delay(_directions(direction), seconds)
        delays = self._service.network.delays

        def end() -> None:
            delays.remove(delay)
            self._heal_connections()

        self._server.call(partial(delays.append, delay))
        return Fault(self._lasting, partial(self._server.settle, end))

    def cut_reply(self, opcode: str | Opcode, *, after_bytes: int = 0, session: int | None = None) -> Cut:
        """Close the connection within the next reply to such a request; the request has been executed.

        ``opcode`` is a name of the protocol: ``"create2"``, ``"getData"``, ``"connect"``, or ``"notification"``
        for the event of a watch. ``after_bytes`` counts from the first byte of the frame, whose first four bytes are
        its length; with 0 nothing arrives. ``Cut.wait`` waits until it has happened. Raises ValueError.
        """
        if after_bytes < 0:
            msg = f"after_bytes cannot be negative, got {after_bytes!r}"
            raise ValueError(msg)
        cut = Cut(Opcode.named(opcode), after_bytes, session)
        self._server.call(lambda: self._service.network.cuts.append(cut))
        return cut

    def refuse(self) -> Fault:
        """Refuse new connections, as if no server listened; open connections stay until ``drop``."""
        self._server.refuse()
        return Fault(self._lasting, self._server.accept)

    def lag_reads(self, zxids: int = 1) -> Fault:
        """Let each connection read from its own follower, which is this number of transactions behind.

        A transaction is everything that takes a zxid: each write, executed or refused, and the start and the end of
        each session. As with ZooKeeper, a client sees its own changes, the start of its session included, and after a
        sync it sees all changes; a new connection sees at least what its client has seen before. Watch events are as
        late as the changes. Raises ValueError for less than one, and RuntimeError if reads lag already.
        """
        if zxids < 1:
            msg = f"a follower lags at least one transaction, got {zxids!r}"
            raise ValueError(msg)
        service = self._service

        def begin() -> None:
            if service.template is not None:
                msg = "reads lag already"
                raise RuntimeError(msg)
            newest = service.newest
            service.template = LaggingReplica(newest.tree.copy(), newest.zxid, behind=zxids)
            # A connection without a session gets its follower with the session.
            for connection in self._connections(None):
                if connection.client.session is not None:
                    connection.client.use_replica(service.view(newest.zxid))

        def end() -> None:
            service.template = None
            for connection in self._connections(None):
                connection.client.replica.catch_up()
                connection.client.use_replica(service.newest)
            service.followers.clear()

        self._server.call(begin)
        return Fault(self._lasting, partial(self._server.settle, end))

    def set_sequence(self, path: str, value: int) -> None:
        """Set the number of the next sequential child of ``path``, from -2**31 to 2**31-1.

        ZooKeeper counts in 32 bits and repeats the last number. Raises LookupError and ValueError.
        """
        if not -(2**31) <= value < 2**31:
            msg = f"a sequence number has 32 bits, got {value!r}"
            raise ValueError(msg)
        with _lookup(path):
            self._server.call(lambda: self._service.commit(SequenceSet(self._existing(path), value)))

    def reap(self, path: str) -> bool:
        """Remove a container or a TTL node now, if it has no children; return whether it was removed.

        The server itself does this once in ``reap_interval``. Raises LookupError if the node does not exist, and
        ValueError if it is neither a container nor a TTL node.
        """

        def reap() -> bool:
            if self._service.newest.tree[path].kind not in {NodeKind.CONTAINER, NodeKind.TTL}:
                msg = f"{path} is neither a container nor a TTL node"
                raise ValueError(msg)
            return self._service.reap(path)

        with _lookup(path):
            return self._server.call(reap)

    def active(self) -> list[Fault | Cut]:
        """Return the faults in effect, and the cuts that have not happened yet."""
        return [*self._lasting, *self._service.network.cuts]

    def heal(self, *, keep: Collection[Fault | Cut] = ()) -> None:
        """End every lasting fault, and cancel cuts that have not happened yet; except those in ``keep``."""
        kept = set(map(id, keep))
        cuts = self._service.network.cuts

        def cancel() -> None:
            cuts[:] = [cut for cut in cuts if id(cut) in kept]

        self._server.settle(cancel)
        for fault in self._lasting[:]:
            if id(fault) not in kept:
                fault.end()

    @property
    def _service(self) -> Service:
        return self._server.service

    def _connections(self, session: int | None) -> list[ClientConnection]:
        here = [each for each in self._server.connections if not each.closing]
        return [each for each in here if session in {None, each.client.session_id}]

    def _existing(self, path: str) -> str:
        """Return the path of an existing node, or raise; to be called in the thread of the event loop."""
        self._service.newest.tree[path]
        return path

    def _heal_connections(self) -> None:
        # Closing connections too: their last replies may be held back.
        for connection in list(self._server.connections):
            connection.heal()


class Fault:
    """A fault that lasts until ``end``, until the end of its context, or until ``Faults.heal``."""

    def __init__(self, lasting: list[Fault], end: Callable[[], None]) -> None:
        """Keep the list of lasting faults and the function that ends this one."""
        self._lasting = lasting
        self._end = end
        lasting.append(self)

    def __enter__(self) -> Self:
        """Return the fault, which is already in effect."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the fault."""
        self.end()

    def end(self) -> None:
        """End the fault; a second call does nothing."""
        try:
            # Of several threads only one succeeds.
            self._lasting.remove(self)
        except ValueError:
            return
        self._end()


class BlackHole(Fault):
    """A black hole; ``requests`` is the log of the requests in it, to count them and to wait for them.

    When the hole ends and they are executed, they are in the log of the server too.
    """

    def __init__(self, lasting: list[Fault], end: Callable[[], None], requests: RequestLog) -> None:
        """Keep the log too."""
        super().__init__(lasting, end)
        self.requests = requests


def _directions(name: DirectionName) -> frozenset[Direction]:
    if name == "both":
        return frozenset(Direction)
    try:
        return frozenset({Direction(name)})
    except ValueError:
        msg = f'a direction is "requests", "replies" or "both", not {name!r}'
        raise ValueError(msg) from None


@contextmanager
def _lookup(path: str) -> Iterator[None]:
    try:
        yield
    except RefusedError:
        msg = f"node {path} does not exist"
        raise LookupError(msg) from None
