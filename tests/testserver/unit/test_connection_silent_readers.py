"""Clients that do not read their replies: their cost is limited, and other clients are not affected."""

from __future__ import annotations

import socket
from collections.abc import Iterator

import pytest

from django_zklock.testing import ZooKeeperServer
from django_zklock.testing.server import connection
from tests.toolbox.protocol.operations import AddWatch, Create, Exists, GetData, SetData
from tests.toolbox.protocol.raw_client import ClosedError
from tests.toolbox.protocol.session_client import Talker

SIZE = 256 * 1024


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def other(server: ZooKeeperServer) -> Iterator[Talker]:
    """Return a client that reads, and a large node."""
    with Talker(server.address) as other:
        other.ask(Create("/large", data=bytes(SIZE)))
        yield other


def silent(server: ZooKeeperServer) -> Talker:
    """Return a client with small buffers in its own kernel."""
    client = Talker(server.address)
    client._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, SIZE)
    return client


def unread(server: ZooKeeperServer) -> int:
    """Return the number of bytes that the server buffers for clients that do not read."""

    def count() -> int:
        return sum(
            each._transport.get_write_buffer_size() + each._outgoing_bytes + len(each._incoming)
            for each in server.connections
        )

    return server.call(count)


def drain(client: Talker) -> None:
    """Read until the end, which is an error."""
    while True:
        client.receive_frame()


def test_replies__wait_for_the_reader(server: ZooKeeperServer, other: Talker) -> None:
    """Requests of a client that does not read wait; when it reads, all are answered in order."""
    requests = 200
    with silent(server) as client:
        client.start(*(GetData("/large") for _ in range(requests)))
        server.requests.wait_for("getData")
        # The server gets all of them in one packet, so by now it has stopped.
        other.ask(Exists("/large"))
        assert server.requests.count("getData") < requests // 2
        assert unread(server) < 2 * SIZE
        replies = [client.answer() for _ in range(requests)]
        assert [reply.xid for reply in replies] == list(range(1, requests + 1))
        assert {len(reply.body) for reply in replies} == {4 + SIZE + 68}
        client.ask(Exists("/large"))


def test_replies__never_read(server: ZooKeeperServer, other: Talker) -> None:
    """A client that disconnects before it has read ends like every other."""
    with silent(server) as client:
        client.start(*(GetData("/large") for _ in range(50)))
        server.requests.wait_for("getData")
    while len(server.call(lambda: list(server.connections))) > 1:
        other.ask(Exists("/"))
    assert unread(server) == 0
    assert [each.connected for each in server.sessions()] == [True, False]


def test_events__never_read(server: ZooKeeperServer, other: Talker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A client with too many unread events loses its connection, not its session, and no other client waits for it."""
    monkeypatch.setattr(connection, "MAX_UNREAD", 100_000)
    path = "/" + "long-name-" * 100
    other.ask(Create(path))
    with silent(server) as client:
        client.ask(AddWatch(path))
        while server.call(lambda: len(server.connections)) > 1:
            other.ask(SetData(path))
            assert unread(server) < 200_000
        with pytest.raises(ClosedError):
            drain(client)
        assert [each.connected for each in server.sessions()] == [True, False]


def test_close__never_read(server: ZooKeeperServer, other: Talker, monkeypatch: pytest.MonkeyPatch) -> None:
    """Data sent before the end can be read for a limited time only."""
    monkeypatch.setattr(connection, "CLOSE_TIMEOUT", 0.2)
    with silent(server) as client:
        client.start(*(GetData("/large") for _ in range(50)))
        server.requests.wait_for("getData")
        server.faults.expire(client.session)
        while server.call(lambda: len(server.connections)) > 1:
            other.ask(Exists("/"))
        with pytest.raises(ClosedError, match="reset"):
            drain(client)


def test_close__read_late(server: ZooKeeperServer, other: Talker) -> None:
    """A client that starts to read in time gets everything sent before the end."""
    with silent(server) as client:
        client.start(*(GetData("/large") for _ in range(50)))
        server.requests.wait_for("getData")
        other.ask(Exists("/"))
        server.faults.expire(client.session)
        taken = server.requests.count("getData")
        for _ in range(taken):
            assert client.answer().error == 0
        assert client.is_closed()
