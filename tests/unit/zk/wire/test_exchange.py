"""The exchange over one connection: messages that arrive in any pieces, bytes that wake the loop, and pings."""

from __future__ import annotations

import bisect
import contextlib
import inspect
import itertools
import operator
import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import ConnectionDropped
from kazoo.protocol.connection import AUTH_XID, DELETED_EVENT, PING_XID, WATCH_XID, ConnectionHandler
from kazoo.protocol.serialization import (
    Auth,
    Create,
    GetChildren,
    GetData,
    Ping,
    int_struct,
    reply_header_struct,
    write_string,
)
from kazoo.protocol.states import KeeperState

from django_zklock.zk.wire import ConnectionOptions
from django_zklock.zk.wire.connection import READABLE, Connection, make_handler
from django_zklock.zk.wire.exchange import Exchange
from django_zklock.zk.wire.names import Address, Names
from django_zklock.zk.wire.requests import Delivery, EncodingError
from tests.toolbox.threads import Runner

CONNECTED = 3


def message(content: bytes) -> bytes:
    return bytes(int_struct.pack(len(content)) + content)


def deleted(path: str) -> bytes:
    """Return the notification of a watch: the node was deleted."""
    event = int_struct.pack(DELETED_EVENT) + int_struct.pack(CONNECTED) + write_string(path)
    return message(reply_header_struct.pack(WATCH_XID, -1, 0) + event)


PONG = message(reply_header_struct.pack(PING_XID, 0, 0))
OUT_OF_TURN = message(reply_header_struct.pack(77, 1, 0))


@dataclass
class Listener:
    """The client of a connection; it queues requests before a write."""

    client: KazooClient
    monitor: Any = field(default_factory=threading.RLock)
    writes: int = 0
    queued: list[Any] = field(default_factory=list)
    deleted: list[str] = field(default_factory=list)
    watched: dict[str, Callable[[], Any]] = field(default_factory=dict)

    def before_write(self) -> None:
        self.writes += 1
        while self.queued:
            self.client._queue.append(self.queued.pop())

    def on_event(self, event: int, path: str) -> None:
        assert event == DELETED_EVENT
        self.deleted.append(path)
        self.watched.get(path, lambda: None)()

    def session_replaced(self) -> None: ...

    def connection_failed(self, reason: str) -> None: ...


@dataclass
class Ends:
    """A connection, its listener, and the server's end of its socket."""

    connection: Connection
    listener: Listener
    server: socket.socket

    def watch(self, path: str, call: Callable[[], Any]) -> None:
        self.listener.watched[path] = call

    def exchange(self) -> None:
        """Let the loop read and send once."""
        connection = self.connection
        connection._exchange(connection.handler.poller([connection._socket, connection._read_sock])(1000.0))

    @property
    def is_woken(self) -> bool:
        """Whether a byte waits for the loop."""
        try:
            return bool(self.connection._read_sock.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT))
        except BlockingIOError:
            return False


@pytest.fixture
def ends() -> Iterator[Ends]:
    handler = make_handler(ConnectionOptions(hosts="nowhere:1"))
    client = KazooClient(hosts="nowhere:1", handler=handler)
    client._state = KeeperState.CONNECTED
    client._stopped.clear()
    listener = Listener(client)
    wire: Any = listener
    connection = Connection(client, wire, None, connect_timeout=1.0)
    connection._read_sock, connection._write_sock = handler.create_socket_pair()
    connection._socket, server = socket.socketpair()
    connection._socket.setblocking(False)
    connection._write_timeout = 5.0
    with contextlib.closing(server), connection._socket, connection._read_sock, connection._write_sock:
        yield Ends(connection, listener, server)


@pytest.mark.parametrize("size", [1, 3, 7, 25, 10_000])
def test_messages__in_pieces(ends: Ends, size: int) -> None:
    """Every complete message is handled when it is there, whatever the pieces in which the bytes arrive."""
    paths = [f"/{number}" for number in range(5)]
    messages = [PONG, *(each for path in paths for each in (deleted(path), PONG))]
    stream = b"".join(messages)
    ends_at = list(itertools.accumulate(map(len, messages)))
    for start in range(0, len(stream), size):
        before, moved = ends.connection.received, ends.connection.moved
        ends.server.sendall(stream[start : start + size])
        ends.exchange()
        complete = bisect.bisect_right(ends_at, start + size)
        assert ends.listener.deleted == paths[: complete // 2]
        # A part of a message is no answer, but shows that the link lives.
        assert (ends.connection.received > before) == (complete > bisect.bisect_right(ends_at, start))
        assert ends.connection.moved > moved
    assert ends.listener.deleted == paths
    # The next handshake reads no message of this connection.
    assert ends.connection._position == len(ends.connection._buffer)


@pytest.mark.shows("faults#the-link-is-thin")
def test_write__longer_than_the_socket_takes(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """A long write to a thin link is no silence as long as the other end takes more of it."""
    connection, message = ends.connection, bytes(8 * 1024 * 1024)
    moved: list[float] = []
    real_wait = connection._wait

    def wait(error: OSError | None, timeout: float) -> None:
        moved.append(connection.moved)
        # All that the socket has taken.
        with contextlib.suppress(BlockingIOError):
            while ends.server.recv(65536):
                pass
        real_wait(error, timeout)

    monkeypatch.setattr(connection, "_wait", wait)
    ends.server.setblocking(False)
    connection._write(message, 60.0)
    assert len(moved) > 2
    assert moved == sorted(set(moved))


def test_messages__none(ends: Ends) -> None:
    """A socket that is readable without a message, as with TLS, does not block the loop."""
    ends.connection._exchange([(ends.connection._socket.fileno(), READABLE)])
    ends.server.close()
    with pytest.raises(ConnectionDropped):
        ends.exchange()


@pytest.mark.parametrize(
    "garbage",
    [
        message(b""),
        message(b"\0" * 15),
        bytes(int_struct.pack(-5)),
        message(reply_header_struct.pack(WATCH_XID, -1, 0) + b"\0"),
        message(reply_header_struct.pack(WATCH_XID, -1, 0) + int_struct.pack(2) * 2 + message(b"\xff")),
    ],
)
def test_messages__garbage(ends: Ends, garbage: bytes) -> None:
    """Bytes that are not of the protocol end the connection, and not its thread."""
    ends.server.sendall(garbage)
    with pytest.raises(ConnectionDropped, match="cannot be decoded"):
        ends.exchange()


class Asker:
    """Stands for the requests of a client; ``notified`` has the values and errors of the replies."""

    def __init__(self) -> None:
        self.notified: list[tuple[object, object]] = []

    def delivery(self) -> Delivery:
        return Delivery(self.notify, lambda *answer: self.notified.append(answer))

    def notify(self, reply: Callable[..., None], *answer: object) -> None:
        reply(*answer)


def test_answer__once(ends: Ends) -> None:
    """A reply is called once, and not at all when kazoo reports the end of the connection."""
    asker = Asker()
    client = ends.connection.client
    client._pending.extend((GetChildren("/k", None), asker.delivery(), number) for number in (1, 2))
    ends.server.sendall(message(reply_header_struct.pack(1, 1, 0) + int_struct.pack(0)))
    ends.exchange()
    client._notify_pending(KeeperState.CONNECTING)
    assert asker.notified == [([], None)]
    # No request is left that a message of the next connection could answer.
    ends.server.sendall(message(reply_header_struct.pack(2, 1, 0) + int_struct.pack(0)))
    with pytest.raises(ConnectionDropped, match="out of turn"):
        ends.exchange()
    assert asker.notified == [([], None)]


@pytest.mark.parametrize("is_write", [True, False])
def test_answer__undecodable(ends: Ends, *, is_write: bool) -> None:
    """A write whose answer cannot be decoded is in doubt, as after a lost connection; a read has failed."""
    asker = Asker()
    request = Create("/k", b"", (), 0) if is_write else GetData("/k", None)
    ends.connection.client._pending.append((request, asker.delivery(), 1))
    ends.server.sendall(message(reply_header_struct.pack(1, 1, 0) + b"\0"))
    with pytest.raises(ConnectionDropped) if is_write else contextlib.nullcontext():
        ends.exchange()
    assert [isinstance(error, EncodingError) for _value, error in asker.notified] == [True] * (not is_write)


def test_reply__its_requests_leave_at_once(ends: Ends) -> None:
    """What is queued while messages are handled leaves without another turn of the loop, and no byte wakes it."""
    queue = ends.connection.client._queue

    def ask(requests: Any) -> None:
        requests.append((Ping(), None))
        ends.connection.wake()

    ends.watch("/a", lambda: ask(queue))
    ends.watch("/b", lambda: ask(ends.listener.queued))
    ends.server.sendall(deleted("/a") + deleted("/b"))
    ends.exchange()
    assert ends.listener.writes == 1
    assert ends.server.recv(100) == b"".join(message(int_struct.pack(xid) + int_struct.pack(11)) for xid in (1, 2))
    assert not ends.is_woken
    # The next request wakes the loop again.
    ends.connection.wake()
    assert ends.is_woken


def test_wake__while_reading_fails(ends: Ends) -> None:
    """A wake-up is not lost if the connection ends before the requests could leave."""
    ends.watch("/a", ends.connection.wake)
    ends.server.sendall(deleted("/a") + OUT_OF_TURN)
    with pytest.raises(ConnectionDropped):
        ends.exchange()
    assert ends.listener.deleted == ["/a"]
    assert ends.is_woken


def test_wake__before_reading(ends: Ends) -> None:
    """A byte that arrives while messages are handled wakes the loop once more; what it announced has left then."""
    ends.watch("/a", ends.connection.wake)
    ends.connection.wake()
    ends.server.sendall(deleted("/a"))
    ends.connection._exchange([(ends.connection._socket.fileno(), READABLE)])
    assert (ends.listener.writes, ends.is_woken) == (1, True)
    ends.exchange()
    assert (ends.listener.writes, ends.is_woken) == (2, False)
    ends.connection.wake()
    assert ends.is_woken


def test_wake__many(ends: Ends) -> None:
    """Any number of wake-ups before the loop runs send one byte: the socket would block after some hundred."""
    for _ in range(5000):
        ends.connection.wake()
    assert len(ends.connection._read_sock.recv(10)) == 1


def test_wake__closed(ends: Ends) -> None:
    """The socket may have been closed meanwhile, which is no error of the thread that wakes the loop."""
    ends.connection._write_sock.close()
    ends.connection.wake()


def test_wake__fails(ends: Ends) -> None:
    """After a wake-up that an exception interrupts, the next one wakes the loop."""
    real = ends.connection._write_sock

    class Interrupted:
        def send(self, data: bytes) -> int:
            raise KeyboardInterrupt

    ends.connection._write_sock = Interrupted()
    with pytest.raises(KeyboardInterrupt):
        ends.connection.wake()
    ends.connection._write_sock = real
    ends.connection.wake()
    assert ends.is_woken


def test_wake__interrupted_before_the_byte(ends: Ends) -> None:
    """A thread that is interrupted before it has sent its byte does not keep others from sending theirs."""
    real = ends.connection._write_sock
    nested: list[bool] = []

    class Interrupted:
        def send(self, data: bytes) -> int:
            if not nested:
                nested.append(True)
                ends.connection.wake()
                assert ends.is_woken
            return int(real.send(data))

    ends.connection._write_sock = Interrupted()
    ends.connection.wake()
    ends.connection._write_sock = real


def test_wake__loop_is_faster(ends: Ends) -> None:
    """A byte that the loop has read before its sender goes on does not count for the next request."""
    real = ends.connection._write_sock

    class Slow:
        def send(self, data: bytes) -> int:
            sent = int(real.send(data))
            ends.exchange()
            return sent

    ends.connection._write_sock = Slow()
    ends.connection.wake()
    ends.connection._write_sock = real
    assert not ends.is_woken
    ends.connection.wake()
    assert ends.is_woken


def test_wake__from_a_signal_handler(ends: Ends) -> None:
    """With greenlets a handler may run on the connection's thread after the listener was called before a write."""
    ends.listener.before_write = ends.connection.wake  # type: ignore[method-assign]
    ends.connection.wake()
    ends.exchange()
    assert ends.is_woken


@pytest.mark.shows("faults#a-handshake-is-cut-or-is-not-answered")
def test_handshake__after_a_refused_one(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a server has sent before it closed the connection is no part of the next handshake."""
    ends.server.sendall(b"xx")
    assert ends.connection._receive(10)
    monkeypatch.setattr(ConnectionHandler, "_connect", lambda _self: ends.connection._read(5, 1.0))
    ends.server.sendall(b"hello")
    assert ends.connection._shake_hands() == b"hello"


def test_handshake__out_of_turn(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer to another request than the authentication ends the attempt, and not the connection's thread."""
    ends.server.sendall(OUT_OF_TURN)
    monkeypatch.setattr(
        ConnectionHandler, "_connect", lambda self, *_at: self._invoke(1.0, Auth(0, "digest", "a:b"), AUTH_XID)
    )
    with pytest.raises(ConnectionDropped, match="the answer to the authentication cannot be used"):
        ends.connection._connect("nowhere", "nowhere", 1)
    assert ends.connection.failure is not None


def test_write__sends_nothing(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket that takes no byte is waited for: gevent's TLS sockets return 0 instead of an error."""
    waits: list[tuple[int, int]] = []

    class Full:
        taken = iter([0, 3, 0, 2])

        def send(self, data: bytes) -> int:
            return next(self.taken)

    def poller(readers: list[Any], writers: list[Any]) -> Any:
        waits.append((len(readers), len(writers)))
        return lambda _milliseconds: [(1, READABLE)]

    monkeypatch.setattr(ends.connection.handler, "poller", poller)
    real, ends.connection._socket = ends.connection._socket, Full()
    ends.connection._write(b"12345", 1.0)
    ends.connection._socket = real
    assert waits == [(0, 1), (0, 1)]


def test_write__more_than_the_socket_takes(ends: Ends) -> None:
    """A large message is written as the server reads it; a server that does not read is a timeout."""
    large = bytes(range(256)) * 20_000
    writing = Runner(lambda: ends.connection._write(large, 10.0))
    read = b""
    while len(read) < len(large):
        read += ends.server.recv(1 << 20)
    writing.result()
    assert read == large
    with pytest.raises(ends.connection.handler.timeout_exception):
        ends.connection._write(large, 0.05)


def test_read__of_a_handshake(ends: Ends) -> None:
    """A read of a handshake takes its own bytes only, and waits for them until its timeout."""
    ends.server.sendall(b"handshake" + PONG)
    assert (ends.connection._read(4, 1.0), ends.connection._read(5, 1.0)) == (b"hand", b"shake")
    # The rest is still in the socket, so the loop finds it readable.
    assert ends.connection._socket.recv(100) == PONG
    with pytest.raises(ends.connection.handler.timeout_exception):
        ends.connection._read(1, 0.05)


def test_loop__replaced() -> None:
    """kazoo calls the method that we replace, with the arguments that ours has."""
    assert "_connect_attempt" in ConnectionHandler._connect_loop.__code__.co_names
    theirs, ours = (inspect.signature(each._connect_attempt) for each in (ConnectionHandler, Exchange))
    assert list(theirs.parameters) == list(ours.parameters)
    # What ours does as theirs.
    used = {"_connect", "reset", "_socket_error_handling", "_session_callback", "logger"}
    assert used <= set(ConnectionHandler._connect_attempt.__code__.co_names)
    read = {
        "_pending",
        "popleft",
        "last_zxid",
        "EXCEPTIONS",
        "set_exception",
        "deserialize",
        "unchroot",
        "set",
        "Close",
    }
    assert read <= set(ConnectionHandler._read_response.__code__.co_names)
    assert "_read_response" in ConnectionHandler._read_socket.__code__.co_names


def waits_of(
    ends: Ends, monkeypatch: pytest.MonkeyPatch, step: Callable[[int], list[Any]] = lambda _number: []
) -> list[int]:
    """Return how many seconds the loop waits each time, for what ``step`` makes of the number of that wait."""
    waits: list[int] = []

    def wait(milliseconds: float) -> list[Any]:
        waits.append(round(milliseconds / 1000))
        return step(len(waits))

    monkeypatch.setattr(ends.connection.handler, "poller", lambda *_sockets: wait)
    return waits


def test_ping__unanswered(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """An idle connection sends a ping; if nothing at all arrives until the next one is due, the connection ends."""
    waits = waits_of(ends, monkeypatch)
    with pytest.raises(ConnectionDropped, match="ping"):
        ends.connection._serve(100.0)
    assert ends.server.recv(100) == message(int_struct.pack(PING_XID) + int_struct.pack(Ping.type))
    assert waits == [100, 100]


def test_ping__answer_on_its_way(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as a long answer arrives, the connection lives although it is in the way of the ping's answer."""

    def step(number: int) -> list[Any]:
        if number == 2:
            ends.server.sendall(int_struct.pack(1000) + b"the first part of it")
            ends.connection._receive(1000)
        return []

    waits = waits_of(ends, monkeypatch, step)
    with pytest.raises(ConnectionDropped, match="ping"):
        ends.connection._serve(100.0)
    assert len(waits) > 2


def test_ping__not_needed(ends: Ends, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request is as good as a ping: the time until the next one begins with the last write."""

    def step(number: int) -> list[Any]:
        if number == 1:
            ends.connection.client._queue.append((Ping(), None))
            ends.connection._written -= 60.0
            return [(ends.connection._read_sock.fileno(), READABLE)]
        raise ConnectionDropped("the end of this test")

    ends.connection.wake()
    waits = waits_of(ends, monkeypatch, step)
    with pytest.raises(ConnectionDropped, match="end of this test"):
        ends.connection._serve(100.0)
    assert waits == [100, 100]


def test_poller__decrypted_bytes() -> None:
    """Bytes that TLS has decrypted already are read, although the socket is not readable."""

    class Buffered(ssl.SSLSocket):
        left = 1

        def pending(self) -> int:
            return self.left

    handler = make_handler(ConnectionOptions(hosts="nowhere:1"))
    near, far = socket.socketpair()
    with far:
        sock = Buffered.__new__(Buffered)
        socket.socket.__init__(sock, near.family, near.type, near.proto, near.detach())
        with contextlib.closing(sock):
            wait = handler.poller([sock])
            readable = [(sock.fileno(), READABLE)]
            assert wait(0.0) == readable
            sock.left = 0
            assert wait(0.0) == []
            far.send(b"x")
            assert wait(10_000.0) == readable


# The order of a round.


@pytest.fixture
def three(ends: Ends) -> list[Address]:
    """Return the addresses of a connection's three servers, one of them with a zone."""
    ends.connection._names = Names([("127.0.0.1", 1), ("fe80::1%lo", 2), ("127.0.0.1", 3)])
    return sorted(ends.connection._expand_client_hosts(), key=operator.itemgetter(2))


def accepted_at(ends: Ends, address: Address) -> None:
    ends.connection.client._session_id = 7
    ends.connection.home = address


def test_round__home_first(ends: Ends, three: list[Address]) -> None:
    """A session is resumed where it was accepted last, also if that is no address in HOSTS any more."""
    old = ("127.0.0.9", "127.0.0.9", 9)
    for home in (*three, *three, old):
        accepted_at(ends, home)
        found = ends.connection._expand_client_hosts()
        assert found[0] == home
        assert sorted(found) == sorted({*three, home})
        assert ends.connection.addresses == len(found)


def test_round__without_a_session(ends: Ends, three: list[Address]) -> None:
    """A new session is begun at any server, and only where HOSTS says."""
    ends.connection.home = ("127.0.0.9", "127.0.0.9", 9)
    rounds = [ends.connection._expand_client_hosts() for _ in range(200)]
    assert {found[0] for found in rounds} == set(three)
    assert all(sorted(found) == sorted(three) for found in rounds)


def test_round__avoided(ends: Ends, three: list[Address]) -> None:
    """Servers that are avoided are tried after all others, the last one at the end; none is left out."""
    first, second, third = three
    for number, address in enumerate([first, second, third, first], 1):
        accepted_at(ends, address)
        ends.connection.avoid()
        found = ends.connection._expand_client_hosts()
        assert sorted(found) == sorted(three)
        assert found[-1] == address
        assert number == 1 or found[-2] == three[number - 2]
    # One that is not in HOSTS any more belongs to the ensemble of the session, which the others may not.
    accepted_at(ends, old := ("127.0.0.9", "127.0.0.9", 9))
    ends.connection.avoid()
    assert ends.connection._expand_client_hosts() == [old, second, third, first]


def test_round__avoided_for_years(ends: Ends, three: list[Address]) -> None:
    """Addresses that nothing has any more take no room."""
    for number in range(10_000):
        accepted_at(ends, ("zk", f"10.0.0.{number}", 1))
        ends.connection.avoid()
    accepted_at(ends, three[0])
    ends.connection.avoid()
    assert ends.connection._expand_client_hosts()[-1] == three[0]
    assert len(ends.connection._avoided) < 100
