"""`zklock break`, on a real ZooKeeper."""

from __future__ import annotations

import getpass
import json
import logging
import os
import pty
import socket
import threading
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient
from services.port import free_port

from django_zklock.management import holders
from django_zklock.management.actions import breaking as command
from django_zklock.management.terminal import Terminal
from django_zklock.zk.held import Held
from django_zklock.zk.identity import Work
from django_zklock.zk.inspection import breaking
from django_zklock.zk.inspection.survey import Place
from tests.command import GUID, Hold, Screen, Type, failure, run
from tests.process import Process, Reader

if TYPE_CHECKING:
    from pytest_django import Settings

NASTY = "\x1b[2J\u202egpj.exe\r\nfake row"
BILL = Work(kind="task", name="billing.bill", id="77")

pytest_plugins = ["tests.operating"]

pytestmark = pytest.mark.zookeeper


def node_of(held: Held) -> str:
    return held.node.rpartition("/")[2]


def loss_of(held: Held) -> str:
    """Wait until the holder knows that it has lost the lock, and give what it is told."""
    told = threading.Event()
    held.when_lost(told.set)
    assert told.wait(20)
    return str(held.loss())


def holding(key: str) -> int:
    """Give how many hold, as `show` tells."""
    text = Screen()
    facts = json.loads(run("show", key, "--format", "json", status=None, out=text))
    return int(facts["holders"])


def test_break__asks_and_names_the_holder(hold: Hold, operator: Type, outsider: KazooClient) -> None:
    """On a terminal it shows who holds, says what it does not do, asks why and whether, and does it."""
    held = hold("invoice:42", BILL)
    # Somebody waits: on this server an empty line is soon gone, and the reason with it.
    outsider.create(f"{held.lock.paths[0]}/_c_{GUID}-lock-", ephemeral=True, sequence=True)
    operator("the host is on fire", "yes")
    out = run("break", "invoice:42", out=Screen())
    who = f"task billing.bill [77] (pid {os.getpid()} on {socket.gethostname()})"
    assert "does not end the work of the holder" in out
    assert "zklock revoke" in out
    assert f'Take the lock away from {who}? Type "yes": ' in out
    assert out.endswith(f"Lock invoice:42 was taken away from {who}.\n")
    assert f"broken by {getpass.getuser()}@{socket.gethostname()}: the host is on fire;" in loss_of(held)


@pytest.mark.parametrize("answer", ["no", "y", "YES", ""])
def test_break__not_confirmed(hold: Hold, operator: Type, answer: str) -> None:
    """Anything but "yes" breaks nothing, the end of input included."""
    hold("k")
    operator(*([answer] if answer else []))
    assert run("break", "k", "--reason", "why", status=1, out=Screen()).endswith("Nothing was broken.\n")
    assert holding("k") == 1


def test_break__unasked(hold: Hold, caplog: pytest.LogCaptureFixture) -> None:
    """With --yes and a reason nobody is asked; a log record tells who did it, to whom, and why."""
    held = hold("k")
    with caplog.at_level(logging.WARNING, "django_zklock"):
        run("break", "k", "--yes", "--reason", " on fire ")
    assert holding("k") == 0
    (record,) = [record for record in caplog.records if "event=removed" in record.getMessage()]
    assert record.levelno == logging.WARNING
    for fact in (
        f"token={held.token}",
        node_of(held),
        f"broken by {getpass.getuser()}@{socket.gethostname()}: on fire",
    ):
        assert fact in record.getMessage()


def test_break__next_in_line(hold: Hold, outsider: KazooClient) -> None:
    """The next in line has the lock then."""
    held = hold("k")
    outsider.create(f"{held.lock.paths[0]}/_c_{GUID}-lock-", ephemeral=True, sequence=True)
    run("break", "k", "--yes", "--reason", "why")
    facts = json.loads(run("show", "k", "--format", "json"))
    assert (facts["holders"], facts["waiters"]) == (1, 0)
    assert facts["places"][0]["token"] != held.token


@pytest.mark.parametrize("arguments", [["--reason", "why"], []])
def test_break__nobody_to_ask(hold: Hold, arguments: list[str]) -> None:
    """Where nobody sits at the terminal, nothing is done without --yes."""
    hold("k")
    error = failure("break", "k", *arguments)
    assert error.returncode == 2
    assert "--yes" in str(error)
    assert holding("k") == 1


@pytest.mark.parametrize("reason", [[], ["--reason", " "]])
def test_break__no_reason(hold: Hold, operator: Type, reason: list[str]) -> None:
    """Without a reason nothing is broken, whether it could be asked for or not."""
    hold("k")
    error = failure("break", "k", "--yes", *reason)
    assert error.returncode == 2
    assert "--reason" in str(error)
    operator(" ")
    assert failure("break", "k", *reason, out=Screen()).returncode == 2
    assert holding("k") == 1


def test_break__nobody_holds(zklock: str) -> None:
    """A free lock is a finding, and nothing is asked."""
    assert run("break", "k", "--yes", "--reason", "why", status=1) == "Nobody holds lock k.\n"
    out = run("break", "k", "--node", "\u202e", "--yes", "--reason", "why", status=1)
    assert out == "Nobody holds lock k with node \\u202e.\n"


def test_break__several_holders(hold: Hold, outsider: KazooClient) -> None:
    """Of several holders one must be named; they are listed with their nodes."""
    first = hold("gpu", limit=2)
    path = outsider.create(f"{first.lock.paths[0]}/_c_{GUID}-lease-", ephemeral=True, sequence=True)
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


def test_break__not_a_holder(hold: Hold, outsider: KazooClient) -> None:
    """Who waits has nothing to be taken away; it says who holds."""
    held = hold("k", BILL)
    path = outsider.create(f"{held.lock.paths[0]}/_c_{GUID}-lock-", ephemeral=True, sequence=True)
    node = path.rpartition("/")[2]
    out = run("break", "k", "--node", node, "--yes", "--reason", "why", status=1)
    assert out.startswith(f"Nobody holds lock k with node {node}.\nIt is held by:\n")
    assert "task billing.bill [77]" in out
    assert outsider.exists(path)


def test_break__holder_changed_meanwhile(
    hold: Hold, operator: Type, outsider: KazooClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If another one holds the lock when the answer comes, nothing is broken, and it says who that is."""
    held = hold("k", BILL)
    path = outsider.create(f"{held.lock.paths[0]}/_c_{GUID}-lock-", ephemeral=True, sequence=True)
    operator("yes")
    asked = breaking.remove

    def remove_late(*arguments: object, **options: object) -> None:
        held.release(wait=True)
        asked(*arguments, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(breaking, "remove", remove_late)
    out = run("break", "k", "--reason", "why", status=1, out=Screen())
    assert "Nothing was broken: " in out
    assert "is gone" in out
    session, _password = outsider.client_id
    assert f"unknown client, session 0x{session:x}" in out.partition("It is held by:\n")[2]
    assert outsider.exists(path)


def test_break__hostile(hold: Hold, outsider: KazooClient, operator: Type) -> None:
    """What others wrote reaches neither the terminal nor the question as it is."""
    held = hold(NASTY, Work(kind=NASTY, name=NASTY, id=NASTY))
    outsider.create(f"{held.lock.paths[0]}/_c_{GUID}-lock-", ephemeral=True, sequence=True)
    outsider.set(held.node, outsider.get(held.node)[0].replace(b'"v":1', b'"v":1,"revoke":"\\u001b[2J"'))
    operator("no")
    out = run("break", NASTY, "--reason", "why", status=1, out=Screen())
    assert out.replace("\n", "").isprintable()
    run("break", NASTY, "--reason", NASTY, "--yes")
    assert "gpj.exe" in loss_of(held)
    assert loss_of(held).isprintable()


def test_break__on_a_terminal(hold: Hold, shop: str) -> None:
    """On a real terminal the questions are seen before they are answered."""
    held = hold("broken-on-a-terminal", BILL)
    ours, theirs = pty.openpty()
    process = Process(shop, theirs, "break", "broken-on-a-terminal")
    try:
        reader = Reader(ours)
        reader.until("Why is it broken? ")
        assert "task billing.bill [77]" in reader.text
        os.write(ours, b"it hangs\n")
        reader.until('Type "yes": ')
        assert not held.lost
        os.write(ours, b"yes\n")
        reader.until("was taken away from")
        assert process.end() == (0, "")
    finally:
        process.popen.kill()
        os.close(ours)
        os.close(theirs)


def test_break__interrupted(hold: Hold, operator: Type, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C at the question breaks nothing, and leaves no traceback."""

    def interrupt(_place: Place, _terminal: Terminal) -> bool:
        raise KeyboardInterrupt

    hold("k")
    operator()
    monkeypatch.setattr(command, "_confirmed", interrupt)
    run("break", "k", "--reason", "why", status=130, out=Screen())
    assert holding("k") == 1


@pytest.mark.parametrize("action", ["break", "revoke"])
def test_unreachable(settings: Settings, action: str) -> None:
    """A ZooKeeper that is not there is one line, and status 2."""
    settings.ZKLOCK = {"default": {"HOSTS": f"127.0.0.1:{free_port()}", "CONNECT_TIMEOUT": 0.5}}
    error = failure(action, "k", "--reason", "why", *(["--yes"] if action == "break" else []))
    assert error.returncode == 2
    assert "ZooKeeper at 127.0.0.1:" in str(error)


def test_operator__without_a_name(monkeypatch: pytest.MonkeyPatch) -> None:
    """A user that the system has no name for is told by its number."""

    def unknown() -> str:
        raise KeyError("uid not found")

    monkeypatch.setattr(getpass, "getuser", unknown)
    assert holders.operator() == f"user {os.getuid()}@{socket.gethostname()}"
