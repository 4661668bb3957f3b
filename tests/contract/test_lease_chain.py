"""Semaphores: a contender that comes in tells the one behind it, and what if that goes wrong."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import semaphore
from tests.toolbox.locks.contenders import Contenders, settle
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.network.tcp_proxy import DOWN, UP, Proxy, requests
from tests.toolbox.timing import wait_until
from tests.toolbox.zookeeper.any_server import Server
from tests.toolbox.zookeeper.observer import Observer

SET_DATA = 5
TWO = semaphore(2)


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """Return a link to the server that can be disturbed."""
    with Proxy(server.address) as proxy:
        yield proxy
        proxy.resume()


@pytest.fixture
def contenders(observer: Observer, make_pool: MakePool) -> Contenders:
    """Return a queue in which each contender has a session of its own."""
    return Contenders(observer, make_pool)


@pytest.fixture
def disturbed(make_pool: MakePool, proxy: Proxy) -> Pool:
    """Return a pool that is connected through the proxy."""
    pool = make_pool(proxy.hosts)
    wait_until(lambda: pool.session("/").connected)
    return pool


@pytest.mark.shows("faults#a-waiter-dies-when-it-is-its-turn")
def test_notified__before_the_next_watches(contenders: Contenders, disturbed: Pool, proxy: Proxy) -> None:
    """A contender that comes in may say so before the one behind it, which has seen it wait, begins to watch."""
    a, b, notified = contenders.join_all(TWO, TWO, TWO)
    proxy.pause(DOWN)
    late = contenders.join(TWO, disturbed)
    # The list too is on its way, and in it the one before waits.
    wait_until(lambda: b"".join(chunk for _, chunk in proxy.chunks).count(late.node.encode()) >= 2)
    a.leave()
    wait_until(lambda: contenders.observer.client.exists(f"{contenders.path}/{notified.node}").version == 1)
    proxy.resume()
    contenders.expect(b, notified)
    b.leave()
    contenders.expect(notified, late)
    notified.leave()
    late.leave()


def test_notified__found_free_after_a_reconnect(contenders: Contenders, disturbed: Pool, proxy: Proxy) -> None:
    """A contender that was to wait, and learns after a reconnect that it need not, says so too."""
    a, b = contenders.join_all(TWO, TWO)
    proxy.pause(DOWN)
    found = contenders.join(TWO, disturbed)
    late = contenders.join(TWO)
    settle(late.pool)
    a.leave()
    proxy.resume(drop=True)
    proxy.cut()
    contenders.expect(b, found)
    b.leave()
    contenders.expect(found, late)
    found.leave()
    late.leave()


@pytest.mark.shows("faults#another-message-is-lost")
def test_notified__lost_on_the_way(contenders: Contenders, disturbed: Pool, proxy: Proxy) -> None:
    """What the connection has lost is said again after a reconnect."""
    a, b = contenders.join_all(TWO, TWO)
    telling = contenders.join(TWO, disturbed)
    late = contenders.join(TWO)
    lost = threading.Event()

    def lose(direction: str, chunk: bytes) -> bool:
        if direction == UP and not lost.is_set() and SET_DATA in requests(chunk):
            lost.set()
            return True
        return False

    proxy.on_chunk = lose
    a.leave()
    assert lost.wait(10)
    contenders.expect(b, telling)
    b.leave()
    contenders.expect(telling, late)
    telling.leave()
    late.leave()


@pytest.mark.shows("faults#a-waiter-dies-when-it-is-its-turn")
@pytest.mark.parametrize("knows", [False, True], ids=["before it knows", "before it tells"])
def test_waiter__dies_when_it_is_its_turn(contenders: Contenders, disturbed: Pool, proxy: Proxy, knows: bool) -> None:
    """A waiter whose turn has come, and that dies before the next in the queue has heard of it, takes no place away."""
    a, b = contenders.join_all(TWO, TWO)
    dying = contenders.join(TWO, disturbed)
    late, last = contenders.join_all(TWO, TWO)
    dead = threading.Event()

    def die(direction: str, chunk: bytes) -> bool:
        if SET_DATA in requests(chunk) if direction == UP else not knows:
            proxy.refusing = True
            dead.set()
        return dead.is_set()

    proxy.on_chunk = die
    a.leave()
    assert dead.wait(10)
    assert dying.granted is knows
    contenders.observer.end_session(disturbed)
    contenders.expect(b, late)
    b.leave()
    contenders.expect(late, last)
    late.leave()
    last.leave()
