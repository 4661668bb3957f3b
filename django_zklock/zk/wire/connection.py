"""The connection of a client: the rounds over its servers, the handshake with one of them, and kazoo's handlers.

The handlers are changed to wait by ``poll``, and to start no thread for callbacks: ours never block.
"""

from __future__ import annotations

import contextlib
import errno
import random
import select
import ssl
import sys
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

from kazoo.client import KazooClient
from kazoo.exceptions import AuthFailedError, ConnectionDropped, SessionExpiredError, ZookeeperError
from kazoo.handlers.threading import SequentialThreadingHandler
from kazoo.protocol.connection import STOP_CONNECTING
from kazoo.protocol.serialization import CloseInstance, Connect, Sync
from kazoo.retry import ForceRetryError

from django_zklock.zk.waiting import AutoResetEvent, Deadline, boottime, serve
from django_zklock.zk.wire.exchange import ConnectionListener, Exchange, StrangeAnswerError, UnsupportedServerError
from django_zklock.zk.wire.names import Address, Names, describe
from django_zklock.zk.wire.options import (
    DATA_LOST,
    NOT_ACCEPTED,
    NOT_KNOWN,
    NOT_RESOLVED,
    REFUSED,
    ConnectionOptions,
    explain,
    tls_context,
)
from django_zklock.zk.wire.requests import is_temporary

Poller = Callable[[float], list[tuple[int, int]]]
"""Waits for at most some milliseconds, and returns the descriptors that are ready, each with an event, as ``poll``."""

# select.POLLIN, which gevent and eventlet remove from the module.
READABLE = 1

# Seconds that an attempt to connect has at least, however little is left of the lease.
MIN_ATTEMPT = 0.05
# The share of the connect timeout for which a round waits for names to be looked up.
RESOLVE_SHARE = 1 / 5
# How many servers are avoided at most: more than an ensemble has. Addresses that nothing has any more take no room.
MAX_AVOIDED = 16
# How often a session is refused, by servers that take new ones and have lost nothing, before it is given up. Behind one
# address there may be a server that only just starts, beside those that serve.
MAX_DOUBTS = 8


class _ServesError(Exception):
    """The server takes new sessions; with the newest transaction that it has then, or 0 if it does not tell."""

    def __init__(self, zxid: int) -> None:
        super().__init__(zxid)
        self.zxid = zxid


class Connection(Exchange):
    """One client's connection: the rounds over its servers, and the handshake with one."""

    def __init__(
        self,
        client: KazooClient,
        listener: ConnectionListener,
        sasl_options: dict[str, Any] | None,
        *,
        connect_timeout: float,
    ) -> None:
        super().__init__(client, listener, sasl_options=sasl_options)
        self.retry_sleeper.sleep_func = lambda seconds: self.handler.sleep_func(self._within_lease(seconds))
        self._connect_timeout = connect_timeout
        self._names = Names(client.hosts)
        # How many addresses the last round has tried, 0 before the first.
        self.addresses = 0
        # How many equal shares of the connect timeout an address has: more after each round in vain.
        self._shares = 1
        # The address of the attempt under way, and the one that has accepted the session last.
        self._address: Address | None = None
        self.home: Address | None = None
        # Those that are tried after all others, in the order in which they were left.
        self._avoided: deque[Address] = deque(maxlen=MAX_AVOIDED)
        # What is being tried; and why connecting has failed, None if it succeeded.
        self.attempt = ""
        self.failure: str | None = None
        # In this round over the servers: one has accepted the session; one has closed the connection instead; the
        # round must find out whether the session is over.
        self._accepted = self._refused = self._doubting = False
        # In the round before, one has closed the connection instead.
        self._refused_before = False
        # How often the session was refused since then where a new one was not.
        self._doubts = 0
        # The handshake under way tests whether a server accepts new sessions, or it replaces the session, for a reason.
        self._probing = False
        self._given_up_for: str | None = None

    def zk_loop(self) -> None:
        serve(self._run)

    def _run(self) -> None:
        # The caller of Wire.close() may not wait for this thread, which then closes its socket pair itself.
        try:
            super().zk_loop()
        except UnsupportedServerError:
            pass  # the listener knows
        except Exception as error:  # noqa: BLE001 - kazoo has logged it, but no caller would know of the thread's end
            self._listener.connection_failed(f"the connection failed: {error!r}")
        finally:
            self.close()

    @property
    def server_limit(self) -> float:
        """Seconds that one address has to accept the session: an equal share of the connect timeout, and later more."""
        return min(self._connect_timeout, self._shares * self._connect_timeout / max(1, self.addresses))

    def avoid(self) -> None:
        """Try the server of this connection, or of the last one, after all others from now on; any thread."""
        if self.home is not None:
            self._avoided.append(self.home)

    def _expand_client_hosts(self) -> list[Address]:
        """Return the addresses of a round, in its order.

        A session lives in one ensemble, and the servers of any other one end it: they answer that it has expired. What
        DNS says may be wrong, or new, so a session is resumed where it was accepted last, if it can be.
        """
        self.attempt = f"no answer to the look-up of {', '.join(self._names.names)}" if self._names.names else ""
        share = self._within_lease(RESOLVE_SHARE * self._connect_timeout)
        found, failures = self._names.resolve(Deadline.after(share))
        for name, reason in failures.items():
            self.report(f"Cannot resolve {name}: {reason}")
        if not found:
            # kazoo then connects to no server, and says nothing of names.
            reasons = ", ".join(f"{name}: {reason}" for name, reason in failures.items())
            self.failure = f"{NOT_RESOLVED}: {reasons}"
        if self.client.randomize_hosts:
            random.shuffle(found)
        left = {address: number for number, address in enumerate(self._avoided.copy(), 1)}
        found.sort(key=lambda address: left.get(address, 0))
        home = self.home if self.client._session_id else None
        if home is not None and (home not in left or home not in found):
            found = [home, *(address for address in found if address != home)]
        self.addresses = len(found)
        return found

    def _connect_loop(self, retry: Any) -> Any:
        """Try all servers, one after the other, and use the first that accepts the session, until its connection ends.

        Names are looked up for each round. So when a connection has ended, the next addresses are not those of a time
        when it began, which may belong to others by now.

        A server that has seen less than this client refuses it: it closes the connection. If the ensemble has lost its
        data, or was restored from a backup, all servers refuse for ever, and kazoo never starts a new session. A server
        without a quorum closes the connection too, but the session may survive that. So if a whole round was refused
        after the session timeout has passed, the next round finds out which of the two it is: a new session shows
        whether there is a quorum, and what it has.
        """
        timeout = self.lease.timeout if self.client._session_id else None
        is_past = timeout is not None and boottime() >= self.received + timeout
        self._refused_before = self._refused and not self._accepted
        self._doubting = not self._doubting and self._refused_before and is_past
        self._refused = self._accepted = False
        for address in self._expand_client_hosts():
            if self.client._stopped.is_set() or self._connect_attempt(*address, retry) is STOP_CONNECTING:
                return STOP_CONNECTING
            if self._accepted:
                break
        else:
            # Maybe because all are slow.
            self._shares = min(2 * self._shares, max(1, self.addresses))
        raise ForceRetryError("the next round")

    def _within_lease(self, seconds: float) -> float:
        """Return at most half of what is left of the lease.

        A server, or a proxy before it, that accepts the connection and never answers must not use up the lease: several
        attempts, and the pauses between them, fit into what is left.
        """
        left = self.lease.end - boottime()
        return min(seconds, max(MIN_ATTEMPT, left / 2)) if left > 0 else seconds

    def _connect(self, host: str, hostip: str, port: int) -> Any:
        connect = self._connect_in_doubt if self._doubting else self._shake_hands
        self._address = host, hostip, port
        address = describe(self._address)
        # Where HOSTS is one address, an error names it anyway.
        is_alone = host == hostip and len(self.client.hosts) == 1
        self.attempt = "" if is_alone else f"{address} has not accepted yet"
        at = "" if is_alone else f"{address}: "
        try:
            timeouts = connect(host, hostip, port)
        except RuntimeError as error:  # kazoo's, for an answer to another request, or a code that it does not know
            self.failure = f"{at}the answer to the authentication cannot be used: {error}"
            raise ConnectionDropped(self.failure) from error
        except Exception as error:
            failure = at + explain(str(error) or type(error).__name__)
            # Without a quorum some servers are down, and the others close the connection. That says more, whichever
            # server was tried last; so it stays until no server has done so for a whole round.
            if NOT_ACCEPTED in failure or not (self._refused or self._refused_before):
                self.failure = failure
            raise
        self.failure, self.attempt = None, ""
        self.endings.begin(boottime(), self.lease.timeout or 0.0)
        self._accepted = True
        self._shares, self._doubts = 1, 0
        return timeouts

    def _connect_in_doubt(self, *arguments: Any) -> Any:
        """Begin a new session if the servers have lost data, or refuse the old one again and again.

        Behind one address may be several servers, so a refusal says nothing about the server that takes new sessions.
        """
        zxid = 0
        try:
            with self._anonymous():
                self._probing = True
                self._shake_hands(*arguments)
        except _ServesError as answer:
            zxid = answer.zxid
        finally:
            self._probing = False
            if self._socket is not None:
                self._socket.close()
        reason = DATA_LOST if 0 < zxid < self.client.last_zxid else REFUSED
        if reason is REFUSED:
            self._refused = False
            try:
                return self._shake_hands(*arguments)
            except ConnectionDropped:
                self._doubts += self._refused
                if not self._refused or self._doubts < MAX_DOUBTS:
                    raise
                self._socket.close()
        with self._anonymous():
            self._given_up_for = reason
            try:
                return self._shake_hands(*arguments)
            finally:
                self._given_up_for = None

    def _shake_hands(self, *arguments: Any) -> Any:
        # The buffer is of an earlier socket.
        self._buffer, self._position = b"", 0
        # kazoo allows each server the whole session timeout, and a server that is switched off would use all of it.
        limit = min(self.client._session_timeout / 1000.0, self.server_limit)
        self.handler.attempt = Deadline.after(self._within_lease(limit))
        try:
            return super()._connect(*arguments)
        except (AuthFailedError, SessionExpiredError):
            raise
        except ZookeeperError as error:  # the answer to the authentication
            kind = ConnectionDropped if is_temporary(error) else AuthFailedError
            raise kind(f"the answer to the authentication is {error!r}") from error

    def _authenticate_with_sasl(self, host: str, timeout: float) -> None:
        try:
            super()._authenticate_with_sasl(host, self.handler.attempt.capped(timeout).remaining())
        except AuthFailedError as error:
            # kazoo takes the end of the connection for a refusal. ZooKeeper answers wrong credentials with an error
            # (``ZooKeeperServer.processSasl``).
            if isinstance(error.__cause__, ConnectionDropped):
                raise error.__cause__ from None
            raise

    def _end_probe(self) -> int:
        """End a new session that was only a test, and return the newest transaction, 0 if the server does not tell."""
        zxid = None
        # One that demands an identity answers with an error, and closes the connection.
        with contextlib.suppress(ConnectionDropped, ZookeeperError):
            # By its answer the server has what the leader had.
            zxid = super()._invoke(self.handler.attempt.remaining(), Sync("/"), xid=1)
            super()._submit(CloseInstance, self.handler.attempt.remaining(), xid=2)
        return zxid or 0

    def _may_be_elsewhere(self, session_id: int) -> bool:
        """Whether another server may know a session that the one of this handshake does not know.

        It may belong to another ensemble. Where the session was accepted last, and when it has outlived its timeout, it
        is over.
        """
        timeout = self.lease.timeout
        may_live = bool(session_id) and timeout is not None and boottime() < self.received + timeout
        return may_live and self._address != self.home

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
        sent, timeout = boottime(), self.handler.attempt.remaining()
        try:
            outcome = super()._invoke(timeout, request, xid)
        except ConnectionDropped as error:
            if not isinstance(request, Connect) or isinstance(error, StrangeAnswerError):
                raise
            self._refused = True
            raise ConnectionDropped(f"{NOT_ACCEPTED}: {error}") from error
        if isinstance(request, Connect) and outcome[0].time_out <= 0 and self._may_be_elsewhere(request.session_id):
            raise ConnectionDropped(NOT_KNOWN)
        if isinstance(request, Connect) and outcome[0].time_out > 0:
            if self._probing:
                raise _ServesError(self._end_probe())
            if self._given_up_for is not None:
                # Before the lease begins again: locks that were held in the old session must not be covered by it.
                self._listener.end_session(self._given_up_for, final=False)
            self.home, self.attempt = self._address, ""
            self.sent.clear()
            self.pings.clear()
            self.received = boottime()
            moved = outcome[0].session_id == request.session_id
            self.lease.connected(outcome[0].time_out / 1000.0, sent, self.received, moved=moved)
        return outcome


class _InlineHandler:
    """The changes to each of kazoo's handlers."""

    # By then the server that is being connected to must have accepted; the connection sets it.
    attempt = Deadline(None)
    # Returns a new TLS context for each connection: certificates may have been renewed.
    tls: Callable[[], ssl.SSLContext] | None = None

    def create_connection(self, address: Any, timeout: float, hostname: str | None = None, **_tls: Any) -> Any:
        # kazoo's own TLS code leaks the socket if the handshake fails.
        timeout = self.attempt.capped(timeout).remaining()  # type: ignore[assignment]
        try:
            sock = super().create_connection(address, timeout=timeout)  # type: ignore[misc]
            if self.tls is None:
                return sock
            try:
                return self.tls().wrap_socket(sock, server_hostname=hostname)
            except BaseException:
                sock.close()
                raise
        except OSError as error:
            # kazoo reports what a system call says, and a timeout is none.
            if error.strerror is not None:
                raise
            raise TimeoutError(errno.ETIMEDOUT, str(error) or "timed out") from error

    def poller(self, readers: list[Any], writers: Sequence[Any] = ()) -> Poller:
        """Return what waits until one of ``readers`` is readable, or one of ``writers`` writable."""
        with_tls, sleep = [sock for sock in readers if hasattr(sock, "pending")], self.sleeper(readers, writers)

        def wait(milliseconds: float) -> list[tuple[int, int]]:
            # Bytes that TLS has decrypted already do not make the socket readable.
            return [(sock.fileno(), READABLE) for sock in with_tls if sock.pending()] or sleep(milliseconds)

        return wait if with_tls else sleep

    def sleeper(self, readers: list[Any], writers: Sequence[Any]) -> Poller:
        def sleep(milliseconds: float) -> list[tuple[int, int]]:
            readable, writable, _ = self.select(readers, writers, [], milliseconds / 1000)  # type: ignore[attr-defined]
            return [(sock.fileno(), READABLE) for sock in (*readable, *writable)]

        return sleep

    def abandon(self, routine: Any) -> None:
        """In a forked child: end what has run the connection. A thread is not there any more."""

    def start(self) -> None:
        """Start nothing."""

    stop = start


class _InlineGeventHandler(_InlineHandler):
    def abandon(self, routine: Any) -> None:
        if routine is not None:
            routine.kill(block=False)


class _Event:
    """An event for kazoo that no exception can leave locked; see AutoResetEvent."""

    __slots__ = ("_is_set", "_waiting")

    def __init__(self) -> None:
        self._is_set = False
        # Adding to a set, discarding from it and copying it are atomic.
        self._waiting: set[AutoResetEvent] = set()

    def is_set(self) -> bool:
        return self._is_set

    def set(self) -> None:
        self._is_set = True
        for event in list(self._waiting):
            event.set()

    def clear(self) -> None:
        self._is_set = False

    def wait(self, timeout: float | None = None) -> bool:
        event = AutoResetEvent()
        self._waiting.add(event)
        try:
            # Read after the event is registered, so that a set() in between is not missed.
            return self._is_set or event.wait(timeout)
        finally:
            self._waiting.discard(event)


class ThreadingHandler(_InlineHandler, SequentialThreadingHandler):
    # Not for greenlets: gevent and eventlet have their own.

    def sleeper(self, readers: list[Any], writers: Sequence[Any]) -> Poller:
        # kazoo builds, fills and closes a selector, with a descriptor of its own, for each wait.
        poll = select.poll()
        for sock in readers:
            poll.register(sock, READABLE)
        for sock in writers:
            poll.register(sock, select.POLLOUT)
        return poll.poll

    # Greenlets are interrupted only where they wait.
    def event_object(self) -> Any:
        return _Event()


def make_handler(options: ConnectionOptions) -> Any:
    """Return the handler for one client, for what is monkey-patched in this process."""
    handler_class: type = ThreadingHandler
    gevent_monkey, eventlet_patcher = sys.modules.get("gevent.monkey"), sys.modules.get("eventlet.patcher")
    if gevent_monkey is not None and gevent_monkey.is_module_patched("socket"):
        from kazoo.handlers.gevent import SequentialGeventHandler

        handler_class = type("GeventHandler", (_InlineGeventHandler, SequentialGeventHandler), {})
    elif eventlet_patcher is not None and eventlet_patcher.is_monkey_patched("socket"):
        from kazoo.handlers.eventlet import SequentialEventletHandler

        handler_class = type("EventletHandler", (_InlineHandler, SequentialEventletHandler), {})
    handler: Any = handler_class()
    if options.use_tls:
        handler.tls = partial(tls_context, options)
    return handler
