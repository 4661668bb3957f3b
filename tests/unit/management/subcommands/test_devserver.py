"""`zklock devserver`, and the same without Django: a server in the foreground until a signal."""

from __future__ import annotations

import ast
import os
import signal
import socket
from argparse import ArgumentParser
from collections.abc import Callable, Iterator
from contextlib import closing
from io import StringIO

import pytest
from django.core.management import CommandError, call_command
from django.test import override_settings
from kazoo.client import KazooClient

from django_zklock.api import zk_lock
from django_zklock.testing import ZooKeeperServer
from django_zklock.testing.server import serve
from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.timing import scaled
from tests.toolbox.zookeeper.devserver import DevServer
from tests.unit.management.command_process import start_program

COMMANDS = {
    "command": ["manage.py", "zklock", "devserver"],
    "module": ["-m", "django_zklock.testing"],
}
# Seconds.
TIMEOUT = scaled(90)


class Server:
    """A server process that was started with one of the two commands; it may refuse to run."""

    def __init__(self, command: str, *arguments: str) -> None:
        # Neither the ensemble nor the database of the settings can be used.
        self.process = start_program(
            *COMMANDS[command],
            *arguments,
            TESTPROJECT_DATABASE="/no/such/folder/db.sqlite3",
            ZOOKEEPER_HOSTS="127.0.0.1:1",
        )

    def hosts(self) -> str:
        """Wait until it listens, and return the address that it prints for the settings."""
        assert self.process.stdout is not None
        self.greeting = [self.process.stdout.readline() for _ in range(2)]
        return hosts_of(self.greeting[1])

    def end(self) -> tuple[int, str, str]:
        """Wait for the end; return exit code, the rest of the output, and errors."""
        out, errors = self.process.communicate(timeout=TIMEOUT)
        return self.process.returncode, out, errors


Start = Callable[..., Server]


@pytest.fixture
def start() -> Iterator[Start]:
    """Return a function that starts a server; processes left at the end are killed."""
    servers: list[Server] = []

    def begin(command: str, *arguments: str) -> Server:
        servers.append(Server(command, *arguments))
        return servers[-1]

    yield begin
    for server in servers:
        server.process.kill()
        server.process.communicate()


def hosts_of(line: str) -> str:
    """Return the HOSTS in the line that shows the setting."""
    setting = ast.literal_eval(line.partition("ZKLOCK = ")[2].partition(". Ctrl-C")[0])
    hosts: str = setting["default"]["HOSTS"]
    return hosts


def use(hosts: str) -> None:
    """Open a session, create a node and read it."""
    client = KazooClient(hosts)
    client.start(timeout=TIMEOUT)
    try:
        client.create("/a", b"kept")
        assert client.get("/a")[0] == b"kept"
    finally:
        client.stop()
        client.close()


@pytest.fixture
def taken_port() -> Iterator[int]:
    """Return a port that another socket listens on."""
    with closing(socket.create_server((LOOPBACK, 0))) as listener:
        yield listener.getsockname()[1]


@pytest.mark.program
@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_devserver__serves_until_a_signal(start: Start, command: str, number: signal.Signals) -> None:
    """It prints its address, serves without further output, and ends with exit code 0, whatever the settings."""
    server = start(command, "--port", "0")
    hosts = server.hosts()
    use(hosts)
    server.process.send_signal(number)
    assert server.end() == (0, "", "")
    assert f" listens at {hosts};" in server.greeting[0]
    assert "in memory" in server.greeting[0]
    assert "not for production" in server.greeting[0]


@pytest.mark.program
@pytest.mark.parametrize("command", COMMANDS)
def test_devserver__client_connected_at_the_end(start: Start, command: str) -> None:
    """A connected client neither delays the end nor causes an error."""
    server = start(command, "--port", str(free_port()))
    client = KazooClient(server.hosts())
    client.start(timeout=TIMEOUT)
    server.process.terminate()
    assert server.end() == (0, "", "")
    client.stop()
    client.close()


def test_devserver__started_again() -> None:
    """After a restart without its data, locks work, with larger tokens."""
    with (
        DevServer() as server,
        override_settings(ZKLOCK={"default": {"HOSTS": server.hosts, "SESSION_TIMEOUT": scaled(6)}}),
    ):
        before = zk_lock("a").acquire(TIMEOUT)
        before.release()
        server.restart()
        after = zk_lock("a").acquire(TIMEOUT)
        after.release()
    assert after.token > before.token


@pytest.mark.program
@pytest.mark.parametrize("command", COMMANDS)
def test_devserver__port_taken(start: Start, command: str, taken_port: int) -> None:
    """A port in use is one line on stderr that says what to do, with exit code 2."""
    status, out, errors = start(command, "--port", str(taken_port)).end()
    assert (status, out, errors.count("\n")) == (2, "", 1)
    assert f"cannot listen at 127.0.0.1:{taken_port}: Address already in use" in errors
    assert "--port" in errors


@pytest.mark.program
@pytest.mark.parametrize("command", COMMANDS)
def test_devserver__other_machines_may_connect(start: Start, command: str) -> None:
    """With --allow-remote it listens on all interfaces, and prints the host name for the settings."""
    server = start(command, "--host", "0.0.0.0", "--port", "0", "--allow-remote")
    host, _, port = server.hosts().rpartition(":")
    assert host == socket.gethostname()
    assert f" listens at 0.0.0.0:{port};" in server.greeting[0]
    use(f"{LOOPBACK}:{port}")


@pytest.mark.parametrize("port", ["65536", "-1", ""])
def test_arguments__invalid_port(port: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A number that is no port, or none, is a usage error too."""
    parser = ArgumentParser()
    serve.add_arguments(parser)
    with pytest.raises(SystemExit) as caught:
        parser.parse_args([f"--port={port}"])
    assert caught.value.code == 2
    expected = f"error: argument --port: must be a number from 0 to 65535, got {port!r}\n"
    assert capsys.readouterr().err.endswith(expected)


@pytest.mark.parametrize("host", ["0.0.0.0", "0", "::", "192.0.2.1", "::ffff:192.0.2.1"])
def test_run__refuses_what_is_not_loopback(host: str) -> None:
    """An address that is not loopback is refused before anything listens, in every notation."""
    with pytest.raises(serve.CannotServeError, match=f"could connect to {host},.* --allow-remote"):
        serve.run(host, 0, allow_remote=False, write=pytest.fail)


@pytest.mark.parametrize("host", ["", "192.0.2.1"])
def test_run__address_is_not_here(host: str) -> None:
    """An address that this machine does not have is an error of one line."""
    with pytest.raises(serve.CannotServeError, match=f"^cannot listen at {host}:0: .+$"):
        serve.run(host, 0, allow_remote=True, write=pytest.fail)


@pytest.mark.parametrize("host", ["localhost", "127.0.0.1", "127.0.0.2", "127.1"])
def test_run__loopback(host: str) -> None:
    """All names of loopback are accepted; the output has the address."""
    output: list[str] = []

    def stop(text: str) -> None:
        output.extend(text.splitlines())
        use(hosts_of(output[1]))
        # Before the server waits for a signal: this one must not be lost.
        os.kill(os.getpid(), signal.SIGTERM)

    serve.run(host, 0, allow_remote=False, write=stop)
    assert hosts_of(output[1]).startswith("127.0.0.")


def test_run__leaves_nothing_behind() -> None:
    """Afterwards the port is free and the signal handlers are restored."""
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)
    port = free_port()
    for _ in range(2):
        serve.run(LOOPBACK, port, allow_remote=False, write=lambda _: os.kill(os.getpid(), signal.SIGINT))
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGTERM)) == before
    socket.create_server((LOOPBACK, port)).close()


def test_run__start_fails_and_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that cannot listen at its port releases the port."""
    port = free_port()
    before = signal.getsignal(signal.SIGINT)

    async def fail(_server: ZooKeeperServer) -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr(ZooKeeperServer, "_listen", fail)
    with pytest.raises(serve.CannotServeError, match=f"^cannot listen at 127.0.0.1:{port}: Too many open files$"):
        serve.run(LOOPBACK, port, allow_remote=False, write=pytest.fail)
    assert signal.getsignal(signal.SIGINT) is before
    with closing(socket.socket()) as sock:
        sock.bind((LOOPBACK, port))


def test_command__output() -> None:
    """With `call_command` it writes to the given stream, and returns after the signal."""

    class Stream(StringIO):
        def flush(self) -> None:
            os.kill(os.getpid(), signal.SIGTERM)

    out = Stream()
    call_command("zklock", "devserver", port=0, stdout=out)
    greeting, usage = out.getvalue().splitlines()
    assert f" listens at {hosts_of(usage)};" in greeting


def test_command__error(taken_port: int) -> None:
    """With `call_command` it raises its error with the exit code."""
    with pytest.raises(CommandError, match="--port") as caught:
        call_command("zklock", "devserver", port=taken_port)
    assert caught.value.returncode == 2
