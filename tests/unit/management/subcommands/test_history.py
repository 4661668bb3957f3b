"""`zklock history`; its table is that of the documents, which have their own tests."""

from __future__ import annotations

import json

from kazoo.client import KazooClient

from django_zklock.zk import paths
from tests.toolbox.django.command import Hold, run

pytest_plugins = ["tests.toolbox.django.command_fixtures"]


def test_history__of_one_key(hold: Hold) -> None:
    """With a key only its actions are shown, and their number can be limited; none is exit code 1."""
    hold("invoice:42")
    for number in range(3):
        run("revoke", "invoice:42", "--reason", f"reason {number}")
    assert [row.split()[-1] for row in run("history", "invoice:42", "--limit", "2").splitlines()[1:]] == ["1", "2"]
    assert run("history", "invoice", status=1).startswith("Nothing is known to have been done to lock invoice under /")


def test_history__empty(zklock: str) -> None:
    """That nothing was done to any lock is no error."""
    assert run("history") == f"Nothing is known to have been done to any lock under {zklock}.\n"
    assert json.loads(run("history", "--format", "json")) == {"actions": []}


def test_history__json(hold: Hold) -> None:
    """JSON has the token and the node of the holder too."""
    held = hold("invoice:42")
    run("revoke", "invoice:42", "--reason", "deploy")
    (action,) = json.loads(run("history", "--format", "json"))["actions"]
    assert (action["alias"], action["key"], action["what"]) == ("default", "invoice:42", "release requested")
    assert (action["token"], action["node"]) == (held.token, held.node.rpartition("/")[2])
    assert (action["why"], action["outcome"]) == ("deploy", "still held")


def test_history__is_no_lock(hold: Hold, kazoo_client: KazooClient, zklock: str) -> None:
    """What ZooKeeper keeps beside the locks is not listed as a lock, and not pruned."""
    hold("invoice:42")
    run("revoke", "invoice:42", "--reason", "deploy")
    assert [lock["key"] for lock in json.loads(run("list", "--format", "json"))["locks"]] == ["invoice:42"]
    run("prune")
    assert "deploy" in run("history")
    assert paths.TRAIL in kazoo_client.get_children(zklock)
