"""Locks inside of locks of the same thread or task: which are shared, and which are refused."""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Callable

import pytest

from django_zklock.exceptions import LockConflict, LockLost, LockTimeout
from django_zklock.zk.held import Held, current, held_stack
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import READ, semaphore
from tests.toolbox.locks.contenders import RULES
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.threads import Runner
from tests.toolbox.timing import wait_until
from tests.toolbox.zookeeper.observer import Observer

pytest_plugins = ["tests.toolbox.slow_deadlines"]

ALLOWED = [
    *itertools.product(["exclusive", "write"], RULES),
    ("read", "read"),
    ("lease", "lease"),
]
REFUSED = [pair for pair in itertools.product(RULES, RULES) if pair not in ALLOWED]


def in_thread(lock: Lock, *, wait: bool) -> Held | None:
    return lock.acquire() if wait else lock.try_acquire()


async def in_task(lock: Lock, *, wait: bool) -> Held | None:
    return await (lock.aacquire() if wait else lock.atry_acquire())


# Locks that are all reentrant.


@pytest.mark.shows("guarantees#re-entrancy-across-threads-tasks-and-processes")
@pytest.mark.parametrize(("outer", "inner"), ALLOWED)
def test_reentrant(pool: Pool, observer: Observer, outer: str, inner: str) -> None:
    """A holder of at least as much shares its node, whatever is asked for, and the node goes with the last release."""
    lock, again = Lock("k", pool, rule=RULES[outer]), Lock("k", pool, rule=RULES[inner])
    first = lock.acquire(timeout=60)
    for second in (again.acquire(timeout=60), again.try_acquire()):
        assert second is not None
        assert (second.node, second.token, second.rule) == (first.node, first.token, lock.rule)
        assert second.lock is again
        observer.wait_count(lock.paths[0], 1)
        second.release(wait=True)
        first.check()
    with again as second:
        first.release(wait=True)
        second.check()
        # It is still what it was.
        other = Runner(lambda: Lock("k", pool, rule=RULES[outer]).try_acquire()).result()
        if outer in {"read", "lease"}:
            other.release()
        else:
            assert other is None
    assert held_stack() == []


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize(("outer", "inner"), REFUSED)
def test_reentrant__stronger_inside(pool: Pool, observer: Observer, outer: str, inner: str, wait: bool) -> None:
    """A holder of less would wait for itself: that is refused at once, a try too, and it goes on holding."""
    lock, stronger = Lock("k", pool, rule=RULES[outer]), Lock("k", pool, rule=RULES[inner])
    message = f"held by this very thread or task as {RULES[outer]}, and cannot be taken as {RULES[inner]} inside"
    with lock as held:
        with pytest.raises(LockConflict, match=message) as caught:
            in_thread(stronger, wait=wait)
        assert caught.value.key == "k"
        held.check()
        assert len(observer.children(lock.paths[0])) == 1

    async def main() -> None:
        async with lock as held:
            with pytest.raises(LockConflict, match=message):
                await in_task(stronger, wait=wait)
            held.check()

    asyncio.run(main())
    observer.wait_empty(lock.paths[0])


@pytest.mark.shows("faults#callers-name-different-limits")
@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize(("outer", "inner"), [(3, 1), (3, 2), (2, 1)])
def test_reentrant__lower_limit_inside(
    pool: Pool, make_pool: MakePool, observer: Observer, outer: int, inner: int, wait: bool
) -> None:
    """Inside a lease one of a lower limit is refused: others may hold beside the outer one, more than it allows."""
    lock = Lock("k", pool, rule=semaphore(outer))
    others = [Lock("k", make_pool(), rule=semaphore(outer)).acquire(timeout=60) for _ in range(outer - 1)]
    with lock as held:
        message = f"as lease of {outer}, and cannot be taken as lease of {inner} inside"
        with pytest.raises(LockConflict, match=message):
            in_thread(Lock("k", pool, rule=semaphore(inner)), wait=wait)
        assert len(observer.children(lock.paths[0])) == outer
        with Lock("k", pool, rule=semaphore(outer + 1)) as again:
            assert again.node == held.node
    for other in others:
        other.release(wait=True)


def test_reentrant__writer_waits_for_the_reader_inside(pool: Pool, make_pool: MakePool, observer: Observer) -> None:
    """A reader reads again although a writer waits by now: to wait for that one would be to wait for itself."""
    read = Lock("k", pool, rule=READ)
    with read as outer:
        writer = Lock("k", make_pool(), rule=RULES["write"])
        writing = Runner(lambda: writer.acquire(timeout=120))
        observer.wait_count(read.paths[0], 2)
        with read as inner:
            assert inner.node == outer.node
            assert writing.running
    with writing.result() as held:
        assert held.token > outer.token


def test_reentrant__lost(pool: Pool, observer: Observer) -> None:
    """No hold is nested in a lock that is lost, for that would be to share what is not held."""
    lock = Lock("k", pool, rule=RULES["write"])
    with pytest.raises(LockLost), lock as held:  # noqa: PT012
        observer.end_session(pool)
        wait_until(lambda: held.lost)
        for again in (lock, Lock("k", pool, rule=READ)):
            with pytest.raises(LockLost, match="the session expired"):
                again.try_acquire()
        raise held._loss_error()


# Not reentrant.


@pytest.mark.parametrize("kind", [kind for kind in RULES if kind != "lease"])
def test_not_reentrant(pool: Pool, observer: Observer, kind: str) -> None:
    """A lock that is not reentrant raises instead of waiting for itself, and a try is told that it is busy."""
    lock = Lock("k", pool, rule=RULES[kind], reentrant=False)
    with lock as held:
        with pytest.raises(LockConflict, match="reentrant=False: waiting would never end"):
            lock.acquire()
        assert lock.try_acquire() is None
        held.check()

    async def main() -> None:
        async with lock:
            with pytest.raises(LockConflict, match="reentrant=False"):
                await lock.aacquire()
            assert await lock.atry_acquire() is None

    asyncio.run(main())
    observer.wait_empty(lock.paths[0])


def test_not_reentrant__several_leases(pool: Pool, observer: Observer) -> None:
    """One thread may hold as many leases of a semaphore as there are, and is refused the next."""
    lock = Lock("k", pool, rule=semaphore(3), reentrant=False)
    leases = [lock.acquire(timeout=60), lock.acquire(timeout=60)]
    third = lock.try_acquire()
    assert third is not None
    assert len({held.node for held in (*leases, third)}) == 3
    observer.wait_count(lock.paths[0], 3)
    with pytest.raises(LockConflict, match="reentrant=False"):
        lock.acquire()
    assert lock.try_acquire() is None
    leases[0].release()
    with lock.acquire(timeout=60) as again:
        assert again.token > third.token
    for held in (leases[1], third):
        held.release(wait=True)
    assert observer.children(lock.paths[0]) == []


@pytest.mark.parametrize(("outer", "inner"), [(3, 1), (1, 3)])
def test_not_reentrant__limits_differ(pool: Pool, outer: int, inner: int) -> None:
    """The lowest limit counts, whether it is that of the lease which is held or of the one that is asked for."""
    with Lock("k", pool, rule=semaphore(outer), reentrant=False):
        lock = Lock("k", pool, rule=semaphore(inner), reentrant=False)
        with pytest.raises(LockConflict, match="reentrant=False"):
            lock.acquire()
        assert lock.try_acquire() is None


@pytest.mark.usefixtures("unhurried")
def test_not_reentrant__leases_of_others(pool: Pool, make_pool: MakePool) -> None:
    """That other owners hold the rest is no reason to refuse: those will let go."""
    lock = Lock("k", pool, rule=semaphore(2), reentrant=False)
    other = Runner(lambda: Lock("k", make_pool(), rule=semaphore(2)).acquire(timeout=60)).result()
    with lock:
        assert lock.try_acquire() is None
        with pytest.raises(LockTimeout):
            lock.acquire(timeout=0.2)
        timer = threading.Timer(0.05, other.release)
        timer.start()
        lock.acquire(timeout=120).release(wait=True)
        timer.join()


@pytest.mark.parametrize("kind", [kind for kind in RULES if kind != "lease"])
def test_not_reentrant__lease_inside(pool: Pool, kind: str) -> None:
    """A lease that is not reentrant is refused inside of every other kind."""
    with Lock("k", pool, rule=RULES[kind]):
        lock = Lock("k", pool, rule=semaphore(2), reentrant=False)
        with pytest.raises(LockConflict, match="reentrant=False"):
            lock.acquire()
        assert lock.try_acquire() is None


# Several keys.


def test_several__one_of_them_inside(pool: Pool, observer: Observer) -> None:
    """A holder of several keys may take each of them, and any of them together, in any order."""
    lock = Lock(["a", "b", "c"], pool)
    outer = lock.acquire(timeout=60)
    for keys in ("a", "b", ["c"], ["c", "a"], ["b", "c", "a"]):
        with Lock(keys, pool) as inner:
            assert inner.token == outer.token
            assert inner.keys == tuple(keys)
            assert inner.node.rpartition("/")[0] == inner.lock.paths[0]
            assert inner.node.rpartition("/")[2] in observer.children(inner.lock.paths[0])
            assert current(keys[0]) is inner
    with Lock("b", pool, rule=READ) as inner:
        outer.release(wait=True)
        inner.check()
        assert [len(observer.children(path)) for path in lock.paths] == [1, 1, 1]
    wait_until(lambda: not any(observer.children(path) for path in lock.paths))


@pytest.mark.parametrize("wait", [True, False])
@pytest.mark.parametrize(
    ("held", "wanted", "message"),
    [
        ([["a"]], ["a", "b"], "this very thread or task holds 'a' already, but not 'b'"),
        ([["a", "b"]], ["b", "c", "d"], "this very thread or task holds 'b' already, but not 'c' and 'd'"),
        ([["a"], ["b"]], ["c", "a", "b"], "this very thread or task holds 'a' and 'b' already, but not 'c'"),
        ([["a"], ["b"]], ["a", "b"], "this very thread or task holds 'a' and 'b' already, but not together"),
    ],
)
def test_several__some_held_already(
    pool: Pool, observer: Observer, held: list[list[str]], wanted: list[str], message: str, wait: bool
) -> None:
    """A holder of some of the keys is refused the others with them: two that do that could wait for each other."""
    lock = Lock(wanted, pool)
    for keys in held:
        Lock(keys, pool).acquire(timeout=60)
    with pytest.raises(LockConflict, match=message):
        in_thread(lock, wait=wait)
    held_keys = [key for keys in held for key in keys]
    assert [len(observer.children(path)) for path in lock.paths] == [int(key in held_keys) for key in wanted]


def test_several__not_reentrant(pool: Pool) -> None:
    """Several keys of which one is held are refused too."""
    with Lock("a", pool):
        lock = Lock(["b", "a"], pool, reentrant=False)
        with pytest.raises(LockConflict, match="reentrant=False"):
            lock.acquire()
        assert lock.try_acquire() is None


# Which code nests.


@pytest.mark.parametrize("release", [lambda held: held.release(), lambda held: Runner(held.release).result()])
def test_reentrant__released_in_any_order(pool: Pool, observer: Observer, release: Callable[[Held], None]) -> None:
    """Nested holds may be released in any order, by any thread; the last one takes the node with it."""
    for order in itertools.permutations(range(3)):
        nested = [Lock("k", pool, rule=RULES[kind]).acquire(timeout=60) for kind in ("write", "read", "write")]
        for number in order[:2]:
            release(nested[number])
            nested[order[2]].check()
        assert len(observer.children(nested[0].lock.paths[0])) == 1
        release(nested[order[2]])
        assert held_stack() == []
        observer.wait_empty(nested[0].lock.paths[0])
