"""Real servers that stop, freeze and come back."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from django_zklock.exceptions import LockLost, LockTimeout, ZooKeeperUnavailable
from django_zklock.zk.lock import Lock
from django_zklock.zk.ops import search
from django_zklock.zk.waiting import boottime
from tests.toolbox.locks.losses import Losses
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.threads import Runner, waiting_in
from tests.toolbox.timing import GRACE, MAX_SESSION, scaled, wait_until
from tests.toolbox.zookeeper.observer import Observer
from tests.toolbox.zookeeper.server import ZooKeeper

# One group, so that one process alone starts a server.
pytestmark = [pytest.mark.zookeeper, pytest.mark.xdist_group("outages")]


@pytest.fixture(scope="module")
def server_of_the_module() -> Iterator[ZooKeeper]:
    with ZooKeeper(tick_time=0.2, min_session_timeout=0.8, max_session_timeout=MAX_SESSION) as server:
        yield server


@pytest.fixture
def own_zookeeper(server_of_the_module: ZooKeeper) -> Iterator[ZooKeeper]:
    """Return a server that each test leaves running."""
    yield server_of_the_module
    server_of_the_module.resume()


# The server freezes.


@pytest.mark.shows("faults#the-server-freezes")
def test_server_frozen__warm(own_zookeeper: ZooKeeper, make_pool: MakePool, own_observer: Observer) -> None:
    """With a frozen server a wait ends in time with key and server named, a release at once, and no node is left."""
    pool = make_pool(own_zookeeper.hosts, connect_timeout=60.0)
    held = Lock("held", pool).acquire()
    lock = Lock("invoice:7", pool)
    own_zookeeper.pause()
    began = time.monotonic()
    with pytest.raises(ZooKeeperUnavailable, match="no answer from ZooKeeper") as caught:
        lock.acquire(timeout=1)
    ended = time.monotonic()
    held.release()
    assert time.monotonic() - ended < GRACE
    assert 0.9 < ended - began < 1 + GRACE
    assert "'invoice:7'" in str(caught.value)
    assert own_zookeeper.hosts in str(caught.value)
    assert (caught.value.key, caught.value.timeout) == ("invoice:7", 1.0)
    own_zookeeper.resume()
    own_observer.wait_empty(lock.paths[0])
    own_observer.wait_empty(held.lock.paths[0])


@pytest.mark.shows("faults#the-server-freezes")
def test_server_frozen__cold(own_zookeeper: ZooKeeper, make_pool: MakePool, own_observer: Observer) -> None:
    """The same for a pool that has never been connected."""
    pool = make_pool(own_zookeeper.hosts, connect_timeout=60.0)
    lock = Lock("invoice:7", pool)
    own_zookeeper.pause()
    began = time.monotonic()
    with pytest.raises(ZooKeeperUnavailable, match="no connection to ZooKeeper") as caught:
        lock.acquire(timeout=1)
    assert 0.9 < time.monotonic() - began < 1 + GRACE
    assert own_zookeeper.hosts in str(caught.value)
    own_zookeeper.resume()
    lock.acquire(timeout=60).release(wait=True)
    assert own_observer.children(lock.paths[0]) == []


@pytest.mark.shows("faults#the-server-freezes")
def test_server_frozen__waiting(own_zookeeper: ZooKeeper, make_pool: MakePool, own_observer: Observer) -> None:
    """A waiter that stands in a queue when the server freezes gets its error in time, and has met a holder."""
    lock = Lock("k", make_pool(own_zookeeper.hosts, session_timeout=40.0, connect_timeout=60.0))
    with Lock("k", make_pool(own_zookeeper.hosts, session_timeout=40.0)):
        # So long that a busy machine has it in the queue before.
        waiter = Runner(lambda: lock.acquire(timeout=scaled(4)))
        own_observer.wait_count(lock.paths[0], 2)
        own_zookeeper.pause()
        assert isinstance(waiter.outcome(4 + GRACE), LockTimeout)
        own_zookeeper.resume()
        own_observer.wait_count(lock.paths[0], 1)


@pytest.mark.timely("kazoo's own close would take ten seconds on any machine")
def test_server_frozen__close(own_zookeeper: ZooKeeper, make_pool: MakePool) -> None:
    """Closing a pool ends within its bound when the server does not answer, and says that it did not."""
    pool = make_pool(own_zookeeper.hosts)
    held = Lock("k", pool).acquire()
    own_zookeeper.pause()
    began = time.monotonic()
    assert not pool.close(0.5)
    # kazoo's own would take ten seconds.
    assert time.monotonic() - began < 8
    wait_until(lambda: held.lost)
    held.release()


@pytest.mark.shows("faults#the-server-freezes")
def test_server_frozen__lease(own_zookeeper: ZooKeeper, make_pool: MakePool) -> None:
    """A hold is lost when its lease has run out, not before, and stays lost when the server comes back."""
    pool = make_pool(own_zookeeper.hosts, session_timeout=6.0)
    losses = Losses()
    held = Lock("k", pool, listener=losses).acquire()
    session = pool.sessions()[0]
    own_zookeeper.pause()
    assert not held.lost
    wait_until(lambda: held.lost, 6 + GRACE)
    assert boottime() >= session.lease_end
    own_zookeeper.resume()
    with pytest.raises(LockLost):
        held.check()
    wait_until(lambda: pool.sessions()[0].connected)
    with pytest.raises(LockLost):
        held.check()
    wait_until(lambda: losses.notified)
    held.release(wait=True)
    assert len(losses.notified) == 1


def test_server_frozen__loss_is_told(own_zookeeper: ZooKeeper, make_pool: MakePool) -> None:
    """The end of a lease in an outage is told while no caller looks at the hold: a body may be interrupted by it."""
    losses = Losses()
    held = Lock("k", make_pool(own_zookeeper.hosts, session_timeout=2.0), listener=losses).acquire()
    own_zookeeper.pause()
    wait_until(lambda: losses.notified, 2 + GRACE)
    assert held.lost
    held.release()


def test_queues__frozen(own_zookeeper: ZooKeeper, make_pool: MakePool) -> None:
    """With a frozen server too."""
    pool = make_pool(own_zookeeper.hosts, connect_timeout=60.0)
    search.find(pool, timeout=60)
    own_zookeeper.pause()
    began = time.monotonic()
    with pytest.raises(ZooKeeperUnavailable, match=r"no answer from ZooKeeper at .* within [\d.]+ s"):
        search.find(pool, timeout=0.3)
    assert time.monotonic() - began < 0.3 + GRACE


# The server restarts.


@pytest.mark.shows("faults#a-server-restarts")
def test_server_restarted__longer_than_the_session(
    own_zookeeper: ZooKeeper, make_pool: MakePool, own_observer: Observer
) -> None:
    """When the server was away for longer than the session the hold is lost, and a waiter is granted in the end."""
    losses = Losses()
    held = Lock("k", make_pool(own_zookeeper.hosts, session_timeout=1.0), listener=losses).acquire()
    waiter = waiting_in(Lock("k", make_pool(own_zookeeper.hosts, session_timeout=1.0, connect_timeout=15)))
    own_observer.wait_count(held.lock.paths[0], 2)
    own_zookeeper.stop()
    wait_until(lambda: held.lost, 5)
    own_zookeeper.start()
    # A server that comes back gives every session its whole time again, so the node may still be there.
    held.release()
    later = waiter.result(20)
    assert later.token > held.token
    later.check()
    later.release()
    assert held.lost
    assert len(losses.notified) == 1
