"""Every fault there is, at random, while threads take turns."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator

import pytest

from django_zklock.exceptions import LockTimeout, ZooKeeperUnavailable
from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from tests.zk.onlooker import MakePool, wait_until
from tests.zk.runner import Runner

SECONDS = 3.0
SESSION_TIMEOUT = 2.0
WORKERS, POOLS = 9, 3
REPLIES = ("create2", "getChildren", "getData", "delete", "sync", "connect", "createContainer", "notification", "ping")
END_OF_NUMBERS = 2**31 - 1


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    """Give a server of the test's own."""
    with ZooKeeperServer() as server:
        yield server


class Room:
    """What the lock is for: who is in it, and whether there were ever two whose holds were not lost."""

    def __init__(self) -> None:
        self.entries = 0
        self.crowds: list[list[Held]] = []
        self._inside: list[Held] = []
        self._guard = threading.Lock()

    def enter(self, held: Held) -> None:
        with self._guard:
            self.entries += 1
            self._inside.append(held)
            present = [each for each in self._inside if not each.lost]
            if len(present) > 1:
                self.crowds.append(present)

    def leave(self, held: Held) -> None:
        with self._guard:
            self._inside.remove(held)


class Storm:
    """Faults in an order that chance decides."""

    def __init__(self, server: ZooKeeperServer, chance: random.Random, *, expiry: bool) -> None:
        self._server = server
        self._faults = server.faults
        self._chance = chance
        self._kinds: list[Callable[[int | None], object]] = [
            self._cut, self._cut, self._faults.drop, self._swallow, self._delay, self._lag, self._refuse, self._restart,
        ]  # fmt: skip
        if expiry:
            self._kinds.append(self._faults.expire)

    def rage(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            session = self._chance.choice([None, *(session.id for session in self._server.sessions())])
            self._chance.choice(self._kinds)(session)
            self._pass(0.05)
        self._faults.heal()

    def _pass(self, seconds: float) -> None:
        time.sleep(self._chance.uniform(0, seconds))

    def _cut(self, session: int | None) -> None:
        size = self._chance.randrange(160)
        self._faults.cut_reply(self._chance.choice(REPLIES), after_bytes=size, session=session)

    def _swallow(self, session: int | None) -> None:
        with self._faults.black_hole(self._chance.choice(("requests", "replies", "both")), session=session):
            self._pass(SESSION_TIMEOUT * 1.5)

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
@pytest.mark.parametrize("expiry", [False, True], ids=["broken links", "ended sessions"])
def test_storm(server: ZooKeeperServer, make_pool: MakePool, expiry: bool) -> None:
    """No two hold at once, at the end of the numbers too, nobody waits for ever, and in the end nothing is left."""
    pools = [make_pool(session_timeout=SESSION_TIMEOUT, connect_timeout=10.0) for _ in range(POOLS)]
    first = Lock("k", pools[0])
    first.acquire(timeout=5).release(wait=True)
    server.faults.set_sequence(first.paths[0], END_OF_NUMBERS - 10)
    room, stop = Room(), threading.Event()
    workers = [
        Runner(lambda number=number: take_turns(pools[number % POOLS], room, random.Random(number), stop))  # type: ignore[misc]
        for number in range(WORKERS)
    ]
    Storm(server, random.Random(expiry), expiry=expiry).rage(SECONDS)
    stop.set()
    for worker in workers:
        worker.result(30)
    assert room.entries > 0
    assert expiry or room.crowds == []
    wait_until(lambda: not any(session._tenants for pool in pools for session in pool.sessions()))
    wait_until(lambda: server.paths(first.paths[0]) == [])
