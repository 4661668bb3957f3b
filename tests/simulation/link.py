"""One connection between a client and a server: what is under way in both directions, and what the server answers."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kazoo.exceptions import KazooException, NoAuthError, NoNodeError, NoWatcherError
from kazoo.protocol.connection import CHANGED_EVENT, CHILD_EVENT, DELETED_EVENT
from kazoo.protocol.serialization import Close, GetChildren, GetData, Sync

from django_zklock.zk.wire.requests import SEEN_BY_LEADER, WRITES, MultiRead, name_of
from django_zklock.zk.wire.watches import WATCHER_TYPES, RemoveWatches, SetWatches
from tests.simulation.servers import Known

if TYPE_CHECKING:
    from tests.simulation.servers import Server
    from tests.simulation.wire import SimulatedWire

WATCHED = {GetData.type: "data", GetChildren.type: "children"}
_OF_TYPE = {number: WATCHED[kind] for kind, number in WATCHER_TYPES.items()}


@dataclass(frozen=True, slots=True)
class Handshake:
    """The first request: the session to go on with, ``None`` for a new one, and the newest transaction seen."""

    session: int | None
    seen: int


# The request of a client that has nothing else to send. It has no parts, and any server answers it.
PING = object()


@dataclass(frozen=True, slots=True)
class Message:
    """What a server sends: "welcome", "expired", "event", "reply", "pong" or "closed", and its parts."""

    what: str
    xid: int = 0
    zxid: int = 0
    value: Any = None
    error: KazooException | None = None
    path: str = ""


def describe(request: Any) -> str:
    """Return a request in a few words."""
    if isinstance(request, Handshake):
        return f"connect {request.session or 0:x}"
    path = getattr(request, "path", "")
    parts = getattr(request, "operations", None)
    if parts is not None:
        return "multi " + " + ".join(describe(part) for part in parts)
    watched = " and watch" if getattr(request, "watcher", None) else ""
    return f"{name_of(request)}{watched} {shorten(path)}".rstrip()


def shorten(path: str) -> str:
    """Return a path without the digits that tell nothing."""
    lock, _, name = path.rpartition("/")
    if name.startswith("_c_"):
        name = name[3:7] + "…" + name[39:]
    return f"{lock}/{name}"


class Link:
    """A connection. Each end learns later than the other that it is over, or never."""

    def __init__(self, wire: SimulatedWire, server: Server, name: str) -> None:
        self.wire = wire
        self.server = server
        self.name = name
        self.session: int | None = None
        self.to_server: deque[tuple[int, Any]] = deque()
        self.to_client: deque[Message] = deque()
        # The write under way: nothing behind it is answered before it is applied here.
        self.owed: Message | None = None
        self._owed_at = 0
        self.client_is_open = self.server_is_open = True
        self._is_closing = False
        server.links.append(self)

    def __repr__(self) -> str:
        return f"<link {self.name}>"

    @property
    def arrives(self) -> bool:
        """Whether messages between the two ends arrive."""
        return self.server.ensemble.network.connects(self.wire.process.name, self.server.name)

    # The server's end.

    def close_server(self) -> None:
        """Close the server's end; the client learns of it as of a message."""
        if self.server_is_open:
            self.server_is_open = False
            self.server.links.remove(self)
            self.server.drop_watches(self)
            self.owed = None
            self.to_client.append(Message("closed"))

    def session_closed(self) -> None:
        """The end of the session is applied here."""
        if self._is_closing and self.owed is not None:
            self.to_client.append(self.owed)
        self.close_server()

    def send_event(self, event: int, path: str) -> None:
        """Send the event of a watch."""
        self.to_client.append(Message("event", value=event, path=path))

    def answer_owed(self) -> None:
        """Answer the write under way, if it is applied."""
        if self.owed is not None and not self._is_closing and self.server.zxid >= self._owed_at:
            owed, self.owed = self.owed, None
            self.to_client.append(owed)

    @property
    def may_serve(self) -> bool:
        """Whether the server can do something for the first request that has arrived."""
        server = self.server
        if not self.to_server or self.owed is not None or not self.server_is_open:
            return False
        if server.is_frozen or server.leader is None or not self.arrives:
            return False
        return server.is_linked or not isinstance(self.to_server[0][1], (*SEEN_BY_LEADER, Handshake, Close))

    def refuse(self, error: KazooException, *, is_done: bool) -> None:
        """Answer the first request with an error that passes, whether or not it is done."""
        xid, request = self.to_server[0]
        leader = self.server.leader
        assert leader is not None
        if is_done and isinstance(request, WRITES) and self._is_known(leader):
            assert self.session is not None
            self.to_server.popleft()
            self._owe(self.server.ensemble.write(leader, self.session, request)[0], Message("reply", xid, error=error))
            return
        self.to_server.popleft()
        self.to_client.append(Message("reply", xid, self.server.zxid, error=error))

    def serve(self) -> None:
        """Do what the first request asks."""
        xid, request = self.to_server.popleft()
        server, leader, now = self.server, self.server.leader, self.wire.process.world.now
        assert leader is not None
        if isinstance(request, Handshake):
            self._greet(request, leader, now)
            return
        session = self.session
        assert session is not None
        if isinstance(request, SEEN_BY_LEADER):
            # All that two servers send each other has one order: a ping that was held back comes before this.
            server.report(now)
        server.heard.add(session)
        if leader is server and session in leader.sessions:
            leader.sessions[session].heard_at = now
        if request is PING:
            self.to_client.append(Message("pong"))
        elif isinstance(request, Close):
            if self._is_known(leader):
                self._is_closing = True
                self.owed = Message("reply", xid)
                leader.end_session(session)
        elif isinstance(request, WRITES):
            if self._is_known(leader):
                self.owed = Message("reply", xid)
                self._owed_at = 1 << 63
                self.wire.process.world.judge.written(self.wire.process, request, leader.head)
                zxid, result, error = server.ensemble.write(leader, session, request)
                if self.server_is_open:
                    self._owe(zxid, Message("reply", xid, zxid, result, error))
        elif isinstance(request, Sync):
            # The leader answers it alone, with what it has committed.
            newest = leader.log[leader.committed - 1].zxid if leader.committed else 0
            self._owe(newest, Message("reply", xid, newest))
        else:
            result, refusal = self._read(request)
            self.to_client.append(Message("reply", xid, server.zxid, result, refusal))

    def _owe(self, zxid: int, message: Message) -> None:
        self.owed, self._owed_at = message, zxid
        self.answer_owed()

    def _is_known(self, leader: Server) -> bool:
        """Whether the leader takes a write of this session over this server; else the connection ends."""
        assert self.session is not None
        known = leader.sessions.get(self.session)
        if known is not None and known.server is None:
            known.server = self.server
        if known is None or known.server is not self.server:
            self.close_server()
            return False
        return True

    def _greet(self, request: Handshake, leader: Server, now: float) -> None:
        server = self.server
        if request.seen > server.zxid:
            self.close_server()
        elif request.session is None:
            self.session = server.ensemble.new_session()
            leader.sessions[self.session] = Known(now, server)
            self._owe(leader.propose((), opens=self.session), Message("welcome", value=self.session))
        elif request.session not in leader.sessions:
            self.to_client.append(Message("expired"))
            self.close_server()
        else:
            for other in list(server.links):
                if other is not self and other.session == request.session:
                    other.close_server()
            self.session = request.session
            leader.sessions[self.session] = Known(now, server)
            self.to_client.append(Message("welcome", value=self.session))

    def _read(self, request: Any) -> tuple[Any, KazooException | None]:
        tree = self.server.tree
        forbidden = self.server.ensemble.forbidden
        if isinstance(request, (GetData, GetChildren)):
            node = tree.nodes.get(request.path)
            if node is None or request.path in forbidden:
                return None, NoNodeError() if node is None else NoAuthError()
            if request.watcher is not None:
                self._watch(WATCHED[request.type], request.path)
            return (node.data, node.stat()) if isinstance(request, GetData) else tree.names(request.path), None
        if isinstance(request, MultiRead):
            outcomes: list[Any] = []
            for path, children in request.reads:
                node = tree.nodes.get(path)
                found = None if node is None else tree.names(path) if children else (node.data, node.stat())
                outcomes.append(NoAuthError() if node is not None and path in forbidden else found)
            return outcomes, None
        if isinstance(request, RemoveWatches):
            key = _OF_TYPE[request.watcher_type], request.path
            links = self.server.watches.get(key, {})
            if self not in links:
                return None, NoWatcherError()
            del links[self]
            if not links:
                del self.server.watches[key]
            return None, None
        assert isinstance(request, SetWatches)
        self._set_watches("data", request.data, request.seen)
        self._set_watches("children", request.children, request.seen)
        return None, None

    def _set_watches(self, kind: str, paths: Sequence[str], seen: int) -> None:
        """Set watches again, and send the events of what has changed since the transaction ``seen``."""
        for path in paths:
            node = self.server.tree.nodes.get(path)
            if node is None:
                self.send_event(DELETED_EVENT, path)
            elif (node.mzxid if kind == "data" else node.pzxid) > seen:
                self.send_event(CHANGED_EVENT if kind == "data" else CHILD_EVENT, path)
            else:
                self._watch(kind, path)

    def _watch(self, kind: str, path: str) -> None:
        self.server.watches.setdefault((kind, path), {})[self] = None

    # The client's end.

    def close_client(self, *, arrived: int, is_noticed: bool) -> None:
        """Close the client's end: so many of its requests arrive still, and the server is told then, or never."""
        self.client_is_open = False
        self.to_client.clear()
        while len(self.to_server) > arrived:
            self.to_server.pop()
        if is_noticed and not self.to_server and self.owed is None:
            self.close_server()

    @property
    def is_orphan(self) -> bool:
        """Whether only the server's end is open, and has nothing to do any more."""
        return self.server_is_open and not self.client_is_open and not self.to_server and self.owed is None
