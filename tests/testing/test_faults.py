"""Faults that end sessions and connections, and how all faults begin and end."""

from __future__ import annotations

import os
import queue
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo.client import KazooClient, KazooState
from kazoo.protocol.states import WatchedEvent

from django_zklock.testing import Fault, Faults, ZooKeeperServer
from tests.testing.child import fork
from tests.testing.operations import EPHEMERAL, SEQUENCE, Create, Exists, GetChildren, GetData
from tests.testing.rawclient import ClosedError
from tests.testing.talker import Talker

PATIENCE = 10.0
DELETED, CHILD = 2, 4


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def start(server: ZooKeeperServer) -> Iterator[Callable[[], KazooClient]]:
    """Give a function that starts a kazoo client."""
    clients = []

    def start() -> KazooClient:
        client = KazooClient(server.hosts, timeout=PATIENCE)
        clients.append(client)
        client.start(timeout=PATIENCE)
        return client

    yield start
    server.faults.heal()
    for client in clients:
        client.stop()
        client.close()


def session_of(client: KazooClient) -> int:
    number: int = client.client_id[0]
    return number


def states_of(client: KazooClient) -> queue.Queue[str]:
    """Give what kazoo says of its connection from now on."""
    states: queue.Queue[str] = queue.Queue()
    client.add_listener(states.put)
    return states


# Expire.


def test_expire__kazoo(server: ZooKeeperServer, start: Callable[[], KazooClient]) -> None:
    """A client hears that its session is lost, gets a new one, and its ephemeral node is gone, as a watch tells."""
    victim, witness = start(), start()
    before = session_of(victim)
    victim.create("/held", ephemeral=True)
    events: queue.Queue[WatchedEvent] = queue.Queue()
    assert witness.exists("/held", watch=events.put)
    states = states_of(victim)

    assert server.faults.expire(before) == 1

    assert events.get(timeout=PATIENCE).type == "DELETED"
    assert witness.exists("/held") is None
    assert [states.get(timeout=PATIENCE) for _ in range(3)] == [
        KazooState.SUSPENDED,
        KazooState.LOST,
        KazooState.CONNECTED,
    ]
    assert session_of(victim) != before
    assert witness.connected


def test_expire__one(server: ZooKeeperServer) -> None:
    """Ephemeral nodes go, in one transaction that watches tell, the connection ends, and the session is unknown."""
    with Talker(server.address) as victim, Talker(server.address) as witness:
        victim.ask(Create("/a", EPHEMERAL))
        victim.ask(Create("/b", EPHEMERAL))
        witness.ask(Exists("/a", watch=True))
        witness.ask(Exists("/b", watch=True))
        witness.ask(GetChildren("/", watch=True))
        zxid = witness.do(Exists("/")).zxid

        assert server.faults.expire(victim.session) == 1

        assert sorted(witness.event() for _ in range(3)) == [(DELETED, "/a"), (DELETED, "/b"), (CHILD, "/")]
        assert witness.do(Exists("/")).zxid == zxid + 1
        assert victim.is_closed()
        with Talker(server.address, of=victim) as again:
            assert (again.greeting.session, again.greeting.timeout) == (0, 0)
            assert again.is_closed()
        assert [each.id for each in server.sessions()] == [witness.session]


def test_expire__all(server: ZooKeeperServer) -> None:
    """Without a number every session ends, those without a connection too."""
    with Talker(server.address) as one, Talker(server.address) as other:
        other.ask(Create("/held", EPHEMERAL))
        with Talker(server.address) as gone:
            gone.ask(Create("/left", EPHEMERAL))
        assert server.faults.expire() == 3
        assert one.is_closed()
        assert other.is_closed()
    assert server.sessions() == []
    assert server.paths() == ["/zookeeper", "/zookeeper/config", "/zookeeper/quota"]


def test_expire__nobody(server: ZooKeeperServer) -> None:
    """A session that does not live is none that ends, and takes no zxid."""
    with Talker(server.address) as client:
        before = client.do(Exists("/")).zxid
        assert server.faults.expire(client.session + 1) == 0
        assert client.do(Exists("/")).zxid == before


def test_expire__while_waiting(server: ZooKeeperServer, start: Callable[[], KazooClient]) -> None:
    """What was done before the session ended is answered before the connection ends."""
    client = start()
    with server.faults.black_hole("replies", session=session_of(client)):
        answer = client.create_async("/a")
        server.requests.wait_for("create", path="/a")
        server.faults.expire(session_of(client))
    assert answer.get(timeout=PATIENCE) == "/a"


# Drop.


def test_drop__kazoo(server: ZooKeeperServer, start: Callable[[], KazooClient]) -> None:
    """A client loses its connection and comes back to the same session, which still has its node."""
    client = start()
    client.create("/held", ephemeral=True)
    states = states_of(client)
    before = session_of(client)

    assert server.faults.drop() == 1

    assert [states.get(timeout=PATIENCE) for _ in range(2)] == [KazooState.SUSPENDED, KazooState.CONNECTED]
    assert session_of(client) == before == server.owner("/held")
    assert server.requests.count("connect") == 2


def test_drop__one(server: ZooKeeperServer) -> None:
    """The client sees a reset, not an orderly end; others are not concerned, and the session lives on."""
    with Talker(server.address) as victim, Talker(server.address) as other:
        assert server.faults.drop(victim.session) == 1
        with pytest.raises(ClosedError, match="reset"):
            victim.receive_frame()
        other.ask(Exists("/"))
        assert {each.id: each.connected for each in server.sessions()} == {victim.session: False, other.session: True}
        with Talker(server.address, of=victim) as again:
            assert again.session == victim.session


def test_drop__counts_each_once(server: ZooKeeperServer) -> None:
    """Connections without a session count, and those that are gone do not."""
    # The server accepts them in this order.
    with socket.create_connection(server.address), Talker(server.address):
        assert server.faults.drop() == 2
        assert server.faults.drop() == 0


# Refuse.


def test_refuse__new_connections(server: ZooKeeperServer) -> None:
    """New connections are refused as if nothing listened, those there are go on; afterwards the port is the same."""
    address = server.address
    with Talker(address) as here:
        with server.faults.refuse():
            with pytest.raises(ConnectionRefusedError):
                socket.create_connection(address)
            here.ask(Create("/a"))
        assert server.address == address
        with Talker(address) as late:
            late.ask(GetData("/a"))


def test_refuse__kazoo(server: ZooKeeperServer, start: Callable[[], KazooClient]) -> None:
    """A client that is dropped meanwhile comes back to its session when it is over."""
    client = start()
    states = states_of(client)
    before = session_of(client)
    refusal = server.faults.refuse()
    server.faults.drop()
    assert states.get(timeout=PATIENCE) == KazooState.SUSPENDED
    refusal.end()
    assert states.get(timeout=PATIENCE) == KazooState.CONNECTED
    assert session_of(client) == before


def test_refuse__twice(server: ZooKeeperServer) -> None:
    """Of two refusals the last one that ends opens the door."""
    outer = server.faults.refuse()
    with server.faults.refuse():
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(server.address)
    outer.end()
    socket.create_connection(server.address).close()


def test_refuse__port_is_kept(server: ZooKeeperServer) -> None:
    """Nobody else can listen at the port meanwhile, nor is it given out."""
    with server.faults.refuse(), socket.socket() as sock, pytest.raises(OSError, match="in use"):
        sock.bind(server.address)


def test_refuse__started_anew(server: ZooKeeperServer) -> None:
    """A server that is started anew while it refuses goes on refusing."""
    with server.faults.refuse():
        server.stop()
        server.start()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(server.address)
    Talker(server.address).close()


# How faults begin and end.

LASTING: dict[str, Callable[[ZooKeeperServer], Fault]] = {
    "black_hole": lambda server: server.faults.black_hole(),
    "delay": lambda server: server.faults.delay(1000),
    "refuse": lambda server: server.faults.refuse(),
    "lag_reads": lambda server: server.faults.lag_reads(),
}
ALL: dict[str, Callable[[ZooKeeperServer], object]] = {
    **LASTING,
    "expire": lambda server: server.faults.expire(),
    "drop": lambda server: server.faults.drop(),
    "cut_reply": lambda server: server.faults.cut_reply("create"),
    "set_sequence": lambda server: server.faults.set_sequence("/", 5),
    "reap": lambda server: server.faults.reap("/"),
}


def works(server: ZooKeeperServer) -> bool:
    """Tell whether clients are served, and read what others have written."""
    with Talker(server.address) as one, Talker(server.address) as other:
        path = one.ask(Create("/works-", SEQUENCE))
        assert isinstance(path, str)
        return other.do(Exists(path)).error == 0


@pytest.mark.parametrize("name", LASTING)
def test_fault__context(server: ZooKeeperServer, name: str) -> None:
    """A fault that lasts ends with its context, and ending it once more does nothing."""
    with LASTING[name](server) as fault:
        pass
    assert works(server)
    fault.end()
    assert works(server)


@pytest.mark.parametrize("name", LASTING)
def test_fault__context_left_by_exception(server: ZooKeeperServer, name: str) -> None:
    """What is raised inside comes out, and the fault has ended."""
    with pytest.raises(ZeroDivisionError), LASTING[name](server):
        raise ZeroDivisionError
    assert works(server)


def test_heal__all(server: ZooKeeperServer) -> None:
    """Every fault ends, a reply that was to be cut is not, and nothing more happens if it is called again."""
    for begin in LASTING.values():
        begin(server)
    server.faults.black_hole("requests", session=1)
    server.faults.delay(1000, direction="replies")
    cut = server.faults.cut_reply("create")
    server.faults.heal()
    assert works(server)
    server.faults.heal()
    with pytest.raises(TimeoutError, match=r"no create was answered in 0\.001 s, so no reply was cut"):
        cut.wait(0.001)


def test_heal__inside_a_context(server: ZooKeeperServer) -> None:
    """The end of a context whose fault is over already is no error, and does not end a later fault."""
    with server.faults.refuse():
        server.faults.heal()
        later = server.faults.refuse()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(server.address)
    later.end()
    assert works(server)


@pytest.mark.parametrize("name", ALL)
def test_fault__server_is_stopped(name: str) -> None:
    """No fault can be done to a server that does not run, and the message says what to do."""
    server = ZooKeeperServer()
    with pytest.raises(RuntimeError, match="the server does not run; start it, or use it as a context manager"):
        ALL[name](server)
    with server:
        assert works(server)


@pytest.mark.parametrize("name", LASTING)
@pytest.mark.parametrize("end", ["heal", "end"])
def test_fault__ends_while_stopped(server: ZooKeeperServer, name: str, end: str) -> None:
    """A fault can be ended while the server is stopped, and is not there when it is started again."""
    fault = LASTING[name](server)
    server.stop()
    if end == "heal":
        server.faults.heal()
    else:
        fault.end()
    server.start()
    assert works(server)


def test_fault__outlives_a_restart(server: ZooKeeperServer) -> None:
    """A server that is stopped and started still has its faults."""
    with server.faults.lag_reads():
        with server.faults.black_hole("requests") as hole:
            server.stop()
            server.start()
            with Talker(server.address, greet=False):
                hole.requests.wait_for("connect")
        assert not works(server)
    assert works(server)


def test_fault__several_threads(server: ZooKeeperServer) -> None:
    """Threads may begin and end faults at the same time, the same one too; at the end there are none."""
    threads = 8
    barrier = threading.Barrier(threads)
    shared = server.faults.refuse()

    def work(number: int) -> None:
        barrier.wait(PATIENCE)
        for _ in range(20):
            with (
                server.faults.black_hole("requests", session=number),
                server.faults.delay(0.001, direction="replies"),
                server.faults.refuse(),
            ):
                server.faults.expire(number)
                server.faults.drop(number)
        barrier.wait(PATIENCE)
        shared.end()

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    assert works(server)


def test_fault__in_a_fork(server: ZooKeeperServer) -> None:
    """In a fork faults raise, and the end of a fault that was there before does nothing."""

    def work(say: Callable[[object], None]) -> None:
        for begin in ALL.values():
            with pytest.raises(RuntimeError, match=f"belongs to process {parent}, and {os.getpid()} is a fork of it"):
                begin(server)
        server.faults.heal()
        refusal.end()
        say("healed")

    parent = os.getpid()
    with server.faults.refuse() as refusal, fork(work) as child:
        assert child.hear() == "healed"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(server.address)
    assert works(server)


@pytest.mark.parametrize(
    ("begin", "message"),
    [
        (lambda faults: faults.black_hole("up"), 'a direction is "requests", "replies" or "both", not \'up\''),
        (lambda faults: faults.delay(1, direction="down"), 'a direction is "requests", "replies" or "both", not'),
        (lambda faults: faults.delay(-0.1), "a delay is a number of seconds, and not negative; got -0.1"),
        (lambda faults: faults.delay(float("nan")), "got nan"),
        (lambda faults: faults.cut_reply("creat"), "there is no request 'creat'; there are .*create2"),
        (lambda faults: faults.cut_reply("create", after_bytes=-1), "after_bytes cannot be negative, got -1"),
        (lambda faults: faults.lag_reads(zxids=0), "a follower lags at least one transaction, got 0"),
        (lambda faults: faults.set_sequence("/", 2**31), "a sequence number has 32 bits, got 2147483648"),
        (lambda faults: faults.set_sequence("/", -(2**31) - 1), "a sequence number has 32 bits"),
    ],
)
def test_fault__makes_no_sense(server: ZooKeeperServer, begin: Callable[[Faults], object], message: str) -> None:
    """What cannot be is refused with ValueError, and there is no fault."""
    with pytest.raises(ValueError, match=message):
        begin(server.faults)
    assert works(server)
