"""Faults that end sessions and connections, and the start and end of all faults."""

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

from django_zklock.testing import Cut, Fault, Faults, ZooKeeperServer
from tests.toolbox.processes.forked_child import fork
from tests.toolbox.protocol.operations import EPHEMERAL, SEQUENCE, Create, Exists, GetChildren, GetData
from tests.toolbox.protocol.raw_client import ClosedError
from tests.toolbox.protocol.session_client import Talker
from tests.toolbox.timing import scaled

TIMEOUT = scaled(10)
DELETED, CHILD = 2, 4


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def start(server: ZooKeeperServer) -> Iterator[Callable[[], KazooClient]]:
    """Return a function that starts a kazoo client."""
    clients = []

    def start() -> KazooClient:
        client = KazooClient(server.hosts, timeout=TIMEOUT)
        clients.append(client)
        client.start(timeout=TIMEOUT)
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
    """Return a queue of kazoo's connection states from now on."""
    states: queue.Queue[str] = queue.Queue()
    client.add_listener(states.put)
    return states


# Expire.


def test_expire__kazoo(server: ZooKeeperServer, start: Callable[[], KazooClient]) -> None:
    """A client learns that its session is lost and gets a new one; its node is deleted, and a watch reports it."""
    victim, witness = start(), start()
    before = session_of(victim)
    victim.create("/held", ephemeral=True)
    events: queue.Queue[WatchedEvent] = queue.Queue()
    assert witness.exists("/held", watch=events.put)
    states = states_of(victim)

    assert server.faults.expire(before) == 1

    assert events.get(timeout=TIMEOUT).type == "DELETED"
    assert witness.exists("/held") is None
    assert [states.get(timeout=TIMEOUT) for _ in range(3)] == [
        KazooState.SUSPENDED,
        KazooState.LOST,
        KazooState.CONNECTED,
    ]
    assert session_of(victim) != before
    assert witness.connected


def test_expire__one(server: ZooKeeperServer) -> None:
    """Ephemeral nodes are deleted in one transaction with events, the connection ends, and the session is unknown."""
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
    """A session that is not open cannot end, and takes no zxid."""
    with Talker(server.address) as client:
        before = client.do(Exists("/")).zxid
        assert server.faults.expire(client.session + 1) == 0
        assert client.do(Exists("/")).zxid == before


def test_expire__while_waiting(server: ZooKeeperServer, start: Callable[[], KazooClient]) -> None:
    """Requests executed before the end of the session are answered before the connection ends."""
    client = start()
    with server.faults.black_hole("replies", session=session_of(client)):
        answer = client.create_async("/a")
        server.requests.wait_for("create", path="/a")
        server.faults.expire(session_of(client))
    assert answer.get(timeout=TIMEOUT) == "/a"


# Drop.


def test_drop__kazoo(server: ZooKeeperServer, start: Callable[[], KazooClient]) -> None:
    """A client loses its connection and resumes the same session, which still has its node."""
    client = start()
    client.create("/held", ephemeral=True)
    states = states_of(client)
    before = session_of(client)

    assert server.faults.drop() == 1

    assert [states.get(timeout=TIMEOUT) for _ in range(2)] == [KazooState.SUSPENDED, KazooState.CONNECTED]
    assert session_of(client) == before == server.owner("/held")
    assert server.requests.count("connect") == 2


def test_drop__one(server: ZooKeeperServer) -> None:
    """The client gets a reset; other clients are not affected, and the session stays open."""
    with Talker(server.address) as victim, Talker(server.address) as other:
        assert server.faults.drop(victim.session) == 1
        with pytest.raises(ClosedError, match="reset"):
            victim.receive_frame()
        other.ask(Exists("/"))
        assert {each.id: each.connected for each in server.sessions()} == {victim.session: False, other.session: True}
        with Talker(server.address, of=victim) as again:
            assert again.session == victim.session


def test_drop__counts_each_once(server: ZooKeeperServer) -> None:
    """Connections without a session count; closed connections do not."""
    # The server accepts them in this order.
    with socket.create_connection(server.address), Talker(server.address):
        assert server.faults.drop() == 2
        assert server.faults.drop() == 0


# Refuse.


def test_refuse__new_connections(server: ZooKeeperServer) -> None:
    """New connections are refused as if no server listened, open ones continue; afterwards the port is the same."""
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
    """A client that is dropped meanwhile resumes its session afterwards."""
    client = start()
    states = states_of(client)
    before = session_of(client)
    refusal = server.faults.refuse()
    server.faults.drop()
    assert states.get(timeout=TIMEOUT) == KazooState.SUSPENDED
    refusal.end()
    assert states.get(timeout=TIMEOUT) == KazooState.CONNECTED
    assert session_of(client) == before


def test_refuse__twice(server: ZooKeeperServer) -> None:
    """With two refusals the server accepts again after the end of the last one."""
    outer = server.faults.refuse()
    with server.faults.refuse():
        pass
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(server.address)
    outer.end()
    socket.create_connection(server.address).close()


def test_refuse__port_is_kept(server: ZooKeeperServer) -> None:
    """No other socket can listen at the port meanwhile."""
    with server.faults.refuse(), socket.socket() as sock, pytest.raises(OSError, match="in use"):
        sock.bind(server.address)


def test_refuse__started_anew(server: ZooKeeperServer) -> None:
    """A server that is restarted during a refusal still refuses."""
    with server.faults.refuse():
        server.stop()
        server.start()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(server.address)
    Talker(server.address).close()


# The start and the end of faults.

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
    """Return whether clients are served and read the writes of others."""
    with Talker(server.address) as one, Talker(server.address) as other:
        path = one.ask(Create("/works-", SEQUENCE))
        assert isinstance(path, str)
        return other.do(Exists(path)).error == 0


@pytest.mark.parametrize("name", LASTING)
def test_fault__context(server: ZooKeeperServer, name: str) -> None:
    """A lasting fault ends with its context, and a second end does nothing."""
    with LASTING[name](server) as fault:
        pass
    assert works(server)
    fault.end()
    assert works(server)


@pytest.mark.parametrize("name", LASTING)
def test_fault__context_left_by_exception(server: ZooKeeperServer, name: str) -> None:
    """An exception inside propagates, and the fault has ended."""
    with pytest.raises(ZeroDivisionError), LASTING[name](server):
        raise ZeroDivisionError
    assert works(server)


def test_heal__all(server: ZooKeeperServer) -> None:
    """Heal ends every fault and cancels cuts; a second call does nothing."""
    for begin in LASTING.values():
        begin(server)
    server.faults.black_hole("requests", session=1)
    server.faults.delay(1000, direction="replies")
    cut = server.faults.cut_reply("create")
    server.faults.heal()
    assert works(server)
    server.faults.heal()
    with pytest.raises(TimeoutError, match=r"no reply was cut: no create was answered within 0\.001 s"):
        cut.wait(0.001)


def test_heal__inside_a_context(server: ZooKeeperServer) -> None:
    """The end of a context whose fault has ended is no error, and does not end a later fault."""
    with server.faults.refuse():
        server.faults.heal()
        later = server.faults.refuse()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(server.address)
    later.end()
    assert works(server)


@pytest.mark.parametrize("name", ALL)
def test_fault__server_is_stopped(name: str) -> None:
    """A fault on a stopped server is an error that says what to do."""
    server = ZooKeeperServer()
    with pytest.raises(RuntimeError, match="the server does not run; start it, or use it as a context manager"):
        ALL[name](server)
    with server:
        assert works(server)


@pytest.mark.parametrize("name", LASTING)
@pytest.mark.parametrize("end", ["heal", "end"])
def test_fault__ends_while_stopped(server: ZooKeeperServer, name: str, end: str) -> None:
    """A fault can be ended while the server is stopped, and is gone after the restart."""
    fault = LASTING[name](server)
    server.stop()
    if end == "heal":
        server.faults.heal()
    else:
        fault.end()
    server.start()
    assert works(server)


def test_fault__outlives_a_restart(server: ZooKeeperServer) -> None:
    """A server keeps its faults over a restart."""
    with server.faults.lag_reads():
        with server.faults.black_hole("requests") as hole:
            server.stop()
            server.start()
            with Talker(server.address, greet=False):
                hole.requests.wait_for("connect")
        assert not works(server)
    assert works(server)


def test_fault__several_threads(server: ZooKeeperServer) -> None:
    """Threads may start and end faults at the same time, even the same one; at the end there are none."""
    threads = 8
    barrier = threading.Barrier(threads)
    shared = server.faults.refuse()

    def work(number: int) -> None:
        barrier.wait(TIMEOUT)
        for _ in range(20):
            with (
                server.faults.black_hole("requests", session=number),
                server.faults.delay(0.001, direction="replies"),
                server.faults.refuse(),
            ):
                server.faults.expire(number)
                server.faults.drop(number)
        barrier.wait(TIMEOUT)
        shared.end()

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    assert works(server)


def test_fault__in_a_fork(server: ZooKeeperServer) -> None:
    """In a fork faults raise, and the end of an inherited fault does nothing."""

    def work(report: Callable[[object], None]) -> None:
        for begin in ALL.values():
            with pytest.raises(
                RuntimeError, match=f"belongs to process {parent}; process {os.getpid()} is a fork of it"
            ):
                begin(server)
        server.faults.heal()
        refusal.end()
        report("healed")

    parent = os.getpid()
    with server.faults.refuse() as refusal, fork(work) as child:
        assert child.receive() == "healed"
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(server.address)
    assert works(server)


@pytest.mark.parametrize(
    ("begin", "message"),
    [
        (lambda faults: faults.black_hole("up"), 'a direction is "requests", "replies" or "both", not \'up\''),
        (lambda faults: faults.delay(1, direction="down"), 'a direction is "requests", "replies" or "both", not'),
        (lambda faults: faults.delay(-0.1), "a delay is a finite number of seconds, not negative, got -0.1"),
        (lambda faults: faults.delay(float("nan")), "got nan"),
        (lambda faults: faults.cut_reply("creat"), "unknown request 'creat'; the requests are .*create2"),
        (lambda faults: faults.cut_reply("create", after_bytes=-1), "after_bytes cannot be negative, got -1"),
        (lambda faults: faults.lag_reads(zxids=0), "a follower lags at least one transaction, got 0"),
        (lambda faults: faults.set_sequence("/", 2**31), "a sequence number has 32 bits, got 2147483648"),
        (lambda faults: faults.set_sequence("/", -(2**31) - 1), "a sequence number has 32 bits"),
    ],
)
def test_fault__makes_no_sense(server: ZooKeeperServer, begin: Callable[[Faults], object], message: str) -> None:
    """An impossible fault is refused with ValueError."""
    with pytest.raises(ValueError, match=message):
        begin(server.faults)
    assert works(server)


def test_heal__all_but_some(server: ZooKeeperServer) -> None:
    """Faults that are kept stay in effect, and the others end."""
    faults = server.faults
    kept: list[Fault | Cut] = [faults.delay(0.0), faults.cut_reply("sync")]
    assert faults.active() == kept
    faults.refuse()
    faults.cut_reply("getData")
    assert len(faults.active()) == 4
    faults.heal(keep=kept)
    assert faults.active() == kept
    faults.heal()
    assert faults.active() == []
