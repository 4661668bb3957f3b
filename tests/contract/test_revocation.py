"""Revoke requests to holders."""

from __future__ import annotations

import json
import threading
import time
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Permissions

from django_zklock import zk_lock
from django_zklock.exceptions import NotHeld, ZkLockError
from django_zklock.zk import node_data
from django_zklock.zk.contender import Contender
from django_zklock.zk.held import Held
from django_zklock.zk.listener import LockListener
from django_zklock.zk.lock import Lock
from django_zklock.zk.ops import actions, snapshots
from django_zklock.zk.pool import Pool
from tests.toolbox.django.layer import Ensemble, Recorder
from tests.toolbox.locks.contenders import RULES, Contenders, settle
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.timing import GRACE, LONG_SESSION, scaled, wait_until
from tests.toolbox.zookeeper.observer import Observer

pytest_plugins = ["tests.toolbox.django.settings_fixtures"]

HEARTBEATS = 6


class Wishes(LockListener):
    """Records the revoke requests of which it is notified."""

    def __init__(self) -> None:
        self.notified: list[tuple[Held, str, threading.Thread]] = []

    def notify(self, event: str, _lock: object, /, **facts: Any) -> None:
        if event == "revoked":
            self.notified.append((facts["held"], facts["reason"], threading.current_thread()))


# What a holder hears.


def test_ask__within_a_heartbeat(make_pool: MakePool) -> None:
    """A holder that did not wait learns of a revoke request, and its reason, with the next heartbeat."""
    wishes = Wishes()
    pool = make_pool(session_timeout=LONG_SESSION)
    with Lock("k", pool, listener=wishes) as held:
        assert held.revoked is None
        began = time.monotonic()
        actions.revoke(make_pool(), held.node, "we need to deploy", timeout=60)
        assert wait_until(lambda: held.revoked, LONG_SESSION) == "we need to deploy"
        assert time.monotonic() - began < LONG_SESSION / HEARTBEATS + GRACE
        wait_until(lambda: wishes.notified)
        # It is a wish: nothing is lost.
        held.check()
    assert [(asked, why) for asked, why, _ in wishes.notified] == [(held, "we need to deploy")]
    assert wishes.notified[0][2] is not threading.current_thread()
    assert held.revoked == "we need to deploy"


def test_ask__at_once(make_pool: MakePool, observer: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder that has waited watches its node, and learns of a revoke request at once."""
    monkeypatch.setattr(Contender, "heartbeat", lambda _self: None)
    contenders = Contenders(observer, make_pool)
    for kind in RULES:
        first, second = contenders.join(RULES["exclusive"]), contenders.join(RULES[kind])
        first.leave()
        held = second.get()
        actions.revoke(make_pool(), held.node, kind, timeout=60)
        assert wait_until(lambda held=held: held.revoked) == kind  # type: ignore[misc]
        second.leave()


@pytest.mark.parametrize("kind", RULES)
def test_ask__waiting(make_pool: MakePool, observer: Observer, kind: str) -> None:
    """A waiter learns of its revoke request when it holds the lock; what it writes to its node keeps the request."""
    contenders = Contenders(observer, make_pool)
    first, second, third = contenders.join_all(RULES["exclusive"], RULES[kind], RULES[kind])
    node = f"{contenders.path}/{second.node}"
    actions.revoke(make_pool(), node, "too late", timeout=60)
    first.leave()
    held = second.get()
    assert wait_until(lambda: held.revoked) == "too late"
    contenders.expect(second, *[third] * (kind in {"read", "lease"}))
    assert snapshots.one_lock(held.lock.pool, "k", timeout=60).entries[0].revoked == "too late"
    second.leave()
    assert third.get().revoked is None
    third.leave()


def test_ask__twice(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A second revoke request changes nothing: the first reason stays, and there is one notification."""
    wishes, beats, read = Wishes(), threading.Semaphore(0), Contender.heartbeat

    def beat(contender: Contender) -> None:
        read(contender)
        beats.release()

    monkeypatch.setattr(Contender, "heartbeat", beat)
    with Lock("k", make_pool(session_timeout=4.0), listener=wishes) as held:
        actions.revoke(held.lock.pool, held.node, "first", timeout=60)
        wait_until(lambda: wishes.notified)
        actions.revoke(held.lock.pool, held.node, "second", timeout=60)
        while beats.acquire(blocking=False):
            pass
        assert beats.acquire(timeout=scaled(20))
        settle(held.lock.pool)
        assert (held.revoked, len(wishes.notified)) == ("first", 1)


def test_ask__nested_and_several(make_pool: MakePool, observer: Observer) -> None:
    """A revoke request for one of several keys counts for the hold of all, and for holds nested in it."""
    pool = make_pool(session_timeout=4.0)
    with Lock(["a", "b"], pool) as held, Lock("a", pool) as inner:
        node = f"{held.lock.paths[1]}/{observer.children(held.lock.paths[1])[0]}"
        actions.revoke(make_pool(), node, "b is wanted", timeout=60)
        assert wait_until(lambda: held.revoked) == "b is wanted"
        assert inner.revoked == "b is wanted"


def test_ask__signal(ensemble: Ensemble, recorder: Recorder) -> None:
    """The signal `revoked` has the hold and the reason, and comes from a separate thread."""
    with zk_lock("k", mode="read") as held:
        actions.revoke(ensemble.pool, held.node, "please", timeout=60)
        facts = recorder.facts("revoked")
        assert (facts["key"], facts["alias"], facts["held"], facts["reason"]) == ("k", "default", held, "please")
        assert recorder.thread("revoked") is not threading.current_thread()


# What comes of asking.


def test_ask__keeps_the_identity(pool: Pool, observer: Observer) -> None:
    """The request is added to the data of the node; a long reason is cut, and its control characters are escaped."""
    with Lock("k", pool) as held:
        before = json.loads(observer.client.get(held.node)[0])
        actions.revoke(pool, held.node, "\x1b[2J" + "x" * 5000, timeout=60)
        after = json.loads(observer.client.get(held.node)[0])
        assert len(after.pop("revoke")) == 256
        assert after == before
        assert wait_until(lambda: held.revoked).startswith(r"\x1b[2Jxxx")
        assert snapshots.one_lock(pool, "k", timeout=60).entries[0].identity is not None


@pytest.mark.parametrize("data", [b"", b"somebody else's", b"[1]", b"5", b"\xff\xfe", b'{"v": 1'])
def test_ask__foreign(pool: Pool, kazoo_client: KazooClient, data: bytes) -> None:
    """A node whose data is not ours gets the request in Curator's form."""
    path = pool.path("k")
    kazoo_client.ensure_path(path)
    node = kazoo_client.create(f"{path}/lock-", data, ephemeral=True, sequence=True)
    actions.revoke(pool, node, "please", timeout=60)
    assert kazoo_client.get(node)[0] == b"__REVOKE__"


def test_ask__node_written_meanwhile(pool: Pool, observer: Observer, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the owner writes between the read and the write of a revoke request is kept."""
    encode, written = node_data.encode_revoke, [b'{"v":1,"host":"h","pid":1,"thread":"written meanwhile"}']

    def encode_late(data: bytes, reason: str) -> bytes:
        if written:
            observer.client.set(held.node, written.pop())
        return encode(data, reason)

    with Lock("k", pool) as held:
        monkeypatch.setattr(node_data, "encode_revoke", encode_late)
        actions.revoke(pool, held.node, "we need to deploy", timeout=60)
        data = json.loads(observer.client.get(held.node)[0])
    assert (data["thread"], data["revoke"]) == ("written meanwhile", "we need to deploy")


def test_ask__gone(pool: Pool) -> None:
    """A revoke request after the release raises an error."""
    held = Lock("k", pool).acquire(timeout=60)
    held.release(wait=True)
    with pytest.raises(NotHeld, match=r"is gone: its owner has released the lock"):
        actions.revoke(pool, held.node, "please", timeout=60)


@pytest.mark.parametrize("why", ["", " \n"])
def test_ask__no_reason(pool: Pool, why: str) -> None:
    """A revoke request needs a reason."""
    with pytest.raises(ValueError, match="give a reason"):
        actions.revoke(pool, "/k/lock-0000000000", why, timeout=60)
    assert pool.sessions() == []


def test_ask__refused(pool: Pool, kazoo_client: KazooClient) -> None:
    """A missing permission to write is an error that says so."""
    path = pool.path("k")
    kazoo_client.ensure_path(path)
    acl = [ACL(Permissions.READ | Permissions.DELETE, ANYONE_ID_UNSAFE)]
    node = kazoo_client.create(f"{path}/lock-", b"x", acl=acl, ephemeral=True, sequence=True)
    with pytest.raises(ZkLockError, match=r"refused to write .*NoAuthError"):
        actions.revoke(pool, node, "please", timeout=60)
