"""`zklock run` on a real ZooKeeper, as a child process where signals, its output or its end matter."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest
from django.core.management import CommandError, call_command
from kazoo.client import KazooClient

from django_zklock.api import zk_lock
from django_zklock.management.commands.zklock import UnsuccessfulError
from django_zklock.management.subcommands._locked_process import FORWARDED, NOT_FORWARDED, LockedProcess
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.network.port import free_port
from tests.toolbox.threads import Runner
from tests.toolbox.timing import GRACE, LONG_SESSION, scaled, wait_until
from tests.toolbox.zookeeper.observer import Observer
from tests.toolbox.zookeeper.server import ZooKeeper
from tests.unit.management.command_process import start_program

if TYPE_CHECKING:
    from pytest_django import Settings

PARENT = "/django_zklock"

pytestmark = pytest.mark.zookeeper


class Run:
    """A running ``manage.py zklock run``."""

    def __init__(self, hosts: str, key: str, *arguments: str, session_timeout: float = LONG_SESSION) -> None:
        self.process = start_program(
            *("manage.py", "zklock", "run", key, *arguments),
            DJANGO_SETTINGS_MODULE="tests.toolbox.celery.projects.plain",
            PYTHONUNBUFFERED="1",
            ZOOKEEPER_HOSTS=hosts,
            TESTPROJECT_SESSION_TIMEOUT=str(scaled(session_timeout)),
        )

    def read_line(self) -> str:
        """Return the next line of output."""
        assert self.process.stdout is not None
        return self.process.stdout.readline().strip()

    def end(self, timeout: float = 30) -> tuple[int, str, str]:
        """Wait for the end; return exit code, output and errors."""
        out, errors = self.process.communicate(timeout=scaled(timeout))
        return self.process.returncode, out, errors

    def status(self) -> int:
        return self.end()[0]


@pytest.fixture
def start(zookeeper: ZooKeeper) -> Iterator[Callable[..., Run]]:
    """Return a function that starts ``zklock run`` on the shared server; processes left at the end are killed."""
    runs: list[Run] = []

    def begin(key: str, *arguments: str, hosts: str = zookeeper.hosts, session_timeout: float = LONG_SESSION) -> Run:
        runs.append(Run(hosts, key, *arguments, session_timeout=session_timeout))
        return runs[-1]

    yield begin
    for run in runs:
        if run.process.poll() is None:
            run.process.kill()
            run.process.communicate()


@pytest.fixture
def nodes(kazoo_client: KazooClient) -> Callable[[str], list[str]]:
    """Return a function that returns the paths of the nodes in the queue of a key."""

    def of(key: str) -> list[str]:
        path = f"{PARENT}/{key}"
        return [f"{path}/{name}" for name in kazoo_client.get_children(path)] if kazoo_client.exists(path) else []

    return of


@pytest.fixture
def run_here(zklock: str) -> Callable[..., tuple[object, str]]:
    """Return a function that runs ``zklock run`` in this process, and returns its exit code and its error."""

    def run(*arguments: str) -> tuple[object, str]:
        try:
            call_command("zklock", "run", *arguments)
        except UnsuccessfulError as error:
            return error.returncode, ""
        except CommandError as error:
            return error.returncode, str(error)
        except SystemExit as end:  # by a signal
            return end.code, ""
        return 0, ""

    return run


def is_running(pid: int) -> bool:
    with suppress(ProcessLookupError):
        os.kill(pid, 0)
        return "Z" not in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    return False


Nodes = Callable[[str], list[str]]
Start = Callable[..., Run]
RunHere = Callable[..., tuple[object, str]]


def test_run__holds_while_the_command_runs(
    start: Start, nodes: Nodes, kazoo_client: KazooClient, tmp_path: Path
) -> None:
    """The command gets key and token, the lock is held while it runs and free afterwards.

    The token is the node's czxid, and the identity is without the arguments, which may be secret.
    """
    seen = tmp_path / "seen"
    code = f'echo "$ZKLOCK_KEY $ZKLOCK_TOKEN"; until [ -e {seen} ]; do sleep 0.02; done'
    run = start("run-holds", "--", "sh", "-c", code, "hunter2")
    key, token = run.read_line().split()
    assert key == "run-holds"
    (path,) = nodes("run-holds")
    data, stat = kazoo_client.get(path)
    assert stat.creation_transaction_id == int(token)
    assert b'"name":"sh"' in data
    assert b"hunter2" not in data
    seen.touch()
    assert run.end() == (0, "", "")
    assert nodes("run-holds") == []


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["true"], 0),
        (["sh", "-c", "exit 7"], 7),
        (["sh", "-c", "kill -KILL $$"], 128 + signal.SIGKILL),
        (["no-such-command-anywhere"], 127),
        (["/no/such/file"], 127),
        (["/etc/passwd"], 126),
    ],
)
def test_run__exit_status(run_here: RunHere, command: list[str], status: int) -> None:
    """The exit code of the command is passed on; a command that cannot be started has a shell's."""
    ended, error = run_here("run-status", "--", *command)
    assert ended == status
    assert len(error.splitlines()) == (1 if status in {126, 127} else 0)


def test_run__script_that_cannot_be_started(
    run_here: RunHere, tmp_path: Path, zklock: str, kazoo_client: KazooClient
) -> None:
    """A script with a wrong interpreter fails when it is started, and releases the lock."""
    script = tmp_path / "script"
    script.write_text("#!/no/such/interpreter\n")
    script.chmod(0o755)
    assert run_here("run-script", "--", str(script))[0] == 127
    script.write_bytes(b"\x7fELF nonsense")
    status, error = run_here("run-script", "--", str(script))
    assert (status, "Exec format error" in error) == (126, True)
    assert kazoo_client.get_children(f"{zklock}/run-script") == []


def test_run__arguments_arrive_unchanged(start: Start) -> None:
    """The command gets its own options, and a second "--"."""
    run = start("run-arguments", "--timeout", "5", "--", "printf", "%s|", "--timeout", "9", "--", "--using", "")
    assert run.end() == (0, "--timeout|9|--|--using||", "")


def test_run__conflict_fails(run_here: RunHere, make_pool: MakePool, tmp_path: Path) -> None:
    """With --on-conflict fail a held lock is exit code 75 at once, and the error shows the holder."""
    ran = str(tmp_path / "ran")
    with Lock("run-conflict", make_pool(), work=lambda: Work(kind="task", name="billing.bill")).acquire() as held:
        status, error = run_here("run-conflict", "--on-conflict", "fail", "--", "touch", ran)
        assert status == 75
        assert "held by task billing.bill (pid " in error
        assert len(error.splitlines()) == 1
        status, error = run_here("run-conflict", "--timeout", "1.5", "--", "touch", ran)
        assert status == 75
        assert "within 1.5 s" in error
        assert not Path(ran).exists()
        held.release(wait=True)
    assert run_here("run-conflict", "--on-conflict", "fail", "--", "touch", ran) == (0, "")
    assert Path(ran).exists()


def test_run__waits_its_turn(start: Start, zklock: str, settings: Settings, nodes: Nodes) -> None:
    """Without a timeout it waits until the lock is free."""
    settings.ZKLOCK = {"default": settings.ZKLOCK["default"] | {"ROOT": PARENT}}
    held = zk_lock("run-waits").acquire(60)
    run = start("run-waits", "--", "echo", "ran")
    wait_until(lambda: len(nodes("run-waits")) == 2)
    assert run.process.poll() is None
    held.release()
    assert run.end() == (0, "ran\n", "")


def test_run__signal_while_waiting(start: Start, zklock: str, settings: Settings, nodes: Nodes) -> None:
    """A signal ends the wait, starts nothing and leaves no node."""
    settings.ZKLOCK = {"default": settings.ZKLOCK["default"] | {"ROOT": PARENT}}
    with zk_lock("run-signal-waiting"):
        run = start("run-signal-waiting", "--", "echo", "ran")
        wait_until(lambda: len(nodes("run-signal-waiting")) == 2)
        run.process.send_signal(signal.SIGINT)
        assert run.end() == (128 + signal.SIGINT, "", "")
        wait_until(lambda: len(nodes("run-signal-waiting")) == 1, timeout=GRACE)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_run__another_signal_while_waiting(
    run_here: RunHere, make_pool: MakePool, observer: Observer, tmp_path: Path, number: signal.Signals
) -> None:
    """So does each other signal that would end the process."""
    lock, ran = Lock("run-signal-waiting", make_pool()), str(tmp_path / "ran")
    with lock:

        def end() -> None:
            # The handlers are there before the node.
            observer.wait_count(lock.paths[0], 2)
            os.kill(os.getpid(), number)

        ending = Runner(end)
        assert run_here("run-signal-waiting", "--", "touch", ran) == (128 + number, "")
        ending.result()
        observer.wait_count(lock.paths[0], 1)
    assert not Path(ran).exists()


def test_run__forwards_signals(start: Start) -> None:
    """The command gets each signal, and its exit code is passed on."""
    numbers = [signal.SIGUSR1, signal.SIGALRM, signal.SIGRTMIN, signal.SIGHUP, signal.SIGINT, signal.SIGTERM]
    # The handler writes without `print`, which it may interrupt.
    code = f"""
import os, signal, sys, time
def tell(number, _frame):
    os.write(1, b"%d\\n" % number)
    if number == signal.SIGTERM:
        sys.exit(33)
for number in {[int(number) for number in numbers]}:
    signal.signal(number, tell)
print("ready", flush=True)
while True:
    time.sleep(60)
"""
    run = start("run-forward", "--grace", "60", "--", sys.executable, "-c", code)
    assert run.read_line() == "ready"
    for number in numbers:
        run.process.send_signal(number)
        assert run.read_line() == str(int(number))
    assert run.end() == (33, "", "")


def test_run__forwarded_signals() -> None:
    """Every signal that would end `run` and leave its command is forwarded."""
    default = {number for number in signal.valid_signals() if number not in NOT_FORWARDED}
    assert set(FORWARDED) == default
    assert {signal.SIGTERM, signal.SIGALRM, signal.SIGXCPU, signal.SIGRTMAX} <= default


# A command without children: a shell that gets SIGTERM just before it starts one leaves it running. The handler writes
# without `print`, which it may interrupt.
CLEANS_UP = """
import os, signal, time
def end(*_):
    os.write(1, b"cleaning\\n")
    os._exit(3)
signal.signal(signal.SIGTERM, end)
print(os.getpid(), flush=True)
time.sleep(60)
"""

# What a shell script starts: after SIGTERM it goes on until there is a certain file. The shell itself ends at once.
TOOL = """
import os, pathlib, signal, sys, time
def end(*_):
    os.write(1, b"cleaning\\n")
    while not pathlib.Path(sys.argv[1]).exists():
        time.sleep(0.02)
    os.write(1, b"clean\\n")
    os._exit(0)
signal.signal(signal.SIGTERM, end)
print("ready", flush=True)
time.sleep(60)
"""


@pytest.fixture
def go(tmp_path: Path) -> Path:
    """Return the path of the file for which the tool waits."""
    return tmp_path / "go"


@pytest.fixture
def script(tmp_path: Path, go: Path) -> list[str]:
    """Return the command of a shell script that starts the tool, and writes its pid first."""
    (tmp_path / "tool.py").write_text(TOOL)
    return ["sh", "-c", f"{sys.executable} {tmp_path / 'tool.py'} {go} & echo $!; wait"]


@pytest.mark.parametrize("way", ["signal", "loss"])
def test_run__waits_for_what_the_command_started(
    start: Start, nodes: Nodes, kazoo_client: KazooClient, script: list[str], go: Path, way: str
) -> None:
    """After a signal or a loss a tool of a shell script can clean up, although the shell has ended."""
    key = f"run-group-{way}"
    run = start(key, "--grace", "60", "--", *script, session_timeout=6)
    pid = int(run.read_line())
    assert run.read_line() == "ready"
    if way == "signal":
        run.process.terminate()
    else:
        kazoo_client.delete(nodes(key)[0])
    assert run.read_line() == "cleaning"
    if way == "signal":
        # The lock is held while the tool works.
        assert len(nodes(key)) == 1
    assert run.process.poll() is None
    go.touch()
    status, out, _errors = run.end()
    assert status == (128 + signal.SIGTERM if way == "signal" else 76)
    assert out == "clean\n"
    assert not is_running(pid)
    assert nodes(key) == []


def test_run__kills_what_the_command_started(start: Start, nodes: Nodes, script: list[str]) -> None:
    """What still runs at the end of the grace period is killed before the lock is released."""
    run = start("run-group-killed", "--grace", "0.5", "--", *script)
    pid = int(run.read_line())
    assert run.read_line() == "ready"
    began = time.monotonic()
    run.process.terminate()
    status, out, _errors = run.end()
    assert 0.5 <= time.monotonic() - began < 0.5 + GRACE
    assert (status, out) == (128 + signal.SIGTERM, "cleaning\n")
    assert not is_running(pid)
    assert nodes("run-group-killed") == []


def test_run__leaves_a_daemon(run_here: RunHere, tmp_path: Path) -> None:
    """A command that ends by itself may leave a process: `run` waits for no daemon."""
    written = tmp_path / "pid"
    assert run_here("run-daemon", "--", "sh", "-c", f"sleep 60 > /dev/null 2>&1 & echo $! > {written}") == (0, "")
    pid = int(written.read_text())
    try:
        assert is_running(pid)
    finally:
        os.kill(pid, signal.SIGKILL)


def test_run__stopped_command(start: Start) -> None:
    """A command that was stopped hears SIGTERM, because it is continued."""
    run = start("run-stopped", "--grace", "60", "--", sys.executable, "-c", CLEANS_UP)
    pid = int(run.read_line())
    os.kill(pid, signal.SIGSTOP)
    wait_until(lambda: "T" in Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0])
    run.process.terminate()
    assert run.end()[:2] == (3, "cleaning\n")


def test_run__stop_from_the_terminal(start: Start, tmp_path: Path) -> None:
    """Its terminal does not stop it, by Ctrl-Z or in the background: a stopped process could not keep the lock."""
    seen = tmp_path / "seen"
    run = start("run-stop", "--", "sh", "-c", f"echo ready; until [ -e {seen} ]; do sleep 0.02; done")
    assert run.read_line() == "ready"
    for number in (signal.SIGTSTP, signal.SIGTTIN, signal.SIGTTOU):
        run.process.send_signal(number)
    seen.touch()
    assert run.end() == (0, "", "")


def test_run__lost_lock_ends_the_command(start: Start, nodes: Nodes, kazoo_client: KazooClient) -> None:
    """When the lock is lost the command gets SIGTERM at once and can clean up; the exit code is 76."""
    run = start("run-lost", "--", sys.executable, "-c", CLEANS_UP, session_timeout=6)
    run.read_line()
    kazoo_client.delete(nodes("run-lost")[0])
    began = time.monotonic()
    status, out, errors = run.end()
    assert time.monotonic() - began < GRACE
    assert (status, out) == (76, "cleaning\n")
    assert "lock run-lost was lost while the command ran: " in errors
    assert len(errors.splitlines()) == 1


def test_run__lost_lock_kills_after_the_grace_period(start: Start, nodes: Nodes, kazoo_client: KazooClient) -> None:
    """A command that ignores SIGTERM is killed with all its child processes."""
    code = "trap '' TERM; (trap '' TERM; sleep 60) & echo $!; echo $$; sleep 60; sleep 60"
    run = start("run-grace", "--grace", "0.5", "--", "sh", "-c", code, session_timeout=6)
    pids = [int(run.read_line()) for _number in range(2)]
    kazoo_client.delete(nodes("run-grace")[0])
    began = time.monotonic()
    assert run.status() == 76
    assert 0.5 <= time.monotonic() - began < 0.5 + GRACE
    wait_until(lambda: not any(map(is_running, pids)), timeout=GRACE)


def test_run__unreachable(run_here: RunHere, settings: Settings, tmp_path: Path) -> None:
    """An unreachable ZooKeeper is exit code 69 with one line of error, and nothing runs."""
    settings.ZKLOCK = {"default": settings.ZKLOCK["default"] | {"HOSTS": f"127.0.0.1:{free_port()}"}}
    ran = tmp_path / "ran"
    status, error = run_here("run-unreachable", "--timeout", "0.5", "--", "touch", str(ran))
    assert status == 69
    assert "ZooKeeper at 127.0.0.1:" in error
    assert len(error.splitlines()) == 1
    assert not ran.exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["key"], 'give the command to run after "--"'),
        (["key", "--"], 'give the command to run after "--"'),
        (["", "--", "true"], "must not be empty"),
        (["key", "--using", "reports", "--", "true"], "no alias 'reports'"),
        (["key", "--on-conflict", "fail", "--timeout", "3", "--", "true"], "--timeout has no meaning"),
        (["key", "--timeout", "-1", "--", "true"], "not negative"),
        (["key", "--grace", "soon", "--", "true"], "must be a number of seconds"),
        (["key", "--on-conflict", "skip", "--", "true"], "invalid choice"),
    ],
)
def test_run__wrong_arguments(zklock: str, arguments: list[str], message: str) -> None:
    """Wrong arguments are an error before the lock is acquired."""
    with pytest.raises(CommandError, match=message) as caught:
        call_command("zklock", "run", *arguments)
    # With call_command an error of the parser has code 1; on the command line argparse exits with 2.
    assert caught.value.returncode in {1, 2}


def test_run__in_process(run_here: RunHere) -> None:
    """`call_command` works too, and restores the signal handlers."""
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTSTP)]
    assert run_here("key", "--", "true") == (0, "")
    assert run_here("key", "--", "false") == (1, "")
    assert before == [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT, signal.SIGTSTP)]


@pytest.mark.parametrize("dashed", ["-5", "--timeout"])
@pytest.mark.parametrize("command", [["true"], ["env", "--", "true"]])
def test_run__key_with_a_dash(zklock: str, kazoo_client: KazooClient, dashed: str, command: list[str]) -> None:
    """A key like an option stands after a "--" of its own; the command keeps its own."""
    # The queue that the command would make is deleted when it is empty.
    path = kazoo_client.create(f"{zklock}/{dashed}", makepath=True)
    call_command("zklock", "run", "--timeout", "5", "--", dashed, "--", *command)
    # A contender was in the queue.
    assert kazoo_client.exists(path).cversion > 0


def test_run__lost_at_its_end() -> None:
    """A lock that is lost when the command ends counts as lost, although the signal of the loss is still to come."""
    held: Any = SimpleNamespace(key="k", token=5, lost=True)
    process = LockedProcess([sys.executable, "-c", "raise SystemExit(3)"], lock=held, grace=1.0)
    assert process.run(held) == 3
    assert process.loss is not None
