"""One ZooKeeper session: its lease, its heartbeat, and what lives in it.

Threads. User threads never touch the machine: they :meth:`Session.post`. What is posted, every reply, watch
event and change of state runs under ``monitor``, on the connection's thread while there is a connection and
on the clock's thread while there is none. So an exception thrown into a user thread, at any instruction,
cannot leave a half-made transition behind, and a signal handler may release a lock.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol
from weakref import WeakValueDictionary

from django_zklock.zk.clock import Clock, Timer, lease_now
from django_zklock.zk.glances import Glances
from django_zklock.zk.lookout import Lookout
from django_zklock.zk.wire import ConnectionOptions, Wire

logger = logging.getLogger("django_zklock.session")

HEARTBEATS_A_SESSION = 6
# The share of the session timeout for which an answer is fresh enough to act on without asking again.
FRESHNESS = 2 / 3
# The share of the session timeout after which silence means a dead link. It is looked for at each heartbeat, so what
# was sent with one is found unanswered at the fourth after it, and a third of the session is left to reconnect.
SILENCE = 0.6


class Tenant(Protocol):
    """What lives in a session and hears of it; every method is called under the session's monitor."""

    def suspended(self) -> None:
        """The connection is gone, and with it every outstanding reply and every watch."""

    def resumed(self) -> None:
        """There is a connection again, of the same session or of a new one."""

    def session_ended(self, reason: str, /) -> None:
        """The session is gone, and its nodes with it."""

    def unavailable(self, reason: str, /) -> None:
        """There has been no connection for too long."""

    def heartbeat(self) -> None:
        """A sixth of the session timeout has gone by."""

    def lose(self, reason: str, /) -> None:
        """What was held can no longer be trusted."""


class Session:
    """A session that any number of locks share.

    Readable from any thread: ``connected``, ``id``, ``epoch`` (+1 whenever the connection goes), ``ended`` (why
    this session object can serve nobody any more, or ``None``), ``server``. Times are seconds.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        *,
        clock: Clock,
        name: str,
        patience: float,
        strict: bool = False,
    ) -> None:
        self.name = name
        self.monitor: AbstractContextManager[Any] = threading.RLock()
        self.connected = False
        self.id: int | None = None
        self.epoch = 0
        self.ended: str | None = None
        self.closing = False
        # Whether the server knows container nodes (ZooKeeper 3.5); cleared by the first refusal.
        self.containers = True
        # Whether it knows many reads in one request (ZooKeeper 3.6); cleared likewise. One that does not closes the
        # connection as well, so nobody may try who would lose locks by that.
        self.multireads = not strict
        self.wire = Wire(options, self, patience=patience)
        # What the tenants want to read at a heartbeat.
        self.glances = Glances(self)
        self._requested_timeout = options.session_timeout
        self._clock = clock
        self._patience = patience
        self._strict = strict
        self._inbox: deque[Callable[[], object]] = deque()
        # Guarded by monitor. A dict for its order: after a reconnect the oldest goes first.
        self._tenants: dict[Tenant, None] = {}
        # Full paths of nodes that we have asked the server to delete, guarded by monitor.
        self.departing: set[str] = set()
        # Each lives as long as somebody stands in its line.
        self._lookouts: WeakValueDictionary[str, Lookout] = WeakValueDictionary()
        self._beating = False
        self._timers: list[Timer] = []

    def __repr__(self) -> str:
        state = "connected" if self.connected else self.ended or "disconnected"
        return f"<Session {self.name} id=0x{self.id or 0:x} {state} server={self.server}>"

    # For user threads.

    def start(self) -> None:
        """Begin to connect, without waiting."""
        with self.monitor:
            self._watch_outage()
        self.wire.start()

    def post(self, call: Callable[[], object]) -> None:
        """Have ``call`` run by the machine, soon and in order. Never blocks, never raises."""
        self._inbox.append(call)
        # Read after the append: if the connection goes meanwhile, on_suspended finds the call.
        if self.connected:
            self.wire.wake()
        else:
            self._clock.call_later(0, self._drain_while_away)

    @property
    def server(self) -> str:
        """The server that we are connected to, or the ensemble."""
        return self.wire.server

    @property
    def timeout(self) -> float:
        """The session timeout: negotiated, or what we ask for as long as there was no session."""
        return self.wire.session_timeout or self._requested_timeout

    @property
    def lease_end(self) -> float:
        """Until when, by the lease clock, the session surely lives at the server."""
        return self.wire.acked + self.timeout

    @property
    def lease_over(self) -> bool:
        """Whether the session may have ended at the server without our knowing."""
        return lease_now() >= self.lease_end

    @property
    def lease_fresh(self) -> bool:
        """Whether ZooKeeper has answered so lately that what it told since then is surely no old news."""
        return self.connected and lease_now() < self.wire.acked + self.timeout * FRESHNESS

    def close(self, timeout: float) -> bool:
        """End the session at the server, which frees its locks; ``False`` if that was not confirmed in time."""
        self.closing = True
        closed = self.wire.close(timeout)
        # kazoo is silent about the end of what was not connected.
        self.post(self._closed)
        return closed

    def forget(self) -> None:
        """In a forked child: drop everything without touching the parent's session."""
        self.ended = "it belongs to the parent process"
        self.connected = False
        self.wire.forget()

    # For tenants, under monitor.

    def attach(self, tenant: Tenant) -> None:
        """Have ``tenant`` hear of the session from now on."""
        if self.ended is not None:
            tenant.unavailable(self.ended)
            return
        self._tenants[tenant] = None
        if not self._beating:
            self._beating = True
            self._clock.call_later(self.timeout / HEARTBEATS_A_SESSION, self._beat)

    def detach(self, tenant: Tenant) -> None:
        """Have ``tenant`` hear no more."""
        self._tenants.pop(tenant, None)

    def lookout(self, path: str) -> Lookout:
        """Give what the tenants in the line at ``path`` share. Any thread may ask."""
        # Two who are first at once may make two: they share less, and that is all.
        lookout = self._lookouts.get(path)
        if lookout is None:
            lookout = self._lookouts[path] = Lookout(self, path)
        return lookout

    # WireListener, under monitor.

    def on_wake(self) -> None:
        while self._inbox:
            call = self._inbox.popleft()
            try:
                call()
            except Exception:
                logger.exception("event=post_failed session=%s call=%r", self.name, call)

    def on_connected(self) -> None:
        self._cancel_timers()
        # While `connected` is still False nothing is sent for what was posted, and given up, during the outage.
        self.on_wake()
        self.id = self.wire.session_id
        self.connected = True
        logger.info(
            "event=connected session=%s id=0x%x server=%s timeout=%s",
            self.name,
            self.id or 0,
            self.server,
            self.timeout,
        )
        for tenant in list(self._tenants):
            tenant.resumed()

    def on_suspended(self) -> None:
        self._disconnected()
        logger.warning("event=suspended session=%s id=0x%x", self.name, self.id or 0)
        for tenant in list(self._tenants):
            tenant.suspended()
            if self._strict:
                tenant.lose("the connection to ZooKeeper was suspended")
        self._later(self.lease_end - lease_now(), self._lose_lease)
        self._watch_outage()

    def on_ended(self, reason: str, *, final: bool) -> None:
        self._disconnected()
        if self.id is not None:
            # Being closed is what was asked for; the other ends are news.
            level = logging.DEBUG if self.closing else logging.WARNING
            logger.log(level, "event=session_ended session=%s id=0x%x reason=%s", self.name, self.id, reason)
        self.id = None
        if final:
            self.ended = reason
        for tenant in list(self._tenants):
            tenant.session_ended(reason)
            if final:
                tenant.unavailable(reason)
        if not final:
            self._watch_outage()

    def _closed(self) -> None:
        if self.ended is None:
            self.on_ended("the session was closed", final=True)

    def _disconnected(self) -> None:
        self.connected = False
        self.epoch += 1
        self.departing.clear()
        self._cancel_timers()
        self.on_wake()

    # On the clock's thread.

    def _drain_while_away(self) -> None:
        with self.monitor:
            # Connected meanwhile: on_connected has run the inbox, or our own wake-up is needed.
            if self.connected:
                self.wire.wake()
            else:
                self.on_wake()

    def _watch_outage(self) -> None:
        # A place in the line may live as long as the session; then a reconnect gets the time of a first connect.
        surely_gone = max(0.0, self.lease_end - lease_now()) if self.id is not None else 0.0
        self._later(surely_gone + self._patience, self._give_up)

    def _give_up(self) -> None:
        with self.monitor:
            if not self.connected:
                for tenant in list(self._tenants):
                    tenant.unavailable("there has been no connection for too long")

    def _lose_lease(self) -> None:
        with self.monitor:
            if not self.connected and self.lease_over:
                for tenant in list(self._tenants):
                    tenant.lose("the lease ran out while ZooKeeper could not be reached")

    def _beat(self) -> None:
        with self.monitor:
            if not self._tenants or self.ended is not None:
                self._beating = False
                return
            if self.connected:
                if self.wire.silent_for() > self.timeout * SILENCE:
                    self.wire.drop("nothing has been received for too long")
                else:
                    self.post(self._show_life)
            self._clock.call_later(self.timeout / HEARTBEATS_A_SESSION, self._beat)

    def _show_life(self) -> None:
        if self.connected:
            for tenant in list(self._tenants):
                tenant.heartbeat()
            self.glances.send()
            # Waiters ask nothing.
            self.wire.ping()

    def _later(self, delay: float, call: Callable[[], None]) -> None:
        self._timers.append(self._clock.call_later(max(0.0, delay), call))

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()
