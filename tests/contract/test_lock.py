"""The exclusive lock on a real server, as its users see it."""

from __future__ import annotations

import threading
import time

import pytest

from django_zklock.exceptions import LockConflict, LockTimeout, NotHeld, ZkLockError
from django_zklock.zk.contender import Contender
from django_zklock.zk.held import current, held_stack
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work
from django_zklock.zk.pool import Pool
from tests.toolbox.locks.contenders import node_of
from tests.toolbox.locks.odd_keys import ODD
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.threads import Runner
from tests.toolbox.timing import GRACE, wait_until
from tests.toolbox.zookeeper.observer import Observer

pytestmark = pytest.mark.oldest

pytest_plugins = ["tests.toolbox.slow_deadlines"]


@pytest.mark.shows("faults#threads-share-a-session")
@pytest.mark.usefixtures("unhurried")
def test_acquire__two_pools(make_pool: MakePool, observer: Observer) -> None:
    """Of two processes' pools one holds, the other times out and then follows."""
    first, second = Lock("k", make_pool()), Lock("k", make_pool())
    held = first.acquire()
    with pytest.raises(LockTimeout, match=r"was not granted within 0\.5 s; held by pid") as caught:
        second.acquire(timeout=0.5)
    assert (caught.value.key, caught.value.timeout) == ("k", 0.5)
    assert caught.value.holder is not None
    observer.wait_count(first.paths[0], 1)
    held.release()
    with second.acquire(timeout=60) as later:
        assert later.token > held.token
    observer.wait_empty(first.paths[0])


@pytest.mark.shows("guarantees#at-most-one-holder-whose-lease-runs", "faults#threads-share-a-session")
@pytest.mark.usefixtures("unhurried")
def test_acquire__two_threads(pool: Pool) -> None:
    """Two threads of one session exclude each other."""
    lock = Lock("k", pool)
    held = lock.acquire(timeout=60)
    waiting = Runner(lambda: lock.acquire(timeout=120))
    with pytest.raises(LockTimeout):
        Runner(lambda: lock.acquire(timeout=0.5)).result()
    assert waiting.running
    held.release()
    waiting.result().release()


@pytest.mark.shows("faults#many-wait")
def test_acquire__order_of_waiting(pool: Pool, observer: Observer) -> None:
    """Waiters of one pool are served first come first served."""
    lock = Lock("k", pool)
    order: list[int] = []

    def enter(number: int) -> None:
        with lock:
            order.append(number)

    held = lock.acquire()
    runners = []
    for number in range(6):
        runners.append(Runner(lambda number=number: enter(number)))  # type: ignore[misc]
        observer.wait_count(lock.paths[0], number + 2)
    held.release()
    for runner in runners:
        runner.result()
    assert order == list(range(6))


@pytest.mark.parametrize("timeout", [0, 0.0])
def test_acquire__zero(pool: Pool, make_pool: MakePool, timeout: float) -> None:
    """A timeout of nought tries once: granted if free, LockTimeout if not."""
    with Lock("k", pool).acquire(timeout=timeout), pytest.raises(LockTimeout, match="is taken"):
        Lock("k", make_pool()).acquire(timeout=timeout)


@pytest.mark.parametrize("timeout", [-1, float("nan")])
def test_acquire__bad_timeout(pool: Pool, timeout: float) -> None:
    """A negative timeout is refused before anything is sent."""
    with pytest.raises(ValueError, match="must not be negative"):
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


def test_try_acquire(pool: Pool, make_pool: MakePool, observer: Observer) -> None:
    """A try gives the hold of a free lock and None for a taken one, and leaves nothing."""
    lock = Lock("k", pool)
    held = lock.try_acquire()
    assert held is not None
    assert Lock("k", make_pool()).try_acquire() is None
    assert len(observer.children(lock.paths[0])) == 1
    held.release()
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


def test_release__other_thread(pool: Pool, observer: Observer) -> None:
    """A hold can be released by another thread."""
    lock = Lock("k", pool)
    held = lock.acquire()
    Runner(held.release).result()
    observer.wait_empty(lock.paths[0])
    assert current("k") is None


def test_release__other_thread_and_again(pool: Pool) -> None:
    """What another thread has released is not nested into: the next acquisition is a new one."""
    lock = Lock("k", pool)
    held = lock.acquire()
    Runner(held.release).result()
    with lock.acquire(timeout=60) as again:
        assert again.token > held.token


def test_check__released(pool: Pool) -> None:
    """A hold that was released is not held."""
    held = Lock("k", pool).acquire()
    held.release()
    with pytest.raises(NotHeld, match="has been released"):
        held.check()


@pytest.mark.shows("guarantees#re-entrancy-across-threads-tasks-and-processes")
@pytest.mark.usefixtures("unhurried")
def test_reentrant__same_thread(pool: Pool, observer: Observer) -> None:
    """A nested acquisition shares node and token, and the node goes with the last release, in any order."""
    lock = Lock("k", pool)
    outer = lock.acquire()
    with Lock("k", pool) as inner:
        assert (inner.node, inner.token) == (outer.node, outer.token)
        outer.release()
        inner.check()
        assert len(observer.children(lock.paths[0])) == 1
        with pytest.raises(LockTimeout):
            Runner(lambda: lock.acquire(timeout=0.5)).result()
    observer.wait_empty(lock.paths[0])
    assert held_stack() == []


@pytest.mark.usefixtures("unhurried")
def test_reentrant__other_pool(make_pool: MakePool) -> None:
    """Re-entrancy is for one pool: through another one the holder meets itself."""
    with Lock("k", make_pool()), pytest.raises(LockTimeout):
        Lock("k", make_pool()).acquire(timeout=0.5)


def test_not_reentrant(pool: Pool) -> None:
    """A lock that is not reentrant refuses its own holder at once, and a try gives None."""
    lock = Lock("k", pool, reentrant=False)
    with lock:
        with pytest.raises(LockConflict, match="reentrant=False") as caught:
            lock.acquire()
        assert caught.value.key == "k"
        assert lock.try_acquire() is None
    with lock:
        pass


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


def test_pool__closed_while_waiting(pool: Pool, make_pool: MakePool) -> None:
    """A caller that waits through a pool that is closed hears of it at once, and never hangs."""
    with Lock("k", make_pool()):
        waiting = Runner(lambda: Lock("k", pool).acquire())
        wait_until(lambda: pool.sessions() and pool.sessions()[0].listeners)
        wait_until(lambda: [t for t in pool.sessions()[0].listeners if isinstance(t, Contender) and node_of(t)])
        pool.close()
        assert isinstance(waiting.outcome(3), ZkLockError)


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
