"""Black holes and delays of requests, replies and events."""

from __future__ import annotations

import queue
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo.client import KazooClient, KazooState

from django_zklock.testing import ZooKeeperServer
from django_zklock.testing.server.faults import DirectionName
from tests.toolbox.protocol.operations import (
    EPHEMERAL,
    SEQUENCE,
    Create,
    Exists,
    GetChildren,
    GetData,
    Ping,
    Raw,
)
from tests.toolbox.protocol.raw_client import Event, RawClient, Reply
from tests.toolbox.protocol.session_client import Talker
from tests.toolbox.timing import scaled

TIMEOUT = scaled(10)
DELETED = 2
NO_NODE = -101


# Black holes.


def test_black_hole__requests(server: ZooKeeperServer) -> None:
    """Requests are executed after the black hole, in their order; it affects only its session."""
    with Talker(server.address) as victim, Talker(server.address) as other:
        with server.faults.black_hole("requests", session=victim.session) as hole:
            victim.start(*(Create("/q-", SEQUENCE) for _ in range(3)), Exists("/late"))
            hole.requests.wait_for("exists")
            assert hole.requests.counts() == {"create": 3, "exists": 1}
            other.ask(Create("/late"))
            assert other.ask(GetChildren("/")) == ("late", "zookeeper")
            assert server.requests.count("exists") == 0
        replies = [victim.answer() for _ in range(4)]
        assert [reply.xid for reply in replies] == [1, 2, 3, 4]
        assert [reply.error for reply in replies] == [0, 0, 0, 0]
        # The numbers of the three increase in the order of the requests.
        numbers = [victim.finish(Create("/"), reply) for reply in replies[:3]]
        assert numbers == sorted(numbers, key=str)
        assert server.requests.count("create") == 4


def test_black_hole__replies(server: ZooKeeperServer) -> None:
    """Requests are executed; their replies, and the events between them, arrive after the black hole, in order."""
    with Talker(server.address) as victim, Talker(server.address) as other:
        with server.faults.black_hole("replies", session=victim.session) as hole:
            victim.start(Create("/a"), Exists("/b", watch=True))
            server.requests.wait_for("exists", path="/b")
            other.ask(Create("/b"))
            victim.start(GetData("/b"))
            server.requests.wait_for("getData", path="/b")
            # No requests are lost.
            assert hole.requests.counts() == {}
        frames = [victim.receive() for _ in range(4)]
        assert [type(frame) for frame in frames] == [Reply, Reply, Event, Reply]
        assert [frame.error for frame in frames if isinstance(frame, Reply)] == [0, NO_NODE, 0]


def test_black_hole__everybody(server: ZooKeeperServer) -> None:
    """Without a session it affects all connections: connect requests and four-letter commands wait too."""
    with Talker(server.address) as client, Talker(server.address, greet=False) as late:
        late.greet()
        hole = server.faults.black_hole()
        client.start(Ping())
        with Talker(server.address, greet=False) as new, RawClient(server.address) as asking:
            asking.send_bytes(b"ruok")
            hole.requests.wait_for("connect")
            hole.requests.wait_for("ping")
            assert len(server.sessions()) == 2
            server.faults.heal()
            assert client.answer().xid == -2
            assert new.greet().session > late.session
            assert asking.receive_all() == b"imok"


def test_black_hole__half_a_request(server: ZooKeeperServer) -> None:
    """A request that has half arrived before the black hole is executed after it."""
    with Talker(server.address) as client:
        frame = bytes.fromhex("0000000e 00000007 00000003 00000001 2f 00")
        client.send_bytes(frame[:9])
        with server.faults.black_hole("requests") as hole:
            client.send_bytes(frame[9:])
            hole.requests.wait_for("exists", path="/")
        assert client.answer().xid == 7


def test_black_hole__session_expires(server: ZooKeeperServer) -> None:
    """A server without requests expires the session, and then executes none of the waiting requests."""
    with Talker(server.address, timeout=300) as client, Talker(server.address) as witness:
        client.ask(Create("/held", EPHEMERAL))
        witness.ask(Exists("/held", watch=True))
        with server.faults.black_hole("requests", session=client.session) as hole:
            client.start(Create("/never"), Ping())
            hole.requests.wait_for("ping")
            server.wait_for_end(client.session)
            assert witness.event() == (DELETED, "/held")
            # Replies are not affected.
            assert client.is_closed()
        assert witness.do(Exists("/never")).error == NO_NODE


def test_black_hole__session_lives(server: ZooKeeperServer) -> None:
    """A session that loses only its replies stays open while its requests arrive."""
    # Long enough that a pause of a busy machine does not expire it.
    with Talker(server.address, timeout=round(scaled(4000))) as client:
        pings = 0
        start = time.monotonic()
        with server.faults.black_hole("replies"):
            while time.monotonic() - start < scaled(5):
                client.start(Ping())
                pings += 1
                server.requests.wait_for("ping", pings)
                # All that is held back is sent at once in the end.
                time.sleep(0.02)
        assert all(client.answer().error == 0 for _ in range(pings))


def test_black_hole__end_of_connection(server: ZooKeeperServer) -> None:
    """The client does not learn that the server has closed its connection until the black hole ends."""
    with Talker(server.address, wait_timeout=0.1) as client:
        with server.faults.black_hole("replies"):
            server.faults.expire(client.session)
            with pytest.raises(TimeoutError):
                client.receive_frame()
        client.wait_timeout = TIMEOUT
        assert client.is_closed()


def test_black_hole__reconnect_into_it(server: ZooKeeperServer) -> None:
    """A client that reconnects during the black hole gets the reply after it; then the old connection ends."""
    with Talker(server.address) as client:
        hole = server.faults.black_hole("requests", session=client.session)
        with Talker(server.address, of=client, greet=False) as again:
            hole.requests.wait_for("connect")
            assert server.requests.count("connect") == 1
            hole.end()
            assert again.greet().session == client.session
            assert client.is_closed()
            again.ask(Exists("/"))


def test_black_hole__expired_while_reconnecting(server: ZooKeeperServer) -> None:
    """The reply that the session has expired is held back like all replies of that session."""
    with Talker(server.address) as client:
        server.faults.black_hole("replies", session=client.session)
        server.faults.expire(client.session)
        with Talker(server.address, of=client, greet=False, wait_timeout=0.1) as again:
            server.requests.wait_for("connect", 2)
            with pytest.raises(TimeoutError):
                again.greet()
            server.faults.heal()
            again.wait_timeout = TIMEOUT
            assert again.greet().session == 0


def test_black_hole__given_up(server: ZooKeeperServer) -> None:
    """Requests of a client that has given up are executed after the black hole, before its next connection."""
    client = Talker(server.address)
    hole = server.faults.black_hole("requests", session=client.session)
    client.start(Create("/zombie"))
    hole.requests.wait_for("create", path="/zombie")
    client.close()
    with Talker(server.address, of=client, greet=False) as again:
        hole.requests.wait_for("connect")
        hole.end()
        assert again.greet().session == client.session
        again.ask(Exists("/zombie"))
    assert [each.opcode.label for each in server.requests.all()] == ["connect", "create", "connect", "exists"]


def test_black_hole__kazoo(server: ZooKeeperServer, kazoo: KazooClient) -> None:
    """A client that is dropped and reconnects into the black hole resumes its session after it."""
    states: queue.Queue[str] = queue.Queue()
    kazoo.add_listener(states.put)
    session = kazoo.client_id[0]
    kazoo.create("/held", ephemeral=True)
    with server.faults.black_hole(session=session) as hole:
        server.faults.drop(session)
        hole.requests.wait_for("connect")
        assert states.get(timeout=TIMEOUT) == KazooState.SUSPENDED
    assert states.get(timeout=TIMEOUT) == KazooState.CONNECTED
    assert server.owner("/held") == session == kazoo.client_id[0]


def test_black_hole__nested(server: ZooKeeperServer) -> None:
    """Each black hole ends separately: the directions of the others stay blocked."""
    with Talker(server.address) as client:
        outer = server.faults.black_hole("requests")
        with server.faults.black_hole("requests", session=client.session) as inner:
            client.start(Ping())
            inner.requests.wait_for("ping")
        assert outer.requests.count("ping") == 1
        client.start(Exists("/"))
        outer.requests.wait_for("exists")
        assert outer.requests.count("ping") == 1
        assert server.requests.count("ping") == 0
        outer.end()
        assert [client.answer().error for _ in range(2)] == [0, 0]


def test_black_hole__drop(server: ZooKeeperServer) -> None:
    """A reset gets through, and the data that was held back is lost."""
    with Talker(server.address) as client, Talker(server.address) as other:
        with server.faults.black_hole("requests", session=client.session) as hole:
            client.start(Create("/never"))
            hole.requests.wait_for("create")
            server.faults.drop(client.session)
            assert client.is_closed()
        assert other.do(Exists("/never")).error == NO_NODE


def test_black_hole__unknown_requests(server: ZooKeeperServer) -> None:
    """Unknown and malformed requests are not in the log of the black hole, and are answered afterwards."""
    with Talker(server.address) as client:
        with server.faults.black_hole("requests") as hole:
            client.start(Raw(77))
            with Talker(server.address, greet=False) as other:
                other.send_bytes(b"\xff\xff\xff\xff")
                hole.requests.wait_for("connect")
            assert hole.requests.counts() == {"connect": 1}
        assert client.answer().error == -6
        assert client.is_closed()


def test_black_hole__asked_after_the_end(server: ZooKeeperServer) -> None:
    """Requests of a client whose session has expired unnoticed are not executed."""
    with Talker(server.address) as client, Talker(server.address) as other:
        with server.faults.black_hole("replies", session=client.session):
            server.faults.expire(client.session)
            client.start(Create("/never"))
            # This one arrives later.
            other.do(Ping())
        assert client.is_closed()
        assert other.do(Exists("/never")).error == NO_NODE


# Delays.


def timed(function: Callable[[], object]) -> float:
    start = time.monotonic()
    function()
    return time.monotonic() - start


@pytest.mark.parametrize(("direction", "seconds"), [("requests", 0.1), ("replies", 0.1), ("both", 0.2)])
def test_delay__each_way(server: ZooKeeperServer, direction: DirectionName, seconds: float) -> None:
    """A round trip takes at least this much longer."""
    with Talker(server.address) as client:
        with server.faults.delay(0.1, direction=direction):
            assert timed(lambda: client.ask(Create("/a"))) >= seconds
        client.ask(Exists("/a"))


def test_delay__adds_up(server: ZooKeeperServer) -> None:
    """Two delays add up, and one continues when the other ends."""
    with Talker(server.address) as client, server.faults.delay(0.1, direction="requests"):
        with server.faults.delay(0.2, direction="requests"):
            assert timed(lambda: client.ask(Exists("/"))) >= 0.3
        assert timed(lambda: client.ask(Exists("/"))) >= 0.1


@pytest.mark.parametrize("direction", ["requests", "replies", "both"])
def test_delay__keeps_order(server: ZooKeeperServer, direction: DirectionName) -> None:
    """Data arrives in the order of sending, even if the delay becomes shorter meanwhile."""
    with Talker(server.address) as client:
        first = server.faults.delay(1000, direction=direction)
        client.start(Create("/a"), Exists("/a"))
        second = server.faults.delay(0.01, direction=direction)
        client.start(GetData("/a"))
        first.end()
        client.start(Ping())
        second.end()
        client.start(Exists("/b"))
        replies = [client.answer() for _ in range(5)]
        assert [reply.xid for reply in replies] == [1, 2, 3, -2, 5]
        assert [reply.error for reply in replies] == [0, 0, 0, 0, NO_NODE]


def test_delay__client_has_gone(server: ZooKeeperServer) -> None:
    """A request arrives although its client has closed the connection since."""
    with server.faults.delay(0.1, direction="requests"):
        with Talker(server.address) as client:
            client.start(Create("/left"))
        server.requests.wait_for("create", path="/left")
    with Talker(server.address) as other:
        other.ask(Exists("/left"))


def test_delay__connection_has_gone(server: ZooKeeperServer) -> None:
    """Data under way is lost when the connection is reset."""
    with Talker(server.address) as client, Talker(server.address) as other:
        with server.faults.delay(1000, direction="requests"):
            client.start(Create("/never"))
            while not server.call(lambda: any(each._requests.waiting() for each in server.connections)):
                pass
            server.faults.drop(client.session)
            assert client.is_closed()
        assert other.do(Exists("/never")).error == NO_NODE


def test_delay__in_a_hole(server: ZooKeeperServer) -> None:
    """The end of a delay does not open a black hole, and the end of a black hole does not shorten a delay."""
    with Talker(server.address) as client:
        delay = server.faults.delay(0.2, direction="requests")
        with server.faults.black_hole("requests") as hole:
            client.start(Ping())
            hole.requests.wait_for("ping")
            delay.end()
            assert server.requests.count("ping") == 0
        client.answer()

        with server.faults.delay(0.2, direction="requests"):
            start = time.monotonic()
            with server.faults.black_hole("requests") as hole:
                client.start(Ping())
                hole.requests.wait_for("ping")
            client.answer()
            assert time.monotonic() - start >= 0.2


def test_delay__kazoo(server: ZooKeeperServer, kazoo: KazooClient) -> None:
    """Requests of many threads are all answered, late."""
    with server.faults.delay(0.02), ThreadPoolExecutor(8) as pool:
        assert timed(lambda: list(pool.map(kazoo.create, [f"/n{number}" for number in range(40)]))) >= 0.04
    assert len(kazoo.get_children("/")) == 41
