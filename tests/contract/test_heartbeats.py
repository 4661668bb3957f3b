"""What a session with many locks does at each heartbeat."""

from __future__ import annotations

import time
from collections.abc import Callable
from itertools import groupby

import pytest
from kazoo.client import KazooClient

from django_zklock.testing import ZooKeeperServer
from django_zklock.testing.server.protocol import Opcode
from django_zklock.zk import session as session_module
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import EXCLUSIVE, READ, Rule, semaphore
from django_zklock.zk.session import HEARTBEATS_PER_SESSION, MAX_WATCHES_PER_WRITE
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.network.tcp_proxy import DOWN, Proxy
from tests.toolbox.threads import Runner
from tests.toolbox.timing import LONG_SESSION, scaled, wait_until
from tests.toolbox.zookeeper.observer import Observer

MANY = 2 * MAX_WATCHES_PER_WRITE + 3


@pytest.fixture
def hold_many(make_pool: MakePool) -> Callable[[], tuple[Pool, list[Held]]]:
    """Return a function that has one session hold many locks."""

    def hold() -> tuple[Pool, list[Held]]:
        pool = make_pool(session_timeout=4.0)
        return pool, [Lock(f"k{number}", pool).acquire(60) for number in range(MANY)]

    return hold


@pytest.mark.shows("guarantees#a-lost-lock-is-reported", "faults#an-answer-comes-out-of-order")
def test_heartbeat__finds_what_is_gone(
    hold_many: Callable[[], tuple[Pool, list[Held]]],
    kazoo_client: KazooClient,
) -> None:
    """Each lock whose node is gone is found to be lost, wherever it stands among the many, and no other."""
    pool, holds = hold_many()
    gone = {0, MAX_WATCHES_PER_WRITE - 1, MAX_WATCHES_PER_WRITE, MANY - 1}
    for number in gone:
        kazoo_client.delete(holds[number].node)
    wait_until(lambda: all(holds[number].lost for number in gone))
    assert {number for number, held in enumerate(holds) if held.lost} == gone
    assert pool.session("/").epoch == 0


def test_heartbeat__revoked(hold_many: Callable[[], tuple[Pool, list[Held]]], kazoo_client: KazooClient) -> None:
    """What is written into a node is heard by the one whose node it is."""
    _pool, holds = hold_many()
    kazoo_client.set(holds[MAX_WATCHES_PER_WRITE + 1].node, b"__REVOKE__")
    wait_until(lambda: holds[MAX_WATCHES_PER_WRITE + 1].revoked)
    assert [held.key for held in holds if held.revoked] == [f"k{MAX_WATCHES_PER_WRITE + 1}"]


@pytest.mark.shows("faults#the-link-is-thin")
@pytest.mark.parametrize("rule", [EXCLUSIVE, READ, semaphore(2)], ids=["exclusive", "read", "semaphore"])
def test_heartbeat__few_requests(testserver: ZooKeeperServer, make_pool: MakePool, rule: Rule) -> None:
    """Each held node is read once, with a watch; later heartbeats cost the same for any number of locks."""
    with Proxy(testserver.address) as proxy:
        pool = make_pool(proxy.hosts, session_timeout=LONG_SESSION)
        holds = [Lock(f"k{number}", pool, rule=rule).acquire(60) for number in range(MANY)]
        (session,) = pool.sessions()
        testserver.requests.clear()
        # All answers come late and together, those to several heartbeats too.
        proxy.pause(DOWN)
        session.post(session._beat)
        session.post(session._beat)
        testserver.requests.wait_for("sync", 2, timeout=scaled(30))
        proxy.resume()
        testserver.requests.wait_for("getData", MANY, timeout=scaled(30))
        session.post(session._beat)
        testserver.requests.wait_for("sync", 5, timeout=scaled(30))
        kinds = [each.opcode for each in testserver.requests.all() if each.opcode in {Opcode.SYNC, Opcode.GET_DATA}]
        portions = [len(list(run)) for opcode, run in groupby(kinds) if opcode is Opcode.GET_DATA]
        assert portions == [MAX_WATCHES_PER_WRITE, MAX_WATCHES_PER_WRITE, 3]
        assert testserver.requests.count("getData") == MANY
        for held in holds:
            held.check()


def written_by(server: ZooKeeperServer, pool: Pool, beats: int) -> int:
    """Return how many writes the session of ``pool`` sends in that number of heartbeats."""
    (session,) = pool.sessions()

    def count(opcode: Opcode) -> int:
        return sum(each.opcode is opcode and each.session == session.id for each in server.requests.all())

    server.requests.clear()
    wait_until(lambda: count(Opcode.SYNC) >= beats)
    return count(Opcode.MULTI)


def test_heartbeat__holder(testserver: ZooKeeperServer, make_pool: MakePool) -> None:
    """A session that holds a lock proves by writes that a majority counts it."""
    pool = make_pool(testserver.hosts, session_timeout=2.0)
    with Lock("k", pool).acquire(60):
        (session,) = pool.sessions()
        begun = session.lease_end
        assert written_by(testserver, pool, 8) >= 2
        assert session.lease_end > begun


def test_heartbeat__waiter(testserver: ZooKeeperServer, make_pool: MakePool) -> None:
    """A session that only waits writes nothing for a lease, unless its turn is the next.

    After a session timeout it asks the leader, once, whether what it waits for is there.
    """
    holder, following, last = (make_pool(testserver.hosts, session_timeout=2.0) for _ in range(3))
    with Lock("k", holder).acquire(60):
        second = waiting(testserver, Lock("k", following), 2)
        third = waiting(testserver, Lock("k", last), 3)
        assert written_by(testserver, last, 10) <= 1
        assert written_by(testserver, last, 10) == 0
        assert written_by(testserver, following, 8) >= 2
    second.result().release()
    third.result().release()


@pytest.mark.shows("performance#what-sessions-cost")
def test_heartbeat__idle(testserver: ZooKeeperServer, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that nothing uses sends pings alone; the next lock costs a write and a list more, in one round trip."""
    monkeypatch.setattr(session_module, "IDLE_HEARTBEATS", 3)
    pool = make_pool(testserver.hosts, session_timeout=4.0)
    lock, requests = Lock("k", pool), testserver.requests
    lock.acquire(60).release(wait=True)
    (session,) = pool.sessions()
    assert written_by(testserver, pool, 3) == 0
    # The last request of a heartbeat is answered by the second one after it.
    wait_until(lambda: session._idle_heartbeats > 3 + 2)
    requests.clear()
    requests.wait_for("ping", 3)
    assert set(requests.counts()) == {"ping"}
    requests.clear()
    held = lock.acquire(60)
    recipe = (Opcode.CREATE2, Opcode.GET_CHILDREN, Opcode.MULTI)
    kinds = [each.opcode for each in requests.all() if each.opcode in recipe]
    # The queue may be gone by now, and the first try too.
    created = max(number for number, kind in enumerate(kinds) if kind is Opcode.CREATE2)
    assert kinds[created:][:4] == [*recipe, Opcode.GET_CHILDREN]
    # It is a session in use again, and holds the lock for longer than a lease lasts.
    requests.wait_for("sync", 2 * HEARTBEATS_PER_SESSION)
    held.check()
    held.release()
    assert (session.epoch, len(pool.sessions())) == (0, 1)


def waiting(server: ZooKeeperServer, lock: Lock, count: int) -> Runner:
    """Wait for ``lock`` in a thread, and return when its queue has that number of nodes."""
    runner = Runner(lock.acquire)
    wait_until(lambda: len(server.paths(lock.paths[0])) == count)
    return runner


@pytest.mark.shows("guarantees#first-come-first-served")
def test_waiter__without_a_lease(make_pool: MakePool, observer: Observer) -> None:
    """A contender that waits for longer than its session timeout and its lease keeps both session and place.

    It is granted the lock, and with a lease.
    """
    timeout = 4.0
    first, second = (Lock("k", make_pool(session_timeout=timeout)).acquire for _ in range(2))
    held = first(5)
    runner = Runner(second)
    observer.wait_count(held.lock.paths[0], 2)
    pool = make_pool(session_timeout=timeout)
    last = Runner(Lock("k", pool).acquire)
    queue = observer.wait_count(held.lock.paths[0], 3)
    (session,) = pool.sessions()
    later = time.monotonic() + 2 * pool.options.connection.session_timeout
    wait_until(lambda: session.lease_expired and time.monotonic() > later, 2 * timeout + 15)
    assert observer.children(held.lock.paths[0]) == queue
    assert session.epoch == 0
    held.release()
    runner.result().release()
    granted = last.result()
    assert not session.lease_expired
    granted.check()
    granted.release()
