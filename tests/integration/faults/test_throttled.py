"""A real server that refuses requests because it has too many: ZooKeeper's own throttling of requests."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.threads import Runner
from tests.toolbox.timing import GRACE, MAX_SESSION, scaled, wait_until
from tests.toolbox.zookeeper.server import ZooKeeper

pytestmark = pytest.mark.zookeeper

POOLS, LOCKS = 4, 80
# At most; the first in which releases are refused is the last.
ROUNDS = 30


@pytest.fixture
def throttled() -> Iterator[ZooKeeper]:
    """Return a server that works on one request at a time, and refuses those that have waited for 2 milliseconds."""
    with ZooKeeper(
        tick_time=0.2,
        min_session_timeout=0.8,
        max_session_timeout=MAX_SESSION,
        properties={
            "zookeeper.request_throttle_max_requests": "1",
            "zookeeper.request_throttle_stall_time": "1",
            "zookeeper.throttled_op_wait_time": "2",
        },
    ) as server:
        if server.mntr()["zk_version"].startswith("3.6."):
            pytest.skip("ZooKeeper before 3.7 delays requests and does not refuse them (ZOOKEEPER-3683)")
        yield server


def refusals(server: ZooKeeper) -> int:
    return int(server.mntr()["zk_throttled_ops"])


@pytest.mark.shows("faults#a-server-refuses-a-request-temporarily")
def test_throttled(throttled: ZooKeeper, make_pool: MakePool) -> None:
    """Locks are granted while a server refuses requests, and all are free within two seconds of their release."""
    pools = [make_pool(throttled.hosts, session_timeout=60, connect_timeout=30) for _ in range(POOLS)]
    for _ in range(ROUNDS):
        holds = take_all(pools)
        before = refusals(throttled)
        for held in holds:
            held.release()
        released = time.monotonic()
        # A session has nothing in it once every node is deleted.
        wait_until(lambda: not any(session.listeners for pool in pools for session in pool.sessions()), 50)
        assert int(throttled.mntr()["zk_ephemerals_count"]) == 0
        # Nothing else frees a node before its session ends.
        assert time.monotonic() - released < 2 + GRACE
        if refusals(throttled) > before > 0:
            return
    pytest.fail("no release was refused")


def take_all(pools: list[Pool]) -> list[Held]:
    """Return holds of as many locks, each of which was wanted by two before."""
    holds: list[Held] = []

    def take(number: int) -> None:
        pool = pools[number % POOLS]
        # Each key is wanted by two, and then each holds one of its own.
        Lock(f"shared-{number // 2}", pool).acquire(timeout=scaled(60)).release()
        holds.append(Lock(f"own-{number}", pool).acquire(timeout=scaled(60)))

    for runner in [Runner(lambda number=number: take(number)) for number in range(LOCKS)]:  # type: ignore[misc]
        runner.result(90)
    return holds
