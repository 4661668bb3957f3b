"""Every fault there is, at random, while threads take turns."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from django_zklock.exceptions import LockTimeout, ZooKeeperUnavailable
from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.threads import Runner
from tests.toolbox.timing import scaled, wait_until

SECONDS = 3.0
LONG = 80.0
ENTRIES, ENDED_HOLDING = 30, 3
SESSION_TIMEOUT = 2.0
WORKERS, POOLS = 9, 3
REPLIES = ("create2", "getChildren", "getData", "delete", "sync", "connect", "createContainer", "notification", "ping")
END_OF_NUMBERS = 2**31 - 1


class Room:
    """What the lock is for: which holds are inside, and what the server knows of their nodes."""

    def __init__(self, server: ZooKeeperServer) -> None:
        self.entries = 0
        # Holds inside at the same time of which none knows that it is lost.
        self.overlaps: list[list[Held]] = []
        # What must never be, ended sessions or not.
        self.violations: list[str] = []
        self._server = server
        self._newest_token = 0
        self._inside: list[Held] = []
        self._guard = threading.Lock()

    def enter(self, held: Held) -> None:
        with self._guard:
            self.entries += 1
            self._inside.append(held)
            present = [each for each in self._inside if not each.lost]
            if len(present) > 1:
                self.overlaps.append(present)
            alive = self._alive()
            if len(alive) > 1:
                self.violations.append(f"granted to several whose nodes are there: {alive}")
            if held in alive and held.token <= self._newest_token:
                self.violations.append(f"granted after token {self._newest_token}: {held}")
            self._newest_token = max(self._newest_token, held.token)

    def leave(self, held: Held) -> None:
        with self._guard:
            self._inside.remove(held)

    def holding_session(self) -> int | None:
        """Return the session of a hold that is inside, if there is one."""
        with self._guard:
            alive = self._alive()
        session: Any = alive[0]._possession.contender.session if alive else None
        return session.id if session is not None else None

    def _alive(self) -> list[Held]:
        nodes: list[str] = []
        # Also while the server is stopped.
        self._server.settle(lambda: nodes.extend(self._server.service.newest.tree.nodes))
        return [each for each in self._inside if each.node in nodes]


class Storm:
    """Faults in an order that chance decides."""

    def __init__(self, server: ZooKeeperServer, room: Room, chance: random.Random, *, expiry: bool) -> None:
        # How many sessions were ended while a hold of theirs was inside.
        self.ended_holding = 0
        self._room = room
        self._server = server
        self._faults = server.faults
        self._chance = chance
        self._kinds: list[Callable[[int | None], object]] = [
            self._cut, self._cut, self._faults.drop, self._swallow, self._delay, self._lag, self._refuse, self._restart,
        ]  # fmt: skip
        if expiry:
            self._kinds += [self._faults.expire, *[self._expire_holder] * 4]

    def rage(self, seconds: float, until: Callable[[], bool]) -> None:
        """Go on for so many seconds, and then until what the test is about has happened often enough."""
        began = time.monotonic()
        while time.monotonic() < began + seconds or not until():
            assert time.monotonic() < began + scaled(LONG), "the storm has not met what it was to meet"
            session = self._chance.choice([None, *(session.id for session in self._server.sessions())])
            self._chance.choice(self._kinds)(session)
            self._pass(0.05)
        self._faults.heal()

    def _pass(self, seconds: float) -> None:
        time.sleep(self._chance.uniform(0, seconds))

    def _expire_holder(self, _session: int | None) -> None:
        end = time.monotonic() + scaled(SESSION_TIMEOUT)
        while time.monotonic() < end:
            session = self._room.holding_session()
            if session is not None:
                self.ended_holding += self._faults.expire(session)
                return
            time.sleep(0.001)

    def _cut(self, session: int | None) -> None:
        size = self._chance.randrange(160)
        self._faults.cut_reply(self._chance.choice(REPLIES), after_bytes=size, session=session)

    def _swallow(self, session: int | None) -> None:
        with self._faults.black_hole(self._chance.choice(("requests", "replies", "both")), session=session):
            self._pass(scaled(SESSION_TIMEOUT * 1.5))

    def _delay(self, _session: int | None) -> None:
        with self._faults.delay(self._chance.uniform(0, 0.05)):
            self._pass(0.2)

    def _lag(self, _session: int | None) -> None:
        with self._faults.lag_reads(zxids=self._chance.randrange(1, 50)):
            self._pass(0.3)

    def _refuse(self, session: int | None) -> None:
        with self._faults.refuse():
            self._faults.drop(session)
            self._pass(0.2)

    def _restart(self, _session: int | None) -> None:
        self._server.stop()
        self._server.start()


def take_turns(pool: Pool, room: Room, chance: random.Random, stop: threading.Event) -> None:
    lock = Lock("k", pool)
    while not stop.is_set():
        try:
            held = lock.try_acquire() if chance.random() < 0.2 else lock.acquire(chance.choice((0.01, 0.1, 20, 20)))
        except (LockTimeout, ZooKeeperUnavailable):
            continue
        if held is not None:
            room.enter(held)
            time.sleep(chance.uniform(0, 0.01))
            room.leave(held)
            held.release()


# When the server ends a session at random, a holder has lost before it can know: that is what tokens are for.
@pytest.mark.shows("faults#all-of-these-faults-in-random-order")
@pytest.mark.timeout(400)
@pytest.mark.parametrize("expiry", [False, True], ids=["broken links", "ended sessions"])
def test_storm(server: ZooKeeperServer, make_pool: MakePool, expiry: bool) -> None:
    """No two hold whose nodes exist, at the end of the numbers too, each waiter is served, and nothing is left.

    Where no session is ended from outside, no two hold at once without one of them knowing that it has lost.
    """
    pools = [make_pool(session_timeout=SESSION_TIMEOUT, connect_timeout=10.0) for _ in range(POOLS)]
    first = Lock("k", pools[0])
    first.acquire(timeout=scaled(LONG)).release(wait=True)
    server.faults.set_sequence(first.paths[0], END_OF_NUMBERS - 10)
    room, stop = Room(server), threading.Event()
    workers = [
        Runner(lambda number=number: take_turns(pools[number % POOLS], room, random.Random(number), stop))  # type: ignore[misc]
        for number in range(WORKERS)
    ]
    storm = Storm(server, room, random.Random(expiry), expiry=expiry)
    try:
        storm.rage(
            SECONDS,
            lambda: room.entries >= ENTRIES and (storm.ended_holding >= ENDED_HOLDING or not expiry),
        )
    finally:
        stop.set()
    for worker in workers:
        worker.result(LONG)
    assert room.violations == []
    assert expiry or room.overlaps == []
    wait_until(lambda: not any(session.listeners for pool in pools for session in pool.sessions()), LONG)
    wait_until(lambda: server.paths(first.paths[0]) == [], LONG)
