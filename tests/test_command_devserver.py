"""`zklock devserver`, and the same without Django: the server in the foreground, until a signal."""

from __future__ import annotations

import ast
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from io import StringIO
from pathlib import Path

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings
from kazoo.client import KazooClient
from services.devserver import DevServer
from services.port import LOOPBACK, free_port

from django_zklock.locks import zk_lock
from django_zklock.testing import ZooKeeperServer, foreground

ROOT = Path(__file__).resolve().parent.parent
DOORS = {
    "command": ["manage.py", "zklock", "devserver"],
    "module": ["-m", "django_zklock.testing"],
}
# Seconds.
PATIENCE = 30


class Server:
    """A server that was started through one of the two doors; it may refuse to run."""

    def __init__(self, door: str, *arguments: str) -> None:
        # Without PYTHONUNBUFFERED: that the address can be read shows that it was flushed. The ensemble of the
        # settings cannot be reached, nor can their database be opened.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"} | {
            "PYTHONPATH": str(ROOT),
            "PYTHONWARNINGS": "error",
            "TESTPROJECT_DATABASE": "/no/such/folder/db.sqlite3",
            "ZOOKEEPER_HOSTS": "127.0.0.1:1",
        }
        self.process = subprocess.Popen(
            [sys.executable, *DOORS[door], *arguments],
            cwd=ROOT / "testproject",
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def hosts(self) -> str:
        """Wait until it listens, and give the address that it recommends for the settings."""
        assert self.process.stdout is not None
        self.greeting = [self.process.stdout.readline() for _ in range(2)]
        return hosts_of(self.greeting[1])

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; give exit status, the rest of the output, and errors."""
        out, errors = self.process.communicate(timeout=PATIENCE)
        return self.process.returncode, out, errors


Start = Callable[..., Server]


@pytest.fixture
def start() -> Iterator[Start]:
    """Give a function that starts a server; what still runs at the end is killed."""
    servers: list[Server] = []

    def begin(door: str, *arguments: str) -> Server:
        servers.append(Server(door, *arguments))
        return servers[-1]

    yield begin
    for server in servers:
        server.process.kill()
        server.process.communicate()


def hosts_of(line: str) -> str:
    """Give what the line on how to use the server has as HOSTS."""
    setting = ast.literal_eval(line.partition("ZKLOCK = ")[2].partition(". Ctrl-C")[0])
    hosts: str = setting["default"]["HOSTS"]
    return hosts


def use(hosts: str) -> None:
    """Open a session, make a node and read it."""
    client = KazooClient(hosts)
    client.start(timeout=PATIENCE)
    try:
        client.create("/a", b"kept")
        assert client.get("/a")[0] == b"kept"
    finally:
        client.stop()
        client.close()


@pytest.fixture
def taken_port() -> Iterator[int]:
    """Give a port on which somebody listens."""
    with closing(socket.create_server((LOOPBACK, 0))) as listener:
        yield listener.getsockname()[1]


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_devserver__serves_until_a_signal(start: Start, door: str, number: signal.Signals) -> None:
    """It tells its address, serves without a word more, and ends with status 0, whatever the settings are."""
    server = start(door, "--port", "0")
    hosts = server.hosts()
    use(hosts)
    server.process.send_signal(number)
    assert server.end() == (0, "", "")
    assert f" listens at {hosts};" in server.greeting[0]
    assert "in memory" in server.greeting[0]
    assert "not for production" in server.greeting[0]


@pytest.mark.parametrize("door", DOORS)
def test_devserver__client_connected_at_the_end(start: Start, door: str) -> None:
    """A client that is still connected neither delays the end nor makes it an error."""
    server = start(door, "--port", str(free_port()))
    client = KazooClient(server.hosts())
    client.start(timeout=PATIENCE)
    server.process.terminate()
    assert server.end() == (0, "", "")
    client.stop()
    client.close()


def test_devserver__started_again() -> None:
    """Locks go on after it was started again, with larger tokens, though it has forgotten everything."""
    with DevServer() as server, override_settings(ZKLOCK={"default": {"HOSTS": server.hosts, "SESSION_TIMEOUT": 6}}):
        before = zk_lock("a").acquire(PATIENCE)
        before.release()
        server.restart()
        after = zk_lock("a").acquire(PATIENCE)
        after.release()
    assert after.token > before.token


@pytest.mark.parametrize("door", DOORS)
def test_devserver__port_taken(start: Start, door: str, taken_port: int) -> None:
    """A port that somebody has is one line on stderr that says what to do, and status 2."""
    status, out, errors = start(door, "--port", str(taken_port)).end()
    assert (status, out, errors.count("\n")) == (2, "", 1)
    assert f"cannot listen at 127.0.0.1:{taken_port}: Address already in use" in errors
    assert "--port" in errors


@pytest.mark.parametrize("door", DOORS)
def test_devserver__other_machines_could_connect(start: Start, door: str) -> None:
    """An address that other machines can reach is refused in one line, with status 2."""
    status, out, errors = start(door, "--host", "0.0.0.0", "--port", "0").end()
    assert (status, out, errors.count("\n")) == (2, "", 1)
    assert "--allow-remote" in errors


@pytest.mark.parametrize("door", DOORS)
def test_devserver__other_machines_may_connect(start: Start, door: str) -> None:
    """With --allow-remote it listens everywhere, and recommends the name of this machine."""
    server = start(door, "--host", "0.0.0.0", "--port", "0", "--allow-remote")
    host, _, port = server.hosts().rpartition(":")
    assert host == socket.gethostname()
    assert f" listens at 0.0.0.0:{port};" in server.greeting[0]
    use(f"{LOOPBACK}:{port}")


@pytest.mark.parametrize("door", DOORS)
@pytest.mark.parametrize("port", ["65536", "-1", "", "zk"])
def test_devserver__no_port(start: Start, door: str, port: str) -> None:
    """What is no port is a usage error."""
    status, out, errors = start(door, f"--port={port}").end()
    assert (status, out) == (2, "")
    assert errors.endswith(f"error: argument --port: must be a number from 0 to 65535, got {port!r}\n")


@pytest.mark.parametrize("host", ["0.0.0.0", "0", "::", "192.0.2.1", "::ffff:192.0.2.1"])
def test_run__refuses_what_is_not_loopback(host: str) -> None:
    """Every other address is refused before anything listens, however it is written."""
    with pytest.raises(foreground.CannotServeError, match=f"could connect to {host},.* --allow-remote"):
        foreground.run(host, 0, allow_remote=False, write=pytest.fail)


@pytest.mark.parametrize("host", ["", "192.0.2.1"])
def test_run__address_is_not_here(host: str) -> None:
    """What is no address of this machine is one line."""
    with pytest.raises(foreground.CannotServeError, match=f"^cannot listen at {host}:0: .+$"):
        foreground.run(host, 0, allow_remote=True, write=pytest.fail)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.2", "127.1"])
def test_run__loopback(host: str) -> None:
    """Loopback has many names; what is told is the address behind it."""
    told: list[str] = []

    def stop(text: str) -> None:
        told.extend(text.splitlines())
        use(hosts_of(told[1]))
        # Before it waits for a signal: none may get lost, whenever it comes.
        os.kill(os.getpid(), signal.SIGTERM)

    foreground.run(host, 0, allow_remote=False, write=stop)
    assert hosts_of(told[1]).startswith("127.0.0.")


def test_run__leaves_nothing_behind() -> None:
    """Afterwards the port is free, and signals are handled as before."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    port = free_port()
    for _ in range(2):
        foreground.run(LOOPBACK, port, allow_remote=False, write=lambda _: os.kill(os.getpid(), signal.SIGINT))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    socket.create_server((LOOPBACK, port)).close()


def test_run__cannot_start_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that has its port but cannot listen gives the port back."""
    port = free_port()
    before = signal.getsignal(signal.SIGINT)

    async def fail(_server: ZooKeeperServer) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(ZooKeeperServer, "_listen", fail)
    with pytest.raises(foreground.CannotServeError, match=f"^cannot listen at 127.0.0.1:{port}: Too many open files$"):
        foreground.run(LOOPBACK, port, allow_remote=False, write=pytest.fail)
    assert signal.getsignal(signal.SIGINT) is before
    with closing(socket.socket()) as sock:
        sock.bind((LOOPBACK, port))


def test_command__output() -> None:
    """Called from Python, the command writes to the stream that it was given, and returns after the signal."""

    class Stream(StringIO):
        def flush(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    out = Stream()
    call_command("zklock", "devserver", port=0, stdout=out)
    greeting, usage = out.getvalue().splitlines()
    assert f" listens at {hosts_of(usage)};" in greeting


def test_command__passes_on_what_is_wrong(taken_port: int) -> None:
    """Called from Python, the command raises its error with the status."""
    with pytest.raises(CommandError, match="--port") as caught:
        call_command("zklock", "devserver", port=taken_port)
    assert caught.value.returncode == 2
