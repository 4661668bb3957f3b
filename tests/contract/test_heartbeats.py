"""What a session with many locks does at each heartbeat."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kazoo.client import KazooClient

from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.wire import MAX_READS_PER_REQUEST
from tests.support.tree_reader import MakePool, wait_until

MANY = 2 * MAX_READS_PER_REQUEST + 3


@pytest.fixture
def hold_many(make_pool: MakePool) -> Callable[[], tuple[Pool, list[Held]]]:
    """Return a function that has one session hold many locks."""

    def hold() -> tuple[Pool, list[Held]]:
        pool = make_pool(session_timeout=4.0)
        return pool, [Lock(f"k{number}", pool).acquire(5) for number in range(MANY)]

    return hold


def test_heartbeat__finds_what_is_gone(
    hold_many: Callable[[], tuple[Pool, list[Held]]],
    outsider: KazooClient,
) -> None:
    """Each lock whose node is gone is found to be lost, wherever it stands among the many, and no other."""
    pool, holds = hold_many()
    gone = {0, MAX_READS_PER_REQUEST - 1, MAX_READS_PER_REQUEST, MANY - 1}
    for number in gone:
        outsider.delete(holds[number].node)
    wait_until(lambda: all(holds[number].lost for number in gone))
    assert {number for number, held in enumerate(holds) if held.lost} == gone
    assert pool.session("/").epoch == 0


def test_heartbeat__revoked(hold_many: Callable[[], tuple[Pool, list[Held]]], outsider: KazooClient) -> None:
    """What is written into a node is heard by the one whose node it is."""
    _pool, holds = hold_many()
    outsider.set(holds[MAX_READS_PER_REQUEST + 1].node, b"__REVOKE__")
    wait_until(lambda: holds[MAX_READS_PER_REQUEST + 1].revoked)
    assert [held.key for held in holds if held.revoked] == [f"k{MAX_READS_PER_REQUEST + 1}"]


def test_heartbeat__few_requests(testserver: ZooKeeperServer, make_pool: MakePool) -> None:
    """Many locks share a few requests; a few locks have one each."""
    pool = make_pool(testserver.hosts, session_timeout=4.0)
    holds = [Lock(f"k{number}", pool).acquire(5) for number in range(MANY)]
    testserver.requests.clear()
    testserver.requests.wait_for("multiRead", 6)
    counts = testserver.requests.counts()
    assert counts.get("getData", 0) == 0
    for held in holds[3:]:
        held.release()
    testserver.requests.clear()
    testserver.requests.wait_for("getData", 6)
    assert testserver.requests.count("multiRead") == 0
