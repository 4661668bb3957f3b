"""Sessions: their timeout, their start and their end."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from django_zklock.testing import ZooKeeperServer
from tests.toolbox.protocol.operations import EPHEMERAL, CloseSession, Create, Exists, Ping
from tests.toolbox.protocol.session_client import Talker
from tests.toolbox.timing import scaled

DELETED = 2
# Milliseconds of a session that ends soon, and not before a request of the test has come.
SHORT = round(scaled(500))
# Seconds of one that goes on while something comes.
PATIENT = scaled(4)


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


# The timeout.


def test_timeout__silent(server: ZooKeeperServer) -> None:
    """A silent client loses its session after the timeout, not before, and its connection with it."""
    start = time.monotonic()
    with Talker(server.address, timeout=SHORT) as client:
        client.ask(Create("/held", EPHEMERAL))
        server.wait_for_end(client.session)
        assert time.monotonic() - start >= SHORT / 1000
        assert server.sessions() == []
        assert "/held" not in server.paths()
        assert client.is_closed()


def test_timeout__from_the_last_request(server: ZooKeeperServer) -> None:
    """The time counts from the last request of any kind."""
    # Long enough that a pause of a busy machine does not expire it.
    with Talker(server.address, timeout=round(1000 * PATIENT)) as client:
        start = time.monotonic()
        while time.monotonic() - start < PATIENT + 1:
            client.do(Ping())
            client.do(Exists("/nowhere"))
            client.call(4, b"malformed")
        last = time.monotonic()
        client.do(Ping())
        server.wait_for_end(client.session, 10 * PATIENT)
        assert time.monotonic() - last >= PATIENT


def test_timeout__without_connection(server: ZooKeeperServer) -> None:
    """A session without a connection stays open for its timeout, no longer."""
    with Talker(server.address) as witness:
        with Talker(server.address, timeout=SHORT) as client:
            last = time.monotonic()
            client.ask(Create("/held", EPHEMERAL))
            witness.ask(Exists("/held", watch=True))
        assert witness.event() == (DELETED, "/held")
        assert time.monotonic() - last >= SHORT / 1000
        assert [each.id for each in server.sessions()] == [witness.session]


def test_timeout__new_one_when_coming_back(server: ZooKeeperServer) -> None:
    """A client that reconnects negotiates again: the session ends sooner, or later."""
    long, short = Talker(server.address, timeout=30_000), Talker(server.address, timeout=1000)
    with long, short, Talker(server.address, of=short, timeout=30_000) as now_long:
        start = time.monotonic()
        with Talker(server.address, of=long, timeout=1100) as now_short:
            assert (now_short.greeting.timeout, now_long.greeting.timeout) == (1100, 30_000)
            server.wait_for_end(long.session)
            assert time.monotonic() - start >= 1.1
            assert now_short.is_closed()
        assert [(each.id, each.timeout) for each in server.sessions()] == [(short.session, 30.0)]
        now_long.do(Ping())


def test_timeout__server_is_stopped() -> None:
    """While the server is stopped no session ends, and after the start each has its full timeout again."""
    with ZooKeeperServer() as server:
        client = Talker(server.address, timeout=SHORT)
        client.ask(Create("/held", EPHEMERAL))
        server.stop()
        client.close()
        threading.Event().wait(0.7)
        start = time.monotonic()
        server.start()
        assert server.owner("/held") == client.session
        server.wait_for_end(client.session)
        assert time.monotonic() - start >= SHORT / 1000


# The start.


def test_connect__numbers_and_passwords(server: ZooKeeperServer) -> None:
    """Every session has its own number and password, on other servers too."""
    with ZooKeeperServer() as other:
        greetings = []
        for address in [server.address] * 3 + [other.address] * 3:
            with Talker(address) as client:
                greetings.append(client.greeting)
        for ours in (greetings[:3], greetings[3:]):
            assert [each.session - ours[0].session for each in ours] == [0, 1, 2]
            assert ours[0].session > 0
        assert len({each.password for each in greetings}) == 6
        assert all(each.password is not None and len(each.password) == 16 for each in greetings)


# The end.


def test_close__answers_and_ends(server: ZooKeeperServer) -> None:
    """The end is a transaction, answered before the connection ends; later requests are not executed."""
    with Talker(server.address) as client, Talker(server.address) as witness:
        client.ask(Create("/held", EPHEMERAL))
        witness.ask(Exists("/held", watch=True))
        zxid = client.do(Exists("/")).zxid
        client.start(CloseSession(), Create("/never"))
        reply = client.answer()
        assert (reply.zxid, reply.error, reply.body) == (zxid + 1, 0, b"")
        assert client.is_closed()
        assert witness.event() == (DELETED, "/held")
        assert "/never" not in server.paths()
