"""kazoo as a transport: the only module that knows kazoo, and the only one that touches its privates.

What kazoo gives us is the connection: servers, reconnects, TLS, SASL, the session handshake and the codec.
What this module changes, each with a test in ``tests/zk/test_wire.py`` that fails when kazoo does:

- requests go to the connection's queue with our own reply object, so that replies, watch events and state
  changes all arrive on the connection's thread, in the order of the wire; kazoo's two worker threads are
  not started;
- all queued requests leave in one write, and one wake-up byte stands for any number of them (kazoo writes one
  byte a request into a socket pair that blocks after some 280);
- the negotiated session timeout and the send time of the newest answered request are recorded;
- a connection can be dropped from another thread, closed within a bound, and forgotten after a fork.
"""

from __future__ import annotations

import contextlib
import inspect
import logging
import os
import socket
import ssl
import sys
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import (
    ConnectionClosedError,
    ConnectionLoss,
    KazooException,
    NodeExistsError,
    NoNodeError,
    SessionExpiredError,
    UnimplementedError,
)
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import PING_XID, ConnectionHandler
from kazoo.protocol.serialization import (
    CloseInstance,
    Connect,
    Create,
    Create2,
    Delete,
    GetChildren,
    GetData,
    Ping,
    Sync,
    int_struct,
)
from kazoo.protocol.states import EventType, KazooState, KeeperState, WatchedEvent, ZnodeStat
from kazoo.retry import KazooRetry
from kazoo.security import ACL, CREATOR_ALL_ACL, OPEN_ACL_UNSAFE, make_acl

from django_zklock.zk.clock import lease_now

__all__ = [
    "EXTRA_OPTIONS",
    "ConnectionOptions",
    "KazooException",
    "NoNodeError",
    "NodeExistsError",
    "UnimplementedError",
    "Wire",
    "WireListener",
    "ZnodeStat",
]

logger = logging.getLogger("django_zklock.wire")

# What of KazooClient's arguments is left to the user; the others are ours, or would undo what this module does.
EXTRA_OPTIONS = frozenset({"randomize_hosts"})

EPHEMERAL_SEQUENTIAL = 3
CONTAINER = 4

# Errors that say "the connection ended", not "the server answered": the listener hears of those once, as a
# change of state, and no reply is delivered for them.
_CONNECTION_ERRORS = (ConnectionLoss, SessionExpiredError, ConnectionClosedError)

Reply = Callable[[Any, "KazooException | None"], None]
"""Called with a value, or with the error that the server answered. On the connection's thread."""

Watcher = Callable[[], None]
"""Called once when the watched node was deleted or its data changed. On the connection's thread."""


# Since kazoo 2.11; before, it does not tell the handler the name.
CHECKS_HOST_NAMES = "check_hostname" in inspect.signature(KazooClient).parameters


class CreateContainer(Create2):
    """The request for a container node (opcode 19, ZOOKEEPER-2163); kazoo has no method for it."""

    type = 19


class WireListener(Protocol):
    """Who hears from a wire: on the connection's thread, holding ``monitor``. Nothing here may block."""

    monitor: AbstractContextManager[Any]

    def on_wake(self) -> None:
        """Somebody called :meth:`Wire.wake`; what is queued now leaves in one write."""

    def on_connected(self) -> None:
        """There is a connection, of the same session or of a new one."""

    def on_suspended(self) -> None:
        """The connection is gone; the session may live."""

    def on_ended(self, reason: str, *, final: bool) -> None:
        """The session is gone, and every node of it; ``final`` if this wire makes no other."""


@dataclass(frozen=True, kw_only=True)
class ConnectionOptions:
    """How to reach an ensemble. Times are seconds."""

    hosts: str
    session_timeout: float = 15.0
    auth: Sequence[tuple[str, str]] = ()
    acl: str | Sequence[str] = "open"
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    tls_key_password: str | None = None
    tls_verify: bool = True
    tls_check_hostname: bool = True
    use_tls: bool = False
    sasl: dict[str, Any] | None = None
    extra: dict[str, Any] = field(default_factory=dict)

    @property
    def checks_host_name(self) -> bool:
        """Whether a server's name matters; one in a certificate that nobody verifies says nothing."""
        return self.tls_check_hostname and self.tls_verify


def parse_acl(value: str | Sequence[str]) -> list[ACL]:
    """Read ``"open"``, ``"creator"`` or a list of ``scheme:id:perms`` with perms out of ``cdrwa``.

    Raises ``ValueError`` for anything else.
    """
    if value == "open":
        return list(OPEN_ACL_UNSAFE)
    if value == "creator":
        return list(CREATOR_ALL_ACL)
    if isinstance(value, str) or not value:
        raise ValueError(f'"open", "creator" or a list of "scheme:id:perms", got {value!r}')
    return [_parse_acl_entry(entry) for entry in value]


def _parse_acl_entry(entry: str) -> ACL:
    names = {"c": "create", "d": "delete", "r": "read", "w": "write", "a": "admin"}
    scheme, _, rest = str(entry).partition(":")
    credential, _, permissions = rest.rpartition(":")
    if not scheme or not credential or not permissions or not set(permissions) <= set(names):
        raise ValueError(f'entries like "world:anyone:r" or "digest:user:hash:cdrwa", got {entry!r}')
    return make_acl(scheme, credential, **{names[letter]: True for letter in permissions})


class _Answer:
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


class _Connection(ConnectionHandler):
    """kazoo's connection loop with the bookkeeping that a lease needs."""

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
        if not batch:
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
        # Before the reply is handed on, so that what it triggers sees the lease that it proves.
        if self.sent:
            self._heard(self.sent.popleft())
        outcome = super()._read_response(header, buffer, offset)
        self.wire.sweep()
        return outcome

    def _read_header(self, timeout: float) -> Any:
        header, buffer, offset = super()._read_header(timeout)
        self.received = lease_now()
        if header.xid == PING_XID and self.pings:
            self._heard(self.pings.popleft())
        return header, buffer, offset

    def _heard(self, sent: float) -> None:
        self.acked = max(self.acked, sent)


def _tls_context(options: ConnectionOptions) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    # Before the verification is turned off, as ssl asks for.
    context.check_hostname = options.checks_host_name
    context.verify_mode = ssl.CERT_REQUIRED if options.tls_verify else ssl.CERT_NONE
    if options.tls_ca is None:
        context.load_default_certs()
    else:
        context.load_verify_locations(options.tls_ca)
    if options.tls_cert is not None:
        # With None for a password, OpenSSL asks at the terminal for that of an encrypted key.
        context.load_cert_chain(options.tls_cert, options.tls_key, options.tls_key_password or "")
    return context


class _InlineHandler:
    """What every handler of ours changes: nothing is queued for another thread, as our callbacks never block."""

    connect_limit = float("inf")

    # Makes what TLS needs, for each connection anew: certificates are renewed.
    tls: Callable[[], ssl.SSLContext] | None = None

    def create_connection(self, address: Any, timeout: float, hostname: str | None = None, **_tls: Any) -> Any:
        # kazoo's own way to TLS leaves a socket behind whenever the handshake fails.
        sock = super().create_connection(address, timeout=min(timeout, self.connect_limit))  # type: ignore[misc]
        if self.tls is None:
            return sock
        try:
            return self.tls().wrap_socket(sock, server_hostname=hostname)
        except BaseException:
            sock.close()
            raise

    def select(self, rlist: list[Any], wlist: list[Any], xlist: list[Any], timeout: float | None = None) -> Any:
        # What TLS has already decrypted is not readable for the operating system; kazoo's loop would sleep.
        if buffered := [sock for sock in rlist if getattr(sock, "pending", int)()]:
            return buffered, [], []
        return super().select(rlist, wlist, xlist, timeout)  # type: ignore[misc]

    def dispatch_callback(self, callback: Any) -> None:
        callback.func(*callback.args)

    def start(self) -> None:
        self._running = True

    def stop(self) -> None:
        self._running = False


def _make_handler() -> Any:
    """Choose the handler by what is monkey-patched in this process, not by a setting."""
    gevent_monkey = sys.modules.get("gevent.monkey")
    if gevent_monkey is not None and gevent_monkey.is_module_patched("socket"):
        from kazoo.handlers.gevent import SequentialGeventHandler

        return type("GeventHandler", (_InlineHandler, SequentialGeventHandler), {})()
    eventlet_patcher = sys.modules.get("eventlet.patcher")
    if eventlet_patcher is not None and eventlet_patcher.is_monkey_patched("socket"):
        from kazoo.handlers.eventlet import SequentialEventletHandler

        return type("EventletHandler", (_InlineHandler, SequentialEventletHandler), {})()
    return type("ThreadingHandler", (_InlineHandler, SequentialThreadingHandler), {})()


class Wire:
    """One kazoo client, started once and used for requests without waiting.

    :meth:`wake`, :meth:`drop`, :meth:`close` and the attributes may be used from any thread; requests are
    made on the connection's thread only, from a listener's method or a reply. They are queued and leave
    together in one write.
    """

    def __init__(self, options: ConnectionOptions, listener: WireListener, *, patience: float) -> None:
        if options.use_tls and options.checks_host_name and not CHECKS_HOST_NAMES:
            raise ValueError("checking the server's host name needs kazoo 2.11 or later")
        self.listener = listener
        self.acl = parse_acl(options.acl)
        handler = _make_handler()
        # kazoo gives each server the whole session timeout to accept, and one that is switched off uses it up.
        handler.connect_limit = patience / len(options.hosts.split(","))
        if options.use_tls:
            handler.tls = partial(_tls_context, options)
        # An ensemble that comes back should find us within a second or so, not after kazoo's hour.
        retry = KazooRetry(
            max_tries=-1,
            delay=0.05,
            max_delay=min(1.0, options.session_timeout / 6),
            sleep_func=handler.sleep_func,
        )
        self._client = KazooClient(
            hosts=options.hosts,
            timeout=options.session_timeout,
            handler=handler,
            connection_retry=retry,
            auth_data=list(options.auth),
            use_ssl=options.use_tls,
            logger=logging.getLogger("django_zklock.kazoo"),
            **options.extra,
        )
        self._connection = _Connection(self._client, self, dict(options.sasl) if options.sasl else None)
        self._client._connection = self._connection
        self._client.add_listener(self._state_changed)
        self._chroot = self._client.chroot or ""
        self._closing = False
        # Paths and watches; only the connection's thread touches it.
        self._unwanted: list[tuple[str, object]] = []

    # State, readable from any thread.

    @property
    def session_id(self) -> int | None:
        """The id of the current session; ``None`` before the first and after the last."""
        session_id: int | None = self._client._session_id
        return session_id

    @property
    def session_timeout(self) -> float | None:
        """The negotiated session timeout in seconds; ``None`` before the first session."""
        return self._connection.session_timeout

    @property
    def acked(self) -> float:
        """When the newest answered request was sent, by the lease clock.

        The server resets a session's expiry when it receives a request, so the session lives at least until
        this plus the session timeout (Programmer's Guide, "ZooKeeper Sessions").
        """
        return self._connection.acked

    def silent_for(self) -> float:
        """Give the seconds for which something is outstanding and nothing has been received."""
        connection = self._connection
        try:
            oldest = min(queue[0] for queue in (connection.sent, connection.pings) if queue)
        except (ValueError, IndexError):  # nothing is, or the last of it was answered just now
            return 0.0
        return lease_now() - max(oldest, connection.received)

    @property
    def server(self) -> str:
        """The server at the other end; when there is no connection, the ensemble and why there is none."""
        try:
            host, port = self._connection._socket.getpeername()[:2]
        except (OSError, AttributeError):
            hosts = ",".join(f"{host}:{port}" for host, port in self._client.hosts)
            failure = self._connection.failure
            return hosts if failure is None else f"{hosts} ({failure})"
        return f"{host}:{port}"

    # Life.

    def start(self) -> None:
        """Begin to connect; the listener hears the rest."""
        self._client.start_async()

    def wake(self) -> None:
        """Have the connection's thread call ``listener.on_wake`` and send what is queued; any thread."""
        self._connection.wake()

    def drop(self, reason: str) -> None:
        """End the connection, not the session; kazoo then reconnects. Any thread."""
        logger.warning("event=connection_dropped server=%s reason=%s", self.server, reason)
        sock = self._connection._socket
        if sock is None:
            return
        # Not the method of a TLS socket: that would have the connection's thread, which is just reading, take what is
        # encrypted for plain answers. gevent keeps the plain socket inside.
        plain: Any = getattr(sock, "_sock", sock)
        with contextlib.suppress(OSError):
            if isinstance(plain, socket.SocketType):
                socket.SocketType.shutdown(plain, socket.SHUT_RDWR)
            else:
                plain.shutdown(socket.SHUT_RDWR)

    def close(self, timeout: float) -> bool:
        """End the session, so that the server frees its nodes now; ``False`` if it did not answer in time."""
        client, connection = self._client, self._connection
        if client._stopped.is_set():
            return True
        self._closing = True
        if client._live.is_set():
            client._queue.append((CloseInstance, None))
            connection.wake_sent = False
            connection.wake()
        else:
            client._stopped.set()
        finished = bool(connection.connection_stopped.wait(timeout))
        client._stopped.set()
        if not finished:
            self.drop("no answer to the closing of the session")
        client.handler.stop()
        if finished:
            with contextlib.suppress(Exception):
                connection.close()
        return finished

    def forget(self) -> None:
        """In a forked child: let go of the parent's connection without a word to the server.

        The descriptors are closed as such. A TLS shutdown or a close request would end the parent's session.
        """
        connection = self._connection
        for sock in (connection._socket, connection._read_sock, connection._write_sock):
            if sock is not None:
                with contextlib.suppress(OSError):
                    os.close(sock.detach())

    # Requests, on the connection's thread.

    def create(self, path: str, data: bytes, reply: Callable[[tuple[str, ZnodeStat] | None, Any], None]) -> None:
        """Create an ephemeral sequential node; the reply has its name and stat."""

        def strip(value: tuple[str, ZnodeStat] | None, error: KazooException | None) -> None:
            reply(None if value is None else (value[0].rpartition("/")[2], value[1]), error)

        self._send(Create2(self._chroot + path, data, self.acl, EPHEMERAL_SEQUENTIAL), strip)

    def ensure(self, path: str, data: bytes, reply: Reply, *, container: bool) -> None:
        """Create ``path`` as a container, or a plain persistent node, and what is missing above it.

        That something exists already is no error. Nor is a refusal above ``path``: the server checks the
        right to create before it looks whether the node is there. The reply is that for ``path``.
        """
        full = self._chroot + path
        slash = full.find("/", 1)
        while slash != -1:
            self._send(Create(full[:slash], b"", self.acl, 0), lambda _value, _error: None)
            slash = full.find("/", slash + 1)
        request = CreateContainer if container else Create
        self._send(request(full, data, self.acl, CONTAINER if container else 0), reply)

    def children(self, path: str, reply: Callable[[list[str] | None, Any], None]) -> None:
        """List the names of the children."""
        self._send(GetChildren(self._chroot + path, None), reply)

    def get(
        self,
        path: str,
        reply: Callable[[tuple[bytes, ZnodeStat] | None, Any], None],
        watcher: Watcher | None = None,
    ) -> Callable[[], None]:
        """Read data and stat, and watch the node if it is there; gives what takes the watch off again.

        Never ``exists``: on a missing node it would leave a watch behind. Taking a watch off spares this
        process the memory of it; the server keeps one a session and node, and sends its one event.
        """
        full = self._chroot + path
        watch = None if watcher is None else self._guarded(watcher)
        wanted = True

        def answered(value: tuple[bytes, ZnodeStat] | None, error: KazooException | None) -> None:
            reply(value, error)
            if not wanted:
                # kazoo keeps the watch only after this.
                self._unwanted.append((full, watch))

        def unwatch() -> None:
            nonlocal wanted
            wanted = False
            self._unwatch(full, watch)

        self._send(GetData(full, watch), answered)
        return unwatch

    def delete(self, path: str, reply: Reply) -> None:
        """Delete a node, whatever its version."""
        self._send(Delete(self._chroot + path, -1), reply)

    def sync(self, path: str) -> None:
        """Have the server catch up with the leader before it answers what follows."""
        self._send(Sync(self._chroot + path), lambda _value, _error: None)

    def _send(self, request: Any, reply: Reply) -> None:
        self._client._queue.append((request, _Answer(reply, self.listener.monitor)))
        self._connection.wake()

    def tell(self, method: Callable[..., None], *arguments: Any, **options: Any) -> None:
        """Call a listener's method; an error in it must not end kazoo's connection thread."""
        try:
            with self.listener.monitor:
                method(*arguments, **options)
        except Exception:
            logger.exception("event=listener_failed method=%s", method.__name__)

    def _state_changed(self, state: str) -> None:
        # kazoo calls this on the connection's thread, between the events of the old connection and the new.
        listener = self.listener
        if state == KazooState.CONNECTED:
            self.tell(listener.on_connected)
            return
        # kazoo has just failed what was under way. What came to the queue since then would be sent after a
        # reconnect, when nobody waits for it any more.
        self._client._queue.clear()
        if self._closing:
            # The connection went before the request to close could; there is nothing to come back for.
            self._client._stopped.set()
        if state == KazooState.SUSPENDED:
            self.tell(listener.on_suspended)
        elif self._client.client_state == KeeperState.AUTH_FAILED:
            self.tell(listener.on_ended, "authentication was refused, check AUTH and SASL in ZKLOCK", final=True)
        elif self._client.client_state == KeeperState.CLOSED:
            self.tell(listener.on_ended, "the session was closed", final=True)
        else:
            self.tell(listener.on_ended, "the session expired", final=False)

    def broken(self, error: Exception) -> None:
        """Tell that the connection's thread has come to its end over something that kazoo did not expect."""
        self.tell(self.listener.on_ended, f"the connection failed: {error!r}", final=True)

    def sweep(self) -> None:
        """Take off the watches that were given up while their requests were under way."""
        while self._unwanted:
            self._unwatch(*self._unwanted.pop())

    def _unwatch(self, path: str, watch: object) -> None:
        watchers = self._client._data_watchers.get(path)
        if watchers is not None:
            watchers.discard(watch)
            if not watchers:
                del self._client._data_watchers[path]

    def _guarded(self, watcher: Watcher) -> Callable[[WatchedEvent], None]:
        def watch(event: WatchedEvent) -> None:
            # EventType.NONE is kazoo's own, for "the connection is gone": the listener has heard that already.
            if event.type != EventType.NONE:
                self.tell(watcher)

        return watch
