"""The sandbox: a part of a server for one test, and its helpers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoAuthError

from django_zklock import LockTimeout, current_lock, zk_lock
from django_zklock.connections import connections
from django_zklock.testing import Sandbox, ZooKeeperServer, sandbox
from tests.toolbox.protocol.raw_client import RawClient
from tests.toolbox.timing import scaled

if TYPE_CHECKING:
    from pytest_django import Settings


@pytest.fixture
def place(zookeeper_server: ZooKeeperServer) -> Iterator[Sandbox]:
    with Sandbox(zookeeper_server) as place:
        yield place


def test_sandbox__with_a_server_of_its_own() -> None:
    """Without a server it starts its own, which ends with it."""
    with Sandbox() as place, zk_lock("key"):
        assert place.server.running
        assert place.hosts == place.server.hosts
    assert not place.server.running


def test_sandbox__with_a_server(zookeeper_server: ZooKeeperServer) -> None:
    """A given server keeps running, and nothing of the sandbox is left in it."""
    before = zookeeper_server.paths()
    with Sandbox(zookeeper_server) as place, zk_lock("key") as held:
        assert held.node in place.paths()
        assert place.owner(held.node) == place.sessions()[-1].id
    assert zookeeper_server.running
    assert zookeeper_server.paths() == before


def test_sandbox__sessions_of_the_project_are_closed(zookeeper_server: ZooKeeperServer) -> None:
    """At the end the project has no sessions, and their pool is not used again."""
    with Sandbox(zookeeper_server):
        pool = connections["default"]
        zk_lock("key").acquire()
    assert pool.sessions() == []
    assert zookeeper_server.sessions() == []
    assert connections["default"] is not pool


def test_sandbox__hold_that_was_left(zookeeper_server: ZooKeeperServer) -> None:
    """A lock that a test does not release is free afterwards."""
    with Sandbox(zookeeper_server):
        held = zk_lock("key").acquire()
        assert current_lock() is held
    assert current_lock() is None


def test_sandbox__other_clients(zookeeper_server: ZooKeeperServer) -> None:
    """A client that stays connected keeps its session; that of a disconnected client is ended before the next test."""
    with RawClient(zookeeper_server.address) as lasting, RawClient(zookeeper_server.address) as silent:
        with Sandbox(zookeeper_server) as place:
            kept, ended = lasting.connect().session, silent.connect().session
            assert [session.id for session in place.sessions()] == [kept, ended]
            place.faults.drop(ended)
        assert [session.id for session in zookeeper_server.sessions()] == [kept]
        zookeeper_server.faults.expire(kept)


def test_sandbox__sessions_from_before(zookeeper_server: ZooKeeperServer) -> None:
    """A session from before is there afterwards, even if its client is disconnected for a while."""
    with RawClient(zookeeper_server.address) as earlier:
        session = earlier.connect().session
        with Sandbox(zookeeper_server) as place:
            place.faults.drop(session)
        assert [each.id for each in zookeeper_server.sessions()] == [session]
        zookeeper_server.faults.expire(session)


def test_sandbox__requests_begin_with_none(zookeeper_server: ZooKeeperServer) -> None:
    """Requests from before do not count."""
    for _ in range(2):
        with Sandbox(zookeeper_server) as place:
            assert place.requests.all() == []
            with zk_lock("key"):
                assert place.requests.count("connect") == 1


def test_sandbox__protected_nodes(settings: Settings, zookeeper_server: ZooKeeperServer) -> None:
    """Nodes have the project's access control list, and are removed like others."""
    settings.ZKLOCK = {"default": {"HOSTS": "zk1.invalid:2181", "AUTH": [("digest", "a:b")], "ACL": "creator"}}
    client = KazooClient(hosts=zookeeper_server.hosts)
    client.start(timeout=10)
    with Sandbox(zookeeper_server), zk_lock("key") as held, pytest.raises(NoAuthError):
        client.get(held.node)
    assert not client.exists(held.node.rpartition("/")[0])
    client.stop()
    client.close()


def test_held_elsewhere(place: Sandbox) -> None:
    """Another holder has the lock: with a separate session, under its own name, not the calling thread."""
    with place.held_elsewhere("key") as held:
        assert current_lock() is None
        with pytest.raises(LockTimeout) as caught:
            zk_lock("key").acquire(timeout=scaled(1))
        assert str(caught.value.holder).startswith("label somebody else")
        assert len(place.sessions()) == 2
        assert place.owner(held.node) == place.sessions()[0].id
    assert zk_lock("key").try_acquire() is not None


def test_held_elsewhere__free_after_an_error(place: Sandbox) -> None:
    """The lock is free after the block, however it ends."""

    def fail() -> None:
        with place.held_elsewhere("key"):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fail()
    assert zk_lock("key").try_acquire() is not None


def test_held_elsewhere__taken(place: Sandbox, monkeypatch: pytest.MonkeyPatch) -> None:
    """For a lock that is already held the test gets an error and does not block."""
    monkeypatch.setattr(sandbox, "TIMEOUT", 1.0)
    with zk_lock("key"), pytest.raises(LockTimeout), place.held_elsewhere("key"):
        pytest.fail("two hold one lock")


def test_held_elsewhere__lost(place: Sandbox) -> None:
    """The lock of the other holder can be lost like any other."""
    with place.held_elsewhere("key") as held:
        place.lose(held)
        assert zk_lock("key").try_acquire() is not None


def test_lose__the_holder_knows(place: Sandbox) -> None:
    """When it returns the lock is lost, for the holder and for all others."""
    held = zk_lock("key").acquire()
    place.lose(held)
    assert held.lost
    assert held.node not in place.paths()


def test_lose__not_held(place: Sandbox) -> None:
    """A lock that is not held cannot be lost."""
    held = zk_lock("key").acquire()
    held.release(wait=True)
    with pytest.raises(LookupError, match="not an ephemeral node"):
        place.lose(held)


def test_lose__holder_that_cannot_know(place: Sandbox) -> None:
    """A holder that does not notice the loss in time is an error of the test."""
    held = zk_lock("key").acquire()
    place.faults.refuse()
    with pytest.raises(TimeoutError, match="the session of lock 'key' has expired"):
        place.lose(held, timeout=0.2)


def test_nested__on_one_server(zookeeper_server: ZooKeeperServer) -> None:
    """The inner sandbox heals its own faults only, and has a log of its own."""
    with Sandbox(zookeeper_server) as outer:
        zk_lock("key").acquire().release(wait=True)
        before = outer.requests.count("create2")
        delay = outer.faults.delay(0.0)
        with Sandbox(zookeeper_server) as inner:
            assert inner.requests.all() == []
            inner.faults.delay(0.0)
            zk_lock("key").acquire().release(wait=True)
            inside = inner.requests.count("create2")
        assert outer.faults.active() == [delay]
        assert outer.requests.count("create2") == before + inside
    assert zookeeper_server.faults.active() == []


@pytest.mark.parametrize("where", ["one server", "two servers"])
def test_nested__lock_of_the_outer_one(zookeeper_server: ZooKeeperServer, where: str) -> None:
    """A lock that is held around the inner sandbox stays held, and is another lock than that inside."""
    with Sandbox(zookeeper_server) as outer, zk_lock("key") as held:
        pool = connections["default"]
        with Sandbox(zookeeper_server if where == "one server" else None) as inner:
            with inner.held_elsewhere("key"):
                assert zk_lock("key").try_acquire() is None
            assert zk_lock("key").try_acquire() is not None
            held.check()
        assert connections["default"] is pool
        assert held.node in outer.paths()
    assert pool.sessions() == []


def test_nested__other_sessions_are_closed(zookeeper_server: ZooKeeperServer) -> None:
    """A session of the outer sandbox without a lock of this thread is closed: the inner one has no old sessions."""
    with Sandbox(zookeeper_server):
        zk_lock("key").acquire().release(wait=True)
        with Sandbox(zookeeper_server) as inner:
            assert inner.sessions() == []
