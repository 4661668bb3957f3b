"""Many sessions, watches and nodes at once: all are there, and all are told."""

from __future__ import annotations

import resource
from collections.abc import Iterator
from contextlib import ExitStack
from itertools import pairwise

import pytest

from django_zklock.testing import ZooKeeperServer
from tests.testing.operations import (
    EPHEMERAL,
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
from tests.testing.talker import Talker

SESSIONS = 1000
MANY = 10_000
CREATED, DELETED, CHANGED, CHILD = 1, 2, 3, 4
# Nothing here says how long it may take; on a busy machine the last client of a thousand waits long for its turn.
PATIENCE = 60.0
AT_ONCE = 500


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def client(server: ZooKeeperServer) -> Iterator[Talker]:
    with Talker(server.address, patience=PATIENCE) as client:
        yield client


@pytest.fixture
def crowd(server: ZooKeeperServer) -> Iterator[list[Talker]]:
    """Give a thousand clients, all connected."""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    # Both ends of each connection are in this process.
    wanted = max(limits[0], 3 * SESSIONS)
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, limits[1]))
    try:
        with ExitStack() as stack:
            clients = [
                stack.enter_context(Talker(server.address, greet=False, timeout=60_000, patience=PATIENCE))
                for _ in range(SESSIONS)
            ]
            for each in clients:
                each.greet()
            yield clients
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)


def many(client: Talker, operations: list[Create] | list[SetData] | list[Delete] | list[Exists]) -> None:
    """Ask for much, some of it in one piece each time; all must be done."""
    for start in range(0, len(operations), AT_ONCE):
        batch = operations[start : start + AT_ONCE]
        client.start(*batch)
        for operation in batch:
            client.finish(operation, client.answer())


def test_sessions__a_thousand(server: ZooKeeperServer, crowd: list[Talker]) -> None:
    """A thousand sessions live at once, each with a node of its own, and end at once."""
    assert len({each.session for each in crowd}) == SESSIONS
    for number, each in enumerate(crowd):
        each.start(Create(f"/n{number}", EPHEMERAL))
    assert [each.answer().error for each in crowd] == [0] * SESSIONS
    told = server.sessions()
    assert [each.connected for each in told] == [True] * SESSIONS
    assert {path for each in told for path in each.ephemerals} == {f"/n{number}" for number in range(SESSIONS)}
    assert server.faults.expire() == SESSIONS
    assert all(each.is_closed() for each in crowd)
    assert len(server.paths()) == 3


def test_sessions__a_thousand_come_back(server: ZooKeeperServer, crowd: list[Talker]) -> None:
    """All lose their connection at once and come back to their sessions."""
    assert server.faults.drop() == SESSIONS
    with ExitStack() as stack:
        again = [stack.enter_context(Talker(server.address, of=each, greet=False, patience=PATIENCE)) for each in crowd]
        assert [each.greet().session for each in again] == [each.session for each in crowd]
    assert len(server.sessions()) == SESSIONS


def test_watches__a_thousand_clients(server: ZooKeeperServer, crowd: list[Talker], client: Talker) -> None:
    """A change is told to all who watch, once each, in a hole too."""
    client.ask(Create("/a"))
    for each in crowd:
        each.start(Exists("/a", watch=True))
    assert [each.answer().error for each in crowd] == [0] * SESSIONS
    with server.faults.black_hole("replies", session=crowd[0].session):
        client.ask(SetData("/a"))
        assert [each.event() for each in crowd[1:]] == [(CHANGED, "/a")] * (SESSIONS - 1)
    assert crowd[0].event() == (CHANGED, "/a")
    client.ask(SetData("/a"))
    assert [each.news() for each in crowd] == [[]] * SESSIONS


def test_watches__a_queue(server: ZooKeeperServer, crowd: list[Talker]) -> None:
    """A thousand stand in line, each watches the one before, and each is told when that has gone."""
    crowd[0].ask(Create("/line"))
    for each in crowd:
        each.start(Create("/line/n-", EPHEMERAL | SEQUENCE))
    assert [each.answer().error for each in crowd] == [0] * SESSIONS
    owners = {path: session.id for session in server.sessions() for path in session.ephemerals}
    by_session = {each.session: each for each in crowd}
    line = [(path, by_session[owners[path]]) for path in sorted(owners)]
    for (before, _), (_, each) in pairwise(line):
        each.ask(Exists(before, watch=True))
    for (path, each), (_, behind) in pairwise(line):
        each.start(CloseSession())
        assert behind.event() == (DELETED, path)
    assert len(server.sessions()) == 1


def test_watches__ten_thousand(client: Talker, server: ZooKeeperServer) -> None:
    """One client watches ten thousand nodes and is told of each, in the order of the changes."""
    paths = [f"/n{number}" for number in range(MANY)]
    with Talker(server.address, patience=PATIENCE) as watcher:
        many(client, [Create(path) for path in paths])
        many(watcher, [Exists(path, watch=True) for path in paths])
        many(client, [SetData(path) for path in reversed(paths)])
        assert watcher.news() == [(CHANGED, path) for path in reversed(paths)]
        assert server.call(lambda: server.service.newest.watches.data.total) == 0


def test_watches__ten_thousand_come_back(client: Talker, server: ZooKeeperServer) -> None:
    """A client that comes back leaves ten thousand watches in one request, and is told what it has missed."""
    paths = tuple(f"/n{number}" for number in range(MANY))
    many(client, [Create(path) for path in paths])
    with Talker(server.address, patience=PATIENCE) as watcher:
        seen = watcher.do(Ping()).zxid
        many(client, [SetData(path) for path in paths[::2]])
        watcher.ask(SetWatches(seen, data=paths))
        assert [(each.kind, each.path) for each in watcher.events] == [(CHANGED, path) for path in paths[::2]]
        assert server.call(lambda: server.service.newest.watches.data.total) == MANY // 2


def test_watches__recursive(client: Talker, server: ZooKeeperServer) -> None:
    """A recursive watch tells of ten thousand nodes below."""
    with Talker(server.address, patience=PATIENCE) as watcher:
        watcher.ask(AddWatch("/", 1))
        many(client, [Create(f"/n{number}") for number in range(MANY)])
        assert watcher.news() == [(CREATED, f"/n{number}") for number in range(MANY)]


def test_nodes__ten_thousand_of_one_session(client: Talker, server: ZooKeeperServer) -> None:
    """Ten thousand ephemeral nodes go with their session, in one transaction."""
    with Talker(server.address, patience=PATIENCE) as owner:
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
    """A tree may be a thousand nodes deep."""
    path = ""
    for _ in range(1000):
        path += "/n"
        client.ask(Create(path))
    client.ask(AddWatch("/", 1))
    client.ask(SetData(path))
    assert client.event() == (CHANGED, path)
    assert client.ask(CountDescendants("/n")) == 999


def test_multi__as_large_as_a_frame(client: Talker) -> None:
    """Ten thousand nodes come to be in one transaction, and go in one."""
    zxid = client.do(Ping()).zxid
    client.ask(Multi(tuple(Create(f"/n{number}") for number in range(MANY))))
    assert client.ask(CountDescendants("/")) == MANY + 3
    client.ask(Multi(tuple(Delete(f"/n{number}") for number in range(MANY))))
    assert client.ask(CountDescendants("/")) == 3
    assert client.do(Ping()).zxid == zxid + 2


def test_lag__many_transactions(client: Talker, server: ZooKeeperServer) -> None:
    """A follower may lag ten thousand transactions, and catches up with all of them."""
    with Talker(server.address, patience=PATIENCE) as reader, server.faults.lag_reads(MANY):
        reader.ask(AddWatch("/", 1))
        many(client, [Create(f"/n{number}") for number in range(MANY)])
        assert reader.ask(CountDescendants("/")) == 3
        client.ask(Create("/one-more"))
        assert reader.event() == (CREATED, "/n0")
        reader.ask(Sync("/"))
        assert len(reader.events) == MANY
        assert reader.ask(GetData("/one-more"))
