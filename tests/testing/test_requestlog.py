"""The log of requests: what is in it, in which order, counted and waited for."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo.client import KazooClient

from django_zklock.testing import LoggedRequest, Opcode, RequestLog, ZooKeeperServer
from tests.testing.operations import (
    CREATE2,
    Auth,
    CloseSession,
    Create,
    Delete,
    Exists,
    GetData,
    Multi,
    Ping,
    Raw,
    SetWatches,
    Sync,
    WhoAmI,
)
from tests.testing.talker import Talker

PATIENCE = 10.0


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


def request(opcode: Opcode = Opcode.EXISTS, path: str | None = "/a", number: int = 1) -> LoggedRequest:
    return LoggedRequest(session=1, xid=number, opcode=opcode, path=path)


# What the server logs.


def test_log__order(server: ZooKeeperServer) -> None:
    """Requests are there in the order in which they were taken up, with session, number, kind and path."""
    with Talker(server.address) as one, Talker(server.address) as other:
        one.ask(Create("/a", opcode=CREATE2))
        other.ask(GetData("/a"))
        other.do(Delete("/no/such"))
        one.do(Ping())
        one.do(CloseSession())
        assert server.requests.all() == [
            LoggedRequest(one.session, 0, Opcode.CONNECT, None),
            LoggedRequest(other.session, 0, Opcode.CONNECT, None),
            LoggedRequest(one.session, 1, Opcode.CREATE2, "/a"),
            LoggedRequest(other.session, 1, Opcode.GET_DATA, "/a"),
            LoggedRequest(other.session, 2, Opcode.DELETE, "/no/such"),
            LoggedRequest(one.session, 2, Opcode.PING, None),
            LoggedRequest(one.session, 3, Opcode.CLOSE, None),
        ]
    assert server.requests.counts() == {"connect": 2, "create2": 1, "getData": 1, "delete": 1, "ping": 1, "close": 1}


def test_log__before_the_answer(server: ZooKeeperServer) -> None:
    """Whatever a client has an answer to is in the log."""
    with Talker(server.address) as client:
        for number in range(1, 200):
            client.do(Exists("/a"))
            assert server.requests.count("exists") == number


def test_log__paths(server: ZooKeeperServer) -> None:
    """Requests that name no node, or several, have no path, nor have those that cannot be read."""
    with Talker(server.address) as client:
        for operation in (
            Multi((Create("/a"), Create("/b"))),
            SetWatches(0, data=("/a",)),
            Auth(),
            WhoAmI(),
            Sync(None),
            Raw(Opcode.GET_DATA, b"\0\0\0\7/a"),
            Raw(Opcode.EXISTS),
        ):
            client.do(operation)
        client.do(Exists("/ünï/cøde"))
        assert [each.path for each in server.requests.all()] == [None] * 8 + ["/ünï/cøde"]


def test_log__unknown_requests(server: ZooKeeperServer) -> None:
    """What the server does not know is not in it."""
    with Talker(server.address) as client:
        client.do(Raw(77))
    assert server.requests.counts() == {"connect": 1}


def test_log__reconnects(server: ZooKeeperServer) -> None:
    """Each connection begins with an entry, also of who is refused: with the number that he claims."""
    with Talker(server.address) as client:
        with Talker(server.address, of=client):
            pass
        client.greeting = client.greeting.__class__(0, 0, client.session + 5, b"", b"")
        with Talker(server.address, of=client) as refused:
            assert refused.session == 0
        assert [each.session - client.session + 5 for each in server.requests.all()] == [0, 0, 5]


def test_log__clear(server: ZooKeeperServer) -> None:
    """After it was cleared it counts from nought."""
    with Talker(server.address) as client:
        client.do(Exists("/a"))
        server.requests.clear()
        assert server.requests.all() == []
        assert server.requests.counts() == {}
        client.do(Exists("/b"))
        assert [each.path for each in server.requests.all()] == ["/b"]


def test_log__outlives_a_restart(server: ZooKeeperServer) -> None:
    """What was asked before the server was stopped is still known, also while it is."""
    with Talker(server.address) as client:
        client.do(Exists("/a"))
    server.stop()
    assert server.requests.count("exists") == 1
    server.start()
    with Talker(server.address) as client:
        client.do(Exists("/a"))
    assert server.requests.count("exists") == 2


def test_log__kazoo(server: ZooKeeperServer) -> None:
    """A test can say what its code asks for, and how often."""
    client = KazooClient(server.hosts)
    client.start(timeout=PATIENCE)
    server.requests.clear()
    lock = client.Lock("/lock", "me")
    with lock:
        assert server.requests.count("create") + server.requests.count("create2") >= 1
    client.stop()
    client.close()
    server.requests.wait_for("close")


# Counting and waiting.


def test_count__names() -> None:
    """A kind is called as in the protocol, or as the constant, or is one."""
    log = RequestLog()
    log.add(request(Opcode.GET_CHILDREN2))
    for name in ("getChildren2", "GET_CHILDREN2", "getchildren2", Opcode.GET_CHILDREN2):
        assert log.count(name) == 1
    assert log.count("getChildren") == 0
    assert log.counts() == {"getChildren2": 1}


@pytest.mark.parametrize("name", ["get", "", "createe", "4"])
def test_count__no_such_kind(name: str) -> None:
    """A kind that does not exist is a mistake of the test, and not none."""
    log = RequestLog()
    with pytest.raises(ValueError, match=rf"^there is no request '{name}'; there are .*create, delete, exists"):
        log.count(name)
    with pytest.raises(ValueError, match="there is no request"):
        log.wait_for(name)


def test_all__keeps_the_last() -> None:
    """Of many the last ten thousand are kept; all are counted."""
    log = RequestLog()
    for number in range(10_500):
        log.add(request(number=number))
    kept = log.all()
    assert (len(kept), kept[0].xid, kept[-1].xid) == (10_000, 500, 10_499)
    assert log.count("exists") == 10_500
    log.wait_for("exists", 10_500, timeout=0)


def test_wait_for__was_there_already() -> None:
    """What has been asked already is not waited for."""
    log = RequestLog()
    log.add(request())
    log.wait_for("exists", timeout=0)
    log.wait_for("exists", 1, path="/a", timeout=0)
    log.wait_for("exists", 0, path="/b", timeout=0)


def test_wait_for__comes_later() -> None:
    """All who wait are woken by what they wait for, and by nothing else."""
    log = RequestLog()
    ready = threading.Barrier(4)

    def wait(path: str | None, count: int) -> int:
        ready.wait(PATIENCE)
        log.wait_for("exists", count, path=path, timeout=PATIENCE)
        return log.count("exists")

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(wait, None, 1)
        others = [pool.submit(wait, "/b", 1), pool.submit(wait, None, 3)]
        ready.wait(PATIENCE)
        log.add(request(Opcode.CREATE, "/b"))
        assert not first.done()
        log.add(request())
        assert first.result(PATIENCE) >= 1
        log.add(request())
        assert not any(each.done() for each in others)
        log.add(request(path="/b"))
        assert [each.result(PATIENCE) for each in others] == [3, 3]


@pytest.mark.parametrize("timeout", [0.0, 0.05])
def test_wait_for__in_vain(timeout: float) -> None:
    """Who waits in vain waits for the timeout, and is told what was asked instead."""
    log = RequestLog()
    log.add(request())
    log.add(request(path="/b"))
    log.add(request(Opcode.CREATE2))
    start = time.monotonic()
    with pytest.raises(TimeoutError) as caught:
        log.wait_for("exists", 2, path="/a", timeout=timeout)
    assert time.monotonic() - start >= timeout
    counts = "{'exists': 2, 'create2': 1}"
    assert str(caught.value) == f"1 of 2 exists requests for /a in {timeout:g} s, and in all {counts}"


def test_log__several_threads() -> None:
    """Threads that add, count, clear and wait at the same time do not lose a request."""
    log = RequestLog()

    def add() -> None:
        for number in range(2000):
            log.add(request(number=number))

    def look() -> int:
        most = 0
        while most < 8000:
            most = max(most, log.count("exists"), len(log.all()), log.counts().get("exists", 0))
        return most

    with ThreadPoolExecutor(6) as pool:
        looking = [pool.submit(look) for _ in range(2)]
        for adding in [pool.submit(add) for _ in range(4)]:
            adding.result(30)
        log.wait_for("exists", 8000)
        assert [each.result(30) for each in looking] == [8000, 8000]
