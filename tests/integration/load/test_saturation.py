"""A lock that everybody wants again as soon as it is given back, over a slow network."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.contender import Contender, State
from django_zklock.zk.lock import Lock
from django_zklock.zk.place import Place
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import Queue
from tests.toolbox.locks.contenders import is_next
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.threads import Runner
from tests.toolbox.timing import scaled, wait_until

PEOPLE, SESSIONS, TURNS = 8, 4, 10
# Seconds, each way.
DELAY = 0.01
# On a machine that is busy with other things.
LONG = scaled(30)


@pytest.fixture
def own_testserver() -> Iterator[ZooKeeperServer]:
    """Return a server whose requests are those of the test."""
    with ZooKeeperServer() as server:
        yield server


@pytest.mark.slow
@pytest.mark.timeout(400)  # on a busy machine
def test_saturation(own_testserver: ZooKeeperServer, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A waiter that was ready before its predecessor released is granted by the notification, without a request.

    How many are ready in time, where nothing waits for that, depends on the machine: `make bench WHAT=saturation`.
    """
    unasked, waited = count_grants(monkeypatch)
    # So long that no pause of a busy machine makes a lease too old for a grant without a request.
    pools = [make_pool(own_testserver.hosts, session_timeout=60.0, connect_timeout=20.0) for _ in range(SESSIONS)]
    for pool in pools:
        Lock("warm", pool).acquire(timeout=LONG).release(wait=True)
    own_testserver.requests.clear()
    together = threading.Barrier(PEOPLE)
    order: list[int] = []

    def take_turns(number: int) -> None:
        lock = Lock("k", pools[number % SESSIONS])
        together.wait(LONG)
        for _ in range(TURNS):
            with lock.acquire(timeout=10 * LONG) as held:
                order.append(held.token)
                # The last turns of all have fewer behind them.
                behind = min(PEOPLE - 1, PEOPLE * TURNS - len(order))
                wait_until(lambda behind=behind: ready_behind(pools) == (behind, behind > 0), LONG)  # type: ignore[misc]

    with own_testserver.faults.delay(DELAY):
        runners = [Runner(lambda number=number: take_turns(number)) for number in range(PEOPLE)]  # type: ignore[misc]
        for runner in runners:
            runner.result(300)
    assert order == sorted(set(order))
    assert len(waited) == PEOPLE * TURNS - 1
    assert unasked == waited
    # A list to join, and one to become the next.
    assert own_testserver.requests.count("getChildren") <= 2 * PEOPLE * TURNS
    for pool in pools:
        pool.close()


def ready_behind(pools: list[Pool]) -> tuple[int, bool]:
    """Return how many have found their place in the queue, and whether the first of them is ready."""
    found = [
        listener
        for pool in pools
        for session in pool.sessions()
        for listener in list(session.listeners)
        if isinstance(listener, Contender) and listener.state is State.WAITING
    ]
    return len(found), any(is_next(each) for each in found)


def count_grants(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str | None], list[str | None]]:
    """Return lists that grow with the grants to waiters: those without a request, and all."""
    unasked: list[str | None] = []
    waited: list[str | None] = []
    advance, on_queue = Place.advance, Place._on_queue

    def state_of(place: Place) -> State:
        assert isinstance(place.contender, Contender)
        return place.contender.state

    def hear(place: Place) -> None:
        before = state_of(place)
        advance(place)
        if before is State.WAITING and state_of(place) is State.HELD:
            unasked.append(place.node)
            waited.append(place.node)

    def read(place: Place, queue: Queue | None, error: Exception | None) -> None:
        before = state_of(place)
        on_queue(place, queue, error)
        if before is State.WAITING and state_of(place) is State.HELD:
            waited.append(place.node)

    monkeypatch.setattr(Place, "advance", hear)
    monkeypatch.setattr(Place, "_on_queue", read)
    return unasked, waited
