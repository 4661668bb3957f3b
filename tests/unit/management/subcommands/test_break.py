"""`zklock break`; what it writes and asks is that of the documents, which have their own tests."""

from __future__ import annotations

import getpass
import json
import os
import pty
import socket
import threading
from dataclasses import replace

import pytest
from kazoo.client import KazooClient

from django_zklock.management.subcommands import _common, break_
from django_zklock.management.subcommands._output import Terminal
from django_zklock.zk.held import Held
from django_zklock.zk.node_data import Work
from django_zklock.zk.ops import actions
from django_zklock.zk.ops.snapshots import QueueEntry
from tests.toolbox.django.command import BILL, NASTY, Hold, Join, Screen, Type, Wait, failure, run
from tests.unit.management.command_process import Process, Reader

BILL_AT_GATE = replace(BILL, worker="celery@web1", child=0, time_limit=300)

pytest_plugins = ["tests.toolbox.django.command_fixtures"]


def node_of(held: Held) -> str:
    return held.node.rpartition("/")[2]


def loss_of(held: Held) -> str:
    """Wait until the holder has noticed the loss of its lock, and return the reason."""
    noticed = threading.Event()
    held._when_lost(noticed.set)
    assert noticed.wait(20)
    return str(held._loss_error())


def holding(key: str) -> int:
    """Return the number of holders that `show` reports."""
    text = Screen()
    facts = json.loads(run("show", key, "--format", "json", status=None, out=text))
    return int(facts["holders"])


def test_break__one_of_several_keys(hold: Hold, wait_for: Wait) -> None:
    """Before it breaks a lock it says that the holder may only wait for another key."""
    hold("bank:b")
    wait_for("bank:a", "bank:b")
    out = run("break", "bank:a", "--reason", "stuck", "--yes")
    assert "\nPosition 0: takes 2 keys at once, and may still wait for another one\nBreaking does not stop" in out


def test_break__task_of_a_worker(hold: Hold, operator: Type) -> None:
    """Before it asks, it shows the line that ends the task, and names no process of the worker as the task's."""
    hold("invoice:42", BILL_AT_GATE)
    operator("no")
    out = run("break", "invoice:42", "--reason", "why", status=1, out=Screen())
    main = os.getpid()
    assert f"task billing.bill [77] (worker celery@web1, main pid {main} on " in out
    assert f"To end the task at position 0 (time limit 5 min), and not its worker, main process {main}:\n" in out
    assert out.index("control -d celery@web1 terminate SIGTERM 77\n") < out.index("Break the lock of ")


@pytest.mark.parametrize("answer", ["no", "y", "YES", ""])
def test_break__not_confirmed(hold: Hold, operator: Type, answer: str) -> None:
    """Every answer but "yes" breaks nothing; so does the end of input."""
    hold("k")
    operator(*([answer] if answer else []))
    assert run("break", "k", "--reason", "why", status=1, out=Screen()).endswith("Nothing was broken.\n")
    assert holding("k") == 1


def test_break__yes(hold: Hold) -> None:
    """With --yes and a reason it does not ask; the holder gets the operator and the reason."""
    held = hold("k")
    run("break", "k", "--yes", "--reason", " on fire ")
    assert holding("k") == 0
    assert f"broken by {getpass.getuser()}@{socket.gethostname()}: on fire;" in loss_of(held)


@pytest.mark.parametrize("arguments", [["--reason", "why"], []])
def test_break__cannot_ask(hold: Hold, arguments: list[str]) -> None:
    """Without a terminal it refuses to break without --yes."""
    hold("k")
    error = failure("break", "k", *arguments)
    assert error.returncode == 2
    assert "--yes" in str(error)
    assert holding("k") == 1


@pytest.mark.parametrize("reason", [[], ["--reason", " "]])
def test_break__no_reason(hold: Hold, operator: Type, reason: list[str]) -> None:
    """Without a reason nothing is broken, on a terminal or not."""
    hold("k")
    error = failure("break", "k", "--yes", *reason)
    assert error.returncode == 2
    assert "--reason" in str(error)
    operator(" ")
    assert failure("break", "k", *reason, out=Screen()).returncode == 2
    assert holding("k") == 1


def test_break__free(zklock: str) -> None:
    """A lock that is not in use is exit code 1, and nothing is asked: not even for --yes without a terminal."""
    answer = "No lock k\\u202e is in use: it has no holder and no waiter.\n"
    assert run("break", "k\u202e", "--yes", "--reason", "why", status=1) == answer
    assert run("break", "k\u202e", status=1) == answer
    assert run("revoke", "k\u202e", status=1) == answer


def test_break__several_holders(hold: Hold, join: Join) -> None:
    """Of several holders one must be chosen; they are listed with their nodes."""
    first = hold("gpu", limit=2)
    path = join(first, label="lease-")
    second = path.rpartition("/")[2]
    out = Screen()
    error = failure("break", "gpu", "--yes", "--reason", "why", out=out)
    assert error.returncode == 2
    assert "--node" in str(error)
    assert node_of(first) in out.getvalue()
    assert second in out.getvalue()
    run("break", "gpu", "--node", second, "--yes", "--reason", "why")
    (place,) = json.loads(run("show", "gpu", "--format", "json"))["places"]
    assert place["node"] == node_of(first)


def test_break__not_a_holder(hold: Hold, kazoo_client: KazooClient, join: Join) -> None:
    """A waiter cannot be broken; the holder is shown."""
    held = hold("k", BILL)
    path = join(held)
    node = path.rpartition("/")[2]
    out = run("break", "k", "--node", node, "--yes", "--reason", "why", status=1)
    assert out.startswith(f"Lock k has no holder with node {node}.\nIt is held by:\n")
    assert "task billing.bill [77]" in out
    assert kazoo_client.exists(path)


def test_break__holder_changed_meanwhile(
    hold: Hold, operator: Type, kazoo_client: KazooClient, monkeypatch: pytest.MonkeyPatch, join: Join
) -> None:
    """If the holder changes before the answer, nothing is broken, and the new holder is shown."""
    held = hold("k", BILL)
    path = join(held)
    operator("yes")
    remove = actions.break_lock

    def remove_late(*arguments: object, **options: object) -> None:
        held.release(wait=True)
        remove(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(actions, "break_lock", remove_late)
    out = run("break", "k", "--reason", "why", status=1, out=Screen())
    assert "Nothing was broken: " in out
    assert "is gone" in out
    session, _password = kazoo_client.client_id
    assert f"unknown client, session 0x{session:x}" in out.partition("It is held by:\n")[2]
    assert kazoo_client.exists(path)


def test_break__hostile(hold: Hold, kazoo_client: KazooClient, operator: Type, join: Join) -> None:
    """Control characters in data of other clients reach neither the terminal nor the question."""
    held = hold(NASTY, Work(kind=NASTY, name=NASTY, id=NASTY))
    join(held)
    kazoo_client.set(held.node, kazoo_client.get(held.node)[0].replace(b'"v":1', b'"v":1,"revoke":"\\u001b[2J"'))
    operator("no")
    out = run("break", NASTY, "--reason", "why", status=1, out=Screen())
    assert out.replace("\n", "").isprintable()
    run("break", NASTY, "--reason", NASTY, "--yes")
    assert "gpj.exe" in loss_of(held)
    assert loss_of(held).isprintable()


@pytest.mark.zookeeper
def test_break__on_a_terminal(hold: Hold, shared_hosts: str) -> None:
    """On a real terminal each question is shown before its answer is read."""
    held = hold("broken-on-a-terminal", BILL)
    ours, theirs = pty.openpty()
    process = Process(shared_hosts, theirs, "break", "broken-on-a-terminal")
    try:
        reader = Reader(ours)
        reader.until("Reason: ")
        assert "task billing.bill [77]" in reader.text
        os.write(ours, b"it hangs\n")
        reader.until('Type "yes": ')
        assert not held.lost
        os.write(ours, b"yes\n")
        reader.until("was broken; it was held by")
        assert process.end() == (0, "")
    finally:
        process.popen.kill()
        os.close(ours)
        os.close(theirs)


def test_break__interrupted(hold: Hold, operator: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at the question breaks nothing and prints no traceback."""

    def interrupt(_place: QueueEntry, _terminal: Terminal) -> bool:
        raise KeyboardInterrupt

    hold("k")
    operator()
    monkeypatch.setattr(break_, "_confirmed", interrupt)
    run("break", "k", "--reason", "why", status=130, out=Screen())
    assert holding("k") == 1


def test_operator__without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user without a name is shown by its number."""

    def unknown() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", unknown)
    assert _common.operator() == f"user {os.getuid()}@{socket.gethostname()}"
