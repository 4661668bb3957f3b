"""The outputs, errors and files that the documents show: each is what the program writes or reads."""

from __future__ import annotations

import builtins
import contextlib
import io
import json
import re
import shlex
import signal
import socket
import ssl
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from django.core.management import call_command
from kazoo.client import KazooClient

import django_zklock
from django_zklock import ZkLockError, zk_lock
from django_zklock.connections import connections
from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.ops import actions, snapshots
from tests.project.doc_blocks import BLOCKS, ROOT, Block, execute, masked, runs
from tests.toolbox.curator.installation import HOW_TO_GET_CURATOR, find_curator
from tests.toolbox.django.command import Screen, Type, run
from tests.toolbox.django.layer import Ensemble
from tests.toolbox.network.certificates import Authority
from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.processes.java import QUICK_START, find_java
from tests.toolbox.threads import Runner
from tests.toolbox.timing import scaled, wait_until
from tests.toolbox.zookeeper.observer import Observer

if TYPE_CHECKING:
    from pytest_django import Settings

pytest_plugins = ["tests.toolbox.django.settings_fixtures", "tests.toolbox.django.command_fixtures"]

Blocks = list[Block]
Stand = Callable[..., str]
ANSI = re.compile(r"\x1b\[[\d;]*[A-Za-z]")
# What the operator types after a prompt is in the block, and not in the output.
TYPED = re.compile(r'^(Reason: |.*Type "yes": )(.+)\n', re.MULTILINE)
NIGHTLY = {"host": "batch2", "pid": 944, "kind": "command", "name": "nightly_report"}
# A task at the gate that has not run for five seconds: its worker is known, and not its child.
AT_THE_GATE = {"worker": "celery@web1", "child": 0}
BILL = {"host": "web1", "pid": 71, "kind": "task", "name": "billing.bill", "id": "77", **AT_THE_GATE}


@pytest.fixture
def kind_of_server() -> str:
    """Return the server without Java: these tests are about the pages."""
    return "testserver"


@pytest.fixture
def stand(kazoo_client: KazooClient, zklock: str) -> Stand:
    """Return a function that puts a contender with this identity into the queue of a key, and returns its path."""
    kazoo_client.create(zklock)
    # Tokens then have three digits at least, and are masked.
    for change in [kazoo_client.set_async(zklock, b"") for _ in range(100)]:
        change.get(10)

    def create(key: str, *, host: str, pid: int, **work: object) -> str:
        identity = {"v": 1, "host": host, "pid": pid, "thread": "MainThread", "work": {"id": "", **work}}
        path = f"{zklock}/{key}/_c_{uuid.uuid4()}-lock-"
        data = json.dumps(identity).encode()
        return str(kazoo_client.create(path, data, ephemeral=True, sequence=True, makepath=True))

    return create


def shown(block: Block) -> str:
    """Return what a block shows below its commands, masked and without what is typed."""
    return masked(TYPED.sub(r"\1", block.output))


def written(block: Block, *, out: io.StringIO | None = None) -> str:
    """Run the one ``zklock`` command of a block and return what it writes, masked."""
    (command,) = block.commands
    arguments = shlex.split(command.removeprefix("python manage.py zklock "))
    return masked(ANSI.sub("", run(*arguments, status=None, out=out)))


# What the command prints.


@runs("docs/reference/commands.md", "zklock history")
def test_history(blocks: Blocks, stand: Stand) -> None:
    """The reference shows the columns that `history` writes."""
    pool = connections["default"]
    actions.revoke(pool, stand("account:17", **BILL), "deploy", by="root", timeout=20)
    path = stand("invoice:42", **NIGHTLY)
    (holder,) = snapshots.one_lock(pool, "invoice:42", timeout=20).holders
    actions.break_lock(pool, path, token=holder.token, why="batch2 is on fire", by="ops@batch2", timeout=20)
    for block in blocks:
        assert written(block) == shown(block)


def stand_as_listed(block: Block, stand: Stand) -> None:
    """Put into the queues what the table of a block lists."""
    _header, *rows = block.output.strip().splitlines()
    for row in rows:
        key, _state, _kind, _held, _in_queue, waiters, _token, holder = re.split(r" {2,}", row)
        found = re.fullmatch(r"(\w+) (\S+)(?: \[(\S+)\])? \((?:worker (\S+), main )?pid (\d+) on (\S+)\)", holder)
        assert found
        kind, name, number, worker, pid, host = found.groups()
        # Every task that a worker runs names its worker.
        assert (kind == "task") == bool(worker)
        task = {"worker": worker, "child": 0} if worker else {}
        stand(key, host=host, pid=int(pid), kind=kind, name=name, id=number or "", **task)
        for _ in range(int(waiters)):
            stand(key, **BILL)


@runs("README.md", "zklock list")
def test_list__readme(blocks: Blocks, stand: Stand) -> None:
    """The README shows the columns that `list` writes."""
    for block in blocks:
        stand_as_listed(block, stand)
        assert written(block) == shown(block)


@runs("docs/reference/commands.md", "$ python manage.py zklock list\n")
def test_list(blocks: Blocks, stand: Stand) -> None:
    """The reference shows the columns that `list` writes."""
    for block in blocks:
        stand_as_listed(block, stand)
        assert written(block) == shown(block)


@runs("docs/tutorial/demo.md", "KEY        STATE")
def test_list__tutorial(blocks: Blocks, stand: Stand) -> None:
    """So does the tutorial."""
    for block in blocks:
        stand_as_listed(block, stand)
        assert masked(run("list")) == shown(block)


@runs("docs/howto/look-at-locks.md", "zklock show invoice:42")
def test_show(blocks: Blocks, stand: Stand) -> None:
    """The how-to shows the columns that `show` writes."""
    stand("invoice:42", **NIGHTLY)
    stand("invoice:42", **BILL)
    for block in blocks:
        assert written(block) == shown(block)


@runs("docs/howto/look-at-locks.md", "zklock show invoice:77")
def test_show__task(blocks: Blocks, stand: Stand) -> None:
    """The how-to shows the line that ends a task; the name of the app is that of this process."""
    work = {**BILL, "id": "5b7e3c52", "worker": "celery@web1", "child": 93, "time_limit": 3600}
    stand("invoice:77", **work)
    app = re.compile(r"celery -A \S+")
    for block in blocks:
        assert app.sub("celery -A APP", written(block)) == app.sub("celery -A APP", shown(block))


@runs("docs/howto/beat.md", "zklock show celery-beat:shop")
def test_show__beat(blocks: Blocks, stand: Stand, kazoo_client: KazooClient, zklock: str) -> None:
    """So does that about beats, whose node for what was sent is of no recipe."""
    for host, pid in (("batch1", 944), ("batch2", 71)):
        stand("celery-beat:shop", host=host, pid=pid, kind="command", name="celery beat")
    kazoo_client.create(f"{zklock}/celery-beat:shop/sent")
    for block in blocks:
        assert written(block) == shown(block)


@runs("docs/reference/commands.md", "zklock watch --match 'invoice:*'")
def test_watch(blocks: Blocks, stand: Stand, kazoo_client: KazooClient) -> None:
    """The reference shows the lines that `watch` writes when a lock is taken, asked for and handed over."""
    (block,) = blocks
    out = io.StringIO()

    def wait_for(event: str) -> None:
        wait_until(lambda: f"\t{event}\t" in out.getvalue() or not watching.running, what=event)
        if not watching.running:
            watching.result()

    watching = Runner(lambda: run("watch", "--match", "invoice:*", "--interval", "0.2", out=out))
    try:
        # What the first reading finds is no change, so others come and go until one is seen.
        others: list[str] = []
        while "\ttaken\t" not in out.getvalue():
            others.append(stand(f"invoice:{len(others)}", **BILL))
            time.sleep(0.3)
        for other in others:
            kazoo_client.delete(other)
        wait_for(f"released\tinvoice:{len(others) - 1}")
        out.seek(0)
        out.truncate()
        first = stand("invoice:42", **NIGHTLY)
        wait_for("taken")
        stand("invoice:42", **BILL)
        wait_for("joined")
        run("revoke", "invoice:42", "--reason", "deploy")
        wait_for("revoked")
        kazoo_client.delete(first)
        wait_for("handed over")
    finally:
        watching.throw(KeyboardInterrupt)
    watching.result()
    who = re.compile(r"\w+@[\w.-]+")
    assert who.sub("USER", masked(out.getvalue())) == who.sub("USER", shown(block))


def release_when_asked(kazoo_client: KazooClient, path: str) -> None:
    """Delete the node as soon as its data has a reason to release."""

    def look(_event: object) -> None:
        threading.Thread(target=kazoo_client.delete, args=[path]).start()

    kazoo_client.get(path, watch=look)


@runs("docs/howto/look-at-locks.md", "zklock revoke invoice:42")
def test_revoke(blocks: Blocks, stand: Stand, kazoo_client: KazooClient) -> None:
    """The how-to shows what `revoke` writes when the holder releases the lock."""
    for block in blocks:
        release_when_asked(kazoo_client, stand("invoice:42", **NIGHTLY))
        assert written(block) == shown(block)


@runs("docs/reference/commands.md", "zklock break invoice:42")
def test_break(blocks: Blocks, stand: Stand, operator: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    """The reference shows what `break` writes and asks."""
    monkeypatch.setenv("COLUMNS", "300")
    (block,) = blocks
    stand("invoice:42", **NIGHTLY)
    operator(*(answer for _, answer in TYPED.findall(block.output)))
    assert written(block, out=Screen()) == shown(block)


@runs("docs/reference/commands.md", "zklock prune")
def test_prune(blocks: Blocks, kazoo_client: KazooClient, zklock: str) -> None:
    """The reference shows what `prune` removes."""
    (block,) = blocks
    for key in block.output.splitlines()[:-1]:
        kazoo_client.create(f"{zklock}/{key}", makepath=True)
    assert written(block).replace(zklock, "/django_zklock") == shown(block)


@runs("docs/reference/commands.md", "zklock doctor")
def test_doctor(blocks: Blocks, settings: Settings) -> None:
    """The reference shows lines that `doctor` writes where the servers grant less than is asked for."""
    (block,) = blocks
    with ZooKeeperServer(max_session_timeout=4.0) as server:
        settings.ZKLOCK = {"default": {"HOSTS": server.hosts, "SESSION_TIMEOUT": 15}}
        lines = [re.sub(r"\d+", "N", line) for line in written(block).splitlines()]
    assert [line for line in re.sub(r"\d+", "N", shown(block)).splitlines() if line not in lines] == []


@runs("docs/reference/commands.md", "zklock devserver")
def test_devserver(blocks: Blocks) -> None:
    """The reference shows what `devserver` writes when it listens."""
    (block,) = blocks
    command = [sys.executable, "manage.py", "zklock", "devserver", "--port", "0"]
    with subprocess.Popen(command, cwd=ROOT / "testproject", stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in block.output.splitlines()]
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) == 0
    assert masked("".join(lines)) == shown(block)


@runs("docs/howto/commands.md", "Skipped: lock")
def test_skipped_command(blocks: Blocks, stand: Stand) -> None:
    """A command that is skipped prints the line of the how-to."""
    (block,) = blocks
    (command,) = (each for each in BLOCKS if each.page == block.page and 'nightly-report", on' in each.text)
    stand("nightly-report", **{**NIGHTLY, "host": "web1", "pid": 71})
    out = io.StringIO()
    call_command(execute([command], {})["Command"](), stdout=out)
    assert masked(out.getvalue()) == masked(block.text)


# Names and errors.


@runs("docs/explanation/protocol.md", language="text")
def test_protocol(blocks: Blocks, ensemble: Ensemble, observer: Observer) -> None:
    """The nodes of a lock have the names that the page shows, under `ROOT`."""
    (block,) = blocks
    with zk_lock("account:7") as held:
        parent = held.node.rpartition("/")[0]
        found = [ensemble.root, parent, held.node]
    names = [masked(path.replace(ensemble.root, "/django_zklock")) for path in found]
    assert [masked(line.split()[0].replace("-…-", "-")) for line in block.text.splitlines()] == names


def message_of(call: Callable[[], object]) -> str:
    """Return the error of a call as a traceback ends."""
    with pytest.raises(ZkLockError) as caught:
        call()
    return masked(f"{type(caught.value).__name__}: {caught.value}")


@runs("docs/howto/install.md", "ZooKeeperUnavailable")
def test_unreachable(blocks: Blocks, settings: Settings) -> None:
    """The error of the first lock names the servers, as the page shows."""
    (block,) = blocks
    settings.ZKLOCK = {"default": {"HOSTS": f"localhost:{free_port()}"}}
    message = message_of(lambda: zk_lock("hello").acquire(timeout=0.3))
    # The servers of the page are not on this machine.
    assert message.replace(" `manage.py zklock devserver` starts one for development;", "") == masked(block.text)


@runs("docs/howto/secure-zookeeper.md", "NoAuthError", "authentication was refused", "CERTIFICATE_VERIFY_FAILED")
def test_refused(blocks: Blocks, settings: Settings, testserver: ZooKeeperServer, root: str, tmp_path: Path) -> None:
    """The three errors of the page are those of a wrong ACL, a wrong credential and an unknown authority."""
    no_rights, no_scheme, no_trust = blocks
    plain = {"HOSTS": testserver.hosts, "ROOT": root, "SESSION_TIMEOUT": scaled(6), "CONNECT_TIMEOUT": scaled(2)}
    owner = plain | {"AUTH": [("digest", "shop:secret")], "ACL": "creator"}
    other = owner | {"AUTH": [("digest", "other:secret")]}
    wrong = plain | {"AUTH": [("scheme-that-nobody-knows", "secret")]}
    settings.ZKLOCK = {"owner": owner, "other": other, "wrong": wrong}

    def acquire(alias: str) -> str:
        text = message_of(lambda: zk_lock("invoice:42", using=alias).acquire())
        return text.replace(root, "/django_zklock")

    with zk_lock("invoice:42", using="owner"):
        assert Runner(lambda: acquire("other")).result() == masked(no_rights.text)
    assert acquire("wrong") == masked(no_scheme.text)
    with untrusted(tmp_path) as hosts:
        settings.ZKLOCK = {"tls": {"HOSTS": hosts, "TLS": {}, "CONNECT_TIMEOUT": 1}}
        # Where in OpenSSL it was found is no part of the page.
        where = re.compile(r" \(_ssl\.c:\w+\)")
        assert where.sub("", acquire("tls")) == masked(where.sub("", no_trust.text))


@contextlib.contextmanager
def untrusted(folder: Path) -> Iterator[str]:
    """Listen with TLS, with a certificate of an authority that the system does not know."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(Authority(folder).issue("localhost").both)
    with socket.create_server((LOOPBACK, 0)) as listener:

        def answer() -> None:
            while True:
                try:
                    accepted, _ = listener.accept()
                except OSError:
                    return
                with contextlib.suppress(OSError), context.wrap_socket(accepted, server_side=True) as client:
                    client.recv(1)

        threading.Thread(target=answer, daemon=True).start()
        yield f"localhost:{listener.getsockname()[1]}"


@runs("docs/reference/errors.md", language="text")
def test_errors(blocks: Blocks) -> None:
    """The tree is that of the classes."""
    (block,) = blocks
    names = re.findall(r"── (\w+)(?: +also an? (\w+))?", block.text)
    for name, parent in names:
        error = getattr(django_zklock, name)
        assert issubclass(error, ZkLockError)
        if parent:
            assert issubclass(error, getattr(builtins, parent))
    public = [getattr(django_zklock, name) for name in django_zklock.__all__]
    errors = {each.__name__ for each in public if isinstance(each, type) and issubclass(each, ZkLockError)}
    assert {name for name, _ in names} == errors


# Files of others.


@pytest.mark.once
@runs("docs/howto/interoperate.md", language="java")
def test_curator(blocks: Blocks, testserver: ZooKeeperServer, tmp_path: Path) -> None:
    """Curator's mutex takes the lock of the page."""
    (block,) = blocks
    program = tmp_path / "Page.java"
    program.write_text(
        f"""
import org.apache.curator.framework.*;
import org.apache.curator.framework.recipes.locks.*;
import org.apache.curator.retry.RetryNTimes;

public final class Page {{
    static void charge() {{ System.out.println("charged"); }}

    public static void main(String[] arguments) throws Exception {{
        CuratorFramework client = CuratorFrameworkFactory.newClient(arguments[0], new RetryNTimes(3, 100));
        client.start();
{block.text}
        client.close();
    }}
}}
""",
        encoding="utf-8",
    )
    command = [find_java(HOW_TO_GET_CURATOR), *QUICK_START, "-cp", find_curator(), str(program), testserver.hosts]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=scaled(100), check=False)
    assert (ended.returncode, ended.stdout.splitlines()[-1:]) == (0, ["charged"]), ended.stderr
