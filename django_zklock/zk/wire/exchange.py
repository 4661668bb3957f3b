"""The exchange of messages over one connection: kazoo's loop and its bookkeeping, replaced.

All messages that have arrived are handled before what their callbacks have queued leaves in one write. The lease learns
of each request and answer.
"""

from __future__ import annotations

import logging
import ssl
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from struct import Struct
from struct import error as StructError  # noqa: N812 - it is a class
from typing import Any, NoReturn, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import (
    AuthFailedError,
    ConnectionDropped,
    ConnectionLoss,
    SessionClosedRequireSaslError,
    SessionExpiredError,
    SessionMovedError,
    UnimplementedError,
)
from kazoo.protocol.connection import PING_XID, STOP_CONNECTING, WATCH_XID, ConnectionHandler
from kazoo.protocol.serialization import Close, Transaction, Watch
from kazoo.protocol.states import KeeperState

from django_zklock.zk.background import DeferredLogger
from django_zklock.zk.waiting import boottime, monotonic
from django_zklock.zk.wire.endings import CLOSED, Endings
from django_zklock.zk.wire.lease import NEVER, Lease, Sent
from django_zklock.zk.wire.names import describe
from django_zklock.zk.wire.options import AUTH_REFUSED
from django_zklock.zk.wire.requests import SEEN_BY_LEADER, WRITES, EncodingError, error_of, name_of

logger = DeferredLogger("django_zklock.wire")

# Errors about the connection in the answer of a server. The next connection shows whether the session lives.
_CONNECTION_CODES = frozenset({ConnectionLoss.code, SessionExpiredError.code, SessionMovedError.code})
# Errors in the answers that are none to a request of ours.
_NO_ANSWER = _CONNECTION_CODES | {UnimplementedError.code, SessionClosedRequireSaslError.code}

# The maximum of bytes in one read.
MAX_READ = 65536
# The length of what follows it, the number of the request, and its type.
_REQUEST_HEADER = Struct(">iii")
# The number of the request, the newest transaction that the server has seen, and the code of an error.
_ANSWER_HEADER = Struct(">iqi")

# The length of a message, before it.
_SIZE = Struct(">i")
# A non-blocking socket has nothing to read, or no room to write; a TLS socket may need either for both.
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)
# No answer to a handshake is that long. The length of an answer of other programs is a text: "HTTP" is a gigabyte.
_MAX_ANSWER = 0xFFFFFF
# The first bytes of a TLS record that is an alert or a handshake, of any version (RFC 8446, section 5.1).
_TLS_RECORDS = (b"\x15\x03", b"\x16\x03")

# What the decoding of bytes raises that are not of the protocol.
_UNDECODABLE = (StructError, UnicodeDecodeError)


class UnsupportedServerError(Exception):
    """The server is older than ZooKeeper 3.6."""


class StrangeAnswerError(ConnectionDropped):
    """The answer to the handshake is none of ZooKeeper."""


class ConnectionListener(Protocol):
    """What a connection calls, on its thread: the client that it belongs to."""

    # Held while the listener's callbacks are called.
    monitor: AbstractContextManager[Any]
    # Called before each write, which contains what it queues.
    before_write: Callable[[], None]

    def on_event(self, event: int, path: str, /) -> None:
        """Take an event of a watch: kazoo's number of its kind, and the full path of the node."""

    def end_session(self, reason: str, /, *, final: bool) -> None:
        """Take the end of a session that a handshake replaces; ``final`` if none follows."""

    def connection_failed(self, reason: str, /) -> None:
        """Take the reason why the thread ends for good."""


class Exchange(ConnectionHandler):
    """The requests and answers of one client; all methods but :meth:`wake` run on the connection's thread."""

    _socket: Any

    def __init__(self, client: KazooClient, listener: ConnectionListener, **options: Any) -> None:
        super().__init__(client, client._conn_retry.copy(), logger=client.logger, **options)
        self._listener = listener
        # When the last message was complete, by the boot-time clock, and when the last bytes of any were read, or taken
        # by a socket that had been full: on a thin link a long message may take longer than an outage is tolerated.
        self.received = self.moved = NEVER
        # What was received, and how much of it was handled.
        self._buffer = b""
        self._position = 0
        self._xid: int = 0
        self.lease = Lease()
        # Grows before the queue is read. A byte that was sent at this count will wake the loop.
        self._wake_count = 0
        self._woken_at = -1
        # The listener is being called before a write, which contains what it queues.
        self.collecting = False
        # The server has confirmed the end of the session.
        self.session_closed = False
        # The requests under way, oldest first. Only the connection's thread changes them; other threads may read the
        # first.
        self.sent: deque[Sent] = deque()
        self.pings: deque[Sent] = deque()
        # Why connections have failed since the last one that was of use.
        self._reported: set[str] = set()
        self.endings = Endings()
        # Seconds for a write, when there is a connection, and the time of the last one (monotonic clock).
        self._write_timeout = self._written = 0.0

    def wake(self) -> None:
        """Make the loop send what is queued; any thread. One byte is enough for any number of callers."""
        count = self._wake_count
        if self._woken_at == count:
            return
        write_socket = self._write_sock
        if write_socket is not None:
            try:  # noqa: SIM105 - `suppress` is four calls in Python
                write_socket.send(b"\0")
            except OSError:
                pass
            # Not before the byte is sent: this thread may be interrupted, by an exception or for long. If the loop has
            # read the byte meanwhile, this is an old count, and the next caller sends another one.
            self._woken_at = count

    def notify(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Call ``callback`` under the monitor; an error in it must not end the connection's thread."""
        try:
            with self._listener.monitor:
                callback(*arguments)
        except Exception:
            logger.exception("event=listener_failed method=%r", callback)

    # The socket and its buffer.

    def _write(self, message: bytes | bytearray, timeout: float) -> None:
        left = memoryview(message)
        while left:
            try:
                sent = self._socket.send(left)
                if not sent:  # gevent returns 0 where ssl raises SSLWantWriteError
                    self._wait(ssl.SSLWantWriteError(), timeout)
                left = left[sent:]
            except _WOULD_BLOCK as error:
                self._wait(error, timeout)
                self.moved = boottime()
            except OSError as error:
                raise ConnectionDropped(f"{CLOSED} error: {error.strerror or error}") from error

    def _read(self, length: int, timeout: float) -> bytes:
        # Of the handshake. It reads no more than that: kazoo's loop waits for the socket next, and not for the buffer.
        if not 0 <= length <= _MAX_ANSWER:
            begin = self._buffer[self._position - _SIZE.size : self._position]
            if begin.startswith(_TLS_RECORDS):
                raise StrangeAnswerError("the server speaks TLS at this port, and TLS is not in ZKLOCK")
            raise StrangeAnswerError(f"the server is no ZooKeeper: its answer begins with {begin!r}")
        with self._socket_error_handling():
            while (missing := self._position + length - len(self._buffer)) > 0:
                if not self._receive(missing):
                    self._wait(None, timeout)
        start = self._position
        self._position += length
        return self._buffer[start : self._position]

    def _receive(self, size: int) -> bool:
        """Read at most ``size`` bytes into the buffer; return ``False`` if there are none yet."""
        try:
            received = self._socket.recv(size)
        except _WOULD_BLOCK:
            return False
        if not received:
            raise ConnectionDropped(f"{CLOSED} broken")
        self.moved = boottime()
        self._buffer = self._buffer[self._position :] + received
        self._position = 0
        return True

    def _wait(self, error: OSError | None, timeout: float) -> None:
        """Wait until the socket is readable, or writable after an error of a write that does not want to read."""
        reads, sockets = error is None or isinstance(error, ssl.SSLWantReadError), [self._socket]
        wait = self.handler.poller(sockets if reads else [], [] if reads else sockets)
        if not wait(timeout * 1000):
            raise self.handler.timeout_exception(f"socket time-out during {'read' if error is None else 'write'}")

    # The loop.

    def _connect_attempt(self, host: str, hostip: str, port: int, retry: Any) -> Any:
        """Connect to one server, and exchange messages until the connection or the session ends, as kazoo's method."""
        client = self.client
        self._socket = None
        client._session_callback(KeeperState.CONNECTING)
        try:
            read_timeout, connect_timeout = self._connect(host, hostip, port)
            self._write_timeout = connect_timeout / 1000.0
            try:
                with self._socket_error_handling():
                    self._serve(read_timeout / 2000.0)
            except (ConnectionDropped, self.handler.timeout_exception) as error:
                self._on_end(str(error), retry)
                raise
        except (ConnectionDropped, self.handler.timeout_exception) as error:
            self.report(f"Connection dropped: {describe((host, hostip, port))}: {error}")
            client._session_callback(KeeperState.CONNECTING)
            return None
        except AuthFailedError as error:
            retry.reset()
            self.logger.warning("AUTH_FAILED closing: %s", error)
            client._session_callback(KeeperState.AUTH_FAILED)
        except SessionExpiredError:
            retry.reset()
            self.logger.warning("Session has expired")
            client._session_callback(KeeperState.EXPIRED_SESSION)
            return None
        except UnsupportedServerError:
            # The listener knows.
            raise
        except Exception as error:
            self.logger.exception("Unhandled exception in connection loop")
            # Before kazoo reports that the client is closed, which says nothing.
            self._listener.connection_failed(f"the connection failed: {error!r}")
            raise
        else:
            client._session_callback(KeeperState.CLOSED)
        finally:
            if self._socket is not None:
                self._socket.close()
        return STOP_CONNECTING

    def _on_end(self, reason: str, retry: Any) -> None:
        """Begin anew with pauses, and with reasons to report, if the connection that has ended was of use."""
        unanswered = [name_of(request) for request, _answer, _xid in self.client._pending]
        if self.endings.end(boottime(), reason, unanswered, received=self.received, pause=retry.max_delay):
            self._reported.clear()
            retry.reset()

    def report(self, message: str) -> None:
        """Log why there is no connection: once in an outage, in which there are attempts all the time."""
        self.logger.log(logging.DEBUG if message in self._reported else logging.WARNING, "%s", message)
        self._reported.add(message)

    def _serve(self, ping_interval: float) -> None:
        """Exchange messages until the session is closed; raise ``ConnectionDropped`` at the end of the connection."""
        wait = self.handler.poller([self._socket, self._read_sock])
        self._written = monotonic()
        while not self.session_closed:
            ready = wait(max(0.0, self._written + ping_interval - monotonic()) * 1000)
            if ready:
                self._exchange(ready)
            elif self.pings and self.moved < self.pings[-1].at:
                raise ConnectionDropped("outstanding heartbeat ping not received")
            else:
                self.pings.append(Sent(boottime()))
                self._send_ping(self._write_timeout)
                self._written = monotonic()

    def _exchange(self, ready: list[tuple[int, int]]) -> None:
        """Read what is ``ready``, the connection or the socket of :meth:`wake`, and send what is queued then."""
        numbers = [number for number, _event in ready]
        # From here on no byte wakes the loop until it reads the queue.
        self._woken_at = self._wake_count
        try:
            # All complete messages that have arrived.
            if self._socket.fileno() in numbers and self._receive(MAX_READ):
                while self._handle_next():
                    if self.session_closed:
                        return
        except BaseException:
            self._wake_count += 1
            self.wake()
            raise
        self._send_queued()
        # Read while the server works. One byte has woken the loop; another one may announce what is queued since then.
        if self._read_sock.fileno() in numbers and len(self._read_sock.recv(MAX_READ)) > 1:
            self._send_queued()

    def _send_queued(self) -> None:
        self._wake_count += 1
        self.collecting = True
        try:
            self._listener.before_write()
        finally:
            self.collecting = False
        queue, pending = self.client._queue, self.client._pending
        if not queue:
            return
        packet = bytearray()
        now = boottime()
        sent, forwarded = Sent(now), self.lease.forwarded(now)
        while queue:
            request, answer = queue.popleft()
            try:
                payload = request.serialize()
            except Exception as error:  # noqa: BLE001 - no error in a request may end the connection's thread
                answer(None, EncodingError(f"cannot be encoded: {error!r}"))
                continue
            self._xid = (self._xid % 2147483647) + 1
            packet += _REQUEST_HEADER.pack(8 + len(payload), self._xid, request.type)
            packet += payload
            # Pending before written: if the write fails, kazoo fails them all together.
            pending.append((request, answer, self._xid))
            self.sent.append(forwarded if isinstance(request, SEEN_BY_LEADER) else sent)
        if packet:
            self._write(packet, self._write_timeout)
            self._written = monotonic()

    def _handle_next(self) -> bool:
        """Deliver an event of a watch, or the answer to a ping or to the oldest request.

        Return ``False`` if the buffer has no complete message.
        """
        buffer, start = self._buffer, self._position + _SIZE.size
        if len(buffer) < start or len(buffer) < (end := start + _SIZE.unpack_from(buffer, self._position)[0]):
            return False
        self._position = end
        self.received = self.moved
        message = buffer[start:end]
        try:
            xid, zxid, error = _ANSWER_HEADER.unpack_from(message)
            event = Watch.deserialize(message, _ANSWER_HEADER.size)[0] if xid == WATCH_XID else None
        except _UNDECODABLE as exception:
            raise ConnectionDropped(f"what the server has sent cannot be decoded: {exception!r}") from exception
        if event is not None:
            self.logger.debug("Received %s", event)
            self._listener.on_event(event.type, event.path)
            return True
        pending, is_pong = self.client._pending, xid == PING_XID
        if error in _NO_ANSWER or not (is_pong or (pending and pending[0][2] == xid)):
            self._refuse_answer(error)
        if is_pong:
            if self.pings:
                self.lease.answered(self.pings.popleft(), self.received, seen_by_leader=False)
            return True
        if zxid > 0:
            self.client.last_zxid = zxid
        request, answer, _xid = pending.popleft()
        # Before the reply is called, so that its callback sees the renewed lease.
        if self.sent:
            # A refused request may not have reached the leader.
            written = not error and isinstance(request, WRITES)
            self.lease.answered(self.sent.popleft(), self.received, seen_by_leader=not error, written=written)
        if isinstance(request, Close):
            self.session_closed = True
            return True
        value, refusal = None, error_of(error) if error else None
        if not error:
            try:
                result = request.deserialize(message, _ANSWER_HEADER.size)
                value = Transaction.unchroot(self.client, result) if request.type == Transaction.type else result
            except Exception as exception:
                self.logger.exception("Exception raised during deserialization of request: %s", request)
                if isinstance(request, WRITES):
                    # It may have been executed; on the next connection its caller finds out.
                    raise ConnectionDropped("the answer to a write cannot be decoded") from exception
                refusal = EncodingError(f"cannot be decoded: {exception!r}")
        self.logger.debug("Answer to %s: %r", type(request).__name__, refusal or value)
        answer(value, refusal)
        return True

    def _refuse_answer(self, error: int) -> NoReturn:
        """End the connection, because this does not answer the oldest request under way."""
        if error in _CONNECTION_CODES:
            # No reply is called for these errors; the end of the connection notifies all callers.
            asked = name_of(self.client._pending[0][0]) if self.client._pending else "a request"
            raise ConnectionDropped(f"the answer to {asked} is {error_of(error)!r}")
        if error == UnimplementedError.code:
            # Such an answer overtakes those to earlier requests, and the server closes the connection after it
            # (``UnimplementedRequestProcessor``).
            reason = "the server does not know one of our requests; ZooKeeper 3.6 or newer is required"
            self._listener.connection_failed(reason)
            raise UnsupportedServerError(reason)
        if error == SessionClosedRequireSaslError.code:
            # So too (``AuthenticationHelper``). No other attempt has better credentials.
            self._listener.connection_failed(f"{AUTH_REFUSED}: the server demands it of every client")
            raise AuthFailedError(AUTH_REFUSED)
        # kazoo would end the session. A new connection is enough to match requests and answers again.
        raise ConnectionDropped("an answer came out of turn")
