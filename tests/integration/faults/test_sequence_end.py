"""The end of the 32-bit numbers for locks of each kind; ``test_exact_faults`` has what comes between two requests."""

from __future__ import annotations

import threading

import pytest

from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.ops import snapshots
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import EXCLUSIVE, READ, WRITE, Rule, semaphore
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.threads import Runner
from tests.toolbox.timing import wait_until

END_OF_NUMBERS = 2**31 - 1
# The last eight numbers, the last of all again and again, numbers below nought, and where trust in them ends.
STARTS = [END_OF_NUMBERS - 7, END_OF_NUMBERS - 1, -2, END_OF_NUMBERS - 2**20 - 6]
TWO = semaphore(2)


class Room:
    """The contenders that are in it; they stay until told to go."""

    def __init__(self, server: ZooKeeperServer, pools: list[Pool], first: int) -> None:
        self.first = first
        self.inside: dict[int, Held] = {}
        self.entries: list[int] = []
        self._server = server
        self._pools = pools
        self._go = [threading.Event() for _ in range(20)]
        self._runners: list[Runner] = []
        warm = Lock("k", pools[0])
        warm.acquire(timeout=60).release(wait=True)
        self.path = warm.paths[0]
        server.faults.set_sequence(self.path, first)

    def come(self, *rules: Rule) -> None:
        """Add a contender for each rule at the end of the queue, one after the other."""
        for rule in rules:
            number = len(self._runners)
            count = len(self._server.paths(self.path))
            self._runners.append(Runner(lambda number=number, rule=rule: self._stay(number, rule)))  # type: ignore[misc]
            wait_until(lambda count=count: len(self._server.paths(self.path)) == count + 1)  # type: ignore[misc]

    def _stay(self, number: int, rule: Rule) -> None:
        with Lock("k", self._pools[number % len(self._pools)], rule=rule).acquire(timeout=120) as held:
            self.inside[number] = held
            self.entries.append(number)
            assert self._go[number].wait(30)
            held.check()
            del self.inside[number]

    def expect(self, *numbers: int) -> None:
        """Wait until exactly those are in the room."""
        wait_until(lambda: set(self.inside) == set(numbers), what=f"{numbers} and not {set(self.inside)}")

    def leave(self, *numbers: int) -> None:
        """Let these contenders leave, and wait until their nodes are gone."""
        for number in numbers:
            self._go[number].set()
            self._runners[number].result()


@pytest.fixture(params=STARTS)
def room(request: pytest.FixtureRequest, server: ZooKeeperServer, make_pool: MakePool) -> Room:
    """Return an empty room, with the number that the first contender is to get."""
    return Room(server, [make_pool() for _ in range(3)], request.param)


@pytest.mark.shows("faults#the-numbers-come-to-their-end")
def test_sequence_end__exclusive(
    room: Room, server: ZooKeeperServer, make_pool: MakePool, caplog: pytest.LogCaptureFixture
) -> None:
    """At the end of the numbers, past it and where trust in them ends, one holds at a time, first come first."""
    room.come(*[EXCLUSIVE] * 13)
    room.expect(0)
    pool = make_pool()
    snapshot = snapshots.one_lock(pool, "k", timeout=60)
    assert [place.token for place in snapshot.entries] == sorted(place.token for place in snapshot.entries)
    numbers = [node.sequence for node in snapshot.nodes]
    assert numbers == [min(room.first + place, END_OF_NUMBERS) for place in range(13)]
    tokens = []
    for number in range(13):
        room.expect(number)
        held = room.inside[number]
        tokens.append(held.token)
        shown = snapshots.one_lock(pool, "k", timeout=60).holders
        assert [(place.path, place.token) for place in shown] == [(held.node, held.token)]
        room.leave(number)
    assert room.entries == list(range(13))
    assert tokens == sorted(set(tokens))
    assert "event=sequence_end" in caplog.text
    wait_until(lambda: server.paths(room.path) == [])


@pytest.mark.shows("faults#the-numbers-come-to-their-end")
def test_sequence_end__read_and_write(room: Room, server: ZooKeeperServer) -> None:
    """At the end of the numbers and over it readers share, writers are alone, and everybody comes in their turn."""
    room.come(READ, READ, WRITE, READ, READ, READ, WRITE, WRITE, READ, WRITE)
    groups, tokens = [[0, 1], [2], [3, 4, 5], [6], [7], [8], [9]], [0]
    for group in groups:
        room.expect(*group)
        held = sorted(room.inside[number].token for number in group)
        assert held[0] > tokens[-1]
        tokens = held
        assert sorted(room.entries) == list(range(group[-1] + 1))
        room.leave(*group)
    wait_until(lambda: server.paths(room.path) == [])


@pytest.mark.shows("faults#the-numbers-come-to-their-end")
def test_sequence_end__semaphore(room: Room, server: ZooKeeperServer) -> None:
    """Of a semaphore's leases there are as many as ever, and they are given in the order of the queue."""
    room.come(*[TWO] * 10)
    for number in range(9):
        room.expect(number, number + 1)
        assert sorted(room.entries) == list(range(number + 2))
        room.leave(number)
    room.leave(9)
    wait_until(lambda: server.paths(room.path) == [])
