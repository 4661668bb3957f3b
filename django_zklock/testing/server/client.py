"""The requests, replies and events of the client of one connection."""

from __future__ import annotations

import struct
from typing import Protocol

from . import acl, jute
from .acl import AclEntry, AuthId
from .jute import MalformedError, Reader
from .protocol import NOTIFICATION_XID, PING_XID, Code, EventType, Opcode, Perms, RefusedError
from .reads import READS
from .replica import Replica
from .requestlog import LoggedRequest
from .service import Service
from .sessions import PASSWORD_BYTES, Link, ServerSession
from .writes import WRITES, Author

HEADER = struct.Struct("!iqi")
# The connection state in every event: an event needs a connection.
CONNECTED = 3
PROTOCOL_VERSION = 0
# Requests whose record does not begin with a path.
WITHOUT_PATH = frozenset(
    {
        Opcode.PING,
        Opcode.AUTH,
        Opcode.CLOSE,
        Opcode.MULTI,
        Opcode.MULTI_READ,
        Opcode.RECONFIG,
        Opcode.SASL,
        Opcode.SET_WATCHES,
        Opcode.SET_WATCHES2,
        Opcode.WHO_AM_I,
    }
)


class ReplyChannel(Link, Protocol):
    """What a client needs of its connection."""

    def send(self, opcode: Opcode, frame: bytes) -> None:
        """Send the reply to a request of this kind."""
        ...


class Client:
    """Answers the requests of one connection; belongs to the thread of the event loop."""

    def __init__(self, service: Service, host: str, connection: ReplyChannel) -> None:
        """Keep the service, the host of the client, and its connection."""
        self._service = service
        self._connection = connection
        self.session: ServerSession | None = None
        self.replica: Replica = service.newest
        # The session in the client's connect request, known before the server accepts it.
        self.requested_session = 0
        # The last reply, as four-letter commands show it; ERROR is a refused write.
        self.last_opcode = Opcode.CONNECT
        self.last_xid = 0
        self.last_zxid = 0
        # In the order of authentication, without duplicates.
        self._identities = {acl.address(host): None}

    @property
    def session_id(self) -> int:
        """The number of the session; 0 before there is one."""
        return self.session.id if self.session else 0

    @property
    def identities(self) -> tuple[AuthId, ...]:
        """The identities of this client for access control lists."""
        return tuple(self._identities)

    def on_watch_event(self, event: EventType, path: str, entries: tuple[AclEntry, ...]) -> None:
        """Send the event of a watch, unless the access control list forbids this client to read."""
        if acl.permits(entries, Perms.READ, self.identities):
            self.notify(event, path)

    def notify(self, event: EventType, path: str) -> None:
        """Send an event."""
        body = jute.INT.pack(event) + jute.INT.pack(CONNECTED) + jute.text(path)
        self._connection.send(Opcode.NOTIFICATION, HEADER.pack(NOTIFICATION_XID, -1, Code.OK) + body)

    def use_replica(self, replica: Replica) -> None:
        """Read from another replica from now on, with the same watches."""
        self.replica.watches.move(self.on_watch_event, replica.watches)
        self.replica = replica

    def disconnect(self) -> None:
        """Remove the watches and leave the session, which stays open."""
        self.replica.watches.remove_all(self.on_watch_event)
        self._service.drop_view(self.replica)
        if self.session is not None and self.session.link is self._connection:
            self.session.link = None

    def read_session(self, frame: bytes) -> None:
        """Read the session of a connect request; raise MalformedError."""
        reader = Reader(frame)
        _ = reader.integer(), reader.long(), reader.integer()
        self.requested_session = reader.long()

    def connect(self, frame: bytes) -> None:
        """Open a session, or reconnect to one; raise MalformedError."""
        reader = Reader(frame)
        version, seen, timeout = reader.integer(), reader.long(), reader.integer()
        number, password = reader.long(), reader.buffer()
        if version != PROTOCOL_VERSION or seen > self._service.newest.zxid:
            self._connection.close()
            return
        if number == 0:
            session: ServerSession | None = self._service.open(timeout)
            # The creation of the session is a transaction, which this client has seen.
            seen = self._service.newest.zxid
        else:
            session = self._service.resume(number, password, timeout)
        self.session = session
        if session is None:
            granted, password, number = 0.0, bytes(PASSWORD_BYTES), 0
        else:
            granted, password, number = session.timeout, session.password, session.id
            self.requested_session = session.id
            session.link = self._connection
            self.replica = self._service.view(seen)
        self._service.requests.add(LoggedRequest(self.requested_session, 0, Opcode.CONNECT, None))
        answer = jute.INT.pack(PROTOCOL_VERSION) + jute.INT.pack(round(granted * 1000))
        answer += jute.LONG.pack(number) + jute.buffer(password)
        # A client without support for read-only servers does not expect this byte.
        self._connection.send(Opcode.CONNECT, answer + (b"\0" if reader.left else b""))
        if session is None:
            self._connection.close()

    def log_swallowed(self, frame: bytes) -> None:
        """Log a request that is in a black hole; raise MalformedError."""
        if self.session is None:
            self.read_session(frame)
            request = LoggedRequest(self.requested_session, 0, Opcode.CONNECT, None)
        else:
            reader = Reader(frame)
            xid, number = reader.integer(), reader.integer()
            if number not in _ANSWERED:
                return
            opcode = Opcode(number)
            request = LoggedRequest(self.session.id, xid, opcode, _path(opcode, frame))
        self._service.network.log_swallowed(request)

    def handle(self, frame: bytes) -> None:
        """Answer a request; raise MalformedError if its header cannot be read."""
        assert self.session is not None
        self._service.sessions.touch(self.session)
        reader = Reader(frame)
        xid, number = reader.integer(), reader.integer()
        if number not in _ANSWERED:
            self._send(Opcode.ERROR, xid, -1, Code.UNIMPLEMENTED)
            self._connection.close()
            return
        opcode = Opcode(number)
        self._service.requests.add(LoggedRequest(self.session.id, xid, opcode, _path(opcode, frame)))
        if opcode in READS:
            self._read(opcode, xid, reader)
        elif opcode is Opcode.PING:
            self._reply(opcode, PING_XID, self.replica.zxid)
        elif opcode is Opcode.AUTH:
            self._authenticate(opcode, xid, reader)
        elif opcode is Opcode.SASL:
            # Like a server without SASL: an empty token, and no authentication.
            self._send(opcode, xid, 0, body=jute.buffer(None))
        elif opcode is Opcode.CLOSE:
            self._close(opcode, xid, self.session)
        else:
            self._write(opcode, xid, reader)

    def _read(self, opcode: Opcode, xid: int, reader: Reader) -> None:
        code, body = Code.OK, b""
        try:
            body = READS[opcode](reader, self)
        except RefusedError as error:
            code = error.code
        except MalformedError:
            code = Code.MARSHALLING_ERROR
        self._reply(opcode, xid, self.replica.zxid, code, body)

    def _write(self, opcode: Opcode, xid: int, reader: Reader) -> None:
        code, body = Code.OK, b""
        try:
            body = self._service.write(opcode, reader, Author(self.session_id, self.identities))
        except RefusedError as error:
            code = error.code
        except MalformedError:
            code = Code.MARSHALLING_ERROR
        # A client of a follower sees its own changes.
        self.replica.catch_up()
        self._reply(opcode, xid, self._service.newest.zxid, code, body)

    def _authenticate(self, opcode: Opcode, xid: int, reader: Reader) -> None:
        reader.integer()
        try:
            identity = acl.authenticate(reader.optional_text() or "", reader.buffer())
        except RefusedError as error:
            self._send(opcode, xid, 0, error.code)
            self._connection.close()
            return
        if identity is not None:
            self._identities[identity] = None
        self._send(opcode, xid, 0)

    def _close(self, opcode: Opcode, xid: int, session: ServerSession) -> None:
        # Without this the end of the session would close the connection before the reply.
        session.link = None
        zxid = self._service.end(session)
        self.replica.catch_up()
        self._reply(opcode, xid, zxid)
        self._connection.close()

    def _reply(self, opcode: Opcode, xid: int, zxid: int, code: Code = Code.OK, body: bytes = b"") -> None:
        refused_write = code and opcode not in READS
        self.last_opcode = Opcode.ERROR if refused_write else opcode
        self.last_zxid = zxid
        # A negative xid is a special number, not the client's counter.
        if xid >= 0:
            self.last_xid = xid
        self._send(opcode, xid, zxid, code, body)

    def _send(self, opcode: Opcode, xid: int, zxid: int, code: Code = Code.OK, body: bytes = b"") -> None:
        self._connection.send(opcode, HEADER.pack(xid, zxid, code) + body)


_ANSWERED = frozenset({*READS, *WRITES, Opcode.MULTI, Opcode.PING, Opcode.AUTH, Opcode.SASL, Opcode.CLOSE})


def _path(opcode: Opcode, frame: bytes) -> str | None:
    if opcode in WITHOUT_PATH:
        return None
    try:
        return Reader(frame[2 * jute.INT.size :]).optional_text()
    except MalformedError:
        return None
