"""The launcher of real servers, where tests that use it would not notice: what it pauses, ends and leaves behind."""

from __future__ import annotations

import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from tests.toolbox.brokers.rabbitmq import RabbitMQ
from tests.toolbox.brokers.redis import Redis
from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.processes.process import Process, StartError
from tests.toolbox.timing import scaled
from tests.toolbox.zookeeper.server import ZooKeeper

pytestmark = pytest.mark.once

# Seconds after which something that should be gone is taken to have been left behind.
TIMEOUT = scaled(20)


@pytest.fixture
def server() -> Iterator[ZooKeeper]:
    """Return a server of the test's own, to be disturbed."""
    with ZooKeeper() as server:
        yield server


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
def test_pause__resumed(server: ZooKeeper) -> None:
    """A paused server accepts connections and says nothing; resumed, it goes on."""
    server.pause()

    with pytest.raises(TimeoutError):
        server.command("ruok", timeout=0.3)
    server.resume()
    assert server.command("ruok") == "imok"


@pytest.mark.zookeeper
def test_pause__stopped(server: ZooKeeper) -> None:
    """A paused server can be stopped, and takes no longer than another."""
    server.pause()

    server.stop()

    assert not server.is_running()


@pytest.mark.zookeeper
def test_close__nothing_left(server: ZooKeeper) -> None:
    """A closed server leaves neither a process nor a folder, and closing it again does no harm."""
    pid, folder = server.pid, server.folder

    server.close()
    server.close()

    assert not is_there(pid)
    assert not folder.exists()


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


def test_free_port__taken() -> None:
    """A preferred port is given if it is free, else another one, which no outgoing connection can take."""
    first = free_port()
    assert free_port(preferred=first) == first
    outgoing, _ = map(int, Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split())
    assert first < outgoing
    with Redis() as server:
        assert free_port(preferred=server.port) != server.port


@pytest.mark.celery
def test_worker__ended(tmp_path: Path) -> None:
    """A Celery worker that is stopped ends by itself; killed, so do its pool's processes."""
    from tests.toolbox.celery.worker import Worker

    environment = {
        "CELERY_BROKER_URL": "",
        "TESTPROJECT_BROKER_DIR": str(tmp_path / "broker"),
        "TESTPROJECT_DATABASE": str(tmp_path / "db.sqlite3"),
    }
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
