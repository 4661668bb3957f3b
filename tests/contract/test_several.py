"""Several keys taken together: all of them or none."""

from __future__ import annotations

import asyncio
import bisect
import itertools
import random
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_zklock.exceptions import LockTimeout, ZooKeeperUnavailable
from django_zklock.zk.held import current
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work
from django_zklock.zk.pool import Pool
from tests.contract.cancellation import BEFORE, HELD, WAITING, Canceller, nothing_left
from tests.toolbox.locks.contenders import RULES
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.network.tcp_proxy import DOWN, UP, Proxy, requests
from tests.toolbox.threads import Runner, waiting_in
from tests.toolbox.timing import LONG_SESSION, scaled, wait_until
from tests.toolbox.zookeeper.any_server import Server
from tests.toolbox.zookeeper.observer import Observer

pytest_plugins = ["tests.toolbox.slow_deadlines"]

MULTI = 14


def counts(observer: Observer, lock: Lock) -> list[int]:
    """Say how many nodes stand in each queue of ``lock``."""
    return [len(observer.children(path)) for path in lock.paths]


def wait_counts(observer: Observer, lock: Lock, *expected: int) -> None:
    wait_until(lambda: counts(observer, lock) == list(expected), what=f"{expected} nodes")


def nodes_of(pool: Pool, observer: Observer, lock: Lock) -> list[str]:
    """Return the nodes in the queues of ``lock`` that are of the session of ``pool``."""
    nodes = [f"{path}/{name}" for path in lock.paths for name in observer.children(path)]
    stats = {node: observer.client.exists(node) for node in nodes}
    return [node for node, stat in stats.items() if stat and stat.ephemeralOwner == pool.sessions()[0].id]


# Acquiring.


@pytest.mark.parametrize("kind", RULES)
def test_acquire(pool: Pool, observer: Observer, kind: str) -> None:
    """One transaction makes a node in each queue, parents and all; it is the token of every key."""
    lock = Lock(["b", "a", "c"], pool, rule=RULES[kind])
    with lock as held:
        assert (held.key, held.keys) == ("b, a, c", ("b", "a", "c"))
        assert held.node.startswith(lock.paths[0])
        nodes = [f"{path}/{name}" for path in lock.paths for name in observer.children(path)]
        assert [observer.client.exists(node).czxid for node in nodes] == [held.token] * 3
        assert held.tokens == {"a": held.token, "b": held.token, "c": held.token}
        assert current("a") is current("c") is held
        assert current("d") is None
    wait_counts(observer, lock, 0, 0, 0)
    with lock.acquire(timeout=60) as again:
        assert again.token > held.token


def test_acquire__one_in_a_list(pool: Pool, observer: Observer) -> None:
    """A list of one key is that key."""
    with Lock(["a"], pool) as held:
        assert held.tokens == {"a": held.token}
        assert Runner(Lock("a", pool).try_acquire).result() is None
    observer.wait_empty(held.lock.paths[0])


def test_acquire__many(pool: Pool, observer: Observer) -> None:
    """A hundred keys with long names go together too."""
    lock = Lock([f"{number}-{'/' * 400}" for number in range(100)], pool)
    with lock.acquire(timeout=120) as held:
        assert set(held.tokens.values()) == {held.token}
        assert set(counts(observer, lock)) == {1}
        # The name has no room for the whole key, so the queue's node keeps it.
        assert {observer.client.get(path)[0].decode() for path in lock.paths} == set(lock.keys)
    wait_counts(observer, lock, *[0] * 100)


def long_keys(count: int) -> list[str]:
    """Return so many keys whose names are as long as names get."""
    return [f"{number:0200}" for number in range(count)]


def most_keys(pool: Pool) -> int:
    """Find how many of these one lock may have."""

    def is_too_many(count: int) -> bool:
        try:
            Lock(long_keys(count), pool)
        except ValueError:
            return True
        return False

    return bisect.bisect_left(range(3_000), True, key=is_too_many) - 1


@pytest.mark.shows("faults#more-keys-than-a-server-reads")
def test_acquire__as_many_as_fit(make_pool: MakePool, observer: Observer) -> None:
    """A thousand keys fit in one request, whatever they and the caller are; other locks do not notice it."""
    # Neither a strict session nor the request for so many nodes may be over soon.
    pool = make_pool(strict=True, session_timeout=60.0, connect_timeout=60.0)
    count = most_keys(pool)
    assert count >= 1000
    work = Work(kind="\0" * 300, name="\0" * 300, id="\0" * 300)
    lock = Lock(long_keys(count), pool, work=lambda: work)
    with Lock("other", pool) as other, lock.acquire(timeout=60) as held:
        assert set(held.tokens.values()) == {held.token}
        assert counts(observer, lock) == [1] * count
        other.check()
        held.release(wait=True)
        other.check()
        assert [session.epoch for session in pool.sessions()] == [0]
    wait_counts(observer, lock, *[0] * count)


@pytest.mark.shows("faults#more-keys-than-a-server-reads")
def test_lock__too_many_keys(pool: Pool) -> None:
    """More keys than fit in one request are refused before anything is sent, with the limit and what they take."""
    count = most_keys(pool) + 1
    message = rf"a lock of {count} keys is too large: .* takes 1[0-9]{{6}} bytes, .* no request of more than 1048575$"
    with pytest.raises(ValueError, match=message):
        Lock(long_keys(count), pool)
    assert pool.sessions() == []


@pytest.mark.parametrize("order", list(itertools.permutations("abc")))
def test_acquire__any_order(make_pool: MakePool, order: tuple[str, ...]) -> None:
    """A caller that names the same keys, or some of them, in another order is kept out; other keys are free."""
    pool = make_pool(size=3)
    with Lock(["a", "b", "c"], make_pool()).acquire(timeout=60):
        for keys in (order, order[:2], order[2:], [*order, "d"]):
            assert Runner(Lock(keys, pool).try_acquire).result() is None
        free = Runner(Lock(["d", "e"], pool).try_acquire).result()
        free.release(wait=True)
    with Lock(order, pool).acquire(timeout=60) as held:
        assert held.keys == order


def test_acquire__waits_for_the_last_of_them(make_pool: MakePool, observer: Observer) -> None:
    """A waiter for several keys keeps its place in every queue, and holds when it is first in all of them."""
    a, b = Lock("a", make_pool()).acquire(timeout=60), Lock("b", make_pool()).acquire(timeout=60)
    both = Lock(["a", "b"], make_pool())
    waiting = waiting_in(both)
    wait_counts(observer, both, 2, 2)
    behind = waiting_in(Lock("a", make_pool()))
    wait_counts(observer, both, 3, 2)
    a.release(wait=True)
    # It is first in the queue of "a", so the one behind it is not let in.
    assert Runner(Lock("a", make_pool()).try_acquire).result() is None
    assert waiting.running
    assert behind.running
    b.release(wait=True)
    held = waiting.result()
    assert behind.running
    held.release(wait=True)
    with behind.result() as later:
        assert later.token > held.token
    wait_counts(observer, both, 0, 0)


def test_acquire__broken_at_the_head_of_a_queue(make_pool: MakePool, observer: Observer) -> None:
    """A waiter whose node is deleted where it was first, while it waits in another queue, begins anew in both."""
    b = Lock("b", make_pool()).acquire(timeout=60)
    pool = make_pool(session_timeout=LONG_SESSION)
    both = Lock(["a", "b"], pool)
    waiting = waiting_in(both)
    wait_counts(observer, both, 1, 2)
    (node,) = (each for each in nodes_of(pool, observer, both) if each.startswith(both.paths[0]))
    behind = waiting_in(Lock("a", make_pool()))
    wait_counts(observer, both, 2, 2)
    observer.client.delete(node)
    b.release(wait=True)
    a = behind.result()
    # Long before its next heartbeat it is behind the holder.
    wait_counts(observer, both, 2, 1)
    assert waiting.running
    a.release(wait=True)
    with waiting.result() as held:
        assert held.token > a.token
    wait_counts(observer, both, 0, 0)


def test_acquire__kinds_on_several_keys(make_pool: MakePool, observer: Observer) -> None:
    """The rule of the lock is that of each of its keys."""
    read, write, leases = (Lock(["a", "b"], make_pool(), rule=RULES[kind]) for kind in ("read", "write", "lease"))
    one_reader = Lock("b", make_pool(), rule=RULES["read"]).acquire(timeout=60)
    reader = Runner(lambda: read.acquire(timeout=60)).result()
    writer, lease = waiting_in(write), None
    wait_counts(observer, read, 2, 3)
    lease = waiting_in(leases)
    wait_counts(observer, read, 3, 4)
    reader.release(wait=True)
    assert writer.running
    one_reader.release()
    held = writer.result()
    assert lease.running
    held.release()
    first = lease.result()
    second = Runner(leases.try_acquire).result()
    assert Runner(leases.try_acquire).result() is None
    for each in (first, second):
        each.release(wait=True)
    wait_counts(observer, read, 0, 0)


@pytest.mark.shows("faults#several-keys-in-any-order")
def test_acquire__no_deadlock(make_pool: MakePool, observer: Observer) -> None:
    """Six threads of two processes take random keys in random order, and all come to their end, alone on each key."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - shown if the test fails
    pools = [make_pool(), make_pool(size=2)]
    alone = {key: threading.Lock() for key in "abcd"}
    grants: dict[str, list[int]] = {key: [] for key in alone}

    def work(number: int) -> None:
        chance = random.Random(seed + number)
        for _ in range(25):
            keys = chance.sample(sorted(alone), chance.randint(1, 4))
            with Lock(keys, pools[number % 2]).acquire(timeout=120) as held:
                for key in keys:
                    assert alone[key].acquire(blocking=False), key
                    grants[key].append(held.tokens[key])
                for key in keys:
                    alone[key].release()

    for runner in [Runner(lambda number=number: work(number)) for number in range(6)]:  # type: ignore[misc]
        runner.result(60)
    assert all(tokens == sorted(set(tokens)) for tokens in grants.values())
    wait_counts(observer, Lock("abcd", pools[0]), 0)
    wait_counts(observer, Lock([*alone], pools[0]), 0, 0, 0, 0)


@pytest.mark.parametrize(
    ("keys", "error", "message"),
    [
        (["a", "b", "a"], ValueError, "cannot be taken twice at once, got 'a' more than once"),
        ([], ValueError, "at least one key"),
        (["a", ""], ValueError, "must not be empty"),
        (["a", 5], TypeError, "must be a str, got int"),
        ({"a", "b"}, TypeError, "must be a str, got set"),
        (None, TypeError, "must be a str, got NoneType"),
    ],
)
def test_lock__bad_keys(pool: Pool, keys: Any, error: type[Exception], message: str) -> None:
    """Keys that cannot be taken together are refused before anything is sent."""
    with pytest.raises(error, match=message):
        Lock(keys, pool)
    assert pool.sessions() == []


# Not being granted.


def changes(observer: Observer, path: str) -> int | None:
    """Count what has come and gone in a queue; None if it is reaped."""
    stat = observer.client.exists(path)
    return None if stat is None else int(stat.cversion)


def test_try__busy(make_pool: MakePool, observer: Observer) -> None:
    """A try that meets one taken key writes nothing: not in its queue, and not in those of the others."""
    trying = Lock(["new", "a", "b"], make_pool())
    free = Lock("a", make_pool()).acquire(timeout=60)
    with Lock("b", make_pool()).acquire(timeout=60):
        free.release(wait=True)
        before = [changes(observer, path) for path in trying.paths[1:]]
        assert Runner(trying.try_acquire).result() is None
        with pytest.raises(LockTimeout, match=r"lock 'new, a, b' is taken; held by pid"):
            Runner(lambda: trying.acquire(timeout=0)).result()
        assert observer.client.exists(trying.paths[0]) is None
        after = [changes(observer, path) for path in trying.paths[1:]]
        assert after[1] == before[1]
        # The empty queue may have been reaped meanwhile.
        assert after[0] in {before[0], None}


@pytest.mark.shows("faults#an-exception-is-raised-at-any-instruction")
def test_aacquire__cancelled(pool: Pool, make_pool: MakePool, observer: Observer) -> None:
    """Cancelling before the nodes are there, while waiting, or with the news of the grant leaves no node anywhere."""
    lock = Lock(["a", "b"], pool)
    lock.acquire(timeout=120).release(wait=True)
    canceller = Canceller(lock)
    asyncio.run(canceller.cancel("asleep", BEFORE))
    wait_counts(observer, lock, 0, 0)
    asyncio.run(canceller.cancel("woken", HELD))
    wait_counts(observer, lock, 0, 0)
    blocker = Lock("b", make_pool()).acquire(timeout=120)
    asyncio.run(canceller.cancel("asleep", BEFORE))
    wait_counts(observer, lock, 0, 1)
    asyncio.run(canceller.cancel("asleep", WAITING))
    wait_counts(observer, lock, 0, 1)
    asyncio.run(canceller.cancel_with_the_grant(blocker))
    wait_counts(observer, lock, 0, 0)
    wait_until(lambda: nothing_left(pool))


# Losing.


@pytest.mark.shows("faults#several-keys-in-any-order")
@pytest.mark.parametrize("place", [0, 1])
@pytest.mark.parametrize("taken", ["a", "b"])
def test_node_deleted__waiting(make_pool: MakePool, observer: Observer, place: int, taken: str) -> None:
    """A waiter that loses its place in one queue goes to the end of all, so that no two can wait for each other."""
    holder = Lock(taken, make_pool()).acquire(timeout=60)
    pool = make_pool()
    lock = Lock(["a", "b"], pool)
    waiting = waiting_in(lock)
    wait_until(lambda: sum(counts(observer, lock)) == 3)
    before = nodes_of(pool, observer, lock)
    other = waiting_in(Lock(["b", "a"], make_pool()))
    wait_until(lambda: sum(counts(observer, lock)) == 5)
    observer.client.delete(before[place])
    wait_until(lambda: len(after := nodes_of(pool, observer, lock)) == 2 and not {*before} & {*after})
    holder.release(wait=True)
    then = other.result()
    assert waiting.running
    then.release(wait=True)
    with waiting.result() as held:
        assert held.token > then.token
        held.check()
    wait_counts(observer, lock, 0, 0)


# The link.


@pytest.fixture
def proxied(server: Server, make_pool: MakePool) -> Iterator[tuple[Proxy, Pool]]:
    """Return a link to the server that can be disturbed, and a pool that uses it."""
    with Proxy(server.address) as proxy:
        yield proxy, make_pool(proxy.hosts)
        proxy.resume()


@pytest.fixture
def both(proxied: tuple[Proxy, Pool], observer: Observer) -> Lock:
    """Return a lock of two keys whose parents are there, and stay."""
    lock = Lock(["a", "b"], proxied[1])
    for path in lock.paths:
        observer.client.ensure_path(path)
    lock.acquire(timeout=60).release(wait=True)
    return lock


def at_multi(proxy: Proxy, then: Callable[[], object]) -> threading.Event:
    """Do something when the next transaction is on its way to the server."""
    seen = threading.Event()

    def watch(direction: str, chunk: bytes) -> bool:
        if direction == UP and not seen.is_set() and MULTI in requests(chunk):
            then()
            seen.set()
        return False

    proxy.on_chunk = watch
    return seen


def test_create_reply__lost(proxied: tuple[Proxy, Pool], both: Lock, observer: Observer) -> None:
    """When the answer to the transaction is lost, its nodes are found again: one in each queue."""
    proxy, _ = proxied
    for _ in range(5):
        swallowed = at_multi(proxy, lambda: proxy.pause(DOWN))
        waiting = waiting_in(both)
        assert swallowed.wait(scaled(20))
        wait_counts(observer, both, 1, 1)
        node = observer.children(both.paths[0])[0]
        proxy.resume(drop=True)
        proxy.cut()
        with waiting.result() as held:
            assert held.node == f"{both.paths[0]}/{node}"
            assert held.token == observer.client.exists(held.node).czxid
            assert counts(observer, both) == [1, 1]
            held.check()
        wait_counts(observer, both, 0, 0)


def test_create__some_removed_while_cut(proxied: tuple[Proxy, Pool], both: Lock, observer: Observer) -> None:
    """If an operator removes some of the nodes before the answer is known, the others go too, and all are made anew."""
    proxy, _ = proxied
    swallowed = at_multi(proxy, lambda: proxy.pause(DOWN))
    waiting = waiting_in(both)
    assert swallowed.wait(scaled(20))
    wait_counts(observer, both, 1, 1)
    (mine,) = observer.children(both.paths[1])
    observer.client.delete(f"{both.paths[1]}/{mine}")
    proxy.resume(drop=True)
    proxy.cut()
    with waiting.result() as held:
        assert mine[:40] not in held.node
        assert counts(observer, both) == [1, 1]
        held.check()
    wait_counts(observer, both, 0, 0)


def test_create__given_up_while_cut(proxied: tuple[Proxy, Pool], both: Lock, observer: Observer) -> None:
    """A wait that is given up while it is not known whether its nodes exist leaves none."""
    proxy, _ = proxied
    proxy.pause(DOWN)
    with pytest.raises(ZooKeeperUnavailable):
        both.acquire(timeout=scaled(1))
    wait_counts(observer, both, 1, 1)
    proxy.resume(drop=True)
    proxy.cut()
    wait_counts(observer, both, 0, 0)


def test_link__cut_while_waiting(proxied: tuple[Proxy, Pool], make_pool: MakePool, observer: Observer) -> None:
    """A broken link costs a waiter no place, and a holder nothing."""
    proxy, pool = proxied
    lock = Lock(["a", "b"], pool)
    taken = Lock("b", make_pool()).acquire(timeout=60)
    waiting = waiting_in(lock)
    wait_counts(observer, lock, 1, 2)
    before = observer.children(lock.paths[0])
    epoch = pool.sessions()[0].epoch
    proxy.cut()
    wait_until(lambda: pool.sessions()[0].epoch > epoch and pool.sessions()[0].connected)
    taken.release(wait=True)
    held = waiting.result()
    assert observer.children(lock.paths[0]) == before
    proxy.cut()
    wait_until(lambda: pool.sessions()[0].epoch > epoch + 1 and pool.sessions()[0].connected)
    held.check()
    held.release(wait=True)
    wait_counts(observer, lock, 0, 0)
