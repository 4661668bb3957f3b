"""The exclusive lock on a real server, as its users see it."""

from __future__ import annotations

import threading
import time
from datetime import timedelta
from typing import Any

import pytest

from django_zklock.exceptions import LockTimeout, NotHeld
from django_zklock.zk.held import current, held_stack
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work
from django_zklock.zk.pool import Pool
from tests.toolbox.locks.odd_keys import ODD
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.threads import Runner
from tests.toolbox.timing import GRACE, wait_until
from tests.toolbox.zookeeper.observer import Observer

pytestmark = pytest.mark.oldest

pytest_plugins = ["tests.toolbox.slow_deadlines"]


def test_acquire__zero(pool: Pool, make_pool: MakePool) -> None:
    """A timeout of nought tries once: granted if free, LockTimeout if not."""
    with Lock("k", pool).acquire(timeout=0), pytest.raises(LockTimeout, match="is taken"):
        Lock("k", make_pool()).acquire(timeout=0)


@pytest.mark.parametrize("timeout", [-1, timedelta(seconds=-1), float("nan")])
def test_acquire__bad_timeout(pool: Pool, timeout: Any) -> None:
    """A negative timeout is refused before anything is sent, and the error names the alternatives."""
    with pytest.raises(ValueError, match=r"must not be negative, .*; None waits for ever, 0 tries once"):
        Lock("k", pool).acquire(timeout=timeout)
    assert pool.sessions() == []


@pytest.mark.parametrize("key", [*ODD.values(), "/%\n\N{PARTY POPPER}..\0" * 85], ids=[*ODD.keys(), "kilobyte"])
def test_acquire__odd_key(pool: Pool, observer: Observer, key: str) -> None:
    """An odd key makes a correct lock."""
    lock = Lock(key, pool)
    with lock as held:
        assert held.key == key
        assert len(observer.children(lock.paths[0])) == 1
        assert Runner(lock.try_acquire).result() is None
    observer.wait_empty(lock.paths[0])


def test_held__facts(pool: Pool, observer: Observer) -> None:
    """A hold knows its node, its token is the creating transaction, and its times are right."""
    before = time.time()
    with Lock("k", pool, work=lambda: Work(kind="label", name="nightly")).acquire() as held:
        stat = observer.client.exists(held.node)
        assert held.token == stat.czxid
        assert stat.ephemeralOwner == pool.sessions()[0].id
        assert before <= held.since <= time.time()
        assert 0 <= held.waited < GRACE
        assert not held.lost
        held.check()
        assert "held" in repr(held)
        assert b"nightly" in observer.client.get(held.node)[0]
    assert "released" in repr(held)


@pytest.mark.shows("guarantees#tokens-grow")
def test_held__token_grows(pool: Pool, make_pool: MakePool) -> None:
    """Tokens grow from holder to holder, over sessions and over the reaping of the queue."""
    tokens = []
    for _ in range(3):
        for one in (pool, make_pool()):
            with Lock("k", one).acquire(timeout=60) as held:
                tokens.append(held.token)
    assert tokens == sorted(set(tokens))


@pytest.mark.shows("guarantees#a-release-never-fails")
def test_release__twice(pool: Pool, make_pool: MakePool) -> None:
    """A second release does nothing, not even to the next holder."""
    held = Lock("k", pool).acquire()
    held.release()
    held.release()
    with Lock("k", make_pool()).acquire(timeout=60) as other:
        held.release(wait=True)
        other.check()


@pytest.mark.shows("guarantees#a-release-never-fails")
def test_release__wait(pool: Pool, observer: Observer) -> None:
    """With wait=True the node is gone when the call returns."""
    lock = Lock("k", pool)
    for _ in range(20):
        held = lock.acquire(timeout=60)
        held.release(wait=True)
        assert observer.children(lock.paths[0]) == []


def test_release__inside_the_block(pool: Pool) -> None:
    """Releasing a hold inside its block is fine; the end of the block of the lock says that nothing is held."""
    lock = Lock("k", pool)
    with lock.acquire() as held:
        held.release()
    with pytest.raises(NotHeld, match="is not held here"), lock as inner:
        inner.release()


def test_release__other_thread(pool: Pool) -> None:
    """A hold can be released by another thread, and is not nested into then: the next acquisition is a new one."""
    lock = Lock("k", pool)
    held = lock.acquire()
    Runner(held.release).result()
    assert current("k") is None
    with lock.acquire(timeout=60) as again:
        assert again.token > held.token


def test_check__released(pool: Pool) -> None:
    """A hold that was released is not held."""
    held = Lock("k", pool).acquire()
    held.release()
    with pytest.raises(NotHeld, match="has been released"):
        held.check()


@pytest.mark.usefixtures("unhurried")
def test_reentrant__other_pool(make_pool: MakePool) -> None:
    """Re-entrancy is for one pool: through another one the holder meets itself."""
    with Lock("k", make_pool()), pytest.raises(LockTimeout):
        Lock("k", make_pool()).acquire(timeout=0.5)


def test_lock__shared_by_threads(pool: Pool) -> None:
    """One lock object serves many threads, each in its own block."""
    lock = Lock("k", pool)
    inside = threading.Lock()
    total = 0

    def work() -> None:
        nonlocal total
        for _ in range(10):
            with lock as held:
                assert inside.acquire(blocking=False)
                total += 1
                assert current("k") is held
                inside.release()

    for runner in [Runner(work) for _ in range(12)]:
        runner.result(30)
    assert total == 120


def test_lock__exception_in_the_block(pool: Pool, observer: Observer) -> None:
    """An exception passes through and the lock is free."""
    lock = Lock("k", pool)
    with pytest.raises(ValueError, match="mine"), lock:
        raise ValueError("mine")
    observer.wait_empty(lock.paths[0])


def test_pool__used_again_after_close(make_pool: MakePool, observer: Observer) -> None:
    """Closing a pool frees its locks, tells their holders, and leaves the pool usable."""
    pool = make_pool(connect_timeout=60.0)
    lock = Lock("k", pool)
    held = lock.acquire()
    assert pool.close()
    assert held.lost
    assert observer.children(lock.paths[0]) == []
    began = time.monotonic()
    held.release(wait=True)
    assert time.monotonic() - began < GRACE
    with lock as again:
        again.check()
        assert held.lost


def test_pool__sizes(make_pool: MakePool) -> None:
    """A pool of several sessions sends each key through one of them, and each excludes."""
    pool = make_pool(size=3)
    # So many that chance leaves no session without one: (2/3)**60.
    locks = [Lock(f"k{number}", pool) for number in range(60)]
    for lock in locks:
        lock.acquire(timeout=60)
    assert len({session.id for session in pool.sessions()}) == 3
    assert all(Runner(lock.try_acquire).result() is None for lock in locks)
    for held in list(held_stack()):
        held.release(wait=True)
    assert all(Runner(lambda lock=lock: lock.acquire(timeout=60).release()).result() is None for lock in locks)  # type: ignore[misc]


def test_tree__reaped(pool: Pool, observer: Observer) -> None:
    """The parent of a queue is a container: the server removes it when it is empty, and the next lock makes another."""
    lock = Lock("k", pool)
    with lock as held:
        first = held.token
    wait_until(lambda: observer.client.exists(lock.paths[0]) is None, what="the empty parent is gone")
    with lock as held:
        assert held.token > first
