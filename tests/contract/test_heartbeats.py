"""What a session with many locks does at each heartbeat."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from kazoo.client import KazooClient

from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.held import Held
from django_zklock.zk.inspection import survey
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.wire import READS_A_REQUEST
from django_zklock.zk.wire.multiread import MultiRead
from tests.zk.onlooker import MakePool, wait_until

UNKNOWN_OPCODE = 77
MANY = 2 * READS_A_REQUEST + 3


@pytest.fixture
def hold_many(make_pool: MakePool) -> Callable[[], tuple[Pool, list[Held]]]:
    """Give a function that has one session hold many locks."""

    def hold() -> tuple[Pool, list[Held]]:
        pool = make_pool(session_timeout=1.5)
        return pool, [Lock(f"k{number}", pool).acquire(5) for number in range(MANY)]

    return hold


@pytest.mark.parametrize("knows_multiread", [True, False], ids=["multiread", "old server"])
def test_heartbeat__finds_what_is_gone(
    hold_many: Callable[[], tuple[Pool, list[Held]]],
    outsider: KazooClient,
    monkeypatch: pytest.MonkeyPatch,
    knows_multiread: bool,
) -> None:
    """Each lock whose node is gone is found to be lost, wherever it stands among the many, and no other."""
    if not knows_multiread:
        monkeypatch.setattr(MultiRead, "type", UNKNOWN_OPCODE)
    pool, holds = hold_many()
    gone = {0, READS_A_REQUEST - 1, READS_A_REQUEST, MANY - 1}
    for number in gone:
        outsider.delete(holds[number].node)
    wait_until(lambda: all(holds[number].lost for number in gone))
    assert {number for number, held in enumerate(holds) if held.lost} == gone
    assert pool.session("/").multireads is knows_multiread
    # One that does not know it closes the connection as well.
    assert (pool.session("/").epoch == 0) is knows_multiread


def test_heartbeat__revoked(hold_many: Callable[[], tuple[Pool, list[Held]]], outsider: KazooClient) -> None:
    """What is written into a node is heard by the one whose node it is."""
    _pool, holds = hold_many()
    outsider.set(holds[READS_A_REQUEST + 1].node, b"__REVOKE__")
    wait_until(lambda: holds[READS_A_REQUEST + 1].revoked)
    assert [held.key for held in holds if held.revoked] == [f"k{READS_A_REQUEST + 1}"]


def test_heartbeat__strict(testserver: ZooKeeperServer, make_pool: MakePool) -> None:
    """Who would lose the locks by a closed connection asks nothing that a server may not know."""
    pool = make_pool(testserver.hosts, session_timeout=1.5, strict=True)
    holds = [Lock(f"k{number}", pool).acquire(5) for number in range(MANY)]
    testserver.requests.clear()
    survey.lines(pool, timeout=10)
    testserver.requests.wait_for("getData", 3 * MANY)
    assert testserver.requests.count("multiRead") == 0
    assert not any(held.lost for held in holds)


def test_heartbeat__few_requests(testserver: ZooKeeperServer, make_pool: MakePool) -> None:
    """Many locks share a few requests; a few locks have one each, as every server knows it."""
    pool = make_pool(testserver.hosts, session_timeout=1.5)
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
