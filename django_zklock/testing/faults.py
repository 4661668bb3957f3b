"""Faults on demand: what networks, servers and operators do to a client, at the moment a test chooses."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Literal

from .network import Cut, Delay, Direction, Hole
from .protocol import Opcode, RefusedError
from .replica import LaggingReplica
from .requestlog import RequestLog
from .tree import SequenceSet
from .znode import Kind

if TYPE_CHECKING:
    from typing_extensions import Self

    from .connection import Connection
    from .server import ZooKeeperServer
    from .service import Service

DirectionName = Literal["requests", "replies", "both"]


class Faults:
    """Every method returns when its fault is there. Those that last are context managers too, and end with them.

    ``heal`` ends all of them. Faults of the same kind add up, and each ends for itself. A ``session`` is a
    session's number, as ``ZooKeeperServer.owner`` gives that of a node; without one the fault meets everybody.
    Any thread may call any method; they raise RuntimeError while the server is stopped, but a fault that lasts
    can be ended then too.
    """

    def __init__(self, server: ZooKeeperServer) -> None:
        """Take the server to be hurt."""
        self._server = server
        self._lasting: list[Fault] = []

    def expire(self, session: int | None = None) -> int:
        """End a session, or all, as if it had been silent for too long; give how many there were."""

        def expire() -> int:
            ended = [each for each in self._service.sessions if session in {None, each.id}]
            for each in ended:
                self._service.end(each)
            return len(ended)

        return self._server.call(expire)

    def drop(self, session: int | None = None) -> int:
        """Reset the connection of a session, or all connections; give how many there were.

        Sessions live on: clients come back to them.
        """

        def drop() -> int:
            dropped = self._connections(session)
            for connection in dropped:
                connection.abort()
            return len(dropped)

        return self._server.call(drop)

    def black_hole(self, direction: DirectionName = "both", *, session: int | None = None) -> BlackHole:
        """Let nothing through, and close nothing; ``heal`` or the end of the context lets through what has waited.

        ``"requests"`` is the way to the server: it hears nothing, so sessions expire. ``"replies"`` is the way
        back: the server does what it is asked, and nobody learns of it. What waits keeps its order on each
        connection, its end included: requests of a client that has given up are done all the same, late.
        ``BlackHole.requests`` tells what is in it.
        """
        hole = Hole(_directions(direction), session)
        holes = self._service.network.holes

        def end() -> None:
            holes.remove(hole)
            self._heal_connections()

        self._server.call(partial(holes.append, hole))
        return BlackHole(self._lasting, partial(self._server.settle, end), hole.requests)

    def delay(self, seconds: float, *, direction: DirectionName = "both") -> Fault:
        """Have everything take that long, each way: a round trip then takes twice as long.

        The end of the fault lets through at once what is on its way.
        """
        # Neither of infinity nor of NaN a timer could be made.
        if not 0 <= seconds < math.inf:
            msg = f"a delay is a number of seconds, and not negative; got {seconds!r}"
            raise ValueError(msg)
        delay = Delay(_directions(direction), seconds)
        delays = self._service.network.delays

        def end() -> None:
            delays.remove(delay)
            self._heal_connections()

        self._server.call(partial(delays.append, delay))
        return Fault(self._lasting, partial(self._server.settle, end))

    def cut_reply(self, opcode: str | Opcode, *, after_bytes: int = 0, session: int | None = None) -> Cut:
        """End the connection in the middle of the next reply to such a request, which has been done.

        ``opcode`` is a name of the protocol: ``"create2"``, ``"getData"``, ``"connect"``, or ``"notification"``
        for what a watch sends. ``after_bytes`` counts from the length in front of the reply, four bytes of it;
        with 0 nothing of it arrives. ``Cut.wait`` waits until it has happened. Raises ValueError.
        """
        if after_bytes < 0:
            msg = f"after_bytes cannot be negative, got {after_bytes!r}"
            raise ValueError(msg)
        cut = Cut(Opcode.named(opcode), after_bytes, session)
        self._server.call(lambda: self._service.network.cuts.append(cut))
        return cut

    def refuse(self) -> Fault:
        """Refuse new connections, as when nothing listens; those there are stay until ``drop``."""
        self._server.refuse()
        return Fault(self._lasting, self._server.accept)

    def lag_reads(self, zxids: int = 1) -> Fault:
        """Have each connection read from a follower of its own that lags that many transactions behind.

        A transaction is whatever takes a zxid: each write, done or refused, and the beginning and the end of a
        session. As with ZooKeeper, a client sees its own changes, the beginning of its session among them, and all
        there are after a sync; a connection that comes anew sees at least what its client has seen before. Watch
        events are as late as the changes. Raises ValueError if it is not at least one, and RuntimeError if reads
        lag already.
        """
        if zxids < 1:
            msg = f"a follower lags at least one transaction, got {zxids!r}"
            raise ValueError(msg)
        service = self._service

        def begin() -> None:
            if service.model is not None:
                msg = "reads lag already"
                raise RuntimeError(msg)
            newest = service.newest
            service.model = LaggingReplica(newest.tree.copy(), newest.zxid, behind=zxids)
            # Who has no session yet gets its own with it.
            for connection in self._connections(None):
                if connection.client.session is not None:
                    connection.client.see(service.view(newest.zxid))

        def end() -> None:
            service.model = None
            for connection in self._connections(None):
                connection.client.replica.catch_up()
                connection.client.see(service.newest)
            service.followers.clear()

        self._server.call(begin)
        return Fault(self._lasting, partial(self._server.settle, end))

    def set_sequence(self, path: str, value: int) -> None:
        """Have the next sequential child of ``path`` get this number, from -2**31 to 2**31-1.

        ZooKeeper counts in 32 bits, and sticks at the last one. Raises LookupError and ValueError.
        """
        if not -(2**31) <= value < 2**31:
            msg = f"a sequence number has 32 bits, got {value!r}"
            raise ValueError(msg)
        with _lookup(path):
            self._server.call(lambda: self._service.commit(SequenceSet(self._existing(path), value)))

    def reap(self, path: str) -> bool:
        """Remove a container, or a TTL node, now if it has no children; whether it was removed.

        The server itself looks for them once in ``reap_interval``. Raises LookupError if there is no such node,
        and ValueError if it is none that the server may remove.
        """

        def reap() -> bool:
            if self._service.newest.tree[path].kind not in {Kind.CONTAINER, Kind.TTL}:
                msg = f"{path} is neither a container nor a TTL node"
                raise ValueError(msg)
            return self._service.reap(path)

        with _lookup(path):
            return self._server.call(reap)

    def heal(self) -> None:
        """End every fault that lasts, and forget the replies that were still to be cut."""
        self._server.settle(self._service.network.cuts.clear)
        for fault in self._lasting[:]:
            fault.end()

    @property
    def _service(self) -> Service:
        return self._server.service

    def _connections(self, session: int | None) -> list[Connection]:
        here = [each for each in self._server.connections if not each.closing]
        return [each for each in here if session in {None, each.client.session_id}]

    def _existing(self, path: str) -> str:
        """Give back a path that there is; only to be called in the thread of the event loop."""
        self._service.newest.tree[path]
        return path

    def _heal_connections(self) -> None:
        # Those that are closing too: their last replies may wait.
        for connection in list(self._server.connections):
            connection.heal()


class Fault:
    """A fault that lasts until ``end``, until the end of its context, or until ``Faults.heal``."""

    def __init__(self, lasting: list[Fault], end: Callable[[], None]) -> None:
        """Take where it is kept, and what ends it."""
        self._lasting = lasting
        self._end = end
        lasting.append(self)

    def __enter__(self) -> Self:
        """Go on; the fault is there."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the fault."""
        self.end()

    def end(self) -> None:
        """End the fault; a second time does nothing."""
        try:
            # Of several threads one takes it out.
            self._lasting.remove(self)
        except ValueError:
            return
        self._end()


class BlackHole(Fault):
    """A black hole; ``requests`` is the log of those that got lost in it, to count in and wait on.

    They are in the log of the server too if the hole ends and they are done after all.
    """

    def __init__(self, lasting: list[Fault], end: Callable[[], None], requests: RequestLog) -> None:
        """Take the log too."""
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
        msg = f"there is no node {path}"
        raise LookupError(msg) from None
