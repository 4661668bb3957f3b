"""A client of the simulated servers, in the place of kazoo's: the port that a session asks for its requests."""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

from kazoo.exceptions import KazooException
from kazoo.protocol.connection import DELETED_EVENT, PING_XID
from kazoo.protocol.serialization import CloseInstance

from django_zklock.zk.wire.client import WirePort
from django_zklock.zk.wire.lease import NEVER, Lease, Sent
from django_zklock.zk.wire.requests import SEEN_BY_LEADER, WRITES
from tests.simulation.link import PING, Handshake, Link, Message, describe, shorten
from tests.simulation.servers import SESSION_TIMEOUT

if TYPE_CHECKING:
    from collections.abc import Callable

    from django_zklock.zk.wire import ConnectionOptions, Reply, WireListener
    from tests.simulation.processes import Process
    from tests.simulation.servers import Server

# Seconds without a request after which a connection pings, as kazoo does.
PING_AFTER = SESSION_TIMEOUT / 3
# Seconds: the longest pause between two attempts to connect.
RETRY = 0.5
# kazoo and the exchange give an attempt at least this.
MIN_ATTEMPT = 0.05


class Pending(NamedTuple):
    """A request under way."""

    xid: int
    request: Any
    reply: Reply
    sent: Sent


class SimulatedWire(WirePort):
    """One client. Each of its methods without an underscore that the port does not have is a step of the world."""

    def __init__(self, options: ConnectionOptions, listener: WireListener, connect_timeout: float, process: Process):
        super().__init__("", [])
        self.process = process
        self.name = f"{process.name}.{len(process.wires) + 1}"
        self.listener = listener
        self.lease = Lease()
        self.link: Link | None = None
        self.queue: deque[tuple[Any, Reply]] = deque()
        self.pending: deque[Pending] = deque()
        self.pings: deque[Sent] = deque()
        self.is_awake = False
        self.is_dropped = False
        # The session's end was requested, or is to be as soon as there is a connection.
        self.is_closing = False
        # No step will change anything any more.
        self.is_over = False
        self.retry_at = 0.0
        # Since when there is no connection, if there is none.
        self.alone_since = process.now()
        self._is_started = self._is_live = False
        self._connect_timeout = connect_timeout
        self._id: int | None = None
        self._seen = 0
        self._received = self._handshake_at = self._attempt_ends = self._written_at = NEVER
        self._xid = self._links = 0
        self._close_sent = False
        self._closed = process.event()
        self._avoided: Server | None = None
        # The servers that have closed the connection in the handshake since there was one.
        self._refused: set[str] = set()
        self._renews = False
        # The server that has accepted the session last.
        self._home = ""
        process.wires.append(self)

    # The port.

    @property
    def last_zxid(self) -> int:
        return self._seen

    @property
    def is_live(self) -> bool:
        return self._is_live

    @property
    def session_id(self) -> int | None:
        return self._id

    @property
    def received(self) -> float:
        return self._received

    @property
    def failure(self) -> str | None:
        return None

    @property
    def server(self) -> str:
        return self.link.server.name if self.link is not None else self.hosts

    @property
    def peer(self) -> str:
        return self._home or self.hosts

    @property
    def hosts(self) -> str:
        return ",".join(each.name for each in self.process.world.ensemble.servers)

    @property
    def addresses(self) -> int:
        return len(self.process.world.ensemble.servers)

    def notify(self, callback: Callable[..., None], *arguments: Any) -> None:
        """Call ``callback`` under the monitor. An error in it is one of the package: it ends the world."""
        with self.listener.monitor:
            callback(*arguments)

    def wake(self) -> None:
        self.is_awake = True

    def unanswered_for(self) -> float:
        under_way = [*(each.sent for each in self.pending), *self.pings]
        if not under_way:
            return 0.0
        return self.process.now() - max(min(each.at for each in under_way), self._received)

    def start(self, first: Callable[[], object] | None = None) -> None:
        if first is not None:
            first()
        self._is_started = True

    def drop(self, reason: str, *, avoid: bool = False) -> None:
        if self.link is not None:
            world = self.process.world
            world.note(self.name, self.link.server.name, f"drops the connection: {reason}")
            world.judge.dropped(self.name, reason)
            self.is_dropped = True
            if avoid:
                self._avoided = self.link.server

    def begin_close(self) -> None:
        self.is_closing = self.is_awake = True

    def close(self, timeout: float) -> bool:
        if self.is_over:
            return True
        self.is_closing = self.is_awake = True
        if not self._is_live:
            self._stop()
            return self._id is None
        is_closed = self._closed.wait(timeout)
        if not is_closed and not self.is_over:
            self.drop("no answer to the closing of the session")
        return is_closed and self._id is None

    def abandon_after_fork(self) -> None:
        self.is_over, self._is_live = True, False

    def _send(self, request: Any, reply: Reply) -> None:
        self.queue.append((request, reply))
        self.is_awake = True

    # Connecting.

    @property
    def may_connect(self) -> bool:
        """Whether it is time to try a server."""
        return self._is_started and self.link is None and not self.is_over and self.retry_at <= self.process.now()

    def would_try(self, server: Server) -> bool:
        """Whether the attempt goes to that server: the avoided one is the last."""
        is_open = server.leader is not None and not server.is_frozen
        if not is_open or not self.process.world.network.connects(self.process.name, server.name):
            return False
        servers = self.process.world.ensemble.servers
        others = [each for each in servers if each is not self._avoided and each.name not in self._refused]
        return server is not self._avoided or not any(self.would_try(each) for each in others)

    def connect(self, server: Server) -> None:
        """Send the handshake."""
        world, now = self.process.world, self.process.now()
        self._links += 1
        self.link = Link(self, server, f"{self.name}.{self._links}")
        timeout = self.lease.timeout if self._id is not None else None
        # An ensemble that has lost its data refuses all that have seen more, for ever.
        servers = {each.name for each in world.ensemble.servers}
        self._renews = timeout is not None and now >= self._received + timeout and servers <= self._refused
        self._handshake_at = now
        left = self.lease.end - now
        self._attempt_ends = now + min(self._connect_timeout, max(MIN_ATTEMPT, left / 2) if left > 0 else RETRY * 4)
        request = Handshake(None, 0) if self._renews else Handshake(self._id, self._seen)
        world.note(self.name, server.name, describe(request))
        self.link.to_server.append((0, request))

    @property
    def attempt_is_over(self) -> bool:
        """Whether the server has not accepted in time."""
        return self.link is not None and not self._is_live and self.process.now() >= self._attempt_ends

    # The connection.

    @property
    def may_ping(self) -> bool:
        """Whether nothing was sent for so long that it is time to show that the client lives."""
        is_idle = self._is_live and not self.is_awake and not self.is_dropped
        return is_idle and self.process.now() >= self._written_at + PING_AFTER

    def ping(self) -> None:
        """Ask for a sign of life, or end the connection if the last one was not answered."""
        if self.pings and self._received < self.pings[-1].at:
            self.drop("outstanding heartbeat ping not received")
            return
        assert self.link is not None
        self._written_at = self.process.now()
        self.pings.append(Sent(self._written_at))
        self.link.to_server.append((PING_XID, PING))

    @property
    def may_flush(self) -> bool:
        """Whether there may be something to send."""
        return self._is_live and self.is_awake and not self.is_dropped

    def flush(self) -> None:
        """Let the listener add what it has, and send all."""
        self.is_awake = False
        self.notify(self.listener.on_wake)
        if self.link is None or not self._is_live:
            return
        if self.is_closing and not self._close_sent:
            self._close_sent = True
            self.notify(self.listener.on_closing)
            self.queue.append((CloseInstance, _nothing))
        now = self.process.now()
        sent, forwarded = Sent(now), self.lease.forwarded(now)
        while self.queue:
            request, reply = self.queue.popleft()
            self._xid += 1
            self.process.world.note(self.name, self.link.server.name, describe(request))
            record = forwarded if isinstance(request, SEEN_BY_LEADER) else sent
            self.pending.append(Pending(self._xid, request, reply, record))
            self.link.to_server.append((self._xid, request))
            self._written_at = now

    @property
    def may_receive(self) -> bool:
        """Whether a message has arrived."""
        link = self.link
        return link is not None and bool(link.to_client) and link.arrives

    def receive(self, count: int = 1) -> None:
        """Handle so many messages, and then send what that has caused."""
        for _ in range(count):
            if not self.may_receive:
                break
            assert self.link is not None
            self._handle(self.link, self.link.to_client.popleft())
        if self.may_flush:
            self.flush()

    def _handle(self, link: Link, message: Message) -> None:
        world = self.process.world
        if message.what == "closed":
            world.note(link.server.name, self.name, "closes the connection")
            if not self._is_live:
                self._refused.add(link.server.name)
            self.lose()
            return
        self._received = self.process.now()
        if message.what == "expired":
            world.note(link.server.name, self.name, "the session is over")
            link.client_is_open = False
            self.link = self._id = None
            self._end_session("the session expired")
        elif message.what == "welcome":
            world.note(link.server.name, self.name, f"welcome {message.value:x}")
            self._welcome(message.value)
        elif message.what == "pong":
            self.lease.answered(self.pings.popleft(), self._received, seen_by_leader=False)
        elif message.what == "event":
            world.note(link.server.name, self.name, f"event of {shorten(message.path)}")
            with self.listener.monitor:
                for watch in self.watches.triggered(message.value, message.path):
                    self.notify(watch.callback, message.value == DELETED_EVENT)
        else:
            self._answer(link, message)

    def _welcome(self, session: int) -> None:
        moved = session == self._id
        if self._renews and not moved:
            self._end_session("the servers refuse it: they have lost data that this process has seen")
            self._seen = 0
        self._id = session
        assert self.link is not None
        self._home = self.link.server.name
        self.lease.connected(SESSION_TIMEOUT, self._handshake_at, self._received, moved=moved)
        self._is_live = self.is_awake = True
        self._written_at = self._received
        self._refused.clear()
        self.notify(self.listener.on_connected)

    def _answer(self, link: Link, message: Message) -> None:
        sent = self.pending.popleft()
        assert sent.xid == message.xid, "the simulation answers in order"
        error = message.error
        world = self.process.world
        if world.is_recorded:
            outcome = repr(error) if error is not None else "done" if message.value in (None, True) else "answer"
            world.note(link.server.name, self.name, f"{outcome} to {describe(sent.request)}")
        self._seen = max(self._seen, message.zxid)
        is_written = error is None and isinstance(sent.request, WRITES)
        self.lease.answered(sent.sent, self._received, seen_by_leader=error is None, written=is_written)
        if sent.request is CloseInstance:
            link.client_is_open = False
            self.link = self._id = None
            self._stop()
            return
        self.notify(sent.reply, message.value, error)

    def lose(self, *, arrived: int = 0, is_noticed: bool = True) -> None:
        """End the connection; so many requests that have left arrive still, and the server may be told."""
        link, was_live = self.link, self._is_live
        assert link is not None
        link.close_client(arrived=arrived, is_noticed=is_noticed)
        # Pauses are short, and never the same for two.
        self.retry_at = self.process.now() + self.process.chance.uniform(0.0, RETRY)
        if was_live:
            self.alone_since = self.process.now()
        self.link, self._is_live, self.is_dropped, self._close_sent = None, False, False, False
        self.pending.clear()
        self.pings.clear()
        self.queue.clear()
        if was_live:
            with self.listener.monitor:
                self.watches.suspend(self._seen)
            self.notify(self.listener.on_suspended)
        if self.is_closing:
            self._stop()

    def _end_session(self, reason: str) -> None:
        self._is_live = self.is_dropped = False
        self._seen = 0
        self.pending.clear()
        self.pings.clear()
        self.queue.clear()
        self.retry_at = self.alone_since = self.process.now()
        with self.listener.monitor:
            self.watches.clear()
        self.notify(partial(self.listener.on_ended, reason, final=False))
        if self.is_closing:
            self._stop()

    def _stop(self) -> None:
        if not self.is_over:
            self.is_over, self._is_live = True, False
            with self.listener.monitor:
                self.watches.clear()
            self.notify(partial(self.listener.on_ended, "the session was closed", final=True))
        self._closed.set()


def _nothing(_value: Any, _error: KazooException | None) -> None: ...
