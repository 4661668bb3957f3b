"""`zklock revoke`, on a real ZooKeeper."""

from __future__ import annotations

import getpass
import json
import socket
from typing import Any

import pytest
from kazoo.client import KazooClient

from django_zklock import operations
from django_zklock.exceptions import NotHeld, ZooKeeperUnavailable
from django_zklock.zk import node_data
from django_zklock.zk.node_data import Work
from django_zklock.zk.ops import actions
from django_zklock.zk.ops.snapshots import LockSnapshot
from tests.toolbox.django.command import BILL, NASTY, Hold, Join, Screen, Type, failure, run
from tests.toolbox.timing import wait_until

pytest_plugins = ["tests.toolbox.django.command_fixtures"]


def test_revoke__reason_reaches_the_holder(hold: Hold) -> None:
    """The holder gets the operator and the reason, and keeps its lock."""
    held = hold("k", BILL)
    out = run("revoke", "k", "--reason", "deploy")
    assert out.startswith("Release requested from task billing.bill [77] (pid ")
    assert out.endswith(". The holder decides when to release.\n")
    why = f"asked by {getpass.getuser()}@{socket.gethostname()}: deploy"
    assert wait_until(lambda: held.revoked) == why
    held.check()
    assert "  release requested  " in run("list").splitlines()[1]
    assert "  release requested  " in run("show", "k").splitlines()[1]
    assert run("show", "k").endswith(f"Position 0: release requested ({why})\n")
    facts = json.loads(run("show", "k", "--format", "json"))
    assert (facts["state"], facts["places"][0]["revoked"]) == ("held", why)
    assert "k" in run("list", "--state", "revoked")


def test_revoke__asks_for_the_reason(hold: Hold, operator: Type) -> None:
    """On a terminal it asks for the reason."""
    held = hold("k")
    operator("deploy")
    assert "Reason: " in run("revoke", "k", out=Screen())
    assert str(wait_until(lambda: held.revoked)).endswith(": deploy")


def test_revoke__no_reason(hold: Hold) -> None:
    """Without a reason no release is requested."""
    hold("k")
    error = failure("revoke", "k")
    assert error.returncode == 2
    assert "--reason" in str(error)
    assert json.loads(run("show", "k", "--format", "json"))["places"][0]["revoked"] is None


def test_revoke__free(zklock: str) -> None:
    """A lock without a holder is exit code 1."""
    assert run("revoke", "k", "--reason", "why", status=1) == "No lock k is in use: it has no holder and no waiter.\n"


def test_revoke__several_holders(hold: Hold, kazoo_client: KazooClient, join: Join) -> None:
    """The request goes to all holders, or with --node to one."""
    first = hold("gpu", limit=2)
    path = join(first, b"{}", label="lease-")
    assert run("revoke", "gpu", "--node", path.rpartition("/")[2], "--reason", "one").count("Release requested") == 1
    assert str(node_data.decode_revoke(kazoo_client.get(path)[0])).endswith(": one")
    assert first.revoked is None
    assert run("revoke", "gpu", "--reason", "all").count("Release requested") == 2
    assert str(wait_until(lambda: first.revoked)).endswith(": all")


def test_revoke__wait_times_out(hold: Hold) -> None:
    """A holder that does not release in time is shown, with exit code 1."""
    hold("k", BILL)
    out = run("revoke", "k", "--reason", "why", "--wait", "0.1s", status=1)
    assert out.splitlines()[-1].startswith("Still held by task billing.bill [77]")


def test_revoke__outage_while_it_waits(hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    """It waits on through an outage; if that lasts until the end, it says that the request stands."""
    hold("k", BILL)
    outages = iter(range(2))
    show_lock = operations.show_lock

    def show(*arguments: Any, **options: Any) -> LockSnapshot:
        # That of `find_holders` has the timeout of a terminal.
        if "timeout" not in options and next(outages, None) is not None:
            raise ZooKeeperUnavailable("no answer", timeout=5)
        return show_lock(*arguments, **options)

    monkeypatch.setattr(operations, "show_lock", show)
    out = run("revoke", "k", "--reason", "why", "--wait", "2", status=1)
    assert next(outages, None) is None
    assert "Still held by task billing.bill [77]" in out
    outages = iter(range(1000))
    error = failure("revoke", "k", "--reason", "why", "--wait", "0.1")
    assert str(error) == "whether it was released is not known: no answer; the request stands"
    assert error.returncode == 2


def test_revoke__released_meanwhile(hold: Hold, monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder that has released before the request is shown as such, and --wait does not wait for it."""
    held = hold("k", BILL)

    def gone(*_arguments: object, **_options: object) -> None:
        held.release(wait=True)
        raise NotHeld("gone")

    monkeypatch.setattr(actions, "revoke", gone)
    out = run("revoke", "k", "--reason", "why", "--wait", "5")
    assert out.splitlines()[0].startswith("Not held any more by task billing.bill [77]")


def test_revoke__hostile(hold: Hold) -> None:
    """Control characters in names and reasons do not reach the terminal."""
    held = hold(NASTY, Work(kind=NASTY, name=NASTY, id=NASTY))
    text = run("revoke", NASTY, "--reason", NASTY) + run("show", NASTY) + run("list", "--state", "revoked")
    assert text.replace("\n", "").isprintable()
    assert str(wait_until(lambda: held.revoked)).isprintable()
