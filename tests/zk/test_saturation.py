"""A lock that everybody wants again as soon as it is given back, over a slow network."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import pytest

from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.contender import Contender, State
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from tests.zk.onlooker import MakePool
from tests.zk.runner import Runner

PEOPLE, SESSIONS, TURNS = 8, 4, 25
# Seconds, each way.
DELAY = 0.01
UNASKED = 0.9
ROUNDS = 4


@pytest.fixture
def own_testserver() -> Iterator[ZooKeeperServer]:
    """Give a server whose requests are those of the test."""
    with ZooKeeperServer() as server:
        yield server


@pytest.mark.slow
@pytest.mark.timeout(400)  # several rounds on a busy machine
def test_saturation(own_testserver: ZooKeeperServer, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine of ten are granted by the news that the one before has gone, without a question of their own after it."""
    unasked, waited = count_grants(monkeypatch)
    shares: list[float] = []
    pools = [make_pool(own_testserver.hosts, session_timeout=30.0, connect_timeout=20.0) for _ in range(SESSIONS)]
    for pool in pools:
        Lock("warm", pool).acquire(timeout=20).release(wait=True)
    # What else keeps a machine busy delays who is to get ready, and makes it fewer, never more.
    while len(shares) < ROUNDS and max(shares, default=0.0) < UNASKED:
        own_testserver.requests.clear()
        unasked.clear()
        waited.clear()
        _play(own_testserver, pools)
        # All but those of the beginning have stood behind somebody.
        assert len(waited) >= PEOPLE * TURNS - PEOPLE - SESSIONS
        # A list to join, and one for each hand-over at most; nobody who is refused the lock keeps asking.
        assert own_testserver.requests.count("getChildren") <= 2.2 * PEOPLE * TURNS
        shares.append(len(unasked) / len(waited))
    assert max(shares) >= UNASKED, shares
    for pool in pools:
        pool.close()


def _play(server: ZooKeeperServer, pools: list[Pool]) -> None:
    together = threading.Barrier(PEOPLE)

    def take_turns(number: int) -> None:
        lock = Lock("k", pools[number % SESSIONS])
        together.wait(20)
        for _ in range(TURNS):
            lock.acquire(timeout=60).release()

    with server.faults.delay(DELAY):
        runners = [Runner(lambda number=number: take_turns(number)) for number in range(PEOPLE)]  # type: ignore[misc]
        for runner in runners:
            runner.result(100)


def count_grants(monkeypatch: pytest.MonkeyPatch) -> tuple[list[str | None], list[str | None]]:
    """Give lists that grow with the grants to those who waited: those without a question, and all."""
    unasked: list[str | None] = []
    waited: list[str | None] = []
    on_clear, on_line = Contender.on_clear, Contender.on_line

    def hear(contender: Contender) -> None:
        on_clear(contender)
        if contender.state is State.HELD:
            unasked.append(contender.node)
            waited.append(contender.node)

    def read(contender: Contender, *seen: object) -> None:
        before = contender.state
        on_line(contender, *seen)  # type: ignore[arg-type]
        if before is State.WAITING and contender.state is State.HELD:
            waited.append(contender.node)

    monkeypatch.setattr(Contender, "on_clear", hear)
    monkeypatch.setattr(Contender, "on_line", read)
    return unasked, waited
