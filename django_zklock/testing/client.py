"""What the client behind one connection asks, is answered, and hears."""

from __future__ import annotations

import struct
from typing import Protocol

from . import acl, jute
from .acl import Entry, Identity
from .jute import MalformedError, Reader
from .protocol import NOTIFICATION_XID, PING_XID, Code, EventType, Opcode, Perms, RefusedError
from .reads import READS
from .replica import Replica
from .requestlog import LoggedRequest
from .service import Service
from .sessions import PASSWORD_BYTES, Session
from .writes import WRITES, Author

HEADER = struct.Struct("!iqi")
# The state in every event: there is a connection, or it could not be sent.
CONNECTED = 3
PROTOCOL_VERSION = 0
# Requests whose record does not begin with a path.
NAMELESS = frozenset(
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


class Line(Protocol):
    """What a client needs of its connection."""

    def send(self, opcode: Opcode, frame: bytes) -> None:
        """Send the reply to such a request."""
        ...

    def close(self) -> None:
        """Close it once everything that was sent is on its way."""
        ...


class Client:
    """Answers the requests of one connection; belongs to the thread of the event loop."""

    def __init__(self, service: Service, host: str, line: Line) -> None:
        """Take whom to ask, and where from and by which connection the requests come."""
        self._service = service
        self._line = line
        self.session: Session | None = None
        self.replica: Replica = service.newest
        # The session that the client claims, even before the server agrees.
        self.claimed = 0
        # What was answered last, as operators see it; ERROR is a write that was refused.
        self.last_opcode = Opcode.CONNECT
        self.last_xid = 0
        self.last_zxid = 0
        # In the order in which they were proven, each once.
        self._identities = {acl.address(host): None}

    @property
    def session_id(self) -> int:
        """The session, nought before there is one."""
        return self.session.id if self.session else 0

    @property
    def identities(self) -> tuple[Identity, ...]:
        """Who this is for access control lists."""
        return tuple(self._identities)

    def hear(self, event: EventType, path: str, entries: tuple[Entry, ...]) -> None:
        """Take the news from a watch, unless the list keeps this client from reading."""
        if acl.permits(entries, Perms.READ, self.identities):
            self.notify(event, path)

    def notify(self, event: EventType, path: str) -> None:
        """Send an event."""
        body = jute.INT.pack(event) + jute.INT.pack(CONNECTED) + jute.text(path)
        self._line.send(Opcode.NOTIFICATION, HEADER.pack(NOTIFICATION_XID, -1, Code.OK) + body)

    def see(self, replica: Replica) -> None:
        """Look at another replica from now on, with the same watches."""
        self.replica.watches.move(self.hear, replica.watches)
        self.replica = replica

    def leave(self) -> None:
        """Watch no more, and be no more the client of a session; the session lives on."""
        self.replica.watches.forget(self.hear)
        self._service.drop_view(self.replica)
        if self.session is not None and self.session.link is self._line:
            self.session.link = None

    def claim(self, frame: bytes) -> None:
        """Find out which session a connect request is for; raise MalformedError."""
        reader = Reader(frame)
        _ = reader.integer(), reader.long(), reader.integer()
        self.claimed = reader.long()

    def connect(self, frame: bytes) -> None:
        """Begin a session, or come back to one; raise MalformedError."""
        reader = Reader(frame)
        version, seen, timeout = reader.integer(), reader.long(), reader.integer()
        number, password = reader.long(), reader.buffer()
        if version != PROTOCOL_VERSION or seen > self._service.newest.zxid:
            self._line.close()
            return
        if number == 0:
            session: Session | None = self._service.open(timeout)
            # Its own beginning is a transaction that it has seen.
            seen = self._service.newest.zxid
        else:
            session = self._service.resume(number, password, timeout)
        self.session = session
        if session is None:
            granted, password, told = 0.0, bytes(PASSWORD_BYTES), 0
        else:
            granted, password, told = session.timeout, session.password, session.id
            self.claimed = session.id
            session.link = self._line
            self.replica = self._service.view(seen)
        self._service.requests.add(LoggedRequest(self.claimed, 0, Opcode.CONNECT, None))
        answer = jute.INT.pack(PROTOCOL_VERSION) + jute.INT.pack(round(granted * 1000))
        answer += jute.LONG.pack(told) + jute.buffer(password)
        # A client that does not know of read-only servers does not expect the byte.
        self._line.send(Opcode.CONNECT, answer + (b"\0" if reader.left else b""))
        if session is None:
            self._line.close()

    def lose(self, frame: bytes) -> None:
        """Log a request that has got lost; raise MalformedError."""
        if self.session is None:
            self.claim(frame)
            request = LoggedRequest(self.claimed, 0, Opcode.CONNECT, None)
        else:
            reader = Reader(frame)
            xid, number = reader.integer(), reader.integer()
            if number not in _ANSWERED:
                return
            opcode = Opcode(number)
            request = LoggedRequest(self.session.id, xid, opcode, _path(opcode, frame))
        self._service.network.lose(request)

    def handle(self, frame: bytes) -> None:
        """Answer a request; raise MalformedError if not even its header can be read."""
        assert self.session is not None
        self._service.sessions.touch(self.session)
        reader = Reader(frame)
        xid, number = reader.integer(), reader.integer()
        if number not in _ANSWERED:
            self._send(Opcode.ERROR, xid, -1, Code.UNIMPLEMENTED)
            self._line.close()
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
            # As a server that has no SASL set up: nothing is asked in return, and nobody is let in.
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
        # Who reads from a follower sees his own changes all the same.
        self.replica.catch_up()
        self._reply(opcode, xid, self._service.newest.zxid, code, body)

    def _authenticate(self, opcode: Opcode, xid: int, reader: Reader) -> None:
        reader.integer()
        try:
            identity = acl.authenticate(reader.optional_text() or "", reader.buffer())
        except RefusedError as error:
            self._send(opcode, xid, 0, error.code)
            self._line.close()
            return
        if identity is not None:
            self._identities[identity] = None
        self._send(opcode, xid, 0)

    def _close(self, opcode: Opcode, xid: int, session: Session) -> None:
        # Without a link the end of the session does not close the connection before the reply.
        session.link = None
        zxid = self._service.end(session)
        self.replica.catch_up()
        self._reply(opcode, xid, zxid)
        self._line.close()

    def _reply(self, opcode: Opcode, xid: int, zxid: int, code: Code = Code.OK, body: bytes = b"") -> None:
        refused_write = code and opcode not in READS
        self.last_opcode = Opcode.ERROR if refused_write else opcode
        self.last_zxid = zxid
        # Negative ones are no count of the client's.
        if xid >= 0:
            self.last_xid = xid
        self._send(opcode, xid, zxid, code, body)

    def _send(self, opcode: Opcode, xid: int, zxid: int, code: Code = Code.OK, body: bytes = b"") -> None:
        self._line.send(opcode, HEADER.pack(xid, zxid, code) + body)


_ANSWERED = frozenset({*READS, *WRITES, Opcode.MULTI, Opcode.PING, Opcode.AUTH, Opcode.SASL, Opcode.CLOSE})


def _path(opcode: Opcode, frame: bytes) -> str | None:
    if opcode in NAMELESS:
        return None
    try:
        return Reader(frame[2 * jute.INT.size :]).optional_text()
    except MalformedError:
        return None
