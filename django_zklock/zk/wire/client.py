"""One kazoo client, used for requests without waiting."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from typing import Any, Protocol

from kazoo.client import KazooClient
from kazoo.exceptions import KazooException, RolledBackError, RuntimeInconsistency
from kazoo.protocol.serialization import (
    CheckVersion,
    CloseInstance,
    Create,
    Create2,
    Delete,
    GetACL,
    GetChildren,
    GetData,
    SetData,
    Sync,
    Transaction,
)
from kazoo.protocol.states import KazooState, KeeperState, ZnodeStat
from kazoo.retry import KazooRetry

from django_zklock.zk.clock import lease_now
from django_zklock.zk.wire.connection import Answer, Connection, Reply
from django_zklock.zk.wire.handler import make_handler
from django_zklock.zk.wire.multiread import MultiRead, Read
from django_zklock.zk.wire.options import CHECKS_HOST_NAMES, ConnectionOptions, acl_entry, parse_acl
from django_zklock.zk.wire.watch import Watch, WatchBook, Watcher, removal, table

logger = logging.getLogger("django_zklock.wire")
# Got here and not at each connect: an exception that is thrown into getLogger() leaves logging locked for ever.
kazoo_logger = logging.getLogger("django_zklock.kazoo")

EPHEMERAL_SEQUENTIAL = 3
CONTAINER = 4


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
        handler = make_handler(options, patience=patience)
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
            logger=kazoo_logger,
            **options.extra,
        )
        self._connection = Connection(self._client, self, dict(options.sasl) if options.sasl else None)
        self._client._connection = self._connection
        self._client.add_listener(self._state_changed)
        self._chroot = self._client.chroot or ""
        # Guards what follows from "is to be closed" and "is connected", either of which may come first.
        self._ending = threading.RLock()
        self._closing = False
        # Whether there is a session, connected or not, or there was one until it was closed.
        self._had_session = False
        # These two are the connection's thread's own. The second: given up before kazoo has kept them.
        self._watches = WatchBook()
        self._unwanted: list[Watch] = []

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
        """End the session, so that the server frees its nodes now; ``False`` if it has not confirmed that in time."""
        client, connection = self._client, self._connection
        if client._stopped.is_set():
            return True
        with self._ending:
            self._closing = True
            if client._live.is_set():
                self._send_close()
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
        return finished and (connection.session_closed or not self._had_session)

    def _send_close(self) -> None:
        self._client._queue.append((CloseInstance, None))
        self._connection.wake_sent = False
        self._connection.wake()

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

    def create_all(
        self, stems: Sequence[str], data: bytes, reply: Callable[[tuple[list[str], int] | None, Any], None]
    ) -> None:
        """Create an ephemeral sequential node at each stem, all or none.

        The reply has their names, in the order of the stems, and the one transaction id that created them all.
        """

        def read(outcomes: list[Any] | None, error: KazooException | None) -> None:
            if outcomes is None:
                reply(None, error)
            else:
                # Replies are handed on as they are read, so this is the transaction of the reply at hand.
                reply(([name.rpartition("/")[2] for name in outcomes], self._client.last_zxid), None)

        self._transact([Create(self._chroot + stem, data, self.acl, EPHEMERAL_SEQUENTIAL) for stem in stems], read)

    def delete_while(self, path: str, others: Sequence[str], reply: Reply) -> None:
        """Delete a node, whatever its version, if all ``others`` are there at that moment; else nothing."""
        checks = [CheckVersion(self._chroot + other, -1) for other in others]
        self._transact([*checks, Delete(self._chroot + path, -1)], reply)

    def delete_noted(self, path: str, version: int, note: tuple[str, bytes, int], reply: Reply) -> None:
        """Delete a node of that version and write to another, or neither; ``note`` has its path, data and version."""
        place, data, note_version = note
        self._transact([SetData(self._chroot + place, data, note_version), Delete(self._chroot + path, version)], reply)

    def _transact(self, requests: list[Any], reply: Reply) -> None:
        """Do all or nothing; the reply has the outcome of each, or the error of the one that failed."""

        def read(outcomes: list[Any] | None, error: KazooException | None) -> None:
            # The others of a failed multi are only told that they were undone.
            errors = [each for each in outcomes or () if isinstance(each, Exception)]
            blame = [each for each in errors if not isinstance(each, (RolledBackError, RuntimeInconsistency))]
            if outcomes is None or errors:
                reply(None, error or (blame or errors)[0])
            else:
                reply(outcomes, None)

        self._send(Transaction(requests), read)

    def children(
        self, path: str, reply: Callable[[list[str] | None, Any], None], watcher: Watcher | None = None
    ) -> Callable[[], None]:
        """List the names of the children, and watch for new and vanishing ones; gives what takes the watch off."""
        return self._read(GetChildren, path, reply, watcher)

    def get(
        self,
        path: str,
        reply: Callable[[tuple[bytes, ZnodeStat] | None, Any], None],
        watcher: Watcher | None = None,
    ) -> Callable[[], None]:
        """Read data and stat, and watch the node if it is there; gives what takes the watch off again.

        Never ``exists``: on a missing node it would leave a watch behind.
        """
        return self._read(GetData, path, reply, watcher)

    def read_many(self, reads: Sequence[Read], reply: Callable[[list[Any] | None, Any], None]) -> None:
        """Do all ``reads`` in one request; the reply has an outcome for each, see :class:`MultiRead`.

        A server before ZooKeeper 3.6 answers that it does not know the request.
        """
        self._send(MultiRead([read._replace(path=self._chroot + read.path) for read in reads]), reply)

    def _read(
        self, request: type[GetData | GetChildren], path: str, reply: Reply, watcher: Watcher | None
    ) -> Callable[[], None]:
        full = self._chroot + path
        if watcher is None:
            self._send(request(full, None), reply)
            return lambda: None
        watch = self._watches.open((request.type, full), partial(self.tell, watcher))

        def answered(value: Any, error: KazooException | None) -> None:
            if error is not None:
                self._watches.strike(watch)
            reply(value, error)
            if not self._watches.wants(watch):
                # kazoo keeps the watch only after this.
                self._unwanted.append(watch)

        self._send(request(full, watch), answered)
        return partial(self._unwatch, watch)

    def _unwatch(self, watch: Watch) -> None:
        if self._watches.strike(watch):
            self._drop_watch(watch)
            if not self._watches.is_watched(watch.place):
                self._send(removal(watch), lambda _value, _error: None)

    def _drop_watch(self, watch: Watch) -> None:
        kept, path = table(self._client, watch), watch.place[1]
        here = kept.get(path)
        if here is not None:
            here.discard(watch)
            if not here:
                del kept[path]

    def acl_of(self, path: str, reply: Callable[[list[str] | None, Any], None]) -> None:
        """Read who may do what to a node, as entries ``scheme:id:perms`` with perms out of ``cdrwa``."""

        def read(value: tuple[list[Any], ZnodeStat] | None, error: KazooException | None) -> None:
            reply(None if value is None else [acl_entry(each) for each in value[0]], error)

        self._send(GetACL(self._chroot + path), read)

    def set(self, path: str, data: bytes, reply: Reply, *, version: int = -1) -> None:
        """Replace the data of a node, whatever its version unless one is given."""
        self._send(SetData(self._chroot + path, data, version), reply)

    def delete(self, path: str, reply: Reply, *, version: int = -1) -> None:
        """Delete a node, whatever its version unless one is given."""
        self._send(Delete(self._chroot + path, version), reply)

    def sync(self, path: str) -> None:
        """Have the server catch up with the leader before it answers what follows."""
        self._send(Sync(self._chroot + path), lambda _value, _error: None)

    def ping(self) -> None:
        """Have the server hear of us with what leaves now, by a ping if nothing does.

        kazoo pings when it has been idle for a third of the session timeout, and takes every wake-up, even one that
        sends nothing, for an end of idleness. So whoever wakes it often must do this, or the session ends.
        """
        self._connection.ping_due = True

    def _send(self, request: Any, reply: Reply) -> None:
        self._client._queue.append((request, Answer(reply, self.listener.monitor)))
        self._connection.wake()

    def tell(self, method: Callable[..., None], *arguments: Any, **options: Any) -> None:
        """Call a listener's method; an error in it must not end kazoo's connection thread."""
        try:
            with self.listener.monitor:
                method(*arguments, **options)
        except Exception:
            logger.exception("event=listener_failed method=%r", method)

    def _state_changed(self, state: str) -> None:
        # kazoo calls this on the connection's thread, between the events of the old connection and the new.
        listener = self.listener
        # Before the connection of which this tells, and after the one that is gone, nothing is watched.
        self._watches.clear()
        if state == KazooState.CONNECTED:
            self._had_session = True
            with self._ending:
                if self._closing and self._client._stopped.is_set():
                    # Asked for during the handshake. The session that has come of it is to end all the same, and
                    # kazoo 2.10 sends nothing once it is stopped.
                    self._client._stopped.clear()
                    self._send_close()
            self.tell(listener.on_connected)
            return
        # kazoo has just failed what was under way. What came to the queue since then would be sent after a
        # reconnect, when nobody waits for it any more.
        self._client._queue.clear()
        with self._ending:
            if self._closing:
                # The connection went before the request to close could; there is nothing to come back for.
                self._client._stopped.set()
        if state == KazooState.LOST and self._client.client_state != KeeperState.CLOSED:
            self._had_session = False
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
            self._drop_watch(self._unwanted.pop())
