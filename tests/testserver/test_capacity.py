"""Many sessions, watches and nodes at once: all exist and all get their events."""

from __future__ import annotations

import resource
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise
from pathlib import Path

import pytest

from django_zklock.testing import ZooKeeperServer
from tests.toolbox.protocol.operations import (
    EPHEMERAL,
    MULTI_READ,
    SEQUENCE,
    AddWatch,
    CloseSession,
    CountDescendants,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    Ping,
    SetData,
    SetWatches,
    Sync,
)
from tests.toolbox.protocol.session_client import Talker
from tests.toolbox.timing import scaled

SESSIONS = 1000
MANY = 10_000
CREATED, DELETED, CHANGED, CHILD = 1, 2, 3, 4
# No limit on the duration: on a busy machine the last of a thousand clients waits long for its turn.
TIMEOUT = scaled(60)
AT_ONCE = 500
MARSHALLING_ERROR = -5
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def client(server: ZooKeeperServer) -> Iterator[Talker]:
    with Talker(server.address, wait_timeout=TIMEOUT) as client:
        yield client


@pytest.fixture
def thousand(server: ZooKeeperServer) -> Iterator[list[Talker]]:
    """Return a thousand connected clients."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Both ends of each connection are in this process.
    wanted = max(limits[0], 3 * SESSIONS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, limits[1]))
    try:
        with ExitStack() as stack:
            clients = [
                stack.enter_context(Talker(server.address, greet=False, timeout=60_000, wait_timeout=TIMEOUT))
                for _ in range(SESSIONS)
            ]
            for each in clients:
                each.greet()
            yield clients
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def many(client: Talker, operations: list[Create] | list[SetData] | list[Delete] | list[Exists]) -> None:
    """Send many requests, some in one packet; all must succeed."""
    for start in range(0, len(operations), AT_ONCE):
        batch = operations[start : start + AT_ONCE]
        client.start(*batch)
        for operation in batch:
            client.finish(operation, client.answer())


def test_sessions__a_thousand(server: ZooKeeperServer, thousand: list[Talker]) -> None:
    """A thousand sessions are open at once, each with a node, and end at once."""
    assert len({each.session for each in thousand}) == SESSIONS
    for number, each in enumerate(thousand):
        each.start(Create(f"/n{number}", EPHEMERAL))
    assert [each.answer().error for each in thousand] == [0] * SESSIONS
    sessions = server.sessions()
    assert [each.connected for each in sessions] == [True] * SESSIONS
    assert {path for each in sessions for path in each.ephemerals} == {f"/n{number}" for number in range(SESSIONS)}
    assert server.faults.expire() == SESSIONS
    assert all(each.is_closed() for each in thousand)
    assert len(server.paths()) == 3


def test_sessions__a_thousand_come_back(server: ZooKeeperServer, thousand: list[Talker]) -> None:
    """All lose their connection at once and reconnect to their sessions."""
    assert server.faults.drop() == SESSIONS
    with ExitStack() as stack:
        again = [
            stack.enter_context(Talker(server.address, of=each, greet=False, wait_timeout=TIMEOUT)) for each in thousand
        ]
        assert [each.greet().session for each in again] == [each.session for each in thousand]
    assert len(server.sessions()) == SESSIONS


def test_watches__a_thousand_clients(server: ZooKeeperServer, thousand: list[Talker], client: Talker) -> None:
    """A change sends one event to each watcher, through a black hole too."""
    client.ask(Create("/a"))
    for each in thousand:
        each.start(Exists("/a", watch=True))
    assert [each.answer().error for each in thousand] == [0] * SESSIONS
    with server.faults.black_hole("replies", session=thousand[0].session):
        client.ask(SetData("/a"))
        assert [each.event() for each in thousand[1:]] == [(CHANGED, "/a")] * (SESSIONS - 1)
    assert thousand[0].event() == (CHANGED, "/a")
    client.ask(SetData("/a"))
    assert [each.news() for each in thousand] == [[]] * SESSIONS


def test_watches__a_queue(server: ZooKeeperServer, thousand: list[Talker]) -> None:
    """A thousand nodes in a queue, each client watches its predecessor, and each gets the event of its deletion."""
    thousand[0].ask(Create("/line"))
    for each in thousand:
        each.start(Create("/line/n-", EPHEMERAL | SEQUENCE))
    assert [each.answer().error for each in thousand] == [0] * SESSIONS
    owners = {path: session.id for session in server.sessions() for path in session.ephemerals}
    by_session = {each.session: each for each in thousand}
    line = [(path, by_session[owners[path]]) for path in sorted(owners)]
    for (before, _), (_, each) in pairwise(line):
        each.ask(Exists(before, watch=True))
    for (path, each), (_, behind) in pairwise(line):
        each.start(CloseSession())
        assert behind.event() == (DELETED, path)
    assert len(server.sessions()) == 1


def test_watches__ten_thousand(client: Talker, server: ZooKeeperServer) -> None:
    """One client watches ten thousand nodes and gets the events in the order of the changes."""
    paths = [f"/n{number}" for number in range(MANY)]
    with Talker(server.address, wait_timeout=TIMEOUT) as watcher:
        many(client, [Create(path) for path in paths])
        many(watcher, [Exists(path, watch=True) for path in paths])
        many(client, [SetData(path) for path in reversed(paths)])
        assert watcher.news() == [(CHANGED, path) for path in reversed(paths)]
        assert server.call(lambda: server.service.newest.watches.data.total) == 0


def test_watches__ten_thousand_come_back(client: Talker, server: ZooKeeperServer) -> None:
    """A client that reconnects sets ten thousand watches in one request, and gets the events that it has missed."""
    paths = tuple(f"/n{number}" for number in range(MANY))
    many(client, [Create(path) for path in paths])
    with Talker(server.address, wait_timeout=TIMEOUT) as watcher:
        seen = watcher.do(Ping()).zxid
        many(client, [SetData(path) for path in paths[::2]])
        watcher.ask(SetWatches(seen, data=paths))
        assert [(each.kind, each.path) for each in watcher.events] == [(CHANGED, path) for path in paths[::2]]
        assert server.call(lambda: server.service.newest.watches.data.total) == MANY // 2


def test_watches__recursive(client: Talker, server: ZooKeeperServer) -> None:
    """A recursive watch sends the events of ten thousand nodes below."""
    with Talker(server.address, wait_timeout=TIMEOUT) as watcher:
        watcher.ask(AddWatch("/", 1))
        many(client, [Create(f"/n{number}") for number in range(MANY)])
        assert watcher.news() == [(CREATED, f"/n{number}") for number in range(MANY)]


def test_nodes__ten_thousand_of_one_session(client: Talker, server: ZooKeeperServer) -> None:
    """Ten thousand ephemeral nodes are deleted with their session, in one transaction."""
    with Talker(server.address, wait_timeout=TIMEOUT) as owner:
        client.ask(Create("/many"))
        many(owner, [Create(f"/many/n{number}", EPHEMERAL) for number in range(MANY)])
        names = client.ask(GetChildren("/many", watch=True))
        assert isinstance(names, tuple)
        assert len(names) == MANY
        assert client.ask(CountDescendants("/")) == MANY + 4
        zxid = client.do(Ping()).zxid
        owner.do(CloseSession())
        assert client.news() == [(CHILD, "/many")]
        assert client.ask(GetChildren("/many")) == ()
        assert client.do(Ping()).zxid == zxid + 1


def test_nodes__deep(client: Talker) -> None:
    """A tree can be a thousand nodes deep."""
    path = ""
    for _ in range(1000):
        path += "/n"
        client.ask(Create(path))
    client.ask(AddWatch("/", 1))
    client.ask(SetData(path))
    assert client.event() == (CHANGED, path)
    assert client.ask(CountDescendants("/n")) == 999


def test_multi__as_large_as_a_frame(client: Talker) -> None:
    """Ten thousand nodes are created in one transaction, and deleted in one."""
    zxid = client.do(Ping()).zxid
    client.ask(Multi(tuple(Create(f"/n{number}") for number in range(MANY))))
    assert client.ask(CountDescendants("/")) == MANY + 3
    client.ask(Multi(tuple(Delete(f"/n{number}") for number in range(MANY))))
    assert client.ask(CountDescendants("/")) == 3
    assert client.do(Ping()).zxid == zxid + 2


def test_multi_read__too_long(client: Talker, caplog: pytest.LogCaptureFixture) -> None:
    """A small request with a reply of more than 16 MB is refused, and the connection stays open."""
    client.ask(Create("/a", data=bytes(900_000)))
    reads = (GetData("/a"),)
    assert client.do(Multi(reads * 18, MULTI_READ)).error == 0
    assert caplog.records == []
    assert client.do(Multi(reads * 20, MULTI_READ)).error == MARSHALLING_ERROR
    assert "more than 16777216 bytes; read fewer nodes at once" in caplog.text
    assert client.do(Multi(reads, MULTI_READ)).error == 0


WITH_FEW_DESCRIPTORS = """
import logging, resource, sys
from django_zklock.testing import ZooKeeperServer
resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
logging.basicConfig(format="%(message)s")
with ZooKeeperServer(sessionless_timeout=600.0, max_session_timeout=600.0) as server:
    print(server.hosts, flush=True)
    sys.stdin.read()
"""


def test_descriptors__run_out() -> None:
    """A server without free descriptors serves its open connections, logs it once, and recovers when others close."""
    server = subprocess.Popen(
        [sys.executable, "-c", WITH_FEW_DESCRIPTORS],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
    )
    try:
        assert server.stdout is not None
        assert server.stderr is not None
        host, _, port = server.stdout.readline().strip().rpartition(":")
        address = (host, int(port))
        with Talker(address, timeout=600_000, wait_timeout=TIMEOUT) as client, ExitStack() as stack:
            # The system makes connections that the server cannot accept yet.
            idle = [stack.enter_context(socket.create_connection(address, TIMEOUT)) for _ in range(80)]
            first = server.stderr.readline()
            assert first.startswith(f"event=cannot_accept port={port} error=OSError(24, ")
            assert client.do(Ping()).error == 0
            # Their replies take several turns: each uses the descriptor of the one before.
            asking = [stack.enter_context(socket.create_connection(address, TIMEOUT)) for _ in range(4)]
            for each in asking:
                each.sendall(b"ruok")
            for each in idle:
                each.close()
                if select.select(asking, [], [], 0.2)[0]:
                    break
            assert [each.recv(100) for each in asking] == [b"imok"] * 4
        assert server.stderr.readline() == f"event=accepting_again port={port}\n"
        _output, errors = server.communicate(timeout=TIMEOUT)
        assert errors == ""
        assert server.returncode == 0
    finally:
        server.kill()
        server.communicate()


def test_lag__many_transactions(client: Talker, server: ZooKeeperServer) -> None:
    """A follower can be ten thousand transactions behind, and catches up with all of them."""
    with Talker(server.address, wait_timeout=TIMEOUT) as reader, server.faults.lag_reads(MANY):
        reader.ask(AddWatch("/", 1))
        many(client, [Create(f"/n{number}") for number in range(MANY)])
        assert reader.ask(CountDescendants("/")) == 3
        client.ask(Create("/one-more"))
        assert reader.event() == (CREATED, "/n0")
        reader.ask(Sync("/"))
        assert len(reader.events) == MANY
        assert reader.ask(GetData("/one-more"))
