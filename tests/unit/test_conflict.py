"""When a call that did not get its lock acquires it again."""

from __future__ import annotations

import pytest

from django_zklock.conflict import AcquireRetries
from django_zklock.exceptions import AlreadyAwaited, LockConflict, LockTimeout, ZkLockError, ZooKeeperUnavailable
from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Identity, Work
from tests.toolbox.locks.pools import MakePool

TASK = Work(kind="task", name="bill", id="4711")


@pytest.fixture
def kind_of_server() -> str:
    return "testserver"


@pytest.mark.parametrize("error", [LockConflict, AlreadyAwaited, ZooKeeperUnavailable])
def test_retry__not_after(make_pool: MakePool, error: type[ZkLockError]) -> None:
    """What another attempt cannot change is not tried again: the caller is in the way, or ZooKeeper is away."""
    retries = AcquireRetries(Lock("k", make_pool()), 3.0, TASK)
    assert not retries.should_retry(error("no", key="k"))
    assert retries.timeout == 3.0


@pytest.mark.parametrize(
    ("requested", "granted", "two_ticks"),
    [(5.0, 10.0, 6.0), (3.0, 4.0, 4.0), (20.0, 16.0, 6.0)],
    ids=["longer", "short", "shorter"],
)
def test_met_itself__waits_for_its_session(
    make_pool: MakePool, requested: float, granted: float, two_ticks: float
) -> None:
    """A call waits as long as the session of its dead delivery can live, by the timeout that the servers grant."""
    with ZooKeeperServer(min_session_timeout=granted, max_session_timeout=granted) as server:
        pool = make_pool(server.hosts, session_timeout=requested, connect_timeout=2.0)
        with Lock("k", pool):
            assert pool.sessions()[0].timeout == granted
        retries = AcquireRetries(Lock("k", pool), 0, TASK)
        met = LockTimeout("taken", key="k", timeout=0, holder=Identity(host="web1", pid=1, work=TASK))
        assert retries.should_retry(met)
        assert retries.timeout == pytest.approx(granted + two_ticks + pool.options.connect_timeout)
        # Once.
        assert not retries.should_retry(met)
        pool.close()
