"""Sessions that end, nodes that operators delete, links that break."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator
from typing import Any

import pytest

from django_zklock.exceptions import LockLost, ZooKeeperUnavailable
from django_zklock.zk import acquire, owners
from django_zklock.zk.acquire import Acquisition
from django_zklock.zk.contender import State
from django_zklock.zk.held import held_stack
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from tests.toolbox.locks.contenders import RULES
from tests.toolbox.locks.losses import Losses
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.network.tcp_proxy import DOWN, UP, Proxy, requests
from tests.toolbox.threads import Runner, waiting_in
from tests.toolbox.timing import GRACE, LONG_SESSION, scaled, wait_until
from tests.toolbox.zookeeper.any_server import Server
from tests.toolbox.zookeeper.observer import Observer

CREATE2 = 15


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """Return a link to the server that can be disturbed."""
    with Proxy(server.address) as proxy:
        yield proxy
        proxy.resume()


# The session ends.


@pytest.mark.shows("guarantees#a-lost-lock-is-reported")
def test_session_ended__holding(pool: Pool, make_pool: MakePool, observer: Observer) -> None:
    """A holder whose session is ended from outside has lost, is told once, and hears it at the end of its block."""
    losses = Losses()
    lock = Lock("k", pool, listener=losses)
    with pytest.raises(LockLost, match=r"was lost after .* fence with token") as caught, lock as held:  # noqa: PT012
        waiter = waiting_in(Lock("k", make_pool()))
        observer.wait_count(lock.paths[0], 2)
        observer.end_session(pool)
        later = waiter.result()
        wait_until(lambda: held.lost)
        wait_until(lambda: losses.notified)
        with pytest.raises(LockLost):
            held.check()
        with pytest.raises(LockLost):
            lock.acquire()
    assert caught.value.key == "k"
    assert later.token > held.token
    later.check()
    later.release()
    with lock.acquire(timeout=60) as again:
        assert held.lost
        assert not again.lost
    assert [lost for lost, _ in losses.notified] == [held]


def test_session_ended__exception_in_the_block(pool: Pool, observer: Observer) -> None:
    """The loss does not hide the exception that leaves the block."""
    with pytest.raises(ValueError, match="mine"), Lock("k", pool) as held:  # noqa: PT012
        observer.end_session(pool)
        wait_until(lambda: held.lost)
        raise ValueError("mine")
    assert held_stack() == []


def test_session_ended__before_the_caller_looked(pool: Pool, observer: Observer) -> None:
    """A grant that was lost before its caller came to look is not given out: the caller waits on, with a new node."""
    lock = Lock("k", pool)
    changed = threading.Event()
    attempt = Acquisition(lock, None, changed.set, owners.caller())
    attempt.start()
    first = attempt.contender
    wait_until(lambda: first.state is State.HELD)
    observer.end_session(pool)
    wait_until(lambda: first.lost)
    while not attempt.poll():
        assert changed.wait(10)
        changed.clear()
    held = attempt.held()
    assert held is not None
    assert held.token > (first.token or 0)
    held.check()
    held.release(wait=True)
    assert observer.children(lock.paths[0]) == []


# Operators.


@pytest.mark.shows("guarantees#a-lost-lock-is-reported")
def test_node_deleted__holding(make_pool: MakePool, observer: Observer) -> None:
    """A node that an operator deletes is missed within a heartbeat."""
    losses = Losses()
    pool = make_pool(session_timeout=LONG_SESSION)
    lock = Lock("k", pool, listener=losses)
    held = lock.acquire()
    observer.client.delete(held.node)
    began = time.monotonic()
    wait_until(lambda: held.lost, LONG_SESSION)
    assert time.monotonic() - began < LONG_SESSION / 6 + GRACE
    wait_until(lambda: losses.notified)
    assert "deleted" in losses.notified[0][1]
    held.release()
    with lock.acquire(timeout=60) as again:
        again.check()


def test_node_changed__waiting(pool: Pool, make_pool: MakePool, observer: Observer) -> None:
    """Data that another client writes into the nodes of a queue disturbs no contender, whatever it is."""
    lock = Lock("k", pool)
    held = Lock("k", make_pool()).acquire()
    waiter = waiting_in(lock)
    for name in observer.wait_count(lock.paths[0], 2):
        for data in (b"__REVOKE__", b"", b"\xff" * 10):
            observer.client.set(f"{lock.paths[0]}/{name}", data)
    observer.client.create(f"{lock.paths[0]}/readme", b"of another client")
    assert not held.lost
    held.release()
    waiter.result().release(wait=True)
    observer.client.delete(f"{lock.paths[0]}/readme")


@pytest.mark.shows("faults#a-queue-is-deleted")
@pytest.mark.parametrize("order", [1, -1], ids=["forwards", "backwards"])
@pytest.mark.parametrize("keys", ["k", ["k", "l"]], ids=["one", "several"])
@pytest.mark.parametrize("kind", RULES)
def test_parent_deleted__waiting(
    make_pool: MakePool, observer: Observer, kind: str, keys: str | list[str], order: int
) -> None:
    """The holder has lost all of it; each waiter queues up again, as the lock exists again, and all have their turn.

    Backwards each waiter hears of its own node before it hears of the one before it.
    """
    # Exclusive, so that every other contender waits.
    lock = Lock(keys, make_pool(session_timeout=3.0))
    held = lock.acquire(timeout=60)
    pools = [make_pool(session_timeout=3.0) for _ in range(2)]

    def enter(number: int) -> int:
        with Lock(keys, pools[number % 2], rule=RULES[kind]).acquire(timeout=120) as mine:
            mine.check()
            return mine.token

    waiters = [Runner(lambda number=number: enter(number)) for number in range(4)]  # type: ignore[misc]
    delete_queue(observer, lock, observer.wait_count(lock.paths[0], 5)[::order])
    wait_until(lambda: held.lost, 10)
    # It still stands in the other queue.
    held.release(wait=True)
    assert all(waiter.result(20) > held.token for waiter in waiters)
    for each in lock.paths:
        observer.wait_empty(each)


def test_parent_deleted__next_in_queue(pool: Pool, make_pool: MakePool, observer: Observer) -> None:
    """A waiter that hears first that no node is left before it, then that its own is gone, holds and knows the loss."""
    lock = Lock("k", pool)
    held = Lock("k", make_pool()).acquire()
    waiter = waiting_in(lock)
    delete_queue(observer, lock, observer.wait_count(lock.paths[0], 2))
    later = waiter.result()
    # It may have heard of both before it came to look, and have lined up again.
    wait_until(lambda: later.lost or observer.client.exists(later.node))
    wait_until(lambda: held.lost)
    later.release(wait=True)
    with lock.acquire(timeout=60) as again:
        again.check()
    observer.wait_empty(lock.paths[0])


def delete_queue(observer: Observer, lock: Lock, names: Iterable[str]) -> None:
    """Delete the nodes in that order, and their parent, in one transaction: the waiters come back that fast."""
    everything = observer.client.transaction()
    for name in names:
        everything.delete(f"{lock.paths[0]}/{name}")
    everything.delete(lock.paths[0])
    assert all(outcome is True for outcome in everything.commit())


# The link.


@pytest.mark.shows("faults#the-reply-to-a-create-is-lost")
def test_create_reply__lost(proxy: Proxy, make_pool: MakePool, observer: Observer) -> None:
    """When the reply to the create is lost, the node is found again: one node, and no deadlock with oneself."""
    pool = make_pool(proxy.hosts)
    lock = Lock("k", pool)
    # A parent that is not reaped while the queue is empty.
    observer.client.ensure_path(lock.paths[0])
    lock.acquire().release(wait=True)
    swallowed = threading.Event()

    def cut_after_create(direction: str, chunk: bytes) -> bool:
        if direction == UP and not swallowed.is_set() and CREATE2 in requests(chunk):
            proxy.pause(DOWN)
            swallowed.set()
        return False

    for _ in range(5):
        swallowed.clear()
        proxy.on_chunk = cut_after_create
        waiter = waiting_in(lock)
        assert swallowed.wait(scaled(20))
        node = observer.wait_count(lock.paths[0], 1)[0]
        proxy.on_chunk = None
        proxy.resume(drop=True)
        proxy.cut()
        held = waiter.result()
        assert held.node.endswith(node)
        assert observer.children(lock.paths[0]) == [node]
        held.check()
        held.release(wait=True)
    observer.wait_empty(lock.paths[0])


@pytest.mark.shows("guarantees#no-way-out-leaves-a-node")
def test_create__given_up_while_cut(proxy: Proxy, make_pool: MakePool, observer: Observer) -> None:
    """A wait that is given up while it is not known whether its node exists leaves none."""
    pool = make_pool(proxy.hosts, session_timeout=LONG_SESSION)
    lock = Lock("k", pool)
    # A parent that is not reaped while the queue is empty.
    observer.client.ensure_path(lock.paths[0])
    lock.acquire().release(wait=True)
    proxy.pause(DOWN)
    with pytest.raises(ZooKeeperUnavailable):
        lock.acquire(timeout=scaled(1))
    observer.wait_count(lock.paths[0], 1)
    proxy.resume(drop=True)
    proxy.cut()
    # Long before its session would end.
    observer.wait_empty(lock.paths[0], LONG_SESSION / 2)


@pytest.mark.shows("faults#the-connection-stays-open-and-delivers-nothing")
def test_link__black_hole(proxy: Proxy, make_pool: MakePool, observer: Observer) -> None:
    """A link that swallows everything while requests keep coming is dropped, and its holder knows in time.

    Whenever the node is gone at the server, the hold is lost.
    """
    pool = make_pool(proxy.hosts, session_timeout=3.0, connect_timeout=1.0)
    held = Lock("k", pool).acquire()
    session = pool.sessions()[0]
    stop = threading.Event()

    def keep_asking() -> None:
        while not stop.wait(0.02):
            session.post(lambda: session.wire.children("/", lambda *_: None) if session.connected else None)

    asking = Runner(keep_asking)
    proxy.pause(UP, DOWN)

    def node_is_gone() -> bool:
        gone = observer.client.exists(held.node) is None
        assert held.lost or not gone
        return gone

    wait_until(node_is_gone, 3.0 + GRACE)
    # Without the watchdog of the session it would stay as it is for ever.
    wait_until(lambda: not session.connected, 3.0 + GRACE)
    stop.set()
    asking.result()
    proxy.resume(drop=True)
    proxy.cut()
    held.release()
    Lock("k", pool).acquire(timeout=120).release()


@pytest.mark.shows("guarantees#a-lost-connection-costs-no-lock-while-the-lease-runs")
def test_strict__suspended(proxy: Proxy, make_pool: MakePool) -> None:
    """Under the strict policy a broken connection is a loss at once; under the other one it is none."""
    strict, lease = make_pool(proxy.hosts, strict=True), make_pool(proxy.hosts)
    held, other = Lock("a", strict).acquire(), Lock("b", lease).acquire()
    proxy.refusing = True
    proxy.cut()
    wait_until(lambda: held.lost)
    assert "suspended" in str(held._possession.loss())
    assert not other.lost
    proxy.refusing = False
    wait_until(lambda: strict.sessions()[0].connected and lease.sessions()[0].connected)
    other.check()
    assert held.lost
    held.release(wait=True)
    other.release()
    Runner(lambda: Lock("a", strict).acquire(timeout=60).release()).result()


# Exceptions.


@pytest.mark.parametrize("is_block", [True, False])
def test_interrupted__and_an_outer_hold_released(
    make_pool: MakePool, observer: Observer, monkeypatch: pytest.MonkeyPatch, is_block: bool
) -> None:
    """An exception right after the grant leaves no hold, also if another thread has released an outer one meanwhile."""
    pool = make_pool()
    outer, lock = Lock("outer", pool).acquire(60), Lock("k", pool)
    first = Lock("k", make_pool()).acquire(60)
    acquire_ = acquire.acquire

    def interrupted(*arguments: Any, **options: Any) -> None:
        acquire_(*arguments, **options)
        raise KeyboardInterrupt

    def release() -> None:
        observer.wait_count(lock.paths[0], 2)
        outer.release()
        first.release()

    monkeypatch.setattr(acquire, "acquire", interrupted)
    releasing = Runner(release)
    with pytest.raises(KeyboardInterrupt):  # noqa: PT012
        if is_block:
            with lock:
                pass
        else:
            lock.acquire(120)
    releasing.result()
    assert held_stack() == []
    observer.wait_count(lock.paths[0], 0)
