"""A link that is thin and alive: few bytes a second pass, and nothing is lost for that."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

import pytest

from django_zklock.testing import ZooKeeperServer
from django_zklock.testing.server.tree import Created
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import Kind, name_prefix, new_guid
from django_zklock.zk.session import HEARTBEATS_PER_SESSION, MAX_SILENCE, Session
from django_zklock.zk.wire.watches import MAX_PATHS
from tests.toolbox.locks.contenders import is_watching
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.network.tcp_proxy import DOWN, UP, Proxy
from tests.toolbox.threads import Runner
from tests.toolbox.timing import wait_until

SESSION_TIMEOUT = 12.0
# By then a heartbeat has found silence for longer than is tolerated.
TOO_LONG = (MAX_SILENCE + 1 / HEARTBEATS_PER_SESSION) * SESSION_TIMEOUT
# Longer than all that is slow here, whatever else the machine does.
TIMEOUT = 180.0


@pytest.fixture
def proxy(server: ZooKeeperServer) -> Iterator[Proxy]:
    """Return the link, which is a fast one at first."""
    with Proxy(server.address, keeps_chunks=False) as proxy:
        yield proxy


@pytest.fixture
def pool(make_pool: MakePool, proxy: Proxy) -> Pool:
    return make_pool(proxy.hosts, session_timeout=SESSION_TIMEOUT)


def session_of(pool: Pool) -> Session:
    (session,) = pool.sessions()
    return session


def watched(server: ZooKeeperServer) -> int:
    return server.call(lambda: len(server.service.newest.watches.data._by_path))


@pytest.mark.shows("guarantees#a-lost-lock-is-reported", "faults#the-link-is-thin")
def test_held__many(server: ZooKeeperServer, proxy: Proxy, pool: Pool) -> None:
    """The nodes of many locks are watched while a thin link lets few answers pass; after that, a heartbeat is small."""
    passed: Counter[str] = Counter()

    def count(direction: str, chunk: bytes) -> bool:
        passed[direction] += len(chunk)
        return False

    holds = [Lock(f"k{number}", pool).acquire(timeout=60) for number in range(300)]
    # The answers to a read of all of them take three sevenths of the session timeout, those to one portion a seventh.
    proxy.rate[DOWN] = 8_000
    wait_until(lambda: watched(server) == len(holds), TIMEOUT)
    beats = server.requests.count("sync")
    proxy.on_chunk = count
    wait_until(lambda: server.requests.count("sync") >= beats + 4, TIMEOUT)
    assert sum(passed.values()) < 5_000
    assert server.requests.count("getData") == len(holds)
    for held in holds:
        held.check()


@pytest.mark.shows("faults#the-link-is-thin")
def test_list__long_queue(server: ZooKeeperServer, proxy: Proxy, pool: Pool) -> None:
    """A list of a long queue may take longer than silence is tolerated: it is no silence, and not begun anew."""
    lock = Lock("k", pool)
    lock.acquire(timeout=60).release(wait=True)
    (path,) = lock.paths
    acl = server.call(lambda: server.service.newest.tree.nodes[path].acl)
    names = [f"{path}/{name_prefix(new_guid(), Kind.EXCLUSIVE)}{number:010d}" for number in range(3000)]
    server.call(lambda: server.service.commit(*(Created(name, b"", acl, 0) for name in names)))
    proxy.rate[DOWN] = sum(len(name.rpartition("/")[2]) for name in names) / (2 * TOO_LONG)
    waiter = Runner(lambda: lock.acquire(timeout=TIMEOUT))
    wait_until(lambda: any(is_watching(each) for each in list(session_of(pool).listeners)), TIMEOUT)
    assert waiter.running


@pytest.mark.shows("faults#the-link-is-thin")
def test_reconnect__many_watches(server: ZooKeeperServer, proxy: Proxy, make_pool: MakePool, pool: Pool) -> None:
    """Watches are set again in portions, so that a thin link is not taken for a dead one in the middle."""
    held = Lock("k" * 100, make_pool(server.hosts, session_timeout=40.0)).acquire(timeout=60)
    waiters = [Runner(lambda: Lock("k" * 100, pool).acquire(timeout=TIMEOUT).release()) for _ in range(400)]
    wait_until(lambda: sum(is_watching(each) for each in list(session_of(pool).listeners)) == 400, TIMEOUT)
    size = sum(len(path) for path in server.call(lambda: list(server.service.newest.watches.data._by_path)))
    # A portion takes half of the silence that is tolerated.
    rate = MAX_PATHS / (MAX_SILENCE / 2 * SESSION_TIMEOUT)
    assert size / rate > TOO_LONG
    session, epoch = session_of(pool), session_of(pool).epoch
    with server.faults.refuse():
        server.faults.drop(session.id or 0)
        wait_until(lambda: session.epoch > epoch)
        proxy.rate[UP] = rate
    wait_until(lambda: session.connected and session.watching, TIMEOUT)
    proxy.rate[UP] = float("inf")
    held.release()
    for waiter in waiters:
        waiter.result(TIMEOUT)
