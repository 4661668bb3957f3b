"""Snapshots of locks, read from ZooKeeper without taking a lock."""

from __future__ import annotations

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Permissions

from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.zk import paths
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work
from django_zklock.zk.ops import search, snapshots
from django_zklock.zk.pool import Pool
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.threads import Runner
from tests.toolbox.zookeeper.observer import Observer


def test_queues__holder_and_waiters(pool: Pool, make_pool: MakePool, observer: Observer) -> None:
    """Every lock in use is listed with its holders and waiters, in order."""
    lock = Lock("b/ü", pool, work=lambda: Work(kind="task", name="billing"))
    with lock as held, Lock("a", pool):
        waiter = Runner(lambda: Lock("b/ü", make_pool()).acquire(timeout=120))
        observer.wait_count(lock.paths[0], 2)
        found = search.find(pool, timeout=60)
        assert [queue.key for queue in found] == ["a", "b/ü"]
        queue = snapshots.one_lock(pool, "b/ü", timeout=60)
        assert queue == found[1]
        (holder,), (_holder, waiting) = queue.holders, queue.entries
        assert (holder.token, holder.path, holder.position) == (held.token, held.node, 0)
        assert holder.session_id == pool.sessions()[0].id
        assert holder.identity is not None
        assert holder.identity.work == Work(kind="task", name="billing")
        assert abs(holder.since - held.since) < 5
        assert (waiting.position, waiting.held) == (1, False)
    waiter.result().release()


def test_queue__nobody(pool: Pool) -> None:
    """A lock without contenders, in a tree that may not exist, has an empty queue."""
    assert search.find(pool, timeout=60) == []
    queue = snapshots.one_lock(pool, "k", timeout=60)
    assert (queue.key, queue.entries, queue.unknown_nodes) == ("k", (), ())
    with pytest.raises(ValueError, match="must not be empty"):
        snapshots.one_lock(pool, "", timeout=60)


def test_queues__hostile(pool: Pool, observer: Observer) -> None:
    """Names and data of other clients are reported unchanged, and cause no error."""
    root = pool.options.root
    shortened = paths.escape("x" * 500)
    for name, data in [("a%FF", b""), ("%41", b""), (shortened, b"another key"), ("plain", b"")]:
        observer.client.create(f"{root}/{name}", data, makepath=True)
        observer.client.create(f"{root}/{name}/readme", b"\xff")
        node = f"{root}/{name}/_c_0f8fad5b-d9cb-469f-a165-70867728950e-lock-"
        observer.client.create(node, b'{"v":1,"host":"\\ud800","pid":1e999}', sequence=True)
    found = search.find(pool, timeout=60)
    assert sorted(queue.key for queue in found) == sorted(["a%FF", "%41", shortened, "plain"])
    for queue in found:
        assert queue.unknown_nodes == ("readme",)
        assert [place.identity for place in queue.entries] == [None]
        assert queue.entries[0].held


def test_queues__refused(make_pool: MakePool) -> None:
    """A missing permission to read is an error that says so."""
    owner = make_pool(auth=[("digest", "billing:secret")], acl="creator")
    with Lock("k", owner), pytest.raises(ZkLockError, match="refused to list") as caught:
        search.find(make_pool(), timeout=60)
    assert not isinstance(caught.value, ZooKeeperUnavailable)


def test_queue__entry_refused(pool: Pool, kazoo_client: KazooClient) -> None:
    """So is a missing permission to read one node in a queue."""
    acl = [ACL(Permissions.ALL & ~Permissions.READ, ANYONE_ID_UNSAFE)]
    kazoo_client.ensure_path(pool.path("k"))
    kazoo_client.create(f"{pool.path('k')}/lock-", acl=acl, ephemeral=True, sequence=True)
    with pytest.raises(ZkLockError, match=r"refused to read .*NoAuthError"):
        snapshots.one_lock(pool, "k", timeout=60)
