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


def test_session_ended__waiting(pool: Pool, make_pool: MakePool, observer: Observer) -> None:
    """A waiter whose session is ended joins again, with a new node of its new session, and is granted."""
    lock = Lock("k", pool)
    held = Lock("k", make_pool()).acquire()
    waiter = waiting_in(lock)
    before = observer.wait_count(lock.paths[0], 2)
    observer.end_session(pool)
    wait_until(lambda: len(names := observer.children(lock.paths[0])) == 2 and names != before)
    held.release()
    with waiter.result() as later:
        assert observer.client.exists(later.node).ephemeralOwner == pool.sessions()[0].id


@pytest.mark.shows("guarantees#first-come-first-served")
def test_session__kept_while_waiting(make_pool: MakePool, observer: Observer) -> None:
    """A contender that waits for longer than the session timeout keeps session and place."""
    # So long that a pause of a busy machine does not end it.
    pool = make_pool(session_timeout=4.0)
    timeout = pool.options.connection.session_timeout
    lock = Lock("k", pool)
    held = Lock("k", make_pool()).acquire()
    waiter = waiting_in(lock)
    queue = observer.wait_count(lock.paths[0], 2)
    began, session = time.monotonic(), pool.sessions()[0].id
    wait_until(lambda: time.monotonic() > began + 2 * timeout)
    assert observer.children(lock.paths[0]) == queue
    assert (pool.sessions()[0].id, pool.sessions()[0].epoch) == (session, 0)
    held.release()
    waiter.result().release()


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


@pytest.mark.shows("guarantees#first-come-first-served")
def test_node_deleted__waiting(pool: Pool, make_pool: MakePool, observer: Observer) -> None:
    """A waiter whose node is deleted goes to the end of the queue."""
    lock = Lock("k", pool)
    held = Lock("k", make_pool()).acquire()
    waiter = waiting_in(lock)
    mine = observer.wait_count(lock.paths[0], 2)[1]
    observer.client.delete(f"{lock.paths[0]}/{mine}")
    wait_until(lambda: len(names := observer.children(lock.paths[0])) == 2 and mine not in names)
    assert waiter.running
    held.release()
    waiter.result().release()


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
def test_parent_deleted__waiting(make_pool: MakePool, observer: Observer) -> None:
    """When the whole queue is deleted the holder has lost, and the waiters queue up again."""
    pool = make_pool(session_timeout=3.0)
    lock = Lock("k", pool)
    held = Lock("k", make_pool(session_timeout=3.0)).acquire()
    waiters = [waiting_in(lock) for _ in range(3)]
    observer.wait_count(lock.paths[0], 4)
    # From the end, so that each waiter hears of its own node before it hears of the one before it.
    delete_queue(observer, lock, reversed(observer.children(lock.paths[0])))
    tokens = []
    while waiters:
        done = wait_until(lambda: [waiter for waiter in waiters if not waiter.running])
        assert len(done) == 1
        waiters.remove(done[0])
        with done[0].result() as later:
            tokens.append(later.token)
    assert tokens == sorted(tokens)
    wait_until(lambda: held.lost, 5)
    observer.wait_empty(lock.paths[0])


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


@pytest.mark.shows("guarantees#at-most-one-holder-whose-lease-runs")
def test_link__short_breaks(proxy: Proxy, make_pool: MakePool, observer: Observer) -> None:
    """Breaks of the link while eight threads take turns cost no exclusion and leave nothing."""
    pool, other = make_pool(proxy.hosts), make_pool()
    inside = threading.Lock()
    stop = threading.Event()

    def work(pool: Pool) -> int:
        count = 0
        while not stop.is_set():
            with Lock("k", pool).acquire(timeout=120) as held:
                assert inside.acquire(blocking=False)
                assert not held.lost
                inside.release()
                count += 1
        return count

    runners = [Runner(lambda pool=pool: work(pool)) for pool in [pool, other] * 4]  # type: ignore[misc]
    for _ in range(12):
        seen = len(proxy.chunks)
        wait_until(lambda seen=seen: len(proxy.chunks) > seen + 20)  # type: ignore[misc]
        proxy.cut()
    stop.set()
    assert all(runner.result(30) > 0 for runner in runners)
    observer.wait_empty(Lock("k", pool).paths[0])


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
