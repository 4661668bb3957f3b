"""Four-letter commands: the same replies as the real server's, except values that belong to one server."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterator

import pytest

from django_zklock.testing import ZooKeeperServer
from tests.toolbox.protocol.operations import (
    CREATE,
    CREATE2,
    CREATE_CONTAINER,
    CREATE_TTL,
    EPHEMERAL,
    MULTI_READ,
    OPEN,
    AddWatch,
    Auth,
    CheckWatches,
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
    Raw,
    RemoveWatches,
    SetAcl,
    SetData,
    SetWatches,
    Sync,
    WhoAmI,
)
from tests.toolbox.protocol.raw_client import RawClient
from tests.toolbox.protocol.session_client import Talker
from tests.toolbox.zookeeper.any_server import Server
from tests.toolbox.zookeeper.server import ZooKeeper

# Ports, times and latencies; and counts that include the wait for the real server's start.
VOLATILE = {
    r"/(\S+):\d+\[": r"/\1:port[",
    r"Zookeeper version: .*": "Zookeeper version: …",
    r"Latency min/avg/max: \d+/\d+\.\d+/\d+": "Latency …",
    r"(Received|Sent): \d+": r"\1: …",
    r"sid=0x[0-9a-f]+": "sid=…",
    r"(est|lresp|llat|minlat|avglat|maxlat)=\d+": r"\1=…",
}
# Counters with the same value on both servers after the same requests.
COUNTERS = {
    "zk_approximate_data_size",
    "zk_ephemerals_count",
    "zk_global_sessions",
    "zk_num_alive_connections",
    "zk_outstanding_requests",
    "zk_server_state",
    "zk_watch_count",
    "zk_znode_count",
}
OPERATIONS: list[Operation] = [
    Create("/op"),
    Create("/op2", opcode=CREATE2),
    Create("/op-container", opcode=CREATE_CONTAINER),
    Create("/op-ttl", 5, opcode=CREATE_TTL, ttl=-1),
    Exists("/op"),
    GetData("/op"),
    SetData("/op"),
    GetAcl("/op"),
    SetAcl("/op", OPEN),
    GetChildren("/op"),
    GetChildren2("/op"),
    CountDescendants("/op"),
    GetEphemerals("/op"),
    Sync("/op"),
    Multi((SetData("/op"),)),
    Multi((GetData("/op"),), MULTI_READ),
    AddWatch("/op"),
    CheckWatches("/op"),
    RemoveWatches("/op"),
    SetWatches(0),
    SetWatches(0, persistent=()),
    WhoAmI(),
    Auth(),
    Delete("/no-such"),
    GetData("/no-such"),
    Raw(CREATE),
    Raw(GetData.opcode),
    Multi((Delete("/no-such"),)),
    Delete("/op"),
    Delete("/op2"),
    Delete("/op-container"),
]


@pytest.fixture(scope="module")
def real() -> Iterator[ZooKeeper]:
    """Return a real server with as few requests as the test server."""
    with ZooKeeper() as server:
        yield server


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture(scope="module")
def ours() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture(scope="module")
def scene(real: ZooKeeper, ours: ZooKeeperServer) -> Iterator[None]:
    """Let two clients send the same requests to both servers, and stay connected."""
    clients = []
    for server in (real, ours):
        first, second = Talker(server.address), Talker(server.address, timeout=7000)
        clients += [first, second]
        first.ask(Create("/a", EPHEMERAL, b"some data"))
        first.do(Exists("/nowhere", watch=True))
        first.ask(Exists("/a", watch=True))
        second.ask(Create("/ä", data=None))
        second.ask(GetChildren("/", watch=True))
        second.ask(AddWatch("/", 1))
        second.ask(GetData("/a", watch=True))
        second.do(Create("/no/such"))
    yield
    for client in clients:
        client.close()


def answer(server: Server, word: str) -> str:
    """Send a command, and wait for the end of the connection."""
    with RawClient(server.address) as client:
        client.send_bytes(word.encode())
        return client.receive_all().decode()


def shape(text: str) -> list[str]:
    """Return the lines without values of one server or one moment, in any order of the clients."""
    for pattern, replacement in VOLATILE.items():
        text = re.sub(pattern, replacement, text)
    lines = text.split("\n")
    clients = sorted(line for line in lines if line.startswith(" /"))
    return [clients.pop(0) if line.startswith(" /") else line for line in lines]


@pytest.mark.zookeeper
@pytest.mark.usefixtures("scene")
@pytest.mark.parametrize("word", ["ruok", "isro", "srvr", "stat", "cons", "wchs"])
def test_word__same_answer(real: ZooKeeper, ours: ZooKeeperServer, word: str) -> None:
    """All lines are the same except times, ports and session numbers."""
    assert shape(answer(ours, word)) == shape(answer(real, word))


def counters(server: Server) -> dict[str, str]:
    text = answer(server, "mntr")
    assert text.endswith("\n")
    return dict(line.split("\t") for line in text.splitlines())


@pytest.mark.zookeeper
@pytest.mark.usefixtures("scene")
def test_mntr__same_counters(real: ZooKeeper, ours: ZooKeeperServer) -> None:
    """Every counter exists on the real server, has the same format, and the same value if possible."""
    expected, seen = counters(real), counters(ours)
    assert COUNTERS <= seen.keys() <= expected.keys()
    assert {name: seen[name] for name in COUNTERS} == {name: expected[name] for name in COUNTERS}
    for name, value in seen.items():
        assert re.sub(r"\d+", "0", value)[:5] == re.sub(r"\d+", "0", expected[name])[:5], name


@pytest.mark.zookeeper
@pytest.mark.usefixtures("scene")
def test_envi__version(real: ZooKeeper, ours: ZooKeeperServer) -> None:
    """Of the environment only the version is returned, which clients read."""
    expected, seen = answer(real, "envi"), answer(ours, "envi")
    assert expected.startswith("Environment:\nzookeeper.version=3.8.")
    assert seen.startswith("Environment:\nzookeeper.version=3.8.")
    assert seen.count("\n") == 2
    assert seen.endswith("\n")


def last_operation(server: Server, client: Talker) -> str:
    """Return the kind of the last request of a client, as the server shows it."""
    found = re.search(rf"sid=0x{client.session:x},(lop=\w+),.*,(lcxid=\w+),", answer(server, "cons"))
    assert found is not None
    return f"{found[1]},{found[2]}"


@pytest.mark.zookeeper
def test_cons__last_operation(zookeeper: ZooKeeper, server: ZooKeeperServer) -> None:
    """The kind of the last request has the same short name, and its number the same format."""

    def play(server: Server) -> list[str]:
        with Talker(server.address) as client:
            said = [last_operation(server, client)]
            for operation in OPERATIONS:
                client.do(operation)
                said.append(f"{operation}: {last_operation(server, client)}")
            client.settle()
            return [*said, last_operation(server, client)]

    assert play(server) == play(zookeeper)


@pytest.mark.zookeeper
@pytest.mark.parametrize("word", ["RUOK", "quit", "rouk", "\0\0\0\0", "\x7fELF"])
def test_word__unknown(zookeeper: ZooKeeper, server: ZooKeeperServer, word: str) -> None:
    """An unknown command is the length of a frame, an impossible one."""
    assert answer(server, word) == answer(zookeeper, word) == ""


@pytest.mark.parametrize("piece", ["ruok\n", "ruokruok", "ruok" + "x" * 5000])
def test_word__with_more_behind(server: ZooKeeperServer, piece: str) -> None:
    """Bytes after the command are ignored."""
    assert answer(server, piece) == "imok"


def test_word__letter_by_letter(server: ZooKeeperServer) -> None:
    """A command may arrive in pieces, and its client may have closed its direction already."""
    with socket.create_connection(server.address, 10) as sock:
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for letter in b"ruok":
            sock.sendall(bytes([letter]))
        sock.shutdown(socket.SHUT_WR)
        assert sock.recv(100) == b"imok"
        assert sock.recv(100) == b""


@pytest.mark.zookeeper
def test_word__only_first(zookeeper: ZooKeeper, server: ZooKeeperServer) -> None:
    """In a session a command is the length of a frame, an impossible one."""
    for address in (zookeeper.address, server.address):
        with Talker(address) as client:
            client.send_bytes(b"ruok")
            assert client.is_closed()


def test_word__counts_packets(server: ZooKeeperServer) -> None:
    """Requests and commands count as received, replies and events as sent."""
    before = counters(server)
    with Talker(server.address) as client, Talker(server.address) as other:
        client.do(Exists("/counted", watch=True))
        other.ask(Create("/counted"))
        other.ask(Delete("/counted"))
    after = counters(server)
    received, sent = ((int(after[name]) - int(before[name])) for name in ("zk_packets_received", "zk_packets_sent"))
    # Two connects, three requests, and the command itself; there is one event, and replies to commands do not count.
    assert (received, sent) == (6, 6)
