"""The server object: start, stop, address, forks, and its state."""

from __future__ import annotations

import gc
import os
import signal
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from django_zklock.testing import SessionInfo, ZooKeeperServer
from django_zklock.testing.server import port
from tests.toolbox.processes.forked_child import fork
from tests.toolbox.processes.raw_fork import raw_fork
from tests.toolbox.protocol.operations import EPHEMERAL, CloseSession, Create, Exists, GetData, WhoAmI
from tests.toolbox.protocol.raw_client import ClosedError, RawClient
from tests.toolbox.protocol.session_client import Talker
from tests.toolbox.timing import scaled, wait_until

TIMEOUT = scaled(10)
LOOPBACK = "127.0.0.1"
NOBODY_HERE = ["/zookeeper", "/zookeeper/config", "/zookeeper/quota"]


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


def descriptors() -> int:
    """Return the number of open files of this process."""
    gc.collect()
    return len(list(Path("/dev/fd").iterdir()))


def sockets_at(port: int) -> int:
    """Return the number of sockets of this process connected to ``port``; other threads may open others meanwhile."""
    gc.collect()
    count = 0
    for entry in list(Path("/dev/fd").iterdir()):
        with suppress(OSError):
            copy = os.dup(int(entry.name))
            try:
                sock = socket.socket(fileno=copy)
            except OSError:
                os.close(copy)
                continue
            with sock:
                ends = [sock.getsockname()]
                with suppress(OSError):
                    ends.append(sock.getpeername())
            count += any(isinstance(end, tuple) and end[1] == port for end in ends)
    return count


# Start and stop.


def test_start__anew(server: ZooKeeperServer) -> None:
    """A server that is stopped and started has the same address, nodes and sessions."""
    address, hosts = server.address, server.hosts
    with Talker(address) as client:
        client.ask(Create("/a", data=b"kept"))
        client.ask(Create("/held", EPHEMERAL))
        zxid = client.do(Exists("/")).zxid
        server.stop()
        with pytest.raises(ClosedError):
            client.receive_frame()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        server.start()
        assert (server.address, server.hosts) == (address, hosts)
        with Talker(address, of=client, last_zxid=zxid) as again:
            assert again.session == client.session == server.owner("/held")
            assert again.read("/a")[0] == b"kept"
            assert again.do(Exists("/")).zxid == zxid


def test_start__anew_with_kazoo(server: ZooKeeperServer) -> None:
    """A client resumes its session."""
    client = KazooClient(server.hosts, timeout=TIMEOUT)
    client.start(timeout=TIMEOUT)
    client.create("/held", ephemeral=True)
    session = client.client_id[0]
    server.stop()
    server.start()
    assert client.retry(client.exists, "/held").ephemeralOwner == session
    client.stop()
    client.close()


def test_start__twice(server: ZooKeeperServer) -> None:
    """Starting a running server does nothing: its connections stay."""
    with Talker(server.address) as client:
        server.start()
        client.ask(Exists("/"))


def test_stop__twice(server: ZooKeeperServer) -> None:
    """Stopping or closing a server that does not run does nothing."""
    server.stop()
    server.stop()
    server.close()
    server.close()
    assert not server.running


def test_context__twice() -> None:
    """The server can be started again after its port was released, at the same port and with its nodes."""
    server = ZooKeeperServer()
    with server:
        address = server.address
        with Talker(address) as client:
            client.ask(Create("/a"))
    with server:
        assert server.address == address
        with Talker(address) as client:
            client.ask(GetData("/a"))


def test_context__left_by_exception() -> None:
    """An exception inside propagates, and the server is closed."""
    server = ZooKeeperServer()
    with pytest.raises(ZeroDivisionError), server:
        raise ZeroDivisionError
    assert not server.running
    with socket.socket() as sock:
        sock.bind(server.address)


def test_close__gives_the_port_up(server: ZooKeeperServer) -> None:
    """The port of a stopped server is reserved; after close it is free."""
    server.stop()
    with socket.socket() as sock:
        with pytest.raises(OSError, match="in use"):
            sock.bind(server.address)
        server.close()
        sock.bind(server.address)


def test_start__port_is_taken() -> None:
    """A port in use is an OSError, after which nothing is left, and the start can be repeated."""
    before = descriptors(), threading.active_count()
    with socket.create_server((LOOPBACK, 0)) as listener:
        server = ZooKeeperServer(port=listener.getsockname()[1])
        with pytest.raises(OSError, match="in use"):
            server.start()
        assert not server.running
    # Other connections of this process may open and close too.
    wait_until(lambda: descriptors() <= before[0] and threading.active_count() <= before[1])
    with server:
        Talker(server.address).close()


def test_start__port_of_another_server(server: ZooKeeperServer) -> None:
    """Two servers cannot have the same port."""
    other = ZooKeeperServer(port=server.address[1])
    with pytest.raises(OSError, match="in use"):
        other.start()
    Talker(server.address).close()


def test_start__port_cannot_be_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a system where only listening keeps a port, a server gets the same port again all the same."""
    monkeypatch.setattr(port, "CAN_RESERVE", False)
    with ZooKeeperServer() as server:
        address = server.address
        assert address[1] > 0
        with server.faults.refuse(), pytest.raises(ConnectionRefusedError):
            socket.create_connection(address)
        Talker(address).close()
        server.stop()
        server.start()
        assert server.address == address
        Talker(address).close()


def test_start__cannot_listen(monkeypatch: pytest.MonkeyPatch) -> None:
    """An error in the server's thread is raised by start, and nothing is left."""
    before = descriptors(), threading.active_count()
    server = ZooKeeperServer()
    with monkeypatch.context() as patched:
        patched.setattr(socket.socket, "listen", lambda *_: (_ for _ in ()).throw(OSError("no more files")))
        with pytest.raises(OSError, match="no more files"):
            server.start()
    # Other connections of this process may open and close too.
    wait_until(lambda: descriptors() <= before[0] and threading.active_count() <= before[1])
    with server:
        Talker(server.address).close()


def test_server__leaves_nothing_behind() -> None:
    """After the end there is neither a thread nor an open file, whatever clients were doing."""
    before = descriptors(), threading.active_count()
    for _ in range(3):
        with ZooKeeperServer() as server:
            clients = [Talker(server.address) for _ in range(5)]
            silent = [socket.create_connection(server.address) for _ in range(5)]
            server.faults.black_hole()
            for client in clients:
                client.start(Create("/a"))
        for client in clients:
            client.close()
        for sock in silent:
            sock.close()
    # Other connections of this process may open and close too.
    wait_until(lambda: descriptors() <= before[0] and threading.active_count() <= before[1])


def test_stop__while_clients_connect(caplog: pytest.LogCaptureFixture) -> None:
    """Connections that are being accepted when the server stops end like the others."""
    stopped = threading.Event()
    server = ZooKeeperServer()

    def connect() -> int:
        made = 0
        while not stopped.is_set():
            with suppress(ClosedError, OSError), Talker(server.address):
                made += 1
        return made

    server.start()
    with ThreadPoolExecutor(4) as pool:
        connecting = [pool.submit(connect) for _ in range(4)]
        for count in range(1, 11):
            server.requests.wait_for("connect", 20 * count)
            server.stop()
            server.start()
        stopped.set()
        assert sum(each.result(TIMEOUT) for each in connecting) >= 100
    assert sockets_at(server.address[1]) > 0
    port_number = server.address[1]
    server.close()
    wait_until(lambda: not sockets_at(port_number))
    assert caplog.records == []


def answer(server: ZooKeeperServer) -> list[str] | str:
    """Read the paths; return them or the error."""
    try:
        return server.paths()
    except RuntimeError as error:
        return str(error)


def test_server__several_threads() -> None:
    """Threads may start, stop and call a server at the same time; each gets a result or a RuntimeError."""
    server = ZooKeeperServer()
    barrier = threading.Barrier(6)

    def start() -> None:
        barrier.wait(TIMEOUT)
        for _ in range(30):
            server.start()

    def stop() -> None:
        barrier.wait(TIMEOUT)
        for _ in range(30):
            server.stop()

    def ask() -> None:
        barrier.wait(TIMEOUT)
        for _ in range(100):
            assert answer(server) in (NOBODY_HERE, "the server does not run; start it, or use it as a context manager")

    with ThreadPoolExecutor(6) as pool:
        for each in [pool.submit(work) for work in (start, stop, ask) * 2]:
            each.result(30)
    server.close()


def test_call__raises_what_is_raised(server: ZooKeeperServer) -> None:
    """An exception in a call is raised in the calling thread, and the server goes on."""

    def fail() -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        server.call(fail)
    assert server.paths() == NOBODY_HERE


# Addresses.


def test_address__ipv6() -> None:
    """The server listens at the IPv6 loopback, and writes the address in the format of clients."""
    with ZooKeeperServer(host="::1") as server:
        host, number = server.address
        assert (host, server.hosts) == ("::1", f"[::1]:{number}")
        client = KazooClient(server.hosts)
        client.start(timeout=TIMEOUT)
        client.create("/held", ephemeral=True)
        client.stop()
        client.close()
        with Talker(server.address) as talker:
            assert talker.ask(WhoAmI()) == (("ip", "0:0:0:0:0:0:0:1"),)
        with RawClient(server.address) as asking:
            asking.send_bytes(b"cons")
            assert b" /[0:0:0:0:0:0:0:1]:" in asking.receive_all()


def test_address__name() -> None:
    """A host name is accepted."""
    with ZooKeeperServer(host="localhost") as server:
        assert server.hosts.startswith("localhost:")
        Talker(server.address).close()


def test_address__chosen_port() -> None:
    """A port can be chosen; it is known before the start."""
    with ZooKeeperServer() as other:
        address = other.address
    server = ZooKeeperServer(port=address[1])
    assert server.address == address
    with server:
        assert server.address == address
        Talker(address).close()


# Forks.

INHERITED: dict[str, Callable[[ZooKeeperServer], object]] = {
    "start": lambda server: server.start(),
    "sessions": lambda server: server.sessions(),
    "owner": lambda server: server.owner("/held"),
    "paths": lambda server: server.paths(),
    "requests": lambda server: server.requests,
    "wait_for_end": lambda server: server.wait_for_end(1),
}


def test_fork__unusable(server: ZooKeeperServer) -> None:
    """A fork can use the server as a client only; its calls do not affect the parent's server."""

    def work(report: Callable[[object], None]) -> None:
        for ask in INHERITED.values():
            with pytest.raises(
                RuntimeError, match=f"this server belongs to process {parent}; process {os.getpid()} is a"
            ):
                ask(server)
        assert not server.running
        server.stop()
        server.close()
        with Talker(server.address) as client:
            client.ask(Create("/by-child"))
        report("done all")

    parent = os.getpid()
    with fork(work) as child:
        assert child.receive() == "done all"
    assert server.paths() == ["/by-child", *NOBODY_HERE]


def test_fork__server_of_its_own(server: ZooKeeperServer) -> None:
    """A fork can start its own server, beside the inherited one."""

    def work(report: Callable[[object], None]) -> None:
        with ZooKeeperServer() as own, Talker(own.address) as client:
            assert own.address != server.address
            client.ask(Create("/own"))
            report(own.paths())

    with fork(work) as child:
        assert child.receive() == ["/own", *NOBODY_HERE]
    assert server.paths() == NOBODY_HERE


def test_fork__connections_end_with_the_parent(server: ZooKeeperServer) -> None:
    """A client notices the end of its connection although a fork has inherited it, and the port is free as well."""
    with Talker(server.address) as one, Talker(server.address) as other, fork(lambda report: report("here")) as child:
        assert child.receive() == "here"
        one.do(CloseSession())
        assert one.is_closed()
        server.faults.drop()
        assert other.is_closed()
        server.close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(server.address)
        socket.create_server(server.address).close()


def test_fork__in_c(server: ZooKeeperServer) -> None:
    """A connection ends even if a fork made by C code has inherited it."""
    with Talker(server.address) as client:
        child = raw_fork()
        if child == 0:
            # It may stop before this: CPython's own locks are copied as threads that are not here have left them.
            while True:
                signal.pause()
        try:
            client.do(CloseSession())
            assert client.is_closed()
        finally:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)


def test_fork__while_clients_connect(server: ZooKeeperServer) -> None:
    """Connections that are being accepted during a fork end with the parent too."""
    enough = threading.Event()
    clients: list[Talker] = []

    def connect() -> None:
        while not enough.is_set():
            clients.append(Talker(server.address))

    with ThreadPoolExecutor(2) as pool:
        connecting = [pool.submit(connect) for _ in range(2)]
        server.requests.wait_for("connect", 20)
        with fork(lambda report: report("here")) as one, fork(lambda report: report("here")) as other:
            server.requests.wait_for("connect", 40)
            enough.set()
            for each in connecting:
                each.result(TIMEOUT)
            assert [one.receive(), other.receive()] == ["here"] * 2
            for client in clients:
                client.start(CloseSession())
                client.answer()
                assert client.is_closed()
                client.close()


# Its state.


def test_sessions(server: ZooKeeperServer) -> None:
    """Sessions are listed oldest first, with timeout in seconds, nodes, and whether they are connected."""
    assert server.sessions() == []
    with Talker(server.address, timeout=5000) as one, Talker(server.address, timeout=7500) as other:
        one.ask(Create("/b", EPHEMERAL))
        one.ask(Create("/a", EPHEMERAL))
        server.faults.drop(other.session)
        assert server.sessions() == [
            SessionInfo(one.session, 5.0, connected=True, ephemerals=("/b", "/a")),
            SessionInfo(other.session, 7.5, connected=False, ephemerals=()),
        ]


def test_owner(server: ZooKeeperServer) -> None:
    """An ephemeral node has an owner; all others have none."""
    with Talker(server.address) as client:
        client.ask(Create("/held", EPHEMERAL))
        client.ask(Create("/plain"))
        assert server.owner("/held") == client.session
        for path in ("/plain", "/nowhere", "/"):
            with pytest.raises(LookupError, match=f"^{path} is not an ephemeral node$"):
                server.owner(path)


def test_paths(server: ZooKeeperServer) -> None:
    """Paths are those below a path, sorted, without the path itself."""
    with Talker(server.address) as client:
        for path in ("/b", "/a", "/a/y", "/a/x", "/a/x/z", "/ab"):
            client.ask(Create(path))
    assert server.paths("/a") == ["/a/x", "/a/x/z", "/a/y"]
    assert server.paths("/b") == server.paths("/nowhere") == []
    assert server.paths() == ["/a", "/a/x", "/a/x/z", "/a/y", "/ab", "/b", *NOBODY_HERE]


def test_wait_for_end(server: ZooKeeperServer) -> None:
    """Threads wait until a session has ended and its nodes are deleted; an unknown session has ended."""
    with Talker(server.address) as client, ThreadPoolExecutor(2) as pool:
        client.ask(Create("/held", EPHEMERAL))
        waiting = [pool.submit(server.wait_for_end, client.session) for _ in range(2)]
        with pytest.raises(TimeoutError, match=f"session 0x{client.session:x} has not ended in 0.01 s; .* is 30 s"):
            server.wait_for_end(client.session, 0.01)
        client.start(CloseSession())
        for each in waiting:
            each.result(TIMEOUT)
        assert server.paths() == NOBODY_HERE
        server.wait_for_end(client.session)
        server.wait_for_end(1)
