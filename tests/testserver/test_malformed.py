"""Malformed bytes at any point: the replies are the real server's, and the server still serves other clients."""

from __future__ import annotations

import logging
import random
import socket
import struct
from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_zklock.testing import Opcode, ZooKeeperServer
from django_zklock.testing.server import reads
from tests.toolbox.protocol import jute
from tests.toolbox.protocol.operations import (
    CREATE2,
    CREATE_CONTAINER,
    CREATE_TTL,
    MULTI_READ,
    OPEN,
    AddWatch,
    Auth,
    Check,
    CheckWatches,
    CloseSession,
    CountDescendants,
    Create,
    Delete,
    Exists,
    GetAcl,
    GetChildren,
    GetChildren2,
    GetData,
    GetEphemerals,
    Multi,
    Operation,
    Ping,
    RemoveWatches,
    SetAcl,
    SetData,
    SetWatches,
    Sync,
    WhoAmI,
)
from tests.toolbox.protocol.raw_client import ClosedError, RawClient
from tests.toolbox.protocol.session_client import HOME, Talker, connect_frame
from tests.toolbox.timing import scaled
from tests.toolbox.zookeeper.any_server import Server
from tests.toolbox.zookeeper.server import ZooKeeper

if TYPE_CHECKING:
    from typing import TypeAlias

Outcome: TypeAlias = "int | str"

UNIMPLEMENTED = -6
MAX_FRAME = 0xFFFFF
GREETING = connect_frame()
# Requests with every field. The real server does not answer a check outside a multi.
OPERATIONS: list[Operation] = [
    Create("/m", data=b"data"),
    Create("/m2", opcode=CREATE2),
    Create("/mc", opcode=CREATE_CONTAINER),
    Create("/mt", 5, opcode=CREATE_TTL),
    Delete("/no-such", 7),
    Exists("/m", watch=True),
    GetData("/m", watch=True),
    SetData("/m", b"other"),
    GetAcl("/m"),
    SetAcl("/m", OPEN),
    GetChildren("/m", watch=True),
    GetChildren2("/m", watch=True),
    CountDescendants("/m"),
    GetEphemerals("/m"),
    Sync("/m"),
    Multi((Create("/m3"), Check("/m3", 0), SetData("/m3"), Delete("/m3"))),
    Multi((GetData("/m"), GetChildren("/m")), MULTI_READ),
    AddWatch("/m", 1),
    CheckWatches("/m"),
    RemoveWatches("/m"),
    SetWatches(0, data=("/m",), exist=("/none",), child=("/m",)),
    SetWatches(0, data=("/m",), persistent=("/m",), recursive=("/m",)),
    Auth(),
]


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture(scope="module")
def impatient() -> Iterator[ZooKeeperServer]:
    """Return a server that closes a connection soon on which nothing comes."""
    with ZooKeeperServer(sessionless_timeout=scaled(0.3)) as server:
        yield server


@pytest.fixture(scope="module")
def real() -> Iterator[ZooKeeper]:
    """Return a real server with the same nodes as the test server."""
    with ZooKeeper(properties={"zookeeper.extendedTypesEnabled": "true"}) as server:
        yield server


@pytest.fixture(params=["ours", pytest.param("real", marks=pytest.mark.zookeeper)])
def either(request: pytest.FixtureRequest) -> Server:
    """Return the test server, then the real one."""
    found: Server = request.getfixturevalue("server" if request.param == "ours" else "real")
    return found


@pytest.fixture(autouse=True)
def _no_complaints(caplog: pytest.LogCaptureFixture) -> Iterator[None]:
    """No input of a client is an error in the server's log."""
    yield
    ours = {"asyncio", "django_zklock.testing"}
    assert [each for each in caplog.records if each.name in ours and each.levelno > logging.DEBUG] == []


def serves(server: Server) -> bool:
    """Return whether a new client is served."""
    with RawClient(server.address) as asking, Talker(server.address) as client:
        asking.send_bytes(b"ruok")
        return asking.receive_all() == b"imok" and client.do(Ping()).error == 0


# Before there is a session.


@pytest.mark.parametrize(
    "piece",
    [
        jute.integer(0),
        jute.integer(-1),
        jute.integer(-(2**31)),
        jute.integer(2**31 - 1),
        jute.integer(MAX_FRAME + 1),
        b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
        bytes.fromhex("16030100f5010000f10303"),
        b"\xff" * 1000,
        bytes(1000),
    ],
    ids=repr,
)
def test_first_frame__impossible_length(either: Server, piece: bytes) -> None:
    """An impossible length ends the connection without a reply."""
    with RawClient(either.address) as client:
        client.send_bytes(piece)
        assert client.is_closed()
    assert serves(either)


def test_first_frame__cut_short(either: Server) -> None:
    """A frame with a missing field ends the connection without a reply, wherever it ends."""
    for length in range(1, 44):
        with RawClient(either.address) as client:
            client.send_frame(GREETING[:length])
            assert client.is_closed(), length


@pytest.mark.parametrize("length", [17, 1000, 2**31 - 1, -2, -(2**31)])
def test_first_frame__impossible_password(either: Server, length: int) -> None:
    """A password with a wrong length ends the connection without a reply."""
    with RawClient(either.address) as client:
        client.send_frame(GREETING[:24] + jute.integer(length) + bytes(16))
        assert client.is_closed()


@pytest.mark.parametrize("version", [1, -1, 2, 2**31 - 1])
def test_first_frame__wrong_version(server: ZooKeeperServer, version: int) -> None:
    """Another version of the protocol ends the connection without a reply."""
    with RawClient(server.address) as client:
        client.send_frame(jute.integer(version) + GREETING[4:])
        assert client.is_closed()
    assert serves(server)


def test_first_frame__as_large_as_may_be(either: Server) -> None:
    """A frame may be large, and arrive byte by byte."""
    with RawClient(either.address) as client:
        frame = jute.integer(MAX_FRAME) + GREETING
        for place in range(len(frame)):
            client.send_bytes(frame[place : place + 1])
        client.send_bytes(bytes(MAX_FRAME - len(GREETING)))
        assert len(client.receive_frame()) == 37


@pytest.mark.parametrize("piece", [b"", b"\0", b"\0\0\0", jute.integer(45), jute.integer(45) + GREETING[:-1], b"ru"])
@pytest.mark.parametrize("half_closed", [False, True])
def test_first_frame__never_complete(impatient: ZooKeeperServer, piece: bytes, half_closed: bool) -> None:
    """A connection without a connect request is closed after a timeout, or when the client has closed its direction."""
    with socket.create_connection(impatient.address, scaled(10)) as sock:
        sock.sendall(piece)
        if half_closed:
            sock.shutdown(socket.SHUT_WR)
        assert sock.recv(1) == b""


def test_first_frame__in_time(impatient: ZooKeeperServer) -> None:
    """A client with a session may be silent for longer than that timeout."""
    with Talker(impatient.address) as client, socket.create_connection(impatient.address, scaled(10)) as silent:
        assert silent.recv(1) == b""
        assert client.do(Ping()).error == 0


def test_connection__reset_at_once(server: ZooKeeperServer) -> None:
    """Clients that disconnect before they are accepted do no harm."""
    for _ in range(50):
        sock = socket.create_connection(server.address, scaled(10))
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        sock.close()
    assert serves(server)


# In a session.


@pytest.mark.parametrize("length", [0, -1, MAX_FRAME + 1, 2**31 - 1, -(2**31)])
def test_frame__impossible_length(either: Server, length: int) -> None:
    """An impossible length ends the connection; earlier requests are answered, and the session stays open."""
    with Talker(either.address) as client:
        client.start(Ping())
        client.answer()
        client.send_bytes(jute.integer(length))
        assert client.is_closed()
        with Talker(either.address, of=client) as again:
            assert again.session == client.session


def test_frame__no_header(either: Server) -> None:
    """A frame without number and kind ends the connection, wherever it ends; the session stays open."""
    for length in range(1, 8):
        with Talker(either.address) as client:
            client.send_frame(bytes(length))
            assert client.is_closed(), length
            with Talker(either.address, of=client) as again:
                assert again.session == client.session


def test_frame__as_large_as_may_be(either: Server) -> None:
    """A frame of ZooKeeper's maximum size is accepted, one byte more is not; a reply may be longer."""
    with Talker(either.address) as client:
        empty = 8 + len(Create("/large", 1).encode(HOME))
        data = bytes(MAX_FRAME - empty)
        client.ask(Create("/large", 1, data))
        assert client.read("/large")[0] == data
        client.start(Create("/larger", 1, bytes(MAX_FRAME + 1 - empty)))
        assert client.is_closed()


@pytest.mark.parametrize("opcode", [10, 77, 0, -1, 2**31 - 1, -(2**31)])
def test_frame__unknown_request(either: Server, opcode: int) -> None:
    """An unknown request is answered with an error; then the connection ends."""
    with Talker(either.address) as client:
        reply = client.call(opcode, b"whatever", xid=5)
        assert (reply.xid, reply.zxid, reply.error, reply.body) == (5, -1, UNIMPLEMENTED, b"")
        assert client.is_closed()


class Prober:
    """Sends requests that may end the connection, and then continues with another session."""

    def __init__(self, server: Server) -> None:
        self._server = server
        self._client = Talker(server.address)

    def outcome(self, opcode: int, body: bytes) -> Outcome:
        """Return the error of the reply, or None without a reply."""
        try:
            return self._client.call(opcode, body).error
        except ClosedError:
            self.close()
            self._client = Talker(self._server.address)
            return "closed"

    def close(self) -> None:
        self._client.close()


@pytest.fixture
def probers(server: ZooKeeperServer, real: ZooKeeper) -> Iterator[list[Prober]]:
    """Return one for the test server and one for the real one."""
    probers = [Prober(server), Prober(real)]
    yield probers
    for prober in probers:
        prober.close()


@pytest.mark.zookeeper
@pytest.mark.parametrize("operation", OPERATIONS, ids=repr)
def test_body__cut_short(probers: list[Prober], operation: Operation) -> None:
    """A body that is cut at any point has the same result as on the real server."""
    body = operation.encode(HOME)
    bodies = [body[:length] for length in range(len(body))]
    ours, real = ([prober.outcome(operation.opcode, each) for each in bodies] for prober in probers)
    assert ours == real


@pytest.mark.zookeeper
@pytest.mark.parametrize("number", [2**31 - 1, -1, -2, -(2**31), MAX_FRAME, 0])
@pytest.mark.parametrize("operation", OPERATIONS, ids=repr)
def test_body__impossible_number(probers: list[Prober], operation: Operation, number: int) -> None:
    """A wrong number at any position has the same result as on the real server: a length, a count or a kind."""
    body = operation.encode(HOME)
    places = len(body) - 3
    if isinstance(operation, SetWatches) and operation.persistent is not None and number == -1:
        # The real server's result for missing paths depends on the existing watches.
        places = body.index(jute.text("/m"), places // 2)
    bodies = [body[:place] + jute.integer(number) + body[place + 4 :] for place in range(places)]
    ours, real = ([prober.outcome(operation.opcode, each) for each in bodies] for prober in probers)
    assert ours == real


# A bug of the test server.


def test_request__server_makes_a_mistake(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """An exception in a reply ends that connection and is logged with its traceback; the server goes on."""

    def stumble(_reader: object, _client: object) -> bytes:
        raise ZeroDivisionError

    monkeypatch.setitem(reads.READS, Opcode.EXISTS, stumble)
    with ZooKeeperServer() as server, Talker(server.address) as client:
        client.start(Ping(), Exists("/"), Ping())
        assert client.answer().error == 0
        assert client.is_closed()
        (record,) = caplog.records
        assert record.name == "django_zklock.testing"
        assert record.getMessage().startswith("error while answering peer=127.0.0.1:")
        assert record.exc_info is not None
        assert serves(server)
    caplog.clear()


# Any bytes at any time.

requests = st.sampled_from([*OPERATIONS, Ping(), WhoAmI(), CloseSession()]).map(
    lambda operation: jute.integer(1) + jute.integer(operation.opcode) + operation.encode(HOME)
)


@st.composite
def mutilated(draw: st.DrawFn) -> bytes:
    """Draw a request with some bytes replaced."""
    frame = bytearray(draw(requests))
    for _ in range(draw(st.integers(1, 4))):
        frame[draw(st.integers(0, len(frame) - 1))] = draw(st.integers(0, 255))
    return bytes(frame)


def framed(frame: bytes) -> bytes:
    return jute.integer(len(frame)) + frame


pieces = st.one_of(
    requests.map(framed),
    mutilated().map(framed),
    st.binary(max_size=64).map(framed),
    st.binary(max_size=64),
)


@pytest.fixture(scope="module")
def victim() -> Iterator[ZooKeeperServer]:
    """Return a server that is not compared."""
    with ZooKeeperServer() as server:
        yield server


def send(sock: socket.socket, said: bytes, seed: int) -> None:
    """Send in pieces, then close; the server may have closed the connection before."""
    chance = random.Random(seed)
    with suppress(OSError):
        while said:
            place = chance.choice([len(said), chance.randint(1, len(said))])
            sock.sendall(said[:place])
            said = said[place:]
        sock.shutdown(socket.SHUT_WR)
        while sock.recv(1 << 16):
            pass


@given(
    first=st.sampled_from([framed(GREETING)] * 4 + [b"", GREETING]),
    then=st.lists(pieces, max_size=12),
    seed=st.integers(0, 2**32),
)
def test_anything(victim: ZooKeeperServer, first: bytes, then: list[bytes], seed: int) -> None:
    """Whatever a client sends, in any pieces: its connection ends when the client closes it, and others are served."""
    with Talker(victim.address) as other:
        with socket.create_connection(victim.address, scaled(10)) as sock:
            send(sock, first + b"".join(then), seed)
        assert other.do(Ping()).error == 0
    victim.faults.expire()
