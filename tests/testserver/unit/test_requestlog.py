"""The log of requests: its content and order, the counts, and waiting."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest
from kazoo.client import KazooClient

from django_zklock.testing import LoggedRequest, Opcode, RequestLog, ZooKeeperServer
from tests.toolbox.protocol.operations import (
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
from tests.toolbox.protocol.session_client import Talker
from tests.toolbox.timing import scaled

TIMEOUT = scaled(10)


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


def request(opcode: Opcode = Opcode.EXISTS, path: str | None = "/a", number: int = 1) -> LoggedRequest:
    return LoggedRequest(session=1, xid=number, opcode=opcode, path=path)


# The content of the log.


def test_log__order(server: ZooKeeperServer) -> None:
    """Requests are in the order of their handling, with session, number, kind and path."""
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
    """A request that was answered is in the log."""
    with Talker(server.address) as client:
        for number in range(1, 200):
            client.do(Exists("/a"))
            assert server.requests.count("exists") == number


def test_log__paths(server: ZooKeeperServer) -> None:
    """Requests without a path, with several paths, or malformed ones have none in the log."""
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
    """Unknown requests are not in the log."""
    with Talker(server.address) as client:
        client.do(Raw(77))
    assert server.requests.counts() == {"connect": 1}


def test_log__reconnects(server: ZooKeeperServer) -> None:
    """Each connection starts with an entry, even a refused one: with the session that it requests."""
    with Talker(server.address) as client:
        with Talker(server.address, of=client):
            pass
        client.greeting = client.greeting.__class__(0, 0, client.session + 5, b"", b"")
        with Talker(server.address, of=client) as refused:
            assert refused.session == 0
        assert [each.session - client.session + 5 for each in server.requests.all()] == [0, 0, 5]


def test_log__clear(server: ZooKeeperServer) -> None:
    """After clear it counts from zero."""
    with Talker(server.address) as client:
        client.do(Exists("/a"))
        server.requests.clear()
        assert server.requests.all() == []
        assert server.requests.counts() == {}
        client.do(Exists("/b"))
        assert [each.path for each in server.requests.all()] == ["/b"]


def test_log__outlives_a_restart(server: ZooKeeperServer) -> None:
    """Requests from before a stop are kept, also while the server is stopped."""
    with Talker(server.address) as client:
        client.do(Exists("/a"))
    server.stop()
    assert server.requests.count("exists") == 1
    server.start()
    with Talker(server.address) as client:
        client.do(Exists("/a"))
    assert server.requests.count("exists") == 2


def test_log__kazoo(server: ZooKeeperServer) -> None:
    """A test can read the kinds and the number of its requests."""
    client = KazooClient(server.hosts)
    client.start(timeout=TIMEOUT)
    server.requests.clear()
    lock = client.Lock("/lock", "me")
    with lock:
        assert server.requests.count("create") + server.requests.count("create2") >= 1
    client.stop()
    client.close()
    server.requests.wait_for("close")


# Counting and waiting.


def test_count__names() -> None:
    """A kind is given by the name of the protocol, by that of the constant, or as a constant."""
    log = RequestLog()
    log.add(request(Opcode.GET_CHILDREN2))
    for name in ("getChildren2", "GET_CHILDREN2", "getchildren2", Opcode.GET_CHILDREN2):
        assert log.count(name) == 1
    assert log.count("getChildren") == 0
    assert log.counts() == {"getChildren2": 1}


@pytest.mark.parametrize("name", ["get", "", "createe", "4"])
def test_count__no_such_kind(name: str) -> None:
    """An unknown kind is an error, not a count of zero."""
    log = RequestLog()
    with pytest.raises(ValueError, match=rf"^unknown request '{name}'; the requests are .*create, delete, exists"):
        log.count(name)
    with pytest.raises(ValueError, match="unknown request"):
        log.wait_for(name)


def test_all__keeps_the_last() -> None:
    """The last ten thousand requests are kept; all are counted."""
    log = RequestLog()
    for number in range(10_500):
        log.add(request(number=number))
    kept = log.all()
    assert (len(kept), kept[0].xid, kept[-1].xid) == (10_000, 500, 10_499)
    assert log.count("exists") == 10_500
    log.wait_for("exists", 10_500, timeout=0)


def test_wait_for__was_there_already() -> None:
    """It does not wait for requests that are already there."""
    log = RequestLog()
    log.add(request())
    log.wait_for("exists", timeout=0)
    log.wait_for("exists", 1, path="/a", timeout=0)
    log.wait_for("exists", 0, path="/b", timeout=0)


def test_wait_for__comes_later() -> None:
    """All waiting threads are woken by their requests, and by no others."""
    log = RequestLog()
    ready = threading.Barrier(4)

    def wait(path: str | None, count: int) -> int:
        ready.wait(TIMEOUT)
        log.wait_for("exists", count, path=path, timeout=TIMEOUT)
        return log.count("exists")

    with ThreadPoolExecutor(3) as pool:
        first = pool.submit(wait, None, 1)
        others = [pool.submit(wait, "/b", 1), pool.submit(wait, None, 3)]
        ready.wait(TIMEOUT)
        log.add(request(Opcode.CREATE, "/b"))
        assert not first.done()
        log.add(request())
        assert first.result(TIMEOUT) >= 1
        log.add(request())
        assert not any(each.done() for each in others)
        log.add(request(path="/b"))
        assert [each.result(TIMEOUT) for each in others] == [3, 3]


@pytest.mark.parametrize("timeout", [0.0, 0.05])
def test_wait_for__in_vain(timeout: float) -> None:
    """Without the requests it waits for the timeout, and the error lists the other requests."""
    log = RequestLog()
    log.add(request())
    log.add(request(path="/b"))
    log.add(request(Opcode.CREATE2))
    start = time.monotonic()
    with pytest.raises(TimeoutError) as caught:
        log.wait_for("exists", 2, path="/a", timeout=timeout)
    assert time.monotonic() - start >= timeout
    counts = "{'exists': 2, 'create2': 1}"
    assert str(caught.value) == f"1 of 2 exists requests for /a within {timeout:g} s; all requests: {counts}"


def test_log__several_threads() -> None:
    """Threads that add, count, clear and wait at the same time lose no request."""
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


def test_copied_to__what_comes_meanwhile() -> None:
    """A copy has the requests from its beginning to its end, and clearing one log leaves the other alone."""
    log, copy = RequestLog(), RequestLog()
    log.add(request(number=1))
    with log.copied_to(copy):
        log.add(request(number=2))
        log.clear()
        log.add(request(number=3))
        copy.wait_for("exists", 2)
    log.add(request(number=4))
    assert [each.xid for each in copy.all()] == [2, 3]
    copy.clear()
    assert [each.xid for each in log.all()] == [3, 4]
