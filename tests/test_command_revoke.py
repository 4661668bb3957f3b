"""`zklock revoke`, on a real ZooKeeper."""

from __future__ import annotations

import getpass
import json
import socket

import pytest
from kazoo.client import KazooClient

from django_zklock.exceptions import NotHeld
from django_zklock.zk import revocation
from django_zklock.zk.identity import Work
from tests.command import GUID, Hold, Screen, Type, failure, run
from tests.zk.onlooker import wait_until
from tests.zk.runner import Runner

NASTY = "\x1b[2J\u202egpj.exe\r\nfake row"
BILL = Work(kind="task", name="billing.bill", id="77")

pytest_plugins = ["tests.operating"]

pytestmark = pytest.mark.zookeeper


def test_revoke__holder_hears_why(hold: Hold) -> None:
    """The holder learns who asks and why, and keeps its lock."""
    held = hold("k", BILL)
    out = run("revoke", "k", "--reason", "deploy")
    assert out.startswith("task billing.bill [77] (pid ")
    assert out.endswith("was asked to let go. It is a request, and nobody is forced.\n")
    why = f"asked by {getpass.getuser()}@{socket.gethostname()}: deploy"
    assert wait_until(lambda: held.revoked) == why
    held.check()
    assert run("list").splitlines()[1].split()[1] == "revoked"
    assert run("show", "k").splitlines()[1].split()[1] == "revoked"
    assert run("show", "k").endswith(f"Position 0 was asked to let go: {why}\n")
    facts = json.loads(run("show", "k", "--format", "json"))
    assert (facts["state"], facts["places"][0]["revoked"]) == ("held", why)
    assert "k" in run("list", "--state", "revoked")


def test_revoke__asks_for_the_reason(hold: Hold, operator: Type) -> None:
    """On a terminal the reason is asked for."""
    held = hold("k")
    operator("deploy")
    assert "Why should they let go? " in run("revoke", "k", out=Screen())
    assert str(wait_until(lambda: held.revoked)).endswith(": deploy")


def test_revoke__no_reason(hold: Hold) -> None:
    """Without a reason nobody is asked."""
    hold("k")
    error = failure("revoke", "k")
    assert error.returncode == 2
    assert "--reason" in str(error)
    assert json.loads(run("show", "k", "--format", "json"))["places"][0]["revoked"] is None


def test_revoke__nobody_holds(zklock: str) -> None:
    """A free lock is a finding."""
    assert run("revoke", "k", "--reason", "why", status=1) == "Nobody holds lock k.\n"


def test_revoke__several_holders(hold: Hold, outsider: KazooClient) -> None:
    """All who hold are asked, or the one at the node that is named."""
    first = hold("gpu", limit=2)
    path = outsider.create(f"{first.lock.paths[0]}/_c_{GUID}-lease-", b"{}", ephemeral=True, sequence=True)
    assert run("revoke", "gpu", "--node", path.rpartition("/")[2], "--reason", "one").count("was asked") == 1
    assert str(revocation.reason(outsider.get(path)[0])).endswith(": one")
    assert first.revoked is None
    assert run("revoke", "gpu", "--reason", "all").count("was asked") == 2
    assert str(wait_until(lambda: first.revoked)).endswith(": all")


def test_revoke__wait(hold: Hold) -> None:
    """With --wait it ends when those who were asked have let go, whoever holds then."""
    held = hold("k")

    def give_back() -> None:
        wait_until(lambda: held.revoked)
        held.release(wait=True)

    holder = Runner(give_back)
    assert run("revoke", "k", "--reason", "why", "--wait", "1m").endswith("All who were asked have let go.\n")
    holder.result()


def test_revoke__wait_in_vain(hold: Hold) -> None:
    """Who does not let go in time is named, and the status tells."""
    hold("k", BILL)
    out = run("revoke", "k", "--reason", "why", "--wait", "0.1s", status=1)
    assert out.splitlines()[-1].startswith("Still held by task billing.bill [77]")


def test_revoke__let_go_meanwhile(hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who has let go before it could be asked is told as such, and there is nothing to wait for."""
    held = hold("k", BILL)

    def gone(*_arguments: object, **_options: object) -> None:
        held.release(wait=True)
        raise NotHeld("gone")

    monkeypatch.setattr(revocation, "ask", gone)
    out = run("revoke", "k", "--reason", "why", "--wait", "5")
    assert out.splitlines()[0].endswith("has let go already.")


def test_revoke__hostile(hold: Hold) -> None:
    """Neither names nor reasons act on the terminal."""
    held = hold(NASTY, Work(kind=NASTY, name=NASTY, id=NASTY))
    text = run("revoke", NASTY, "--reason", NASTY) + run("show", NASTY) + run("list", "--state", "revoked")
    assert text.replace("\n", "").isprintable()
    assert str(wait_until(lambda: held.revoked)).isprintable()
