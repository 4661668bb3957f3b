"""The start, the resumption and the end of sessions, on the real server and on the test server."""

from __future__ import annotations

import pytest

from tests.testserver.server_area import Scene
from tests.toolbox.protocol.operations import (
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
from tests.toolbox.protocol.raw_client import ClosedError, Greeting

REFUSED = Greeting(protocol=0, timeout=0, session=0, password=bytes(16), rest=b"\0")
# The maximum size of a packet.
LIMIT = 0xFFFFF
DELETED, CHILD = 2, 4
NO_NODE = -101


@pytest.mark.parametrize(
    ("wish", "granted"),
    [(30_000, 30_000), (0, 1000), (-5, 1000), (999, 1000), (1234, 1234), (60_001, 60_000), (2**31 - 1, 60_000)],
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
    """A client that has seen a larger zxid is disconnected without a reply; the last one is not too large."""
    with either.client() as client, pytest.raises(ClosedError):
        client.connect(last_zxid=2**40)
    seen = either.visitor().zxid()
    with either.client() as client:
        client.connect(last_zxid=seen)
        client.call(CloseSession.opcode)


@pytest.mark.parametrize("password", [bytes(16), b"x" * 16, b"x" * 15, b"", None])
def test_connect__wrong_password(either: Scene, password: bytes | None) -> None:
    """A wrong password is refused like an unknown session; it closes the session's connection all the same."""
    visitor = either.visitor()
    with either.client() as client:
        assert client.connect(session=visitor.greeting.session, password=password) == REFUSED
        assert client.is_closed()
    assert visitor.client.is_closed()
    assert either.resume(visitor).greeting.session == visitor.greeting.session


@pytest.mark.parametrize("session", [12345, -1, 2**63 - 1])
def test_connect__unknown_session(either: Scene, session: int) -> None:
    """The reply is the same as for an expired session."""
    with either.client() as client:
        assert client.connect(session=session) == REFUSED
        assert client.is_closed()


def test_connect__moves_the_session(either: Scene) -> None:
    """The new connection replaces the old one, without a transaction; authentication must be repeated."""
    first = either.visitor()
    first.ask(Auth())
    first.ask(Create("~/a", EPHEMERAL))
    before = first.zxid()
    second = either.resume(first)
    assert first.client.is_closed()
    assert second.greeting == first.greeting
    assert second.zxid() == before
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


def test_ping__number(either: Scene) -> None:
    """A ping is answered with the xid of pings, whatever xid was sent."""
    client = either.visitor().client
    assert client.call(Ping.opcode, xid=77).xid == -2


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
