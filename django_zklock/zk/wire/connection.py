"""kazoo's connection loop with the bookkeeping that a lease needs."""

from __future__ import annotations

import contextlib
from collections import deque
from collections.abc import Iterator
from functools import partial
from struct import Struct
from typing import Any, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import (
    EXCEPTIONS,
    AuthFailedError,
    ConnectionDropped,
    ConnectionLoss,
    KazooException,
    SessionExpiredError,
    SessionMovedError,
    UnimplementedError,
)
from kazoo.protocol.connection import CLOSE_RESPONSE, PING_XID, WATCH_XID
from kazoo.protocol.serialization import (
    CloseInstance,
    Connect,
    Create,
    Create2,
    Delete,
    Ping,
    ReplyHeader,
    SetData,
    Sync,
    Transaction,
)

from django_zklock.zk.waiting import boottime
from django_zklock.zk.wire.buffered import BufferedConnection
from django_zklock.zk.wire.lease import Lease, Sent

# Errors about the connection in the answer of a server. The next connection shows whether the session lives.
_CONNECTION_CODES = frozenset({ConnectionLoss.code, SessionExpiredError.code, SessionMovedError.code})

# Requests that are committed by a majority; CreateContainer is a Create2.
_WRITES = (Create, Create2, Delete, SetData, Transaction)
# The maximum of bytes in one read.
MAX_READ = 65536
# The length of what follows it, the number of the request, and its type.
_REQUEST_HEADER = Struct(">iii")

# Requests that a follower forwards to the leader.
_SEEN_BY_LEADER = (*_WRITES, Sync)


class _UnsupportedServerError(Exception):
    """The server is older than ZooKeeper 3.6."""


class _ServesError(Exception):
    """The server takes new sessions."""


class ConnectionOwner(Protocol):
    """The client of a connection, which calls it on its thread."""

    def before_write(self) -> None:
        """Called before queued requests are written, so that more can be queued."""

    def drop_unwanted_watches(self) -> None:
        """Called after kazoo has stored the watch of a request."""

    def session_replaced(self) -> None:
        """Called before a handshake replaces the session by a new one."""

    def connection_failed(self, reason: str) -> None:
        """Called before the thread ends for good."""


class Connection(BufferedConnection):
    """One client's connection; all methods but :meth:`wake` run on its thread."""

    def __init__(self, client: KazooClient, owner: ConnectionOwner, sasl_options: dict[str, Any] | None) -> None:
        super().__init__(client, client._conn_retry.copy(), logger=client.logger, sasl_options=sasl_options)
        self._xid: int = 0
        self.lease = Lease()
        # Why the last connect failed; None if it succeeded.
        self.failure: str | None = None
        # Grows before the queue is read. A byte that was sent in this generation will wake the loop.
        self._generation = 0
        self._woken = -1
        # The owner is being called before a write, which contains what it queues.
        self.collecting = False
        # The server has confirmed the end of the session.
        self.session_closed = False
        self._owner = owner
        # In this round over the servers: one has accepted the session; one has closed the connection instead; the
        # round must find out whether the session is over.
        self._accepted = self._refused = self._doubting = False
        # The handshake under way tests whether a server accepts new sessions, or it replaces the session.
        self._probing = self._renewing = False
        # The requests under way, oldest first. Only the connection's thread changes them; other threads may read the
        # first.
        self.sent: deque[Sent] = deque()
        self.pings: deque[Sent] = deque()
        # Seconds for a write, when there is a connection.
        self._write_timeout = 0.0

    def zk_loop(self) -> None:
        # The caller of Wire.close() may not wait for this thread, which then closes its socket pair itself.
        try:
            super().zk_loop()
        except _UnsupportedServerError:
            pass  # the owner knows
        except Exception as error:  # noqa: BLE001 - kazoo has logged it, but no caller would know of the thread's end
            self._owner.connection_failed(f"the connection failed: {error!r}")
        finally:
            self.close()

    def wake(self) -> None:
        """Make the loop send what is queued; any thread. One byte is enough for any number of callers."""
        generation = self._generation
        if self._woken == generation:
            return
        write_socket = self._write_sock
        if write_socket is not None:
            with contextlib.suppress(OSError):
                write_socket.send(b"\0")
            # Not before the byte is sent: this thread may be interrupted, by an exception or for long. If the loop has
            # read the byte meanwhile, this is an old generation, and the next caller sends another one.
            self._woken = generation

    def _connect_loop(self, retry: Any) -> Any:
        """Try all servers, one after the other, and use the first that accepts the session.

        A server that has seen less than this client refuses it: it closes the connection. If the ensemble has lost its
        data, or was restored from a backup, all servers refuse for ever, and kazoo never starts a new session. A server
        without a quorum closes the connection too, but the session may survive that. So if a whole round was refused
        after the session timeout has passed, the next round finds out which of the two it is.
        """
        self._doubting = not self._doubting and self._refused and self._is_past_its_timeout
        self._refused = self._accepted = False
        try:
            return super()._connect_loop(retry)
        finally:
            if not self._accepted:
                self.handler.extend_connect_limit()

    @property
    def _is_past_its_timeout(self) -> bool:
        """Whether there is a session, and nothing was received for longer than its timeout."""
        timeout = self.lease.timeout
        return bool(self.client._session_id) and timeout is not None and boottime() >= self.received + timeout

    def _connect(self, *arguments: Any) -> Any:
        try:
            timeouts = self._connect_in_doubt(*arguments) if self._doubting else self._shake_hands(*arguments)
        except Exception as error:
            self.failure = str(error) or type(error).__name__
            raise
        self.failure = None
        self._write_timeout = timeouts[1] / 1000.0
        self._accepted = True
        # Another round may follow on this one in the same loop.
        self._doubting = False
        self.handler.reset_connect_limit()
        return timeouts

    def _connect_in_doubt(self, *arguments: Any) -> Any:
        """Begin a new session if the server accepts new ones and, after that, still refuses the old one."""
        with contextlib.suppress(_ServesError), self._anonymous():
            self._probing = True
            try:
                self._shake_hands(*arguments)
            finally:
                self._probing = False
                if self._socket is not None:
                    self._socket.close()
        self._refused = False
        try:
            return self._shake_hands(*arguments)
        except ConnectionDropped:
            if not self._refused:
                raise
            self._socket.close()
        with self._anonymous():
            self._renewing = True
            try:
                return self._shake_hands(*arguments)
            finally:
                self._renewing = False

    def _shake_hands(self, *arguments: Any) -> Any:
        # Of an earlier socket.
        self._clear_buffer()
        return super()._connect(*arguments)

    def _authenticate_with_sasl(self, host: str, timeout: float) -> None:
        try:
            super()._authenticate_with_sasl(host, min(timeout, self.handler.connect_limit))
        except AuthFailedError as error:
            # kazoo takes the end of the connection for a refusal. ZooKeeper answers wrong credentials with an error
            # (``ZooKeeperServer.processSasl``).
            if isinstance(error.__cause__, ConnectionDropped):
                raise error.__cause__ from None
            raise

    @contextlib.contextmanager
    def _anonymous(self) -> Iterator[None]:
        """Connect as a client without a session; keep the new session if the server grants one."""
        client = self.client
        session = client._session_id, client._session_passwd, client.last_zxid
        client._reset_session()
        client.last_zxid = 0
        try:
            yield
        finally:
            if not client._session_id:
                client._session_id, client._session_passwd, client.last_zxid = session

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        # kazoo calls this for the handshake only, with an equal share of the session timeout for each server.
        sent, timeout = boottime(), min(self.client._session_timeout / 1000.0, self.handler.connect_limit)
        try:
            outcome = super()._invoke(timeout, request, xid)
        except ConnectionDropped as error:
            if not isinstance(request, Connect):
                raise
            self._refused = True
            raise ConnectionDropped(f"the server has closed the connection instead of accepting: {error}") from error
        if isinstance(request, Connect) and outcome[0].time_out > 0:
            if self._probing:
                # The new session was only a test.
                super()._submit(CloseInstance, timeout, xid=1)
                raise _ServesError
            if self._renewing:
                # Before the lease begins again: locks that were held in the old session must not be covered by it.
                self._owner.session_replaced()
            self.sent.clear()
            self.pings.clear()
            self.received = boottime()
            moved = outcome[0].session_id == request.session_id
            self.lease.connected(outcome[0].time_out / 1000.0, sent, self.received, moved=moved)
        return outcome

    # kazoo's loop calls the next two when a socket is readable.

    def _send_request(self, _read_timeout: float, connect_timeout: float) -> None:
        self._read_sock.recv(4096)
        self._send_queued(connect_timeout)

    def _read_socket(self, _read_timeout: float) -> Any:
        """Handle all complete messages that have arrived, and send at once what their callbacks have queued."""
        is_byte_sent = self._woken == self._generation
        # No byte wakes the loop meanwhile: it is awake.
        self._woken = self._generation
        try:
            if self._receive(MAX_READ):
                while (message := self._next_message()) is not None:
                    if self._handle(message) == CLOSE_RESPONSE:
                        return CLOSE_RESPONSE
        except BaseException:
            self._generation += 1
            self.wake()
            raise
        if not is_byte_sent:
            self._send_queued(self._write_timeout)
        return None

    def _send_queued(self, timeout: float) -> None:
        self._generation += 1
        self.collecting = True
        try:
            self._owner.before_write()
        finally:
            self.collecting = False
        queue, pending = self.client._queue, self.client._pending
        if not queue:
            return
        packet = bytearray()
        batch = []
        while queue:
            request, answer = queue.popleft()
            try:
                payload = request.serialize()
            except Exception as error:  # noqa: BLE001 - no error in a request may end the connection's thread
                answer.set_exception(error)
                continue
            self._xid = (self._xid % 2147483647) + 1
            packet += _REQUEST_HEADER.pack(8 + len(payload), self._xid, request.type)
            packet += payload
            batch.append((request, answer, self._xid))
        if not batch:
            return
        # Pending before written: if the write fails, kazoo fails them all together.
        pending.extend(batch)
        now = boottime()
        sent, forwarded = Sent(now), self.lease.forwarded(now)
        self.sent.extend(forwarded if isinstance(request, _SEEN_BY_LEADER) else sent for request, _, _ in batch)
        self._write(packet, timeout)

    def _submit(self, request: Any, timeout: float, xid: int | None = None) -> None:
        if isinstance(request, Ping) and xid == PING_XID:
            self.pings.append(Sent(boottime()))
        super()._submit(request, timeout, xid)

    def _handle(self, message: bytes) -> Any:
        header, offset = ReplyHeader.deserialize(message, 0)
        if header.xid == WATCH_XID:
            self._read_watch_event(message, offset)
        elif header.xid != PING_XID:
            return self._read_response(header, message, offset)
        else:
            self.ping_outstanding.clear()
            if self.pings:
                self.lease.answered(self.pings.popleft(), self.received, proof=False)
        return None

    def _read_response(self, header: Any, buffer: Any, offset: int) -> Any:
        self._match_pending(header)
        # Before the reply is called, so that its callback sees the renewed lease.
        if self.sent:
            # A refused request may not have reached the leader.
            done = not header.err
            written = done and isinstance(self.client._pending[0][0], _WRITES)
            self.lease.answered(self.sent.popleft(), self.received, proof=done, written=written)
        if header.err and header.err not in EXCEPTIONS:
            # kazoo's loop would end with a KeyError.
            EXCEPTIONS[header.err] = partial(KazooException, f"ZooKeeper's error {header.err}")
        outcome = super()._read_response(header, buffer, offset)
        self.session_closed = outcome == CLOSE_RESPONSE
        self._owner.drop_unwanted_watches()
        return outcome

    def _match_pending(self, header: Any) -> None:
        """Raise ``ConnectionDropped`` unless the header answers the oldest request under way."""
        pending = self.client._pending
        if header.err in _CONNECTION_CODES:
            # No reply is called for these errors; the end of the connection notifies all callers.
            raise ConnectionDropped(f"the answer to request {header.xid} is {EXCEPTIONS[header.err].__name__}")
        if header.err == UnimplementedError.code:
            # Such an answer overtakes those to earlier requests, and the server closes the connection after it
            # (``UnimplementedRequestProcessor``).
            reason = "the server does not know one of our requests; ZooKeeper 3.6 or newer is required"
            self._owner.connection_failed(reason)
            raise _UnsupportedServerError(reason)
        if not pending or pending[0][2] != header.xid:
            # kazoo would end the session. A new connection is enough to match requests and answers again.
            raise ConnectionDropped(f"the answer to request {header.xid} came out of turn")
