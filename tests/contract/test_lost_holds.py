"""What becomes of a hold that is lost: it has no owner, unless a block of it is still open."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from asgiref.sync import sync_to_async

from django_zklock.exceptions import LockConflict, LockLost
from django_zklock.zk.held import Held, current, held_stack
from django_zklock.zk.lock import Lock
from django_zklock.zk.ops import actions
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import READ, semaphore
from tests.toolbox.locks.contenders import RULES
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.threads import Runner
from tests.toolbox.timing import wait_until
from tests.toolbox.zookeeper.observer import Observer

LONG = 30.0

Lose = Callable[[Held], None]


@pytest.fixture(params=["expired", "broken", "suspended"])
def pool_and_loss(request: pytest.FixtureRequest, make_pool: MakePool, observer: Observer) -> tuple[Pool, Lose]:
    """Return a pool, and what makes a hold of it lost, without its node or with one that stays, and connects again."""
    way: str = request.param
    pool = make_pool(strict=way == "suspended")

    def lose(held: Held) -> None:
        if way == "expired":
            observer.end_session(pool)
        elif way == "broken":
            break_here(pool, held)
        else:
            session: Any = held._possession.contender.session
            session.wire.drop("a test")
        wait_until(lambda: held.lost)
        wait_until(lambda: all(session.connected for session in pool.sessions()))

    return pool, lose


@pytest.fixture
def pool(pool_and_loss: tuple[Pool, Lose]) -> Pool:
    return pool_and_loss[0]


@pytest.fixture
def lose(pool_and_loss: tuple[Pool, Lose]) -> Lose:
    return pool_and_loss[1]


def break_here(pool: Pool, held: Held, why: str = "it hangs") -> None:
    actions.break_lock(pool, held.node, token=held.token, why=why, timeout=LONG)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if "event=forgotten" in each.getMessage()]


def acquire(lock: Lock) -> Held | None:
    return lock.acquire(timeout=LONG)


def try_acquire(lock: Lock) -> Held | None:
    return lock.try_acquire()


def enter(lock: Lock) -> Held | None:
    return lock.__enter__()


# Without a block.


@pytest.mark.shows("faults#a-hold-is-lost-and-never-released", "ownership#holds-that-are-lost")
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("again", [acquire, try_acquire, enter])
def test_forgotten(
    pool: Pool,
    make_pool: MakePool,
    lose: Lose,
    observer: Observer,
    caplog: pytest.LogCaptureFixture,
    reentrant: bool,
    again: Callable[[Lock], Held | None],
) -> None:
    """A caller that has lost a lock and not released it takes it anew, with one warning; the lost hold stays lost."""
    lock, other = Lock("k", pool, reentrant=reentrant, timeout=LONG), Lock("k", make_pool())
    lost = lock.acquire(timeout=LONG)
    lose(lost)
    held = again(lock)
    assert held is not None
    assert held.token > lost.token
    assert held_stack() == [held]
    (warning,) = warnings_of(caplog)
    assert f"key='k' token={lost.token} " in warning
    with pytest.raises(LockLost):
        lost.check()
    for _ in range(2):
        lost.release(wait=True)
        held.check()
        assert observer.children(lock.paths[0]) == [held.node.rpartition("/")[2]]
    assert Runner(other.try_acquire).result() is None
    held.release(wait=True)
    assert observer.children(lock.paths[0]) == []
    assert len(warnings_of(caplog)) == 1


@pytest.mark.shows("faults#a-hold-is-lost-and-never-released")
@pytest.mark.parametrize("way", ["aacquire", "atry_acquire", "block"])
async def test_forgotten__in_a_task(pool: Pool, lose: Lose, observer: Observer, way: str) -> None:
    """The same for a task, also for the blocking code that it waits for."""
    lock = Lock("k", pool)

    def take_and_release() -> int:
        with lock.acquire(timeout=LONG) as held:
            return held.token

    lost = await lock.aacquire(timeout=LONG)
    await asyncio.to_thread(lose, lost)
    async with contextlib.AsyncExitStack() as stack:
        if way == "block":
            held = await stack.enter_async_context(lock)
        else:
            found = await (lock.atry_acquire() if way == "atry_acquire" else lock.aacquire(timeout=LONG))
            assert found is not None
            held = await stack.enter_async_context(found)
        assert held.token > lost.token
        await lost.arelease()
        held.check()
        assert held_stack() == [held]

    lost = await lock.aacquire(timeout=LONG)
    await asyncio.to_thread(lose, lost)
    token = await sync_to_async(take_and_release)()
    assert token > lost.token
    assert held_stack() == []
    observer.wait_empty(lock.paths[0])


@pytest.mark.shows("ownership#holds-that-are-lost")
@pytest.mark.parametrize("wanted", [["b"], ["b", "c"], ["c", "a", "b"]])
def test_forgotten__several_keys(pool: Pool, lose: Lose, observer: Observer, wanted: list[str]) -> None:
    """Of several keys that were lost with one of them, each is taken anew, alone or beside others."""
    both = Lock(["a", "b"], pool)
    lost = both.acquire(timeout=LONG)
    lose(lost)
    with Lock(wanted, pool).acquire(timeout=LONG) as held:
        assert held.token > lost.token
        assert len(observer.children(pool.path("b"))) == 1
    for key in ("a", "b"):
        observer.wait_empty(pool.path(key))


@pytest.mark.parametrize(("first", "second"), [("read", "write"), ("write", "read"), ("exclusive", "read")])
def test_forgotten__other_kind(pool: Pool, lose: Lose, first: str, second: str) -> None:
    """A lost hold of one kind is in the way of none."""
    lost = Lock("k", pool, rule=RULES[first]).acquire(timeout=LONG)
    lose(lost)
    with Lock("k", pool, rule=RULES[second]).acquire(timeout=LONG) as held:
        assert held.rule == RULES[second]


def test_forgotten__leases(pool: Pool, lose: Lose, observer: Observer) -> None:
    """A lost lease of a semaphore leaves its room to the next."""
    lock = Lock("k", pool, rule=semaphore(2), reentrant=False)
    lost = [lock.acquire(timeout=LONG), lock.acquire(timeout=LONG)]
    lose(lost[0])
    leases = [lock.acquire(timeout=LONG)]
    if not lost[1].lost:
        assert lock.try_acquire() is None
        lost[1].release()
    leases.append(lock.acquire(timeout=LONG))
    observer.wait_count(lock.paths[0], 2)
    for lease in leases:
        lease.check()
        lease.release(wait=True)


def test_forgotten__nested(pool: Pool, lose: Lose, caplog: pytest.LogCaptureFixture) -> None:
    """Holds nested in one without blocks are forgotten together."""
    lock = Lock("k", pool)
    outer, inner = lock.acquire(timeout=LONG), lock.acquire()
    lose(inner)
    with lock.acquire(timeout=LONG) as held:
        assert held_stack() == [held]
        for lost in (outer, inner):
            with pytest.raises(LockLost):
                lost.check()
    assert len(warnings_of(caplog)) == 2


def test_forgotten__through_another_alias(pool: Pool, lose: Lose, observer: Observer) -> None:
    """The other alias of the same locks takes the lock anew too, and does not wait for the node that is left."""
    other = Pool("other", pool.options, tree=pool.tree)
    try:
        lost = Lock("k", pool).acquire(timeout=LONG)
        lose(lost)
        with Lock("k", other).acquire(timeout=LONG) as held:
            assert held.token > lost.token
            assert len(observer.children(pool.path("k"))) == 1
    finally:
        other.close()


@pytest.mark.shows("faults#a-hold-is-lost-and-never-released", "ownership#holds-that-are-forgotten")
def test_forgotten__nothing_refers_to_it(pool: Pool, lose: Lose, make_pool: MakePool) -> None:
    """A lost hold of a job that has ended is released with the last reference to it."""
    lock = Lock("k", pool)
    kept: list[Held] = []
    with ThreadPoolExecutor(1) as executor:
        executor.submit(lambda: kept.append(lock.acquire(timeout=LONG))).result(LONG)
        lose(kept[0])
    kept.clear()
    gc.collect()
    with Lock("k", make_pool()).acquire(timeout=LONG):
        pass


@pytest.mark.shows("faults#a-hold-is-forgotten", "ownership#holds-that-are-forgotten")
def test_forgotten__before_its_loss(make_pool: MakePool) -> None:
    """A hold that nothing refers to keeps its node until it is lost, and no longer."""
    pool = make_pool(strict=True)
    lock, other = Lock("k", pool), Lock("k", make_pool())
    with pytest.warns(ResourceWarning, match="lock 'k' was never released"):  # noqa: PT031
        Runner(lock.acquire).result()
        gc.collect()
    assert other.try_acquire() is None
    pool.sessions()[0].wire.drop("a test")
    with other.acquire(timeout=LONG):
        pass


# In a block.


@contextlib.contextmanager
def entered(lock: Lock) -> Iterator[Held]:
    with lock as held:
        yield held


@contextlib.contextmanager
def acquired(lock: Lock) -> Iterator[Held]:
    with lock.acquire(timeout=LONG) as held:
        yield held


@contextlib.contextmanager
def nested(lock: Lock) -> Iterator[Held]:
    # Nothing but the block inside is open.
    outer = lock.acquire(timeout=LONG)
    with Lock(lock.key, lock.pool, rule=lock.rule):
        yield outer


@pytest.mark.shows("faults#a-hold-is-lost-and-never-released", "ownership#holds-that-are-lost")
@pytest.mark.parametrize("reentrant", [True, False])
@pytest.mark.parametrize("block", [entered, acquired, nested])
def test_block(
    pool: Pool,
    lose: Lose,
    observer: Observer,
    caplog: pytest.LogCaptureFixture,
    reentrant: bool,
    block: Callable[[Lock], contextlib.AbstractContextManager[Held]],
) -> None:
    """Inside of a block whose lock is lost no code takes it, nested or anew; after the block it is free to take."""
    lock = Lock("k", pool)
    with contextlib.suppress(LockLost), block(lock) as lost:
        lose(lost)
        for again in (Lock("k", pool, reentrant=reentrant), Lock(["k", "other"], pool, reentrant=reentrant)):
            for take in (acquire, try_acquire, enter):
                with pytest.raises(LockLost, match=r"lock 'k' was lost .* a block of it is open here: leave that"):
                    take(again)
        assert current("k") is not None
    assert warnings_of(caplog) == []
    with Lock("k", pool, reentrant=reentrant).acquire(timeout=LONG) as held:
        assert held.token > lost.token
        assert held_stack() == [held]
    observer.wait_empty(lock.paths[0])


async def test_block__in_a_task(pool: Pool, lose: Lose) -> None:
    """The same in a task, and in the blocking code that it waits for."""
    lock = Lock("k", pool)

    with pytest.raises(LockLost):  # noqa: PT012
        async with lock as lost:
            await asyncio.to_thread(lose, lost)
            for take in (lock.aacquire, lock.atry_acquire, Lock("k", pool, reentrant=False).atry_acquire):
                with pytest.raises(LockLost):
                    await take()
            with pytest.raises(LockLost):
                await sync_to_async(lock.try_acquire)()
    async with await lock.aacquire(timeout=LONG) as held:
        assert held.token > lost.token
    with pytest.raises(LockLost):  # noqa: PT012
        async with await lock.aacquire() as lost:
            await asyncio.to_thread(lose, lost)
            with pytest.raises(LockLost):
                await lock.atry_acquire()


@pytest.mark.shows("ownership#holds-that-are-lost")
def test_block__of_a_generator(pool: Pool, lose: Lose) -> None:
    """A generator that stands in its block is told of the loss when it goes on, and keeps the block open until then."""

    def generate() -> Iterator[Held]:
        with Lock("k", pool) as held:
            yield held

    generator = generate()
    lost = next(generator)
    lose(lost)
    with pytest.raises(LockLost):
        Lock("k", pool).try_acquire()
    with pytest.raises(LockLost):
        next(generator)
    with Lock("k", pool).acquire(timeout=LONG):
        pass


def test_block__of_another_thread(pool: Pool, lose: Lose) -> None:
    """A hold that was given to another thread, whose block it is, is forgotten when that block ends."""
    lock = Lock("k", pool)
    lost = lock.acquire(timeout=LONG)
    lost.__enter__()
    lose(lost)
    with pytest.raises(LockLost):
        lock.try_acquire()

    def leave() -> None:
        with pytest.raises(LockLost):
            lost.__exit__(None, None, None)

    Runner(leave).result()
    with lock.acquire(timeout=LONG):
        pass


def test_block__leases(pool: Pool, lose: Lose) -> None:
    """The room that a semaphore has beside a lost lease is free; where there is none, the loss is in the way."""
    lock = Lock("k", pool, rule=semaphore(2), reentrant=False)
    with contextlib.suppress(LockLost), lock as lost:
        lose(lost)
        with lock.acquire(timeout=LONG), pytest.raises(LockLost):
            lock.try_acquire()


# By a break from here.


@pytest.mark.shows("guarantees#a-lost-lock-is-reported")
@pytest.mark.parametrize("where", ["the same pool", "another alias"])
@pytest.mark.parametrize("budget", [1_000_000, 1], ids=["home", "overflow"])
@pytest.mark.parametrize("keys", [["k"], ["j", "k"]], ids=["one", "several"])
def test_break__own_process(make_pool: MakePool, observer: Observer, where: str, budget: int, keys: list[str]) -> None:
    """A holder in the process that breaks its lock knows its loss and the reason when that returns."""
    pool = make_pool(budget=budget)
    other = Pool("other", pool.options, tree=pool.tree)
    try:
        with Lock("x", pool), contextlib.suppress(LockLost), Lock(keys, pool) as held:
            by = pool if where == "the same pool" else other
            actions.revoke(by, held.node, "soon", by="ada", timeout=LONG)
            assert held.revoked == "asked by ada: soon"
            held.check()
            actions.break_lock(by, held.node, token=held.token, why="it\nhangs", by="ada", timeout=LONG)
            with pytest.raises(LockLost, match=r"its node was deleted: broken by ada: it\\nhangs;"):
                held.check()
            raise held._loss_error()
        for key in keys:
            observer.wait_empty(pool.path(key))
    finally:
        other.close()


def test_break__own_waiter(make_pool: MakePool, observer: Observer) -> None:
    """A waiter whose node is deleted by its own process joins again, and is granted the lock."""
    pool = make_pool()
    lock = Lock("k", pool)
    with lock.acquire(timeout=LONG) as held:

        def wait() -> int:
            with lock.acquire(timeout=LONG) as mine:
                return mine.token

        waiter = Runner(wait)
        first, second = observer.wait_count(lock.paths[0], 2)
        node = f"{lock.paths[0]}/{second}"
        token = observer.client.exists(node).czxid
        actions.break_lock(pool, node, token=token, why="it hangs", timeout=LONG)
        held.check()
        wait_until(lambda: second not in (found := observer.children(lock.paths[0])) and len(found) == 2)
        assert first in observer.children(lock.paths[0])
    assert waiter.result() > token


def test_break__then_try_at_once(make_pool: MakePool) -> None:
    """A caller that breaks its own lock can try for it at once, and has it."""
    pool = make_pool()
    lock = Lock("k", pool, reentrant=False)
    for _ in range(20):
        lost = lock.try_acquire()
        assert lost is not None
        break_here(pool, lost)
        held = lock.try_acquire()
        assert held is not None
        with held:
            held.check()


def test_log__names_no_loss_of_what_is_held(make_pool: MakePool, caplog: pytest.LogCaptureFixture) -> None:
    """Nested acquisitions of a lock that is held warn of nothing."""
    pool = make_pool()
    with caplog.at_level(logging.WARNING), Lock("k", pool) as held, Lock("k", pool, rule=READ):
        held.check()
        with pytest.raises(LockConflict):
            Lock("k", pool, reentrant=False).acquire()
    assert warnings_of(caplog) == []
