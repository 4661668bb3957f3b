"""The start, the resumption and the end of sessions, on the real server and on the test server."""

from __future__ import annotations

import re

import pytest

from tests.support.protocol.jute import integer
from tests.support.protocol.operations import (
    EPHEMERAL,
    AddWatch,
    Auth,
    CloseSession,
    Create,
    Exists,
    GetChildren,
    GetData,
    GetEphemerals,
    Ping,
    WhoAmI,
)
from tests.support.protocol.raw_client import ClosedError, Greeting
from tests.testserver.server_area import Scene

REFUSED = Greeting(protocol=0, timeout=0, session=0, password=bytes(16), rest=b"\0")
# The maximum size of a packet.
LIMIT = 0xFFFFF
DELETED, CHILD = 2, 4
NO_NODE = -101


@pytest.mark.parametrize(
    ("wish", "granted"), [(30_000, 30_000), (0, 1000), (-5, 1000), (999, 1000), (10**9, 60_000), (1234, 1234)]
)
def test_timeout(either: Scene, wish: int, granted: int) -> None:
    """The requested timeout is granted within the server's limits."""
    greeting = either.visitor(timeout=wish).greeting
    assert (greeting.protocol, greeting.timeout, greeting.rest) == (0, granted, b"\0")
    assert greeting.session != 0
    assert greeting.password is not None
    assert len(greeting.password) == 16
    assert any(greeting.password)


@pytest.mark.parametrize(("tail", "rest"), [(b"", b""), (b"\0", b"\0"), (b"\1", b"\0"), (b"\0more", b"\0")])
def test_connect__old_client(either: Scene, tail: bytes, rest: bytes) -> None:
    """A client that does not send the read-only flag does not get it back."""
    with either.client() as client:
        assert client.connect(tail=tail).rest == rest
        client.call(CloseSession.opcode)


@pytest.mark.parametrize("password", [b"", b"short", b"x" * 40, None])
def test_connect__password_of_a_new_session(either: Scene, password: bytes | None) -> None:
    """A new session gets a password, whatever password was sent."""
    with either.client() as client:
        assert len(client.connect(password=password).password or b"") == 16
        client.call(CloseSession.opcode)


def test_connect__knows_the_future(either: Scene) -> None:
    """A client that has seen a larger zxid is disconnected without a reply."""
    with either.client() as client, pytest.raises(ClosedError):
        client.connect(last_zxid=2**40)


@pytest.mark.parametrize("password", [b"x" * 16, b"", None])
def test_connect__wrong_password(either: Scene, password: bytes | None) -> None:
    """A wrong password is refused like an unknown session; it closes the session's connection all the same."""
    visitor = either.visitor()
    with either.client() as client:
        assert client.connect(session=visitor.greeting.session, password=password) == REFUSED
        assert client.is_closed()
    assert visitor.client.is_closed()
    assert either.resume(visitor).greeting.session == visitor.greeting.session


@pytest.mark.parametrize("session", [12345, -1])
def test_connect__unknown_session(either: Scene, session: int) -> None:
    """The reply is the same as for an expired session."""
    with either.client() as client:
        assert client.connect(session=session) == REFUSED
        assert client.is_closed()


def test_connect__moves_the_session(either: Scene) -> None:
    """The new connection replaces the old one; ephemeral nodes stay, and authentication must be repeated."""
    first = either.visitor()
    first.ask(Auth())
    first.ask(Create("~/a", EPHEMERAL))
    second = either.resume(first)
    assert first.client.is_closed()
    assert second.greeting == first.greeting
    assert second.ask(GetEphemerals("~")).value == ("~/a",)
    assert second.ask(WhoAmI()).value == (("ip", "127.0.0.1"),)


def test_close(either: Scene) -> None:
    """Ephemeral nodes are deleted before the reply; the connection is closed after it."""
    observer, visitor = either.visitor(), either.visitor()
    visitor.ask(Create("~/a", EPHEMERAL))
    visitor.ask(GetData("~/a", watch=True))
    observer.ask(GetData("~/a", watch=True))
    observer.ask(GetChildren("~", watch=True))
    answer = visitor.ask(CloseSession())
    assert visitor.kept() == [(DELETED, "~/a")]
    assert visitor.client.is_closed()
    assert observer.events() == [(DELETED, "~/a"), (CHILD, "~")]
    assert answer.zxid == observer.zxid()
    with either.client() as client:
        greeting = visitor.greeting
        assert client.connect(session=greeting.session, password=greeting.password) == REFUSED


def test_expiry(either: Scene) -> None:
    """A session that is silent for its timeout ends: its connection, its nodes, and the chance to resume it."""
    observer, visitor = either.visitor(), either.visitor(timeout=1000)
    visitor.ask(Create("~/a", EPHEMERAL))
    observer.ask(AddWatch("~", 1))
    before = observer.zxid()
    assert visitor.client.is_closed()
    assert observer.events() == [(DELETED, "~/a")]
    assert observer.zxid() == before + 1
    assert observer.error(Exists("~/a")) == NO_NODE
    with either.client() as client:
        greeting = visitor.greeting
        assert client.connect(session=greeting.session, password=greeting.password) == REFUSED


# Frames.


def frame_of_create(scene: Scene, size: int) -> bytes:
    """Return a packet of exactly this size."""
    head, tail = integer(1) + integer(1), Create("~/large").encode(scene.home)
    room = size - len(head) - len(tail)
    return integer(size) + head + Create("~/large", data=b"x" * room).encode(scene.home)


@pytest.mark.parametrize(
    "frame",
    [integer(0), integer(-1), integer(LIMIT + 1), integer(2**31 - 1), integer(4) + integer(0), b"GET / HTTP/1.1\r\n"],
)
def test_frame__before_the_session(either: Scene, frame: bytes) -> None:
    """A malformed first packet ends the connection without a reply."""
    with either.client() as client:
        client.send_bytes(frame)
        assert client.is_closed()


@pytest.mark.parametrize(
    "frame",
    [integer(0), integer(-1), integer(3) + b"abc", integer(4) + integer(1), integer(LIMIT + 1), integer(2**31 - 1)],
)
def test_frame__within_the_session(either: Scene, frame: bytes) -> None:
    """A malformed later packet ends the connection; the session stays open."""
    visitor = either.visitor()
    visitor.client.send_bytes(frame)
    assert visitor.client.is_closed()
    assert either.resume(visitor).error(Ping()) == 0


def test_frame__of_the_greatest_size(either: Scene) -> None:
    """The limit is for the whole packet, and replies may be longer."""
    visitor = either.visitor()
    visitor.client.send_bytes(frame_of_create(either, LIMIT))
    assert visitor.client.answer().error == 0
    answer = visitor.client.call(GetData.opcode, GetData("~/large").encode(either.home))
    assert len(answer.body) > LIMIT - 200
    visitor.client.send_bytes(frame_of_create(either, LIMIT + 1))
    assert visitor.client.is_closed()


def test_ping__number(either: Scene) -> None:
    """A ping is answered with the xid of pings, whatever xid was sent."""
    client = either.visitor().client
    assert client.call(Ping.opcode, xid=77).xid == -2


# Four-letter commands.

CLIENT = r" /127\.0\.0\.1:\d+\[[01]\]\(queued=\d+,recved=\d+,sent=\d+"
COUNTERS = (
    r"Latency min/avg/max: \d+/\d+(\.\d+)?/\d+\nReceived: \d+\nSent: \d+\nConnections: \d+\nOutstanding: \d+\n"
    r"Zxid: 0x[0-9a-f]+\nMode: standalone\nNode count: \d+\n"
)
VERSION = r"Zookeeper version: 3\.[^\n]*, built on [^\n]*\n"
WORDS = {
    "ruok": "imok",
    "isro": "rw",
    "srvr": VERSION + COUNTERS,
    "stat": VERSION + rf"Clients:\n({CLIENT}\)\n)+\n" + COUNTERS,
    "wchs": r"\d+ connections watching \d+ paths\nTotal watches:\d+\n",
    "cons": (
        rf"({CLIENT}(,sid=0x[0-9a-f]+,lop=\w+,est=\d+,to=\d+,(lcxid=0x[0-9a-f]+,)?lzxid=0x[0-9a-f]+,lresp=\d+,"
        r"llat=\d+,minlat=\d+,avglat=\d+,maxlat=\d+)?\)\n)+\n"
    ),
    "mntr": r"zk_version\t3\.[^\n]*\n(zk_[^\t\n]+\t[^\n]*\n)+",
}


@pytest.mark.parametrize("word", WORDS)
def test_word(either: Scene, word: str) -> None:
    """Monitoring parses these texts, so they have the same format."""
    visitor = either.visitor()
    visitor.ask(GetData("~", watch=True))
    with either.client() as client:
        client.send_bytes(word.encode())
        text = client.receive_all().decode()
    assert re.fullmatch(WORDS[word], text), text


def test_mntr__counts(either: Scene) -> None:
    """The counters that tests and monitoring use exist and are right."""
    visitor = either.visitor()

    def counters() -> dict[str, str]:
        with either.client() as client:
            client.send_bytes(b"mntr")
            return dict(line.split("\t") for line in client.receive_all().decode().splitlines())

    before = counters()
    visitor.ask(Create("~/a", EPHEMERAL))
    visitor.ask(GetData("~/a", watch=True))
    visitor.ask(GetChildren("~", watch=True))
    after = counters()
    added = {
        name: int(after[f"zk_{name}"]) - int(before[f"zk_{name}"])
        for name in ("znode_count", "ephemerals_count", "watch_count", "packets_received", "global_sessions")
    }
    # The command itself is a packet.
    assert added == {
        "znode_count": 1,
        "ephemerals_count": 1,
        "watch_count": 2,
        "packets_received": 4,
        "global_sessions": 0,
    }
    assert after["zk_server_state"] == "standalone"
