"""Locks to read and to write, semaphores, and how kinds meet on one key."""

from __future__ import annotations

import asyncio
import itertools

import pytest

from django_zklock.exceptions import LockTimeout
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import EXCLUSIVE, READ, WRITE, semaphore
from tests.contract.cancellation import BEFORE, HELD, WAITING, Canceller, nothing_left
from tests.toolbox.locks.contenders import RULES, Caller, Contenders
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.threads import Runner
from tests.toolbox.timing import scaled, wait_until
from tests.toolbox.zookeeper.observer import Observer

pytest_plugins = ["tests.toolbox.slow_deadlines"]

TOGETHER = [("read", "read"), ("lease", "lease")]
# Seconds, on a machine that is busy with other things.
LONG = scaled(20)
PAIRS = [(a, b, (a, b) in TOGETHER) for a, b in itertools.product(RULES, RULES)]


# Which kinds keep each other out.


@pytest.mark.shows("guarantees#at-most-one-holder-whose-lease-runs", "faults#threads-share-a-session")
@pytest.mark.parametrize(("first", "second", "together"), PAIRS)
def test_kinds__two_of_them(contenders: Contenders, first: str, second: str, together: bool) -> None:
    """Readers share, the leases of a semaphore do up to its limit, and whatever else meets on a key takes turns."""
    one = contenders.join(RULES[first])
    two = contenders.join(RULES[second])
    contenders.expect(*(one, two) if together else (one,))
    one.leave()
    contenders.expect(two)
    two.leave()
    assert contenders.names() == []


@pytest.mark.parametrize(("first", "second", "together"), PAIRS)
def test_kinds__try(make_pool: MakePool, observer: Observer, first: str, second: str, together: bool) -> None:
    """A try gets what may be held together with what is held, or leaves the queue as it was."""
    holding, trying = (Lock("k", make_pool(), rule=RULES[kind]) for kind in (first, second))
    with holding.acquire(timeout=60) as held:
        node = held.node.rpartition("/")[2]
        got = Runner(trying.try_acquire).result()
        assert (got is not None) is together
        if got is None:
            assert observer.children(holding.paths[0]) == [node]
            with pytest.raises(LockTimeout, match="is taken; held by pid"):
                Runner(lambda: trying.acquire(timeout=0)).result()
        else:
            got.release(wait=True)
    observer.wait_empty(holding.paths[0])


@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("kind", RULES)
def test_kinds__timeout(make_pool: MakePool, observer: Observer, kind: str) -> None:
    """A wait of any kind that runs out names a holder, and leaves no node."""
    lock = Lock("k", make_pool(), rule=RULES[kind])
    with Lock("k", make_pool()).acquire(timeout=60):
        with pytest.raises(LockTimeout, match=r"was not granted within 0\.2 s; held by pid"):
            Runner(lambda: lock.acquire(timeout=0.2)).result()
        observer.wait_count(lock.paths[0], 1)


def expect_at_the_end(contenders: Contenders, holder: Caller, waiting: Caller, last: Caller) -> None:
    """Fail unless a waiter whose node is gone gets its turn behind the others."""
    contenders.follow(waiting)
    contenders.expect(holder)
    holder.leave()
    contenders.expect(last)
    last.leave()
    waiting.leave()
    assert contenders.names() == []


@pytest.mark.shows("faults#a-session-ends")
@pytest.mark.parametrize("kind", RULES)
def test_kinds__session_ended_while_waiting(make_pool: MakePool, observer: Observer, kind: str) -> None:
    """A waiter of any kind whose session ends comes back at the end of the queue, and gets its turn."""
    contenders = Contenders(observer, make_pool)
    holder, waiting, last = contenders.join_all(EXCLUSIVE, RULES[kind], EXCLUSIVE)
    observer.end_session(waiting.pool)
    expect_at_the_end(contenders, holder, waiting, last)


@pytest.mark.shows("guarantees#first-come-first-served")
@pytest.mark.parametrize("kind", RULES)
def test_kinds__node_deleted_while_waiting(contenders: Contenders, kind: str) -> None:
    """The same when an operator deletes its node."""
    holder, waiting, last = contenders.join_all(EXCLUSIVE, RULES[kind], EXCLUSIVE)
    contenders.observer.client.delete(f"{contenders.path}/{waiting.node}")
    expect_at_the_end(contenders, holder, waiting, last)


# In asyncio.


@pytest.mark.parametrize(("kind", "together"), [("exclusive", 1), ("write", 1), ("read", 5), ("lease", 2)])
def test_kinds__tasks(pool: Pool, observer: Observer, kind: str, together: int) -> None:
    """Of the tasks of one loop as many are inside as the kind allows, and all of them come in."""
    lock = Lock("k", pool, rule=RULES[kind])
    inside, most, tokens = 0, 0, []

    async def work(everybody: asyncio.Event) -> None:
        nonlocal inside, most
        async with lock as held:
            inside += 1
            most = max(most, inside)
            tokens.append(held.token)
            await everybody.wait()
            inside -= 1

    async def main() -> None:
        everybody = asyncio.Event()
        tasks = [asyncio.create_task(work(everybody)) for _ in range(5)]
        await asyncio.to_thread(observer.wait_count, lock.paths[0], 5)
        await asyncio.to_thread(wait_until, lambda: inside == together)
        one_more = await lock.atry_acquire()
        assert (one_more is not None) is (kind == "read")
        if one_more is not None:
            await one_more.arelease()
        everybody.set()
        await asyncio.gather(*tasks)

    asyncio.run(asyncio.wait_for(main(), 30))
    assert most == together
    assert len(set(tokens)) == 5
    observer.wait_empty(lock.paths[0])


@pytest.mark.shows("faults#an-exception-is-raised-at-any-instruction")
@pytest.mark.parametrize("kind", RULES)
def test_kinds__cancelled(pool: Pool, make_pool: MakePool, observer: Observer, kind: str) -> None:
    """A task that is cancelled before it has its place, in its wait, or with the news of its grant leaves no node."""
    lock = Lock("k", pool, rule=RULES[kind])
    # The parents are there, and the session is.
    lock.acquire(timeout=LONG).release(wait=True)
    canceller = Canceller(lock)
    asyncio.run(canceller.cancel("asleep", BEFORE))
    observer.wait_empty(lock.paths[0])
    asyncio.run(canceller.cancel("woken", HELD))
    observer.wait_empty(lock.paths[0])
    blocker = Lock("k", make_pool()).acquire(timeout=LONG)
    asyncio.run(canceller.cancel("asleep", BEFORE))
    observer.wait_count(lock.paths[0], 1)
    asyncio.run(canceller.cancel("asleep", WAITING))
    observer.wait_count(lock.paths[0], 1)
    asyncio.run(canceller.cancel_with_the_grant(blocker))
    observer.wait_empty(lock.paths[0])
    wait_until(lambda: nothing_left(pool))


# Read and write.


def test_read__waits_for_the_last_writer(contenders: Contenders) -> None:
    """The queue is fair: a reader behind a waiting writer waits, although it could join those that read."""
    r1, r2, w1, r3, r4, w2, r5 = contenders.join_all(READ, READ, WRITE, READ, READ, WRITE, READ)
    contenders.expect(r1, r2)
    r2.leave()
    contenders.expect(r1)
    r1.leave()
    contenders.expect(w1)
    w1.leave()
    contenders.expect(r3, r4)
    r3.leave()
    r4.leave()
    contenders.expect(w2)
    w2.leave()
    contenders.expect(r5)
    r5.leave()


@pytest.mark.parametrize("order", list(itertools.permutations(range(3))))
def test_write__waits_for_every_reader(contenders: Contenders, order: tuple[int, ...]) -> None:
    """A writer holds when the last of the readers before it is gone, in whatever order they go."""
    readers = contenders.join_all(READ, READ, READ)
    writer = contenders.join(WRITE)
    for number in order:
        contenders.expect(*(reader for reader in readers if reader.node in contenders.names()))
        readers[number].leave()
    contenders.expect(writer)
    writer.leave()


def test_write__gives_up(contenders: Contenders) -> None:
    """Readers that stood behind a writer join the others at once when it gives up."""
    r1 = contenders.join(READ)
    writer = contenders.join_for_a_while(WRITE)
    r2, r3 = contenders.join_all(READ, READ)
    contenders.expect(r1)
    writer.end()
    contenders.expect(r1, r2, r3)
    for reader in (r1, r2, r3):
        reader.leave()


# Semaphores.


def test_semaphore__order_of_waiting(contenders: Contenders) -> None:
    """Leases are given in the order of the queue, whether the oldest or the newest of them comes back."""
    joined = contenders.join_all(*[semaphore(2)] * 8)
    inside, waiting = joined[:2], joined[2:]
    for number in range(6):
        contenders.expect(*inside)
        inside.pop(number % 2).leave()
        inside.append(waiting.pop(0))
    contenders.expect(*inside)
    for held in inside:
        held.leave()


@pytest.mark.shows("faults#a-waiter-dies-when-it-is-its-turn")
def test_semaphore__several_places_at_once(make_pool: MakePool, observer: Observer) -> None:
    """When a process that holds several leases ends, as many of the waiters come in."""
    contenders = Contenders(observer, make_pool)
    gone = make_pool()
    for _ in range(3):
        contenders.join(semaphore(3), gone)
    waiters = contenders.join_all(*[semaphore(3)] * 4)
    gone.close()
    contenders.expect(*waiters[:3])
    for held in waiters:
        held.leave()


def test_semaphore__waiter_gives_up(contenders: Contenders) -> None:
    """A waiter that gives up in the middle of the queue keeps no contender behind it from coming in."""
    holders = contenders.join_all(*[semaphore(2)] * 2)
    middle = contenders.join_for_a_while(semaphore(2))
    waiters = contenders.join_all(*[semaphore(2)] * 2)
    middle.end()
    contenders.expect(*holders)
    holders[1].leave()
    contenders.expect(holders[0], waiters[0])
    holders[0].leave()
    contenders.expect(*waiters)
    for held in waiters:
        held.leave()


@pytest.mark.shows("faults#callers-name-different-limits")
@pytest.mark.parametrize(
    ("limits", "goes", "inside"),
    [
        # Each line: the limits of the contenders in the order of the queue; which ones let go; which ones hold then.
        ([2, 2, 1], [0, 1], [2]),
        ([1, 3, 1], [0, 1], [2]),
        ([3, 3, 3, 2], [2, 1], [0, 3]),
        ([2, 2, 3, 1], [0, 2, 1], [3]),
        # The one before the last has the lower limit, and the last does not overtake it.
        ([3, 3, 3, 1, 3], [0, 1], [2]),
        ([3, 3, 3, 1, 3], [0, 1, 2], [3]),
        # A holder keeps its limit, whatever those behind it allow.
        ([2, 9, 9, 9, 9], [], [0, 1]),
        ([2, 9, 9, 9, 9], [0], [1, 2, 3, 4]),
        # The one before the last has the higher limit, and holds although the last must wait.
        ([1, 5, 5, 5, 5, 2], [0, 1, 2, 3], [4, 5]),
        # The one before the last waits at first; then it comes in, and then the last may too.
        ([4, 4, 4, 4, 4, 2], [0, 1, 2, 3], [4, 5]),
    ],
)
def test_semaphore__limits_differ(
    contenders: Contenders, limits: list[int], goes: list[int], inside: list[int]
) -> None:
    """A holder is one of no more than its limit; the waiters come in by turns as soon as all limits allow it."""
    joined = contenders.join_all(*map(semaphore, limits))
    for number in goes:
        joined[number].leave()
    contenders.expect(*(joined[number] for number in inside))
    left = [number for number in range(len(joined)) if number not in goes]
    for number in left:
        joined[number].leave()
    assert contenders.names() == []


def test_semaphore__exclusive_gives_up(contenders: Contenders) -> None:
    """When an exclusive lock gives up before its turn, leases behind it come in as far as the limit allows."""
    a, b = contenders.join_all(semaphore(3), semaphore(3))
    alone = contenders.join_for_a_while(EXCLUSIVE)
    c, d = contenders.join_all(semaphore(3), semaphore(3))
    contenders.expect(a, b)
    alone.end()
    contenders.expect(a, b, c)
    b.leave()
    contenders.expect(a, c, d)
    for held in (a, c, d):
        held.leave()


def test_kinds__all_in_one_queue(contenders: Contenders) -> None:
    """All kinds in one queue come in by turns, as many together as their kind allows."""
    kinds = ["exclusive", "read", "read", "lease", "lease", "write", "lease", "exclusive", "read"]
    e1, r1, r2, l1, l2, w1, l3, e2, r3 = contenders.join_all(*(RULES[kind] for kind in kinds))
    for together in ([e1], [r1, r2], [l1, l2], [w1], [l3], [e2], [r3]):
        contenders.expect(*together)
        for held in together:
            held.leave()
    assert contenders.names() == []
