"""kazoo's connection loop with the bookkeeping that a lease needs."""

from __future__ import annotations

import contextlib
import logging
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import TYPE_CHECKING, Any

from kazoo.client import KazooClient
from kazoo.exceptions import (
    EXCEPTIONS,
    ConnectionClosedError,
    ConnectionDropped,
    ConnectionLoss,
    KazooException,
    SessionExpiredError,
    UnimplementedError,
)
from kazoo.protocol.connection import CLOSE_RESPONSE, PING_XID, ConnectionHandler
from kazoo.protocol.serialization import Connect, Ping, int_struct

from django_zklock.zk.clock import lease_now

if TYPE_CHECKING:
    from django_zklock.zk.wire.client import Wire

logger = logging.getLogger("django_zklock.wire")

# Errors that say "the connection ended", not "the server answered": the listener hears of those once, as a
# change of state, and no reply is delivered for them.
_CONNECTION_ERRORS = (ConnectionLoss, SessionExpiredError, ConnectionClosedError)

Reply = Callable[[Any, "KazooException | None"], None]
"""Called with a value, or with the error that the server answered. On the connection's thread."""


class Answer:
    """Takes the place of kazoo's async result: hands the outcome on at once, and only once."""

    __slots__ = ("_monitor", "_reply")

    def __init__(self, reply: Reply, monitor: AbstractContextManager[Any]) -> None:
        self._reply: Reply | None = reply
        self._monitor = monitor

    def set(self, value: Any = None) -> None:
        self._deliver(value, None)

    def set_exception(self, error: BaseException) -> None:
        if isinstance(error, _CONNECTION_ERRORS):
            self._reply = None
            return
        if not isinstance(error, KazooException):
            error = KazooException(f"cannot be encoded or decoded: {error!r}")
        self._deliver(None, error)

    def _deliver(self, value: Any, error: KazooException | None) -> None:
        # kazoo may complete a request twice around a disconnect.
        reply, self._reply = self._reply, None
        if reply is not None:
            # An exception here would end kazoo's connection thread for good.
            try:
                with self._monitor:
                    reply(value, error)
            except Exception:
                logger.exception("event=reply_failed")


class Connection(ConnectionHandler):
    """One client's connection; everything but :meth:`wake` runs on its thread."""

    def __init__(self, client: KazooClient, wire: Wire, sasl_options: dict[str, Any] | None) -> None:
        super().__init__(client, client._conn_retry.copy(), logger=client.logger, sasl_options=sasl_options)
        self._xid: int = 0
        self.wire = wire
        self.session_timeout: float | None = None
        # Why the last attempt to connect failed; None after one that did not.
        self.failure: str | None = None
        self.acked = float("-inf")
        self.received = float("-inf")
        self.wake_sent = False
        # The server must hear of us with this wake-up, by a ping if there is no request.
        self.ping_due = False
        # The server has confirmed the end of the session.
        self.session_closed = False
        # Send times of what is under way, oldest first. Only the connection's thread touches them, except
        # that the watchdog peeks at the first.
        self.sent: deque[float] = deque()
        self.pings: deque[float] = deque()

    def zk_loop(self) -> None:
        # Whoever ends the session may not have the time to wait for this thread and close its socket pair.
        try:
            super().zk_loop()
        except Exception as error:  # noqa: BLE001 - kazoo has logged it; nobody else would hear that this thread ends
            self.wire.broken(error)
        finally:
            self.close()

    def wake(self) -> None:
        """Make the loop look at the queue; any thread. One byte does for any number of callers."""
        if self.wake_sent:
            return
        try:
            self.wake_sent = True
            write_socket = self._write_sock
            if write_socket is not None:
                with contextlib.suppress(OSError):
                    write_socket.send(b"\0")
        except BaseException:
            # Thrown into this thread, perhaps before the byte was sent. One too many does no harm, and without
            # any this connection would never send again.
            self.wake_sent = False
            raise

    def _connect(self, *arguments: Any) -> Any:
        try:
            timeouts = super()._connect(*arguments)
        except Exception as error:
            self.failure = str(error) or type(error).__name__
            raise
        self.failure = None
        return timeouts

    def _invoke(self, timeout: float, request: Any, xid: int | None = None) -> Any:
        sent = lease_now()
        if isinstance(request, Connect):
            timeout = min(timeout, self.handler.connect_limit)
        outcome = super()._invoke(timeout, request, xid)
        if isinstance(request, Connect) and outcome[0].time_out > 0:
            self.sent.clear()
            self.pings.clear()
            self.session_timeout = outcome[0].time_out / 1000.0
            self.received = lease_now()
            self._heard(sent)
        return outcome

    def _send_request(self, _read_timeout: float, connect_timeout: float) -> None:
        # Cleared before the queue is looked at: whoever adds to it from here on sends a new byte.
        self._read_sock.recv(4096)
        self.wake_sent = False
        self.wire.tell(self.wire.listener.on_wake)
        queue, pending = self.client._queue, self.client._pending
        packet = bytearray()
        batch = []
        while queue:
            request, answer = queue.popleft()
            try:
                payload = request.serialize()
            except Exception as error:  # noqa: BLE001 - whatever it is, it must not end the connection's thread
                answer.set_exception(error)
                continue
            self._xid = (self._xid % 2147483647) + 1
            body = int_struct.pack(self._xid) + int_struct.pack(request.type) + payload
            packet += int_struct.pack(len(body)) + body
            batch.append((request, answer, self._xid))
        ping_due, self.ping_due = self.ping_due, False
        if not batch:
            if ping_due:
                # Not kazoo's own way, which gives the answer as little as 10 ms before it drops the connection.
                self._submit(Ping(), connect_timeout, PING_XID)
            return
        # Pending before written: should the write fail, kazoo fails them all together.
        pending.extend(batch)
        now = lease_now()
        self.sent.extend([now] * len(batch))
        self._write(packet, connect_timeout)

    def _submit(self, request: Any, timeout: float, xid: int | None = None) -> None:
        if isinstance(request, Ping) and xid == PING_XID:
            self.pings.append(lease_now())
        super()._submit(request, timeout, xid)

    def _read_response(self, header: Any, buffer: Any, offset: int) -> Any:
        self._match(header)
        # Before the reply is handed on, so that what it triggers sees the lease that it proves.
        if self.sent:
            self._heard(self.sent.popleft())
        if header.err and header.err not in EXCEPTIONS:
            # kazoo's loop would end over it. To kazoo 2.10 that is news that every client may get: NoWatcher, because
            # the watch to remove has just been triggered.
            EXCEPTIONS[header.err] = partial(KazooException, f"ZooKeeper's error {header.err}")
        outcome = super()._read_response(header, buffer, offset)
        self.session_closed = outcome == CLOSE_RESPONSE
        self.wire.sweep()
        return outcome

    def _match(self, header: Any) -> None:
        """Have the request that the header answers come first; raises ``ConnectionDropped`` if there is none.

        ZooKeeper answers in order, but for what it does not know: that is refused at once and before what was asked
        earlier, and the connection is closed after it (``UnimplementedRequestProcessor``).
        """
        pending, sent = self.client._pending, self.sent
        if header.err == UnimplementedError.code:
            place = next((place for place, (_, _, xid) in enumerate(pending) if xid == header.xid), None)
            if place:
                for line in (pending, sent):
                    answered = line[place]
                    del line[place]
                    line.appendleft(answered)
        if not pending or pending[0][2] != header.xid:
            # Over this kazoo would end the session. A new connection knows again which answer is whose.
            raise ConnectionDropped(f"the answer to request {header.xid} came out of turn")

    def _read_header(self, timeout: float) -> Any:
        header, buffer, offset = super()._read_header(timeout)
        self.received = lease_now()
        if header.xid == PING_XID and self.pings:
            self._heard(self.pings.popleft())
        return header, buffer, offset

    def _heard(self, sent: float) -> None:
        self.acked = max(self.acked, sent)
