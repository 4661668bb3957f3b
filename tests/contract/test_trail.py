"""What is kept of breaks and requests to release."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Permissions

from django_zklock.exceptions import NotHeld
from django_zklock.zk import paths
from django_zklock.zk.lock import Lock
from django_zklock.zk.ops import actions, snapshots, trail
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import new_guid
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.network.tcp_proxy import DOWN, UP, Proxy, requests
from tests.toolbox.threads import Runner
from tests.toolbox.timing import scaled, wait_until
from tests.toolbox.zookeeper.any_server import Server

LONG = "invoice:" + "x" * 500


def outcomes(pool: Pool) -> list[tuple[str, str, str]]:
    """Return key, action and outcome of each entry of the trail."""
    return [(each.key, each.what, each.outcome) for each in trail.read(pool, timeout=60)]


def test_trail__what_has_become_of_the_holder(make_pool: MakePool) -> None:
    """A request to release tells whether the holder holds still, holds no longer, or was broken."""
    pool, breaker = make_pool(), make_pool()
    held = {key: Lock(key, pool).acquire(60) for key in ("stays", "leaves", LONG)}
    assert trail.read(breaker, timeout=60) == []
    for each in held.values():
        actions.revoke(breaker, each.node, "deploy", by="ada", timeout=60)
    held["leaves"].release(wait=True)
    actions.break_lock(breaker, held[LONG].node, token=held[LONG].token, why="it hangs", timeout=60)
    assert outcomes(make_pool()) == [
        ("stays", "release requested", "still held"),
        ("leaves", "release requested", "no longer held"),
        (LONG, "release requested", "broken"),
        (LONG, "broken", "broken"),
    ]
    first, *_others, last = trail.read(breaker, timeout=60)
    assert (first.by, first.why, first.token) == ("ada", "deploy", held["stays"].token)
    assert held["stays"].node.endswith(f"/{first.lock}/{first.node}")
    assert abs(first.at - time.time()) < scaled(60)
    # Code that names no operator is known by its process.
    assert last.by.startswith("pid ")
    assert [each.key for each in trail.read(breaker, lock=paths.escape("leaves"), timeout=60)] == ["leaves"]


def test_trail__next_holder_of_the_lock(make_pool: MakePool) -> None:
    """A holder that was asked does not hold the lock any more, although the next one does."""
    pool, breaker = make_pool(), make_pool()
    with Lock("k", pool).acquire(60) as held:
        actions.revoke(breaker, held.node, "deploy", timeout=60)
    with Lock("k", pool).acquire(60):
        assert outcomes(breaker) == [("k", "release requested", "no longer held")]


def test_trail__one_of_several_keys(make_pool: MakePool, kazoo_client: KazooClient) -> None:
    """The break of one of several keys that were taken at once, with one token, is none of the others."""
    breaker = make_pool()
    nodes = {key: f"{breaker.path(key)}/_c_{new_guid()}-lock-0000000000" for key in ("a", "b")}
    for key in nodes:
        kazoo_client.ensure_path(breaker.path(key))
    joining = kazoo_client.transaction()
    for node in nodes.values():
        joining.create(node, ephemeral=True)
    assert joining.commit() == [*nodes.values()]
    (token,) = {kazoo_client.exists(node).czxid for node in nodes.values()}
    actions.revoke(breaker, nodes["b"], "deploy", timeout=60)
    actions.break_lock(breaker, nodes["a"], token=token, why="it hangs", timeout=60)
    assert outcomes(breaker) == [("b", "release requested", "still held"), ("a", "broken", "broken")]


@pytest.mark.parametrize("way", [UP, DOWN], ids=["request", "answer"])
@pytest.mark.parametrize("what", ["break", "revoke"])
def test_trail__connection_cut(
    server: Server, make_pool: MakePool, kazoo_client: KazooClient, way: str, what: str
) -> None:
    """An action that is repeated because its request or answer was lost is made, and is one action in the trail."""
    held = Lock("k", make_pool(session_timeout=4.0)).acquire(60)
    # The servers for tests delete an empty queue, and with it the reason, within half a second.
    kazoo_client.create(f"{held.lock.paths[0]}/readme", ephemeral=True)

    def act() -> None:
        if what == "break":
            actions.break_lock(pool, held.node, token=held.token, why="it hangs", timeout=20)
        else:
            actions.revoke(pool, held.node, "deploy", timeout=20)

    with Proxy(server.address) as proxy:
        pool = make_pool(proxy.hosts)
        wait_until(lambda: pool.inspection().connected)
        snapshots.one_lock(pool, "k", timeout=60)
        proxy.pause(way)
        acting = Runner(act)
        if way is DOWN:
            wait_until(lambda: any(requests(chunk) for side, chunk in proxy.chunks[1:] if side == UP))
        proxy.resume(drop=True)
        proxy.cut()
        acting.result()
        if what == "break":
            wait_until(lambda: held.lost)
            assert "its node was deleted: it hangs; " in str(held._loss_error())
        else:
            assert "deploy" in wait_until(lambda: held.revoked)
        assert len(trail.read(make_pool(), timeout=60)) == 1


@pytest.mark.parametrize("allowed", [Permissions.READ, Permissions.CREATE])
def test_trail__not_ours_to_write(
    make_pool: MakePool, kazoo_client: KazooClient, caplog: pytest.LogCaptureFixture, allowed: int
) -> None:
    """Without the permission to write the trail, or to read it, locks are broken and asked for, with a warning."""
    pool, breaker = make_pool(), make_pool()
    held = Lock("k", pool).acquire(60)
    kazoo_client.create(trail.path(pool), b"", acl=[ACL(allowed, ANYONE_ID_UNSAFE)])
    with caplog.at_level(logging.WARNING, "django_zklock.breaking"):
        actions.revoke(breaker, held.node, "deploy", timeout=60)
        actions.break_lock(breaker, held.node, token=held.token, why="it hangs", timeout=60)
    assert wait_until(lambda: held.lost)
    assert caplog.text.count("event=not_in_trail ") == 2


def come_before(
    monkeypatch: pytest.MonkeyPatch, breaker: Pool, call: Callable[[], None], *, allowed: int, is_lost: bool
) -> None:
    """Make a call right before the request of a break leaves, which is sent then, or lost with its connection."""
    wait_until(lambda: breaker.inspection().connected)
    wire = breaker.inspection().wire
    write_all = wire.write_all

    def write_late(writes: Any, *arguments: Any, **options: Any) -> None:
        if allowed != Permissions.ALL and len(writes) > 1:
            # The trail is refused first.
            write_all(writes, *arguments, **options)
            return
        monkeypatch.setattr(wire, "write_all", write_all)
        # In another thread: nothing may wait in that of a connection.
        Runner(call).result()
        if is_lost:
            wire.drop("the test says so")
        else:
            write_all(writes, *arguments, **options)

    monkeypatch.setattr(wire, "write_all", write_late)


@pytest.mark.parametrize("is_lost", [True, False])
@pytest.mark.parametrize("allowed", [Permissions.ALL, Permissions.READ])
def test_break__released_before_it(
    make_pool: MakePool, kazoo_client: KazooClient, monkeypatch: pytest.MonkeyPatch, allowed: int, is_lost: bool
) -> None:
    """A break that the owner's release comes before was not made: its request is refused, or lost and never sent.

    Also where the trail, which tells the two apart, is not ours to write.
    """
    breaker = make_pool()
    held = Lock("k", make_pool()).acquire(60)
    kazoo_client.create(trail.path(breaker), b"", acl=[ACL(allowed, ANYONE_ID_UNSAFE)])
    come_before(monkeypatch, breaker, lambda: held.release(wait=True), allowed=allowed, is_lost=is_lost)
    with pytest.raises(NotHeld, match="is gone"):
        actions.break_lock(breaker, held.node, token=held.token, why="it hangs", timeout=20)
    assert allowed != Permissions.ALL or trail.read(breaker, timeout=60) == []


@pytest.mark.parametrize("allowed", [Permissions.ALL, Permissions.READ], ids=["trail", "note"])
@pytest.mark.parametrize("is_lost", [True, False], ids=["lost", "answered"])
def test_break__two_operators_in_one_millisecond(
    make_pool: MakePool, kazoo_client: KazooClient, monkeypatch: pytest.MonkeyPatch, allowed: int, is_lost: bool
) -> None:
    """The one that came too late is told which operator has done it, also if the answer to its own request is lost."""
    first, second = make_pool(), make_pool()
    held = Lock("k", make_pool()).acquire(60)
    # A server soon deletes an empty queue, and with it the note of the operator that has broken the lock.
    kazoo_client.create(f"{held.lock.paths[0]}/_c_{new_guid()}-lock-", ephemeral=True, sequence=True)
    kazoo_client.create(trail.path(first), b"", acl=[ACL(allowed, ANYONE_ID_UNSAFE)])

    def break_as(pool: Pool, name: str) -> None:
        actions.break_lock(pool, held.node, token=held.token, why="it hangs", by=name, timeout=20)

    come_before(monkeypatch, second, lambda: break_as(first, "ada"), allowed=allowed, is_lost=is_lost)
    monkeypatch.setattr(time, "time", lambda: 1e9)
    with pytest.raises(NotHeld, match=r"is gone: it was broken by ada: it hangs$"):
        break_as(second, "bob")
    assert [each.by for each in trail.read(first, timeout=60)] == (["ada"] if allowed == Permissions.ALL else [])


def test_revoke__operators_in_one_millisecond(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every request to release is in the trail, with its operator and reason."""
    held = Lock("k", make_pool()).acquire(60)
    names = ["ada", "bob", "eve"]
    monkeypatch.setattr(time, "time", lambda: 1e9)
    acting = [
        Runner(partial(actions.revoke, make_pool(), held.node, f"for {name}", by=name, timeout=20)) for name in names
    ]
    for each in acting:
        each.result()
    found = trail.read(make_pool(), timeout=60)
    assert sorted((each.by, each.why) for each in found) == [(name, f"for {name}") for name in names]
    # The holder has the reason of one of them.
    wait_until(lambda: held.revoked in {f"asked by {name}: for {name}" for name in names})
