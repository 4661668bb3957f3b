"""The launcher of real servers: what it starts, disturbs and leaves behind."""

from __future__ import annotations

import os
import re
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from tests.toolbox.brokers.rabbitmq import RabbitMQ
from tests.toolbox.brokers.redis import Redis
from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.processes.process import NotInstalledError, Process, StartError
from tests.toolbox.timing import scaled
from tests.toolbox.zookeeper.devserver import DevServer
from tests.toolbox.zookeeper.ensemble import Ensemble
from tests.toolbox.zookeeper.server import ZooKeeper

pytestmark = pytest.mark.once

# Seconds after which something that should be gone is taken to have been left behind.
TIMEOUT = scaled(20)


@pytest.fixture
def server() -> Iterator[ZooKeeper]:
    """Return a server of the test's own, to be disturbed."""
    with ZooKeeper() as server:
        yield server


@pytest.fixture
def client(server: ZooKeeper) -> Iterator[KazooClient]:
    """Return a session of the server."""
    client = KazooClient(server.hosts, timeout=scaled(10))
    client.start(timeout=scaled(20))
    yield client
    client.stop()
    client.close()


class Program(Process):
    """A Python program that is ready when it has written ``ready``."""

    name = "Program"
    start_timeout = 10.0

    def __init__(self, source: str) -> None:
        super().__init__()
        self.source = textwrap.dedent(source)

    def arguments(self) -> list[str]:
        return [sys.executable, "-u", "-c", self.source]

    def is_ready(self) -> bool:
        return "ready" in self.log_tail()


class Deaths:
    """Waits for the end of processes that are not this one's children."""

    def __init__(self, *pids: int) -> None:
        self._open = {os.pidfd_open(pid): pid for pid in pids}

    def wait(self) -> None:
        while self._open:
            ended, _, _ = select.select(self._open, [], [], TIMEOUT)
            assert ended, f"still there: {list(self._open.values())}"
            for descriptor in ended:
                os.close(descriptor)
                del self._open[descriptor]


def is_there(pid: int) -> bool:
    """Tell whether a process runs; one that has ended and was not asked after does not."""
    try:
        return ") Z " not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.zookeeper
def test_zookeeper__started(server: ZooKeeper) -> None:
    """A started server answers the four-letter words, alone and with the session timeouts it was given."""
    assert server.command("ruok") == "imok"
    assert server.mntr()["zk_server_state"] == "standalone"
    assert "minSessionTimeout=1000" in server.command("conf")
    assert server.hosts == f"{LOOPBACK}:{server.port}"
    assert re.match(r"ZooKeeper \d+\.\d+\.\d+ (of Debian$|in .)", server.description())


@pytest.mark.zookeeper
def test_packets_received__requests_of_a_client(server: ZooKeeper, client: KazooClient) -> None:
    """The count grows by one for each request of a client and not by the counting."""
    before = server.packets_received()
    assert server.packets_received() == before

    client.exists("/a")
    client.exists("/b")

    assert server.packets_received() == before + 2


@pytest.mark.zookeeper
def test_pause__resumed(server: ZooKeeper, client: KazooClient) -> None:
    """A paused server accepts connections and says nothing; resumed, it goes on with the same sessions."""
    session = client.client_id

    server.pause()

    with pytest.raises(TimeoutError):
        server.command("ruok", timeout=0.3)
    server.resume()
    assert server.command("ruok") == "imok"
    client.create("/a")
    assert client.client_id == session


@pytest.mark.zookeeper
def test_pause__stopped(server: ZooKeeper) -> None:
    """A paused server can be stopped, and takes no longer than another."""
    server.pause()

    server.stop()

    assert not server.is_running()


@pytest.mark.zookeeper
@pytest.mark.parametrize("end", ["restart", "kill"])
def test_restart__data_and_port(server: ZooKeeper, client: KazooClient, end: str) -> None:
    """A server that was stopped or killed comes back at the same address, with its nodes and their versions."""
    client.create("/a", b"kept")
    port = server.port

    if end == "kill":
        server.kill()
        server.start()
    else:
        server.restart()

    assert server.port == port
    with_retries = client.retry(client.get, "/a")
    assert with_retries[0] == b"kept"


@pytest.mark.zookeeper
def test_close__nothing_left(server: ZooKeeper) -> None:
    """A closed server leaves neither a process nor a folder, and closing it again does no harm."""
    pid, folder = server.pid, server.folder

    server.close()
    server.close()

    assert not is_there(pid)
    assert not folder.exists()


@pytest.mark.zookeeper
def test_start__running(server: ZooKeeper) -> None:
    """A server that runs is not started a second time."""
    with pytest.raises(RuntimeError, match="already running"):
        server.start()


@pytest.mark.zookeeper
@pytest.mark.parametrize("end", ["SIGKILL", "SIGTERM", "SIGINT", "exit"])
def test_parent__gone_without_closing(server: ZooKeeper, end: str) -> None:
    """A program that ends in any way, even by SIGKILL and with a forked child alive, takes its server along."""
    program = textwrap.dedent(
        """
        import os, signal, sys
        from tests.toolbox.processes.reaper import Reaper
        from tests.toolbox.zookeeper.server import ZooKeeper

        signal.signal(signal.SIGINT, signal.SIG_DFL)
        server = ZooKeeper().start()
        if os.fork() == 0:
            signal.pause()
        print(server.pid, Reaper.current().pid, server.folder, flush=True)
        sys.stdin.readline()
        """
    )
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", program],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
        start_new_session=True,
    ) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        pid, reaper, folder = parent.stdout.readline().split()
        deaths = Deaths(int(pid), int(reaper))
        assert is_there(int(pid))
        assert Path(folder).is_dir()
        try:
            if end == "exit":
                parent.stdin.write("\n")
                parent.stdin.flush()
            else:
                parent.send_signal(signal.Signals[end])
            assert parent.wait(TIMEOUT) == (0 if end == "exit" else -signal.Signals[end])

            deaths.wait()
        finally:
            # The forked child, the last one to hold the pipes.
            os.killpg(parent.pid, signal.SIGKILL)

    assert not Path(folder).exists()


def test_installation__none(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Where there is no ZooKeeper, one line says how to get it."""
    monkeypatch.setenv("ZOOKEEPER_HOME", str(tmp_path))

    with pytest.raises(NotInstalledError) as caught:
        ZooKeeper()

    message = str(caught.value)
    assert "\n" not in message
    for way in ("apt-get install zookeeper", "ZOOKEEPER_HOSTS", "ZOOKEEPER_HOME"):
        assert way in message


@pytest.mark.zookeeper
@pytest.mark.slow
def test_ensemble__leader_killed() -> None:
    """Three servers have one leader, elect another one when it dies, and take it back as a follower."""
    with ExitStack() as stack:
        ensemble = stack.enter_context(Ensemble(3))
        first = ensemble.leader()
        assert len(ensemble.followers()) == 2
        assert len(ensemble.hosts.split(",")) == 3
        client = KazooClient(ensemble.hosts)
        client.start(timeout=scaled(20))
        stack.callback(client.close)
        stack.callback(client.stop)
        client.create("/a", b"kept")

        first.kill()

        second = ensemble.leader(timeout=30)
        assert second is not first
        first.start()
        assert first in ensemble.followers()
        assert client.retry(client.get, "/a")[0] == b"kept"


def test_devserver__started_again() -> None:
    """The package's own server forgets everything when it is started again, and clients come back to it."""
    with DevServer() as server:
        client = KazooClient(server.hosts, timeout=10)
        client.start(timeout=10)
        client.create("/a")

        server.restart()

        with pytest.raises(NoNodeError):
            client.retry(client.get, "/a")
        client.stop()
        client.close()


@pytest.mark.celery
def test_redis__started_again() -> None:
    """Redis answers at its address, and forgets everything when it is started again."""
    import redis

    with Redis() as server:
        client = redis.Redis.from_url(server.url)
        client.set("a", "1")
        assert client.get("a") == b"1"
        client.close()

        server.restart()

        assert client.get("a") is None
        client.close()


@pytest.mark.celery
def test_rabbitmq__nothing_left() -> None:
    """RabbitMQ hands on messages at its address; closed, it leaves no folder and no process, not even a port mapper."""
    import kombu

    with RabbitMQ() as server:
        with kombu.Connection(server.url) as connection, connection.SimpleQueue("a") as queue:
            queue.put("word")
            message = queue.get(timeout=TIMEOUT)
            message.ack()
        family = Deaths(*having_in_environment(f"HOME={server.folder}"))
        mapper = (LOOPBACK, int(server.environment()["ERL_EPMD_PORT"]))
        socket.create_connection(mapper, TIMEOUT).close()

    assert message.payload == "word"
    family.wait()
    with pytest.raises(ConnectionRefusedError):
        socket.create_connection(mapper, TIMEOUT)
    assert not server.folder.exists()


def having_in_environment(setting: str) -> list[int]:
    """Find the processes that were started with a setting: a shell, Erlang, and what Erlang starts."""
    pids = []
    for environment in Path("/proc").glob("[0-9]*/environ"):
        with suppress(OSError):  # another user's, or gone
            if setting.encode() in environment.read_bytes().split(b"\0"):
                pids.append(int(environment.parent.name))
    assert len(pids) >= 2
    return pids


def test_process__ends_at_once() -> None:
    """A program that ends instead of getting ready is reported with its status and what it wrote."""
    with pytest.raises(StartError, match="Program ended with status 3 instead of starting") as caught:
        Program("import sys; print('no disk'); sys.exit(3)").__enter__()

    assert caught.value.log == "no disk"


def test_process__never_ready() -> None:
    """A program that does not get ready in time is ended."""
    program = Program("import signal; print('waiting', flush=True); signal.pause()")
    program.start_timeout = 0.3

    with pytest.raises(StartError, match=f"Program was not ready after {0.3 * program.slowness:g} s"), program:
        pass

    assert not program.is_running()
    assert not program.folder.exists()


def test_process__ignores_the_request_to_stop() -> None:
    """A program that does not want to stop is killed, with its children."""
    program = Program(
        """
        import os, signal
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        child = os.fork()
        if child:
            print("ready", child, flush=True)
        signal.pause()
        """
    )
    with program:
        child = int(program.log_tail().split()[1])
        deaths = Deaths(program.pid, child)

        program.stop(timeout=0.2)

        deaths.wait()


def test_process__not_started() -> None:
    """Stopping or killing what does not run does nothing."""
    program = Program("")
    program.stop()
    program.kill()
    assert program.wait(0) is None
    assert repr(program) == "<Program not running>"
    program.close()


def test_free_port__taken() -> None:
    """A preferred port is given if it is free, else another one, which no outgoing connection can take."""
    first = free_port()
    assert free_port(preferred=first) == first
    outgoing, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert first < outgoing
    with Redis() as server:
        assert free_port(preferred=server.port) != server.port


@pytest.mark.celery
class TestWorker:
    """A Celery worker as a process; its broker is a folder."""

    @pytest.fixture
    def environment(self, tmp_path: Path) -> dict[str, str]:
        return {
            "CELERY_BROKER_URL": "",
            "TESTPROJECT_BROKER_DIR": str(tmp_path / "broker"),
            "TESTPROJECT_DATABASE": str(tmp_path / "db.sqlite3"),
        }

    def test_start__ready(self, environment: dict[str, str]) -> None:
        """A started worker takes tasks; stopped, it ends by itself; killed, so do its pool's processes."""
        from tests.toolbox.celery.worker import Worker

        with Worker(concurrency=2, environment=environment, queues=["a", "b"]) as worker:
            assert worker.is_running()
            worker.stop(timeout=60)
            assert "Warm shutdown" in worker.log_tail()
            worker.start()
            pool = Path(f"/proc/{worker.pid}/task/{worker.pid}/children").read_text().split()
            deaths = Deaths(worker.pid, *map(int, pool))
            assert len(pool) >= 2
            worker.kill()
            deaths.wait()

    def test_start__app_does_not_exist(self, environment: dict[str, str]) -> None:
        """A worker that cannot start is reported at once, with the end of its log."""
        from tests.toolbox.celery.worker import Worker

        with pytest.raises(StartError, match="Celery worker ended with status 2") as caught:
            Worker(app="nowhere", environment=environment).__enter__()

        assert "nowhere" in caught.value.log
