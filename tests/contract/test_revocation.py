"""Asking holders to let go."""

from __future__ import annotations

import json
import threading
import time

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Permissions
from services.port import LOOPBACK, free_port

from django_zklock import zk_lock
from django_zklock.exceptions import NotHeld, ZkLockError, ZooKeeperUnavailable
from django_zklock.zk import revocation
from django_zklock.zk.contender import Contender
from django_zklock.zk.held import Held
from django_zklock.zk.inspection import survey
from django_zklock.zk.lock import Lock, Silent
from django_zklock.zk.pool import Pool
from django_zklock.zk.rules import semaphore
from tests.bystanders import Ensemble, Recorder
from tests.contract.standing import RULES, Standing, settle
from tests.server import Server
from tests.zk.onlooker import MakePool, Onlooker, wait_until
from tests.zk.proxy import DOWN, UP, Proxy, requests
from tests.zk.runner import Runner

pytest_plugins = ["tests.configured"]

HEARTBEATS = 6
GET_DATA = 4


class Wishes(Silent):
    """Keeps what it is told of those who ask."""

    def __init__(self) -> None:
        self.told: list[tuple[Held, str, threading.Thread]] = []

    def revoked(self, held: Held, reason: str) -> None:
        self.told.append((held, reason, threading.current_thread()))


# What a holder hears.


@pytest.mark.parametrize("kind", RULES)
def test_ask__within_a_heartbeat(make_pool: MakePool, kind: str) -> None:
    """A holder that has got its lock at once learns with the next heartbeat that somebody wants it, and why."""
    wishes = Wishes()
    pool = make_pool(session_timeout=3.0)
    with Lock("k", pool, rule=RULES[kind], observer=wishes) as held:
        assert held.revoked is None
        began = time.monotonic()
        revocation.ask(make_pool(), held.node, "we need to deploy", timeout=5)
        assert wait_until(lambda: held.revoked) == "we need to deploy"
        assert time.monotonic() - began < 3.0 / HEARTBEATS + 1
        wait_until(lambda: wishes.told)
        # It is a wish: nothing is lost.
        held.check()
    assert [(told, why) for told, why, _ in wishes.told] == [(held, "we need to deploy")]
    assert wishes.told[0][2] is not threading.current_thread()
    assert held.revoked == "we need to deploy"


def test_ask__at_once(make_pool: MakePool, onlooker: Onlooker, monkeypatch: pytest.MonkeyPatch) -> None:
    """A holder that has waited, and so watches its node, learns at once."""
    monkeypatch.setattr(Contender, "heartbeat", lambda _self: None)
    standing = Standing(onlooker, make_pool)
    for kind in RULES:
        first, second = standing.join(RULES["exclusive"]), standing.join(RULES[kind])
        first.leave()
        held = second.get()
        revocation.ask(make_pool(), held.node, kind, timeout=5)
        assert wait_until(lambda held=held: held.revoked) == kind  # type: ignore[misc]
        second.leave()


@pytest.mark.parametrize("kind", RULES)
def test_ask__waiting(make_pool: MakePool, onlooker: Onlooker, kind: str) -> None:
    """Who is asked while it waits knows when it holds; nothing that it writes to its node takes the wish away."""
    standing = Standing(onlooker, make_pool)
    first, second, third = standing.join_all(RULES["exclusive"], RULES[kind], RULES[kind])
    node = f"{standing.path}/{second.node}"
    revocation.ask(make_pool(), node, "too late", timeout=5)
    first.leave()
    held = second.get()
    assert wait_until(lambda: held.revoked) == "too late"
    standing.expect(second, *[third] * (kind in {"read", "lease"}))
    assert survey.line(held.lock.pool, "k", timeout=5).places[0].revoked == "too late"
    second.leave()
    assert third.get().revoked is None
    third.leave()


def test_ask__lease_before_the_next(make_pool: MakePool, onlooker: Onlooker) -> None:
    """A wish that is written to a lease that waits keeps nobody behind it from coming in."""
    standing = Standing(onlooker, make_pool)
    a, b, asked, last = standing.join_all(*[semaphore(2)] * 4)
    revocation.ask(make_pool(), f"{standing.path}/{asked.node}", "please", timeout=5)
    a.leave()
    standing.expect(b, asked)
    b.leave()
    standing.expect(asked, last)
    for each in (asked, last):
        each.leave()


def test_ask__curator(make_pool: MakePool, onlooker: Onlooker) -> None:
    """The wish of Apache Curator's Revoker is honoured."""
    wishes = Wishes()
    with Lock("k", make_pool(session_timeout=1.5), observer=wishes) as held:
        onlooker.client.set(held.node, b"__REVOKE__")
        assert "Apache Curator" in wait_until(lambda: held.revoked)
        wait_until(lambda: wishes.told)


def test_ask__twice(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who is asked again keeps the first reason, and is told once."""
    wishes, beats, read = Wishes(), threading.Semaphore(0), Contender.heartbeat

    def beat(contender: Contender) -> None:
        read(contender)
        beats.release()

    monkeypatch.setattr(Contender, "heartbeat", beat)
    with Lock("k", make_pool(session_timeout=1.5), observer=wishes) as held:
        revocation.ask(held.lock.pool, held.node, "first", timeout=5)
        wait_until(lambda: wishes.told)
        revocation.ask(held.lock.pool, held.node, "second", timeout=5)
        while beats.acquire(blocking=False):
            pass
        assert beats.acquire(timeout=5)
        settle(held.lock.pool)
        assert (held.revoked, len(wishes.told)) == ("first", 1)


def test_ask__nested_and_several(make_pool: MakePool, onlooker: Onlooker) -> None:
    """A wish for one of several keys is one for the hold, and for those inside of it."""
    pool = make_pool(session_timeout=1.5)
    with Lock(["a", "b"], pool) as held, Lock("a", pool) as inner:
        node = f"{held.lock.paths[1]}/{onlooker.children(held.lock.paths[1])[0]}"
        revocation.ask(make_pool(), node, "b is wanted", timeout=5)
        assert wait_until(lambda: held.revoked) == "b is wanted"
        assert inner.revoked == "b is wanted"


def test_ask__signal(ensemble: Ensemble, recorder: Recorder) -> None:
    """The signal `revoked` says which hold, and why, from a thread of its own."""
    with zk_lock("k", mode="read") as held:
        revocation.ask(ensemble.pool, held.node, "please", timeout=5)
        facts = recorder.facts("revoked")
        assert (facts["key"], facts["alias"], facts["held"], facts["reason"]) == ("k", "default", held, "please")
        assert recorder.thread("revoked") is not threading.current_thread()


# What comes of asking.


def test_ask__keeps_the_identity(pool: Pool, onlooker: Onlooker) -> None:
    """The wish is written beside what the node says; a long reason is cut, and cannot upset a terminal."""
    with Lock("k", pool) as held:
        before = json.loads(onlooker.client.get(held.node)[0])
        revocation.ask(pool, held.node, "\x1b[2J" + "x" * 5000, timeout=5)
        after = json.loads(onlooker.client.get(held.node)[0])
        assert len(after.pop("revoke")) == 256
        assert after == before
        assert wait_until(lambda: held.revoked).startswith(r"\x1b[2Jxxx")
        assert survey.line(pool, "k", timeout=5).places[0].identity is not None


@pytest.mark.parametrize("data", [b"", b"somebody else's", b"[1]", b"5", b"\xff\xfe", b'{"v": 1'])
def test_ask__foreign(pool: Pool, outsider: KazooClient, data: bytes) -> None:
    """Whose node says nothing in our form is asked in Curator's."""
    path = pool.path("k")
    outsider.ensure_path(path)
    node = outsider.create(f"{path}/lock-", data, ephemeral=True, sequence=True)
    revocation.ask(pool, node, "please", timeout=5)
    assert outsider.get(node)[0] == b"__REVOKE__"


def test_ask__gone(pool: Pool) -> None:
    """Whoever has let go cannot be asked."""
    held = Lock("k", pool).acquire(timeout=5)
    held.release(wait=True)
    with pytest.raises(NotHeld, match=r"is gone: its owner has let go"):
        revocation.ask(pool, held.node, "please", timeout=5)


@pytest.mark.parametrize("why", ["", " \n"])
def test_ask__no_reason(pool: Pool, why: str) -> None:
    """Who is asked to let go is told why."""
    with pytest.raises(ValueError, match="say why"):
        revocation.ask(pool, "/k/lock-0000000000", why, timeout=5)
    assert pool.sessions() == []


def test_ask__refused(pool: Pool, outsider: KazooClient) -> None:
    """A node that we may not write to says so."""
    path = pool.path("k")
    outsider.ensure_path(path)
    acl = [ACL(Permissions.READ | Permissions.DELETE, ANYONE_ID_UNSAFE)]
    node = outsider.create(f"{path}/lock-", b"x", acl=acl, ephemeral=True, sequence=True)
    with pytest.raises(ZkLockError, match=r"refused to write .*NoAuthError"):
        revocation.ask(pool, node, "please", timeout=5)


def test_ask__no_server(make_pool: MakePool) -> None:
    """Without ZooKeeper asking ends when its time is up."""
    pool = make_pool(f"{LOOPBACK}:{free_port()}")
    began = time.monotonic()
    with pytest.raises(ZooKeeperUnavailable, match=r"no answer within 0\.3 s; whether that was done"):
        revocation.ask(pool, "/k/lock-0000000000", "please", timeout=0.3)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("cut", [True, False], ids=["cut", "slow"])
def test_ask__while_disturbed(server: Server, make_pool: MakePool, cut: bool) -> None:
    """A connection that breaks while somebody asks is no answer, and one that is slow is waited for."""
    with Lock("k", make_pool(session_timeout=1.5)) as held, Proxy(server.address) as proxy:
        pool = make_pool(proxy.hosts)
        wait_until(lambda: pool.session("/").connected)
        proxy.pause(DOWN)
        asking = Runner(lambda: revocation.ask(pool, held.node, "please", timeout=10))
        wait_until(lambda: any(GET_DATA in requests(chunk) for way, chunk in proxy.chunks[1:] if way == UP))
        assert asking.running
        proxy.resume(drop=cut)
        if cut:
            proxy.cut()
        asking.result()
        assert wait_until(lambda: held.revoked) == "please"
