"""One kazoo client: its life, its state and its log."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from kazoo.client import KazooClient
from kazoo.protocol.connection import DELETED_EVENT
from kazoo.protocol.serialization import SASL, Auth, CloseInstance, Connect
from kazoo.protocol.states import KazooState, KeeperState
from kazoo.retry import KazooRetry
from kazoo.version import __version__ as kazoo_version

from django_zklock.zk.background import DeferredLogger, note_end
from django_zklock.zk.waiting import NOT_STARTABLE, boottime
from django_zklock.zk.wire.connection import Connection, make_handler
from django_zklock.zk.wire.lease import Lease
from django_zklock.zk.wire.names import describe
from django_zklock.zk.wire.options import (
    AUTH_REFUSED,
    HIDDEN,
    NOT_STARTED,
    ConnectionOptions,
    join_address,
    parse_acl,
)
from django_zklock.zk.wire.requests import Delivery, Reply, Requests

logger = DeferredLogger("django_zklock.wire")


# The minor release of kazoo that was tested. We use private names of it, which any other one may change.
TESTED_KAZOO = "2.11"
# kazoo's warning when a client is closed before it has a connection. It would follow on the error of the lock.
NOT_CONNECTED = "Failed connecting to Zookeeper within the connection retry policy."


def untested_kazoo() -> str | None:
    """Return the installed version of kazoo, if its minor release was not tested."""
    return None if f"{kazoo_version}.".startswith(f"{TESTED_KAZOO}.") else kazoo_version


# The first connect of a process takes out what it is to warn of.
_warnings = [version for version in (untested_kazoo(),) if version is not None]


_SECRETS = {Auth: "auth", Connect: "passwd", SASL: "challenge"}


class KazooLogger(DeferredLogger):
    """A logger that hides secrets: kazoo logs each request, and the password of each session."""

    def handle(self, record: logging.LogRecord) -> None:
        if record.msg == NOT_CONNECTED:
            return
        if isinstance(record.args, tuple):
            record.args = tuple(map(_without_secret, record.args))
        super().handle(record)


def _without_secret(argument: Any) -> Any:
    if type(argument) in _SECRETS:
        return argument._replace(**{_SECRETS[type(argument)]: HIDDEN})
    # The password of a session, in hexadecimal digits. No other argument is of type bytes.
    return HIDDEN if isinstance(argument, bytes) else argument


kazoo_logger = KazooLogger("django_zklock.kazoo")


class WireListener(Protocol):
    """What a wire notifies: on the connection's thread, under ``monitor``. Nothing here may block."""

    monitor: AbstractContextManager[Any]

    def on_wake(self) -> None:
        """The next write follows; it contains all requests that are queued now."""

    def on_closing(self) -> None:
        """The next write requests the end of the session, and the server may delete its nodes at once."""

    def on_connected(self) -> None:
        """There is a connection, of the same session or of a new one."""

    def on_suspended(self) -> None:
        """The connection is gone; the session may live."""

    def on_ended(self, reason: str, *, final: bool) -> None:
        """The session is gone, and every node of it; ``final`` if this wire makes no other."""


class WirePort(Requests):
    """What a session asks of its client: requests without waiting, and a life that the listener is notified of.

    Any thread may use :meth:`wake`, :meth:`drop`, :meth:`close` and the attributes. Requests are made on the
    connection's thread only, in a method of the listener or in a reply. Times are seconds of the boot-time clock.
    """

    lease: Lease
    # Makes the connection's thread call `listener.on_wake` and send what is queued; any thread.
    wake: Callable[[], None]

    @property
    @abstractmethod
    def session_id(self) -> int | None:
        """The id of the current session; ``None`` before the first and after the last."""

    @property
    @abstractmethod
    def received(self) -> float:
        """When the last complete message was received."""

    @property
    @abstractmethod
    def failure(self) -> str | None:
        """Why the last attempt to connect has failed, or why connections end again and again; else ``None``."""

    @property
    @abstractmethod
    def server(self) -> str:
        """The server at the other end; without a connection, the ensemble, and the last failure or what is tried."""

    @property
    @abstractmethod
    def peer(self) -> str:
        """The server that has accepted the session last, whatever became of it; the ensemble, if none has."""

    @property
    @abstractmethod
    def hosts(self) -> str:
        """All servers of the ensemble, without the chroot."""

    @property
    @abstractmethod
    def addresses(self) -> int:
        """How many addresses the servers had at the last attempt to connect; 0 before the first."""

    @abstractmethod
    def unanswered_for(self) -> float:
        """Return the seconds since the oldest unanswered request was sent or any bytes moved, if that is later.

        It is 0 if every request is answered.
        """

    @abstractmethod
    def start(self, first: Callable[[], object] | None = None) -> None:
        """Begin to connect, unless that is done; the listener is notified of the rest.

        ``first`` starts what the listener needs. Raises, as it may, ``OSError``, ``RuntimeError`` or ``MemoryError``
        where the process has no descriptor, no thread or no memory left; it may be called again.
        """

    @abstractmethod
    def drop(self, reason: str, *, avoid: bool = False) -> None:
        """End the connection, not the session; another one follows. Any thread.

        With ``avoid`` this server is tried last, from now on.
        """

    @abstractmethod
    def begin_close(self) -> None:
        """Request the end of the session with the next write, and do not wait; :meth:`close` does the rest."""

    @abstractmethod
    def close(self, timeout: float) -> bool:
        """End the session, so that the server deletes its nodes now; return ``False`` without an answer in time."""

    @abstractmethod
    def abandon_after_fork(self) -> None:
        """In a forked child, leave the parent's connection alone, without sending anything."""


class Wire(WirePort):
    """One kazoo client, started once."""

    def __init__(self, options: ConnectionOptions, listener: WireListener, *, connect_timeout: float) -> None:
        self.listener = listener
        handler = make_handler(options)
        # kazoo's default delay grows to an hour. Here a reconnect starts within about a second.
        retry = KazooRetry(
            max_tries=-1,
            delay=0.05,
            # kazoo adds up to 40 % at random. That is little for a lease, which survives an outage of 0.4 sessions.
            max_delay=min(0.7, options.session_timeout / 20),
            sleep_func=handler.sleep_func,
        )
        client = KazooClient(
            hosts=options.hosts,
            timeout=options.session_timeout,
            handler=handler,
            connection_retry=retry,
            auth_data=list(options.auth),
            use_ssl=options.use_tls,
            logger=kazoo_logger,
            **options.extra,
        )
        self._client = client
        super().__init__(client.chroot or "", parse_acl(options.acl))
        self.monitor = listener.monitor
        sasl = dict(options.sasl) if options.sasl else None
        self._connection = Connection(client, self, sasl, connect_timeout=connect_timeout)
        self.notify = self._connection.notify
        # For the connection, on its thread: lets the listener add requests to the write that follows.
        self.before_write = partial(self.notify, listener.on_wake)
        client._connection = self._connection
        self.lease = self._connection.lease
        self.wake = self._connection.wake
        client.add_listener(self._state_changed)
        # Guards the close request: close() and the end of the handshake may come in either order.
        self._ending = threading.RLock()
        self._closing = False
        # Has one element until the connection is started, which is for the thread that takes it out.
        self._unstarted = [None]
        # The close request was queued on this connection, whose thread alone uses this.
        self._close_sent = False
        # There is a session, connected or not, or there was one until it was closed.
        self._had_session = False
        # The listener was notified why the connection failed for good.
        self._failed = False

    # State, readable from any thread.

    @property
    def session_id(self) -> int | None:
        session_id: int | None = self._client._session_id
        return session_id

    @property
    def received(self) -> float:
        return self._connection.received

    def unanswered_for(self) -> float:
        connection = self._connection
        try:
            oldest = min(queue[0].at for queue in (connection.sent, connection.pings) if queue)
        except (ValueError, IndexError):  # all are answered, the last one maybe just now
            return 0.0
        return boottime() - max(oldest, connection.moved)

    @property
    def failure(self) -> str | None:
        return self._connection.failure or self._connection.endings.explain(boottime())

    @property
    def server(self) -> str:
        reason = self.failure or self._connection.attempt
        if reason:
            return f"{self.hosts} ({reason})"
        return self.peer if self._client._live.is_set() else self.hosts

    @property
    def peer(self) -> str:
        home = self._connection.home
        return self.hosts if home is None else describe(home)

    @property
    def hosts(self) -> str:
        return ",".join(join_address(host, port) for host, port in self._client.hosts)

    @property
    def addresses(self) -> int:
        return self._connection.addresses

    # Life.

    def start(self, first: Callable[[], object] | None = None) -> None:
        with contextlib.suppress(IndexError):
            logger.warning("event=kazoo_untested version=%s tested=%s", _warnings.pop(), TESTED_KAZOO)
        connection = self._connection
        try:
            self._unstarted.pop()
        except IndexError:
            return
        try:
            if first is not None:
                first()
            self._client.start_async()
        except NOT_STARTABLE as error:
            connection.failure = f"{NOT_STARTED}: {error!r}"
            self._client._stopped.set()
            # Without the thread nothing else would close the socket pair.
            with contextlib.suppress(Exception):
                connection.close()
            self._unstarted.append(None)
            raise
        connection.failure = None
        if self._closing:
            # Another thread has closed this meanwhile.
            self._client._stopped.set()

    def drop(self, reason: str, *, avoid: bool = False) -> None:
        # kazoo then reconnects.
        logger.warning("event=connection_dropped server=%s reason=%s", self.peer, reason)
        sock = self._connection._socket
        if sock is None:
            return
        if avoid:
            self._connection.avoid()
        # The shutdown of a TLS socket also discards its TLS state; then the connection's thread, if it is just reading,
        # would take encrypted bytes for plain answers. gevent keeps the plain socket inside.
        plain: Any = getattr(sock, "_sock", sock)
        with contextlib.suppress(OSError):
            if isinstance(plain, socket.SocketType):
                socket.SocketType.shutdown(plain, socket.SHUT_RDWR)
            else:
                plain.shutdown(socket.SHUT_RDWR)

    def begin_close(self) -> None:
        self.before_write = partial(self.notify, self._queue_close)
        self._connection.wake()

    def _queue_close(self) -> None:
        # T1 holds a lock, and T2 of another process waits: T2 holds as soon as the server reads the request. So it is
        # queued by the thread that writes it, after the listener has told T1 that the lock is lost.
        self.listener.on_wake()
        if not self._close_sent:
            self._close_sent = True
            self.listener.on_closing()
            self._client._queue.append((CloseInstance, None))

    def close(self, timeout: float) -> bool:
        client, connection = self._client, self._connection
        if client._stopped.is_set():
            self._closing = True
            return True
        note_end(connection._connection_routine)
        with self._ending:
            self._closing = True
            if client._live.is_set():
                self.begin_close()
            else:
                client._stopped.set()
        finished = bool(connection.connection_stopped.wait(timeout))
        client._stopped.set()
        if not finished:
            self.drop("no answer to the closing of the session")
        if finished:
            with contextlib.suppress(Exception):
                connection.close()
        return finished and (connection.session_closed or not self._had_session)

    def abandon_after_fork(self) -> None:
        """Close the descriptors of the parent's connection in a forked child, without sending anything.

        A TLS shutdown or a close request would end the parent's session. A greenlet of the connection goes on in the
        child: it would connect again, and take over the parent's session.
        """
        connection = self._connection
        self._client._stopped.set()
        self._client.handler.abandon(connection._connection_routine)
        for sock in (connection._socket, connection._read_sock, connection._write_sock):
            if sock is not None:
                with contextlib.suppress(OSError):
                    os.close(sock.detach())

    # For the requests, on the connection's thread.

    @property
    def last_zxid(self) -> int:
        newest: int = self._client.last_zxid
        return newest

    @property
    def is_live(self) -> bool:
        return bool(self._client._live.is_set())

    def _send(self, request: Any, reply: Reply) -> None:
        self._client._queue.append((request, Delivery(self.notify, reply)))
        if not self._connection.collecting:
            self._connection.wake()

    # For kazoo and the connection, on the connection's thread.

    def on_event(self, event: int, path: str) -> None:
        """Call the watches that this event ends."""
        with self.monitor:
            for watch in self.watches.triggered(event, path):
                self.notify(watch.callback, event == DELETED_EVENT)

    def connection_failed(self, reason: str) -> None:
        """Notify the listener, once, that this client will make no further session."""
        if not self._failed:
            self._failed = True
            self.end_session(reason, final=True)

    def _state_changed(self, state: str) -> None:
        # kazoo calls this between the events of the old connection and those of the new.
        if state == KazooState.CONNECTED:
            self._had_session = True
            with self._ending:
                if self._closing and self._client._stopped.is_set():
                    # close() was called during the handshake, whose session must end all the same. kazoo sends nothing
                    # while it is stopped.
                    self._client._stopped.clear()
                    self.begin_close()
            self.notify(self.listener.on_connected)
            return
        # kazoo has just failed the requests under way. Those that were queued since then would be sent after a
        # reconnect, when no caller needs their replies.
        self._client._queue.clear()
        self._close_sent = False
        with self._ending:
            if self._closing:
                # The connection ended before the close request could leave; a reconnect has no purpose.
                self._client._stopped.set()
        client_state = self._client.client_state
        if state == KazooState.LOST and client_state != KeeperState.CLOSED:
            self._had_session = False
        if state == KazooState.SUSPENDED:
            with self.monitor:
                self.watches.suspend(self._client.last_zxid)
            self.notify(self.listener.on_suspended)
        elif client_state == KeeperState.AUTH_FAILED:
            self.connection_failed(AUTH_REFUSED)
        elif client_state == KeeperState.CLOSED:
            # kazoo also reports a failure as closed, some before we know why.
            if not self._failed:
                self.end_session("the session was closed", final=True)
        else:
            self.end_session("the session expired", final=False)

    def end_session(self, reason: str, *, final: bool) -> None:
        """Notify the listener that the session is gone, and every node of it; ``final`` if there will be no other."""
        with self.monitor:
            self.watches.clear()
        self.notify(partial(self.listener.on_ended, reason, final=final))
