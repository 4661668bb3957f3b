"""The functions for scripts and other admins, on a real ZooKeeper."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, cast

import pytest
from kazoo.client import KazooClient

from django_zklock import operations
from django_zklock.exceptions import NotHeld, ZooKeeperUnavailable
from django_zklock.zk.node_data import Work
from django_zklock.zk.ops import actions
from tests.toolbox.django.command import GUID, Hold
from tests.toolbox.network.port import free_port

if TYPE_CHECKING:
    from pytest_django import Settings

pytest_plugins = ["tests.toolbox.django.command_fixtures"]


def keys(*arguments: Any, **options: Any) -> list[str]:
    return [lock.key for lock in operations.find_locks(*arguments, **options)]


@pytest.mark.shows("api#operations")
def test_find_locks(hold: Hold, kazoo_client: KazooClient) -> None:
    """Locks are found by the conditions of the command, in its orders; that there is none is no error."""
    assert keys() == []
    hold("invoice:42", Work(kind="task", name="billing.bill", id="77"))
    contended = hold("catalogue", mode="read")
    kazoo_client.create(f"{contended.lock.paths[0]}/_c_{GUID}-__WRIT__", ephemeral=True, sequence=True)
    assert keys() == ["catalogue", "invoice:42"]
    assert keys("invoice:*") == keys(task="bill") == ["invoice:42"]
    assert keys(state="contended") == keys(kind="write") == ["catalogue"]
    assert keys("nothing") == keys(host="nowhere") == keys(older_than=timedelta(days=1)) == []
    assert keys(sort="token") == keys(reverse=True) == ["invoice:42", "catalogue"]
    assert keys(limit=1) == ["catalogue"]
    found = operations.find_locks()
    # It can be iterated over again, and reads again.
    assert [*found] == [*found]
    (whole,), (part,) = operations.find_locks("cat"), operations.find_locks("cat", holders_only=True)
    assert [len(whole.entries), len(part.entries), part.waiter_count] == [2, 1, 1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"state": "hold"}, r"state must be one of contended, held, .* got 'hold' \(did you mean held\?\)"),
        ({"kind": "mutex"}, "kind must be one of exclusive, lease, read, write, got 'mutex'$"),
        ({"sort": "urgent"}, r"sort must be one of .*\(did you mean urgency\?\)"),
        ({"limit": 0}, "limit must be a positive integer, got 0"),
        ({"limit": True}, "limit must be a positive integer, got True"),
        ({"timeout": 0}, "timeout must be positive, got 0: an answer takes time"),
        ({"older_than": -1}, "older_than must not be negative"),
    ],
)
def test_find_locks__wrong_arguments(zklock: str, options: dict[str, Any], message: str) -> None:
    """A wrong argument is refused before anything is read."""
    with pytest.raises(ValueError, match=message):
        operations.find_locks(**options)


@pytest.mark.parametrize("name", ["match", "host", "task"])
def test_find_locks__no_text(zklock: str, name: str) -> None:
    """What is no text is refused at the call, and not when something is read."""
    with pytest.raises(TypeError, match=f"{name} must be a text, got None"):
        operations.find_locks(**{name: cast("Any", None)})


@pytest.mark.shows("api#operations")
def test_break_and_revoke(hold: Hold) -> None:
    """A holder that was found loses its lock, or is asked for it; the history has the user and the reason."""
    held, asked = hold("k"), hold("l")
    assert operations.lock_history() == []
    (holder,) = operations.show_lock("l").holders
    operations.revoke_lock(holder, "deploy", by="ada")
    assert asked.revoked == "asked by ada: deploy"
    (holder,) = operations.show_lock("k").holders
    operations.break_lock(holder, "it hangs", by="ada")
    assert held.lost
    for act in (operations.break_lock, operations.revoke_lock):
        with pytest.raises(NotHeld):
            act(holder, "again")
        with pytest.raises(ValueError, match=r"reason|why"):
            act(holder, " ")
    assert operations.show_lock("k").state == "free"
    done = [(each.key, each.what, each.by, each.why) for each in operations.lock_history()]
    assert done == [("l", "release requested", "ada", "deploy"), ("k", "broken", "ada", "it hangs")]
    assert [each.key for each in operations.lock_history("k")] == ["k"]


def test_revoke__lock_itself(hold: Hold, kazoo_client: KazooClient) -> None:
    """A lock is not one of its holders: nothing is done to it, and its node keeps the key that its name is short of."""
    key = "report:" + "x" * 500
    held = hold(key)
    (lock,) = operations.find_locks()
    before = kazoo_client.get(lock.path)
    for act in (operations.revoke_lock, operations.break_lock):
        with pytest.raises(TypeError, match="give one of the holders of a lock, not a LockSnapshot"):
            act(lock, "deploy")  # type: ignore[arg-type]
    no_node = partial(pytest.raises, ValueError, match="is no node in the queue of a lock")
    with no_node():
        actions.revoke(held.lock.pool, lock.path, "deploy", timeout=60)
    with no_node():
        actions.break_lock(held.lock.pool, lock.path, token=before[1].czxid, why="deploy", timeout=60)
    assert kazoo_client.get(lock.path) == before
    assert operations.lock_history() == []


def test_revoke__another_token(hold: Hold) -> None:
    """A node that has another token is that of another hold, which is asked for nothing."""
    held = hold("k")
    (holder,) = operations.show_lock("k").holders
    for act in (operations.break_lock, operations.revoke_lock):
        with pytest.raises(NotHeld, match="is another one by now"):
            act(replace(holder, token=holder.token + 1), "deploy")
    assert operations.lock_history() == []
    assert held.revoked is None


def test_break_and_revoke__waiter(hold: Hold, kazoo_client: KazooClient) -> None:
    """A waiter holds nothing that could be taken away or released: it keeps its place."""
    held = hold("k")
    kazoo_client.create(f"{held.lock.paths[0]}/_c_{GUID}-lock-", b"", ephemeral=True, sequence=True)
    _holder, waiter = operations.show_lock("k").entries
    for act in (operations.break_lock, operations.revoke_lock):
        with pytest.raises(NotHeld, match="is a waiter's"):
            act(waiter, "let the other one pass")
    assert kazoo_client.get(waiter.path)[0] == b""
    assert operations.lock_history() == []


def test_prune_queues(hold: Hold, kazoo_client: KazooClient, zklock: str) -> None:
    """Empty queues are removed, and others stay."""
    hold("held")
    for key in ("idle", "old"):
        kazoo_client.create(f"{zklock}/{key}")
    assert [*operations.prune_queues(dry_run=True)] == ["idle", "old"]
    assert [*operations.prune_queues()] == ["idle", "old"]
    assert kazoo_client.get_children(zklock) == ["held"]


def test_unreachable(settings: Settings) -> None:
    """Without ZooKeeper each of them says so, within the timeout that was given."""
    settings.ZKLOCK = {"default": {"HOSTS": f"127.0.0.1:{free_port()}", "CONNECT_TIMEOUT": 60}}
    for ask in (
        lambda: [*operations.find_locks(timeout=0.1)],
        lambda: operations.show_lock("k", timeout=0.1),
        lambda: operations.lock_history(timeout=timedelta(seconds=0.1)),
        lambda: [*operations.prune_queues(timeout=0.1)],
        lambda: operations.sent_calls(timeout=0.1),
        lambda: operations.prune_sent(timeout=0.1),
    ):
        with pytest.raises(ZooKeeperUnavailable, match=r"within 0\.1 s"):
            ask()
