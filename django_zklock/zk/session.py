"""One ZooKeeper session: its lease, its heartbeat, its pauses, and the listeners that live in it.

Threads. Threads of users never run the state machines of this package: they :meth:`Session.post` calls. Posted calls,
replies, watch events and changes of state run under ``monitor``, on the connection's thread while there is a connection
and on the timer thread while there is none. So an exception that is raised in a user's thread, at any instruction,
cannot leave a transition half done, and a signal handler may release a lock.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING, Any
from weakref import WeakValueDictionary

from django_zklock.zk import wire
from django_zklock.zk.background import DeferredLogger
from django_zklock.zk.strays import Strays
from django_zklock.zk.system import MACHINE, System, Timer, Timers
from django_zklock.zk.waiting import NOT_STARTABLE
from django_zklock.zk.wire import ConnectionOptions

if TYPE_CHECKING:
    from django_zklock.zk.wire import KazooException

logger = DeferredLogger("django_zklock.session")

_Use = Callable[[Any, "Exception | None"], None]

# A heartbeat comes a little later than the margin of a lease (see wire.lease) after the one before, on which its
# proof builds. A proof leaves a lease of 0.83 of the session timeout. That is enough for the heartbeat that follows
# too, so every second one is a proof, and more than a half is left when it is due.
HEARTBEATS_PER_SESSION = 7
# The share of the session timeout that a heartbeat leaves as it is. A busy process sends heartbeats late, so this is
# less than the 0.69 that are left one heartbeat after a proof.
ENOUGH = 0.66
# So many heartbeats without a listener are sent, for the one that may come next: four session timeouts, a minute by
# default. After that the connection pings, which a follower answers by itself (``wire.exchange``).
IDLE_HEARTBEATS = 4 * HEARTBEATS_PER_SESSION
# The share of the session timeout after which silence means a dead link: nothing has come, not even a part of an
# answer. It is checked at each heartbeat, so a request of one heartbeat is found unanswered at the second one after it;
# a quarter of the timeout is left to reconnect.
MAX_SILENCE = 0.25
# Where the loss of a connection is the loss of its locks, silence is tolerated for one heartbeat more. The lease allows
# that.
STRICT_MAX_SILENCE = 0.4
# How many held nodes are watched in one write. The next proof of the lease waits for the answers: some 20 kB, half a
# second on a link of 40 kB/s.
MAX_WATCHES_PER_WRITE = 64

# The share of the session timeout after which an answer is late: that of a heartbeat, nearly.
SLOW = 0.13

# Seconds of the pause after a refusal that passes. It doubles from the first to the last while refusals continue. Half
# of it is random, so that the clients of an overloaded server do not all come back at once.
FIRST_PAUSE = 0.05
LAST_PAUSE = 0.5

# Why a connection is dropped when a write was answered and the lease is over all the same.
LEASE_OVER = "the lease ran out"
# Why a hold is lost whose lease ends while there is a connection.
STOOD_STILL = "the lease ran out: this process or its connection stood still for too long"


class SessionListener:
    """What lives in a session. Every method is called under the session's monitor, and does nothing by default."""

    # Thousands may wait in one process.
    __slots__ = ()

    @property
    def needs_lease(self) -> bool:
        """Whether the lease is to be kept: for a hold, or for a grant that needs no request then."""
        return False

    @property
    def is_held(self) -> bool:
        """Whether a lock is held, which a strict session loses with its connection."""
        return False

    def suspended(self) -> None:
        """The connection is lost, and with it all open requests and all watches."""

    def resumed(self) -> None:
        """There is a connection again, of the same session or of a new one."""

    def watches_restored(self) -> None:
        """The server has all watches again, and has told what has happened since it had them."""

    def session_ended(self, reason: str, /) -> None:
        """The session has ended, and its nodes are deleted."""

    def unavailable(self, reason: str, /) -> None:
        """There has been no connection for too long, or the session has ended for good."""

    def heartbeat(self) -> None:
        """Time to look after what is held: there is a connection again, or it is the end of a heartbeat (each T/7)."""

    def lose(self, reason: str, /) -> None:
        """What is held can no longer be trusted."""


class Session:
    """A session that many locks share: as many as its end can be written for in one transaction.

    When a session ends, ZooKeeper writes one transaction with the paths of all its nodes. A server that cannot read a
    transaction of that length does not follow and does not start any more, so ``budget`` limits the bytes of these
    paths. A contender for which there is no room asks ``overflow`` for another session, with the bytes that it needs;
    that returns the session, or raises ``ConnectionError`` or ``RuntimeError`` if there is none.

    Readable from any thread: ``connected``, ``id``, ``epoch`` (+1 whenever the connection is lost), ``ended`` (why this
    object can serve no caller any more, or ``None``), ``pid`` (whose process may use it, 0 in a fork),
    ``used`` (bytes of the budget), ``listeners``, ``has_room``. Times are seconds.
    """

    def __init__(
        self,
        options: ConnectionOptions,
        *,
        timers: Timers,
        name: str,
        connect_timeout: float,
        budget: int,
        overflow: Callable[[int], Session],
        strict: bool = False,
        system: System = MACHINE,
    ) -> None:
        self.name = name
        self.system = system
        # A child may get the number of its parent: in another container, or when numbers have come round. So it is 0
        # in a child that Python knows of; a server in C, such as uWSGI, forks without Python's knowledge.
        self.pid = os.getpid()
        self.monitor: AbstractContextManager[Any] = threading.RLock()
        self.connected = False
        self.id: int | None = None
        self.epoch = 0
        self.ended: str | None = None
        self.closing = False
        # Why this process cannot connect at all, as long as that is so.
        self.start_failure: Exception | None = None
        self.wire = system.connect(options, self, connect_timeout)
        self.budget = budget
        self.overflow = overflow
        # Bytes of nodes that exist or may exist: of holders and waiters, of creations without an answer, of deletions
        # without a confirmation. Guarded by monitor.
        self.used = 0
        # The part of `used` for nodes that stay until the session ends, because their deletion was refused for good.
        self.left_behind = 0
        # When the pool has last given it to a caller or found it in use, on the monotonic clock.
        self.used_at = 0.0
        # The names of our nodes whose deletion we have requested, guarded by monitor.
        self.deleting: set[str] = set()
        # What the contenders of a queue share, by its path. An entry exists while a contender refers to it.
        self.shared: WeakValueDictionary[str, Any] = WeakValueDictionary()
        # The paths of queues in which this session has created nodes.
        self.known_queues: set[str] = set()
        self._requested_timeout = options.session_timeout
        self._timer_thread = timers
        self._connect_timeout = connect_timeout
        self._strict = strict
        self._max_silence = STRICT_MAX_SILENCE if strict else MAX_SILENCE
        self._inbox: deque[Callable[[], object]] = deque()
        # Calls are being taken out of the inbox, so another one needs no wake-up.
        self._is_emptying = False
        # Added under the monitor, and taken out by any thread, also without it. A dict keeps the order: after a
        # reconnect the oldest is called first.
        self.listeners: dict[SessionListener, None] = {}
        # How many heartbeats have found no listener since there was one.
        self._idle_heartbeats = 0
        # A write that is not answered yet renews the lease; and why the last one was refused, if it was.
        self._is_proving = False
        self._proof_refusal: Exception | None = None
        # Whether the server has caught up since this connection began; None as long as that was not requested.
        self._caught_up: bool | None = None
        self._when_caught_up: list[Callable[[], object]] = []
        self.strays = Strays(self.wire, system.boottime, found=self._stray_found, retry=self.retry_later)
        # Calls that each watch a held node, in the order of the heartbeats at which listeners have added them.
        self.to_watch: dict[Callable[[], object], None] = {}
        # When the heartbeat that is not answered yet was sent, and when one was last found to take too long, both on
        # the clock of leases.
        self._beat_at: float | None = None
        self._slow_at = float("-inf")
        # What waits for the end of the pause, see `retry_later`. A dict keeps the order, and the same call once.
        self._refused: dict[Callable[[], object], None] = {}
        self._pause = 0.0
        self._pause_timer: Timer | None = None
        # When the last pause has ended.
        self._resumed_at = float("-inf")
        # Since the first connection.
        self._beats = False
        self._timers: list[Timer] = []

    def __repr__(self) -> str:
        state = "connected" if self.connected else self.ended or "disconnected"
        return f"<Session {self.name} id=0x{self.id or 0:x} {state} server={self.wire.server}>"

    # For threads of users.

    def start(self) -> None:
        """Begin to connect, without waiting."""
        with self.monitor:
            self._start_outage_timer()
        self.start_wire()

    def start_wire(self) -> None:
        """Begin to connect, unless the process has no descriptor, thread or memory for it, as ``start_failure`` says.

        To a caller it is the same whether ZooKeeper is away or this process cannot ask it. So one that waits calls this
        again, about every :data:`~django_zklock.zk.waiting.RETRY_INTERVAL`, until its time is up.
        """
        if self.closing or self.ended is not None:
            return
        try:
            # Without timers a lock that is granted would have no heartbeat, and its loss would be told late.
            self.wire.start(self._timer_thread.start)
        except RecursionError:
            raise
        except NOT_STARTABLE as error:
            self.start_failure = error
        else:
            self.start_failure = None

    def post(self, call: Callable[[], object]) -> None:
        """Run ``call`` under the monitor, soon and in the order of the calls. Never blocks, never raises.

        Where no thread can be started, as at the exit of the interpreter, calls wait for the next post or connection.
        """
        self._inbox.append(call)
        # Both are read after the append: if one changes in between, on_wake or on_suspended finds the call.
        if self._is_emptying:
            return
        if self.connected:
            self.wire.wake()
        else:
            # At the exit of the interpreter, from Python 3.12 on, no thread can be started any more. If the pool is
            # closed by then, its timer thread has ended, and its nodes are gone with the session.
            self._timer_thread.call_later(0, self._run_inbox_offline)

    @property
    def timeout(self) -> float:
        """The session timeout: as negotiated, or as requested while there was no session yet."""
        return self.wire.lease.timeout or self._requested_timeout

    @property
    def lease_end(self) -> float:
        """Until when, on the clock of leases, the session surely lives at the server."""
        return self.wire.lease.end

    @property
    def lease_expired(self) -> bool:
        """Whether the session may have ended at the server unknown to us, or nothing needs the lease."""
        return self.system.boottime() >= self.wire.lease.end

    @property
    def silent(self) -> bool:
        """Whether nothing was received for the session timeout, so that the session has probably ended."""
        return self.system.boottime() >= self.wire.received + self.timeout

    @property
    def watching(self) -> bool:
        """Whether the server has all our watches, so that no event means no change."""
        return self.connected and not self.wire.watches.lost

    def close(self, timeout: float) -> bool:
        """End the session at the server, which frees its locks; ``False`` if that was not confirmed in time."""
        self.closing = True
        closed = self.wire.close(timeout)
        # kazoo does not report the end of a session that was not connected.
        self.post(self._closed)
        return closed

    def abandon(self) -> None:
        """In a forked child: drop everything and leave the parent's session alone."""
        self.pid = 0
        self.ended = "it belongs to the parent process"
        self.connected = False
        # Greenlets live on in a child: no listener is notified there, and no call is made.
        self.listeners.clear()
        self._is_emptying = True
        self.wire.abandon_after_fork()

    def has_room(self, size: int) -> bool:
        """Whether nodes of ``size`` bytes fit into the budget; an empty session has room for every contender.

        The nodes of one contender are created by one request, which is shorter than what a server reads, and longer
        than their share of the transaction at the end.
        """
        return not self.closing and (self.used == 0 or self.used + size <= self.budget)

    # For listeners, under monitor.

    def add_listener(self, listener: SessionListener) -> None:
        """Call ``listener`` from now on."""
        if self.ended is not None:
            listener.unavailable(self.ended)
            return
        if self._idle_heartbeats > IDLE_HEARTBEATS:
            # With what is known from then, the next write might renew the lease for a moment only.
            self.wire.lease.forget()
        self._idle_heartbeats = 0
        self.listeners[listener] = None

    def _call_listeners(self, call: Callable[[SessionListener], None]) -> None:
        for listener in list(self.listeners):
            try:
                call(listener)
            except Exception:
                logger.exception("event=listener_failed session=%s listener=%r", self.name, listener)

    # WireListener, under monitor.

    def on_wake(self) -> None:
        inbox = self._inbox
        while inbox:
            self._is_emptying = True
            try:
                while inbox:
                    call = inbox.popleft()
                    try:
                        call()
                    except Exception:
                        logger.exception("event=post_failed session=%s call=%r", self.name, call)
            finally:
                # Before the last look: what is posted from now on wakes the connection.
                self._is_emptying = False

    def on_closing(self) -> None:
        self._call_listeners(lambda listener: listener.lose("the session was closed"))

    def on_connected(self) -> None:
        self._cancel_timers()
        # Calls that were posted during the outage run while `connected` is False, so they send nothing.
        self.on_wake()
        self.id = self.wire.session_id
        self.connected = True
        logger.info(
            "event=connected session=%s id=0x%x server=%s timeout=%s",
            self.name,
            self.id or 0,
            self.wire.peer,
            self.timeout,
        )
        if not self._beats:
            self._beats = True
            self._timer_thread.call_later(self.timeout / HEARTBEATS_PER_SESSION, self._heartbeat)
        if self.listeners and self.wire.lease.handshake is not None:
            self.catch_up()
        # Held nodes come before anything else.
        self._check_nodes()
        self._restore_watches()
        self._call_listeners(lambda listener: listener.resumed())

    def _restore_watches(self) -> None:
        if self.wire.watches.lost:
            self.wire.restore_watches(self._watches_restored)

    def _watches_restored(self, _value: object, error: KazooException | None) -> None:
        if error is not None:
            # Whatever the error is: without watches the waiters would wait for ever.
            self.retry_later(self._restore_watches, error)
        else:
            self._call_listeners(lambda listener: listener.watches_restored())

    def on_suspended(self) -> None:
        self._disconnected()
        logger.warning("event=suspended session=%s id=0x%x", self.name, self.id or 0)
        self._call_listeners(lambda listener: listener.suspended())
        if self._strict:
            self._call_listeners(lambda listener: listener.lose("the connection to ZooKeeper was suspended"))
        left = max(0.0, self.lease_end - self.system.boottime())
        self._timers.append(self._timer_thread.call_later(left, self._lose_lease))
        self._start_outage_timer()

    def on_ended(self, reason: str, *, final: bool) -> None:
        self._disconnected()
        if self.id is not None:
            # A session that is closed on purpose is no news.
            level = logging.DEBUG if self.closing else logging.WARNING
            logger.log(level, "event=session_ended session=%s id=0x%x reason=%s", self.name, self.id, reason)
        self.id = None
        self.used -= self.left_behind
        self.left_behind = 0
        if final:
            self.ended = reason
        self._call_listeners(lambda listener: listener.session_ended(reason))
        if final:
            self._call_listeners(lambda listener: listener.unavailable(reason))
        else:
            self._start_outage_timer()

    def _closed(self) -> None:
        if self.ended is None:
            self.on_ended("the session was closed", final=True)

    def _disconnected(self) -> None:
        self.connected = False
        self.epoch += 1
        self.deleting.clear()
        # Everything is requested again on the next connection.
        for get in self.shared.valuerefs():
            if (listing := get()) is not None:
                listing.disconnected()
        self._refused.clear()
        if self._pause_timer is not None:
            self._pause_timer.cancel()
            self._pause_timer = None
        self._is_proving = False
        self._beat_at = None
        self.to_watch.clear()
        self.strays.disconnected()
        self._caught_up = None
        self._when_caught_up.clear()
        self._cancel_timers()
        self.on_wake()

    # On the timer thread.

    def _run_inbox_offline(self) -> None:
        with self.monitor:
            # If it is connected by now, on_connected has run the inbox, or the connection has to be woken.
            if self.connected:
                self.wire.wake()
            else:
                self.on_wake()

    def _start_outage_timer(self) -> None:
        # A node may live as long as the session. After that a reconnect gets the time of a first connect.
        surely_ended = (
            max(0.0, self.wire.received + self.timeout - self.system.boottime()) if self.id is not None else 0.0
        )
        delay = surely_ended + self._connect_timeout
        self._timers.append(self._timer_thread.call_later(delay, partial(self._give_up, delay)))

    def _give_up(self, waited: float) -> None:
        with self.monitor:
            if not self.connected:
                reason = f"no connection within {waited:.1f} s"
                self._call_listeners(lambda listener: listener.unavailable(reason))

    def _lose_lease(self) -> None:
        with self.monitor:
            if not self.connected and self.lease_expired:
                reason = "the lease ran out while ZooKeeper could not be reached"
                self._call_listeners(lambda listener: listener.lose(reason))

    def _heartbeat(self) -> None:
        with self.monitor:
            if self.ended is not None or self.closing:
                return
            self._timer_thread.call_later(self.timeout / HEARTBEATS_PER_SESSION, self._heartbeat)
            if not self.connected:
                return
            if self.lease_expired:
                # On a thin link an answer may be on its way for that long.
                self._call_listeners(lambda listener: listener.lose(STOOD_STILL))
            if self.wire.unanswered_for() > self.timeout * self._max_silence:
                self.wire.drop("nothing has been received for too long", avoid=True)
            elif not self._is_idle():
                self.post(self._beat)

    def _is_idle(self) -> bool:
        """Whether nothing has used the session for long, so that its lease may end; to be asked at each heartbeat."""
        if self.listeners:
            return False
        self._idle_heartbeats += 1
        return self._idle_heartbeats > IDLE_HEARTBEATS

    def _cancel_timers(self) -> None:
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    # The lease and the heartbeat, on the connection's thread. :class:`.wire.lease.Lease` says why writes renew it.

    def _beat(self) -> None:
        """Send a request that the leader sees, and behind its answer a write if the lease is needed and short.

        The first keeps the session alive, and any later write is a proof by it. So a session that only waits sends no
        writes: the one that lets it hold a lock renews its lease too. What depends on the answer is sent for one
        heartbeat at a time. On a link on which an answer takes longer than that, it would pile up before the lease.
        """
        if not self.connected:
            return
        if self._beat_at is None:
            self._beat_at = self.system.boottime()
            self.wire.sync("/", self._seen)
        else:
            self._note_delay(self.system.boottime() - self._beat_at)
            # The server hears of us all the same.
            self.wire.sync("/")

    def _note_delay(self, seconds: float) -> None:
        """Warn of a heartbeat that is not answered when the next one is due: once while that goes on."""
        # After a stop of this process several heartbeats come at once.
        if seconds < SLOW * self.timeout:
            return
        now = self.system.boottime()
        level = logging.DEBUG if now < self._slow_at + self.timeout else logging.WARNING
        self._slow_at = now
        logger.log(
            level,
            "event=slow_answers session=%s server=%s unanswered_for=%.1f lease_left=%.1f",
            self.name,
            self.wire.peer,
            seconds,
            max(0.0, self.lease_end - now),
        )

    def _seen(self, _value: object, error: KazooException | None, *, is_proof: bool = False) -> None:
        if error is not None:
            self._beat_at = None
            if wire.is_temporary(error):
                self.retry_later(self._beat, error)
        elif not any(listener.needs_lease for listener in list(self.listeners)):
            self._check_nodes()
        elif not is_proof and self.lease_end - self.system.boottime() < ENOUGH * self.timeout:
            self.wire.write_nothing(partial(self._seen, is_proof=True))
        elif is_proof and self.lease_expired:
            # This process was stopped, and no recent answer is left to build a proof on. A new connection renews the
            # lease at once, and every contender asks again on it.
            self.wire.drop(LEASE_OVER)
        else:
            self._check_nodes()

    def _check_nodes(self) -> None:
        """Watch held nodes that are not watched yet, and ask about nodes that have blocked us for long.

        A held node is watched from the first heartbeat on: its deletion, and what is written to it, come as an event.
        Only so many are watched in one write that the lease need not wait long for the answers.
        """
        self._beat_at = None
        self._call_listeners(lambda listener: listener.heartbeat())
        for watch in list(islice(self.to_watch, MAX_WATCHES_PER_WRITE)):
            del self.to_watch[watch]
            watch()
        if self.to_watch:
            # The others follow when these are answered, and the lease is renewed before if that is due.
            self._beat()
        listings = [listing for get in self.shared.valuerefs() if (listing := get()) is not None]
        waits = ((listing.path, listing.blockers) for listing in listings)
        self.strays.check(((path, nodes) for path, nodes in waits if nodes), self.timeout)
        if self.strays.is_found:
            self._leave_server()

    def _stray_found(self, among: Sequence[str]) -> None:
        """Go to another server: of these nodes, behind which we wait, one is at this server alone."""
        logger.warning("event=stray_found session=%s server=%s among=%s", self.name, self.wire.peer, " ".join(among))
        self._leave_server()

    def _leave_server(self) -> None:
        """Go to another server, now or at a later heartbeat."""
        # Where the loss of a connection is the loss of its locks, no holder pays for a waiter.
        if not (self._strict and any(listener.is_held for listener in list(self.listeners))):
            self.wire.drop("it has a node that the leader does not know", avoid=True)

    def prove(self) -> None:
        """Renew a short lease by a write, whose answer comes before those to the requests that follow it.

        T1 has waited for long, in a session whose lease nothing has needed, and is about to hold. Without this the
        lease would end before the next heartbeat renews it.
        """
        lease = self.wire.lease
        is_short = lease.timeout is not None and lease.end - self.system.boottime() < ENOUGH * lease.timeout
        if is_short and self.connected and not self._is_proving:
            self._is_proving = True
            self.wire.write_nothing(self._on_proof)

    def _on_proof(self, _value: object, error: KazooException | None) -> None:
        self._is_proving = False
        self._proof_refusal = error

    def regain(self, request: Callable[[_Use], object], reply: _Use) -> None:
        """Make a request behind a write that renews the lease, which has ended: all in one round trip.

        If the write does not renew it, a new connection does, and there is no answer.
        """

        def answered(value: Any, error: Exception | None) -> None:
            if not self.lease_expired:
                reply(value, error)
            elif self._proof_refusal is not None:
                reply(None, self._proof_refusal)
            else:
                self.wire.drop(LEASE_OVER)

        self.prove()
        request(answered)

    def catch_up(self, call: Callable[[], object] | None = None) -> None:
        """Make sure, once for each connection, that its server has a majority behind it, and renew the lease.

        Unless the server refuses that, later requests show everything that was done before the connection began;
        ``call`` is called as soon as that is so.
        """
        if self._caught_up:
            if call is not None:
                call()
            return
        if call is not None:
            self._when_caught_up.append(call)
        if self._caught_up is None:
            self._caught_up = False
            self.wire.write_nothing(self._on_caught_up)

    def _on_caught_up(self, _value: object, error: KazooException | None) -> None:
        if error is not None and wire.is_temporary(error):
            self._caught_up = None
            self.retry_later(self.catch_up, error)
            return
        self._caught_up = True
        calls, self._when_caught_up = self._when_caught_up, []
        for call in calls:
            self.post(call)

    # Pauses. All calls of a session share one, so an overloaded server is not asked more often because there are more.

    def retry_later(self, call: Callable[[], object], error: KazooException) -> None:
        """Make ``call`` after a pause, because a server has refused something for now; not if the connection ends."""
        self._refused[call] = None
        if self._pause_timer is not None:
            return
        continues = self.system.monotonic() < self._resumed_at + 2 * LAST_PAUSE
        self._pause = min(2 * self._pause, LAST_PAUSE) if continues else FIRST_PAUSE
        level = logging.DEBUG if continues else logging.WARNING
        logger.log(level, "event=refused_for_now session=%s error=%r", self.name, error)
        pause = self._pause * self.system.uniform(0.5, 1.0)
        self._pause_timer = self._timer_thread.call_later(pause, partial(self.post, self._end_pause))

    def _end_pause(self) -> None:
        self._pause_timer = None
        self._resumed_at = self.system.monotonic()
        calls, self._refused = self._refused, {}
        for call in calls:
            self.post(call)
