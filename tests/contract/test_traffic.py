"""What the lock costs the server: requests, writes, round trips and wake-ups, counted."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from django_zklock.zk.contender import Contender
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import semaphore
from django_zklock.zk.wire.client import Wire
from tests.toolbox.locks.contenders import is_next, is_watching
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.network.tcp_proxy import UP, Proxy, requests
from tests.toolbox.threads import Runner
from tests.toolbox.timing import wait_until
from tests.toolbox.zookeeper.any_server import Server, packets_received

CONNECT, CREATE2, CREATE_CONTAINER, GET_CHILDREN, DELETE, GET_DATA, PING = 0, 15, 19, 8, 2, 4, 11
SET_DATA, REMOVE_WATCHES = 5, 18


def written(proxy: Proxy, since: int = 0) -> list[list[int]]:
    """Return the opcodes of each write since then, without pings."""
    writes = [list(requests(chunk)) for direction, chunk in proxy.chunks[since:] if direction == UP]
    return [write for write in writes if write != [PING]]


def test_uncontended__packets(own_server: Server, make_pool: MakePool) -> None:
    """On a warm session an acquisition and its release are three requests, by the server's own count."""
    # A session so long that neither ping nor heartbeat falls into the measurement.
    pool = make_pool(own_server.hosts, session_timeout=60.0)
    lock = Lock("k", pool)
    lock.acquire().release(wait=True)
    before = packets_received(own_server)
    for _ in range(200):
        lock.acquire().release()
    lock.acquire().release(wait=True)
    # One of them is the second question.
    assert packets_received(own_server) - before - 1 == 3 * 201


def test_uncontended__one_round_trip(own_server: Server, make_pool: MakePool) -> None:
    """Create and list leave in one write, nothing else is asked before the lock is held, and the delete is alone."""
    with Proxy(own_server.address) as proxy:
        pool = make_pool(proxy.hosts, session_timeout=30.0)
        lock = Lock("k", pool)
        lock.acquire().release(wait=True)
        for _ in range(20):
            seen = len(proxy.chunks)
            held = lock.acquire()
            assert written(proxy, seen) == [[CREATE2, GET_CHILDREN]]
            held.release(wait=True)
            assert written(proxy, seen) == [[CREATE2, GET_CHILDREN], [DELETE]]
        pool.close()


def test_try__busy(server: Server, make_pool: MakePool) -> None:
    """A try for a busy lock is one request and no write."""
    with Proxy(server.address) as proxy, Lock("k", make_pool()):
        pool = make_pool(proxy.hosts, session_timeout=30.0)
        assert Lock("k", pool).try_acquire() is None
        seen = len(proxy.chunks)
        for _ in range(10):
            assert Lock("k", pool).try_acquire() is None
        assert written(proxy, seen) == [[GET_CHILDREN]] * 10
        pool.close()


@pytest.mark.shows("faults#many-wait")
def test_hand_over__hundred_waiters(server: Server, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A release costs the same at any length of the queue, and the next holder asks for nothing.

    It tells three: the next, which holds; the one behind it, which looks what is before it now, and watches that; and
    the one that has let go, of its own node.
    """
    # No heartbeat while requests are counted.
    monkeypatch.setattr("django_zklock.zk.session.HEARTBEATS_PER_SESSION", 0.1)
    notified = count_notifications(monkeypatch)
    with Proxy(server.address) as proxy:
        pools = [make_pool(proxy.hosts, session_timeout=60.0) for _ in range(4)]
        held = Lock("k", make_pool(session_timeout=60.0)).acquire()
        order: list[int] = []
        go_on = [threading.Event() for _ in range(100)]

        def wait_in_queue(number: int) -> None:
            with Lock("k", pools[number % 4]):
                order.append(number)
                assert go_on[number].wait(60)

        runners = []
        before = len(proxy.chunks)
        for number in range(100):
            runners.append(Runner(lambda number=number: wait_in_queue(number)))  # type: ignore[misc]
            wait_until(lambda number=number: len(waiting(pools)) == number + 1)  # type: ignore[misc]
        joined = Counter(code for write in written(proxy, before) for code in write if code != CONNECT)
        # The data are of the own node and of a predecessor: nothing is read that only a message would need. Each
        # session creates the queue before it uses that for the first time.
        assert joined == {CREATE_CONTAINER: 4, CREATE2: 100, GET_CHILDREN: 100, GET_DATA: 200}
        seen = len(proxy.chunks)

        def so_far() -> tuple[Counter[int], int, int, list[bool], list[int]]:
            asked = Counter(code for write in written(proxy, seen) for code in write)
            left = waiting(pools)
            return asked, len(notified), len(left), [True for contender in left if is_next(contender)], order

        asked: Counter[int] = Counter()
        notifications = 0
        for number in range(100):
            if number == 0:
                held.release(wait=True)
            else:
                go_on[number - 1].set()
                runners[number - 1].result()
            # All sums, so that what comes late is found in the next round; behind the last one nothing is requested.
            behind = number < 99
            asked += Counter({GET_CHILDREN: behind, GET_DATA: behind, DELETE: number > 0})
            notifications += 1 + behind + (number > 0)
            expected = (asked, notifications, 99 - number, [True] * behind, list(range(number + 1)))
            wait_until(lambda expected=expected: so_far() == expected, what=f"{expected}")  # type: ignore[misc]
        go_on[99].set()
        runners[99].result()
        for pool in pools:
            pool.close()


def test_hand_over__semaphore(server: Server, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A lease that becomes free costs the same at any length of the queue, watches included."""
    # No heartbeat while requests are counted.
    monkeypatch.setattr("django_zklock.zk.session.HEARTBEATS_PER_SESSION", 0.1)
    waiters = 20
    with Proxy(server.address) as proxy:
        pools = [make_pool(proxy.hosts, session_timeout=60.0) for _ in range(waiters)]
        holders = [Lock("k", make_pool(session_timeout=60.0), rule=semaphore(2)).acquire() for _ in range(2)]
        before = len(proxy.chunks)
        runners = []
        for number, pool in enumerate(pools):
            runners.append(Runner(lambda pool=pool: Lock("k", pool, rule=semaphore(2)).acquire()))  # type: ignore[misc]
            wait_until(lambda number=number: len(waiting(pools[: number + 1])) == number + 1)  # type: ignore[misc]
            wait_until(lambda pool=pool: not pool.sessions()[0].wire._client._pending)  # type: ignore[misc]
        joined = Counter(code for write in written(proxy, before) for code in write if code != CONNECT)
        # Of each its creation, a list and two watches: on its own node, and on a predecessor. The first watches the
        # list instead, which changes with each that joins.
        assert joined.pop(CREATE2) == joined.pop(CREATE_CONTAINER) == waiters
        assert joined.pop(GET_DATA) == 2 * waiters - 1
        assert joined.pop(GET_CHILDREN) <= 2 * waiters
        assert not joined
        seen = len(proxy.chunks)
        for runner in runners:
            holders.pop(0).release(wait=True)
            holders.append(runner.result())
        for held in holders:
            held.release(wait=True)
        asked = Counter(code for write in written(proxy, seen) for code in write)
        # The one that is granted has listed, stops to watch the list, wakes the next one, and reads what it has written
        # to its node. The next one lists because of that, and watches the list; it may hear of the deletion too.
        assert asked.pop(DELETE) == waiters
        assert asked.pop(SET_DATA) <= waiters
        assert asked.pop(REMOVE_WATCHES) <= waiters
        assert asked.pop(GET_DATA) <= waiters
        assert asked.pop(GET_CHILDREN) <= 4 * waiters
        assert not asked
        for pool in pools:
            pool.close()


def count_notifications(monkeypatch: pytest.MonkeyPatch) -> list[None]:
    """Return a list that grows with each notification that this process receives."""
    notified: list[None] = []
    on_event = Wire.on_event

    def count(wire: Wire, event: int, path: str) -> None:
        notified.append(None)
        on_event(wire, event, path)

    monkeypatch.setattr(Wire, "on_event", count)
    return notified


def waiting(pools: list[Pool]) -> list[Contender]:
    """Return the contenders that have found their place in the queue."""
    return [
        listener
        for pool in pools
        for session in pool.sessions()
        for listener in list(session.listeners)
        if isinstance(listener, Contender) and is_watching(listener)
    ]


@pytest.mark.shows("faults#something-is-left-behind")
def test_abandoned_waits__leave_nothing(pool: Pool, make_pool: MakePool) -> None:
    """Waits that run out leave no node, no watch in this process, no listener and no thread."""
    lock = Lock("k", pool)
    with Lock("k", make_pool()):
        Runner(lambda: lock.acquire(timeout=0.01)).outcome()
        threads = set(threading.enumerate())
        for _ in range(300):
            Runner(lambda: lock.acquire(timeout=0.001)).outcome()
        session = pool.sessions()[0]
        wait_until(lambda: not session.listeners)
        assert len(list(session.wire.watches)) <= 1
        assert set(threading.enumerate()) <= threads
