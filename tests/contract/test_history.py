"""Random work on locks of each kind, by threads and tasks of two processes: is there a legal order of all of it?"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Iterator, Sequence

import pytest

from django_zklock.exceptions import LockTimeout, ZooKeeperUnavailable
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import EXCLUSIVE, READ, WRITE, Rule, semaphore
from tests.contract.hold_history import History, Hold
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.network.tcp_proxy import Proxy
from tests.toolbox.threads import Runner
from tests.toolbox.timing import wait_until
from tests.toolbox.zookeeper.any_server import Server
from tests.toolbox.zookeeper.observer import Observer

THREADS = TASKS = 4
ROUNDS = 40
CUTS = 5
KEYS = ["a", "b", "c"]
# No place in the queue within the time that a worker had: not in it yet, or not to its end.
GIVEN_UP = (LockTimeout, ZooKeeperUnavailable)
# What those of a workload ask for, and how many of them have to be seen inside at once, or it has shown nothing.
WORKLOADS: dict[str, tuple[Sequence[Rule], int, int]] = {
    "exclusive": ([EXCLUSIVE], 1, 1),
    "read and write": ([READ, READ, WRITE], 1, 2),
    "semaphore": ([semaphore(3)], 1, 2),
    "limits differ": ([semaphore(1), semaphore(2), semaphore(4)], 1, 2),
    "several keys": ([EXCLUSIVE], 3, 1),
    "everything": ([EXCLUSIVE, WRITE, READ, READ, semaphore(2), semaphore(3)], 3, 1),
}


@pytest.fixture
def seed() -> int:
    """Return a seed, which is shown if the test fails."""
    seed = random.randrange(2**32)
    print(f"seed {seed}")  # noqa: T201 - that is how it is shown
    return seed


@pytest.fixture
def proxy(server: Server) -> Iterator[Proxy]:
    """Return a link to the server that can be cut."""
    with Proxy(server.address) as proxy:
        yield proxy


class Worker:
    """A thread or a task that takes locks at random, one after the other."""

    def __init__(self, history: History, pool: Pool, seed: str, rules: Sequence[Rule], most_keys: int) -> None:
        self._history = history
        self._pool = pool
        self._chance = random.Random(seed)
        self._rules = rules
        self._most_keys = most_keys

    def work(self) -> None:
        for _ in range(ROUNDS):
            lock, invoked = self._choose(), self._history.now()
            try:
                held = lock.try_acquire() if self._chance.random() < 0.2 else lock.acquire(self._timeout())
            except GIVEN_UP:
                continue
            if held is not None:
                hold = self._history.granted(held, invoked)
                time.sleep(self._chance.random() * 0.003)
                self._release(held, hold)

    async def awork(self) -> None:
        for _ in range(ROUNDS):
            lock, invoked = self._choose(), self._history.now()
            try:
                held = await (lock.atry_acquire() if self._chance.random() < 0.2 else lock.aacquire(self._timeout()))
            except GIVEN_UP:
                continue
            if held is not None:
                hold = self._history.granted(held, invoked)
                await asyncio.sleep(self._chance.random() * 0.003)
                self._release(held, hold)

    def _choose(self) -> Lock:
        keys = self._chance.sample(KEYS[: self._most_keys], self._chance.randint(1, self._most_keys))
        return Lock(keys, self._pool, rule=self._chance.choice(self._rules))

    def _timeout(self) -> float:
        # Some give up.
        return self._chance.choice([0.005, 20.0, 20.0])

    def _release(self, held: Held, hold: Hold) -> None:
        assert not held.lost, held
        self._history.released(hold)
        held.release()


async def all_of(workers: list[Worker]) -> None:
    await asyncio.gather(*(worker.awork() for worker in workers))


@pytest.mark.shows("guarantees#at-most-one-holder-whose-lease-runs", "faults#all-of-these-faults-in-random-order")
@pytest.mark.parametrize(("rules", "keys", "together"), WORKLOADS.values(), ids=WORKLOADS)
def test_history(
    make_pool: MakePool,
    observer: Observer,
    proxy: Proxy,
    seed: int,
    rules: Sequence[Rule],
    keys: int,
    together: int,
) -> None:
    """The order of the tokens explains which worker has held what when, over connections that break."""
    history, pools = History(), [make_pool(size=2), make_pool(proxy.hosts)]
    workers = [Worker(history, pools[number % 2], f"{seed} {number}", rules, keys) for number in range(THREADS + TASKS)]
    running = [Runner(worker.work) for worker in workers[:THREADS]]
    running.append(Runner(lambda: asyncio.run(all_of(workers[THREADS:]))))
    for number in range(CUTS):
        wait_until(lambda number=number: len(history.holds) > 10 * number or not any(r.running for r in running))  # type: ignore[misc]
        proxy.cut()
    for runner in running:
        runner.result(60)
    assert len(history.holds) > 50
    history.check()
    assert history.most_at_once("a") >= together
    for key in KEYS:
        observer.wait_empty(pools[0].path(key))


# The check itself.


def hold(rule: Rule, token: int, invoked: int, granted: int, released: int, key: str = "a") -> Hold:
    return Hold(rule, {key: token}, invoked, granted, released)


ILLEGAL: dict[str, list[Hold]] = {
    "two at once": [hold(EXCLUSIVE, 1, 0, 1, 4), hold(EXCLUSIVE, 2, 2, 3, 5)],
    "token of an earlier one": [hold(EXCLUSIVE, 2, 0, 1, 2), hold(EXCLUSIVE, 1, 3, 4, 5)],
    "overtaken": [hold(EXCLUSIVE, 1, 0, 5, 6), hold(EXCLUSIVE, 2, 1, 2, 3)],
    "the same token": [hold(EXCLUSIVE, 1, 0, 1, 2), hold(EXCLUSIVE, 1, 3, 4, 5)],
    "writer among readers": [hold(READ, 1, 0, 1, 4), hold(WRITE, 2, 2, 3, 5)],
    "reader before a waiting writer": [hold(READ, 1, 0, 1, 9), hold(WRITE, 2, 2, 10, 11), hold(READ, 3, 3, 4, 5)],
    "one too many for another": [hold(semaphore(1), 1, 0, 1, 9), hold(semaphore(2), 2, 2, 3, 4)],
    "one lease too many": [hold(semaphore(1), 1, 0, 1, 4), hold(semaphore(1), 2, 2, 3, 5)],
    "lease before one that waits": [
        hold(semaphore(2), 1, 0, 1, 9),
        hold(semaphore(2), 2, 0, 10, 11),
        hold(semaphore(2), 3, 0, 4, 5),
    ],
    "lease beside a reader": [hold(READ, 1, 0, 1, 4), hold(semaphore(2), 2, 2, 3, 5)],
}


@pytest.mark.parametrize("holds", ILLEGAL.values(), ids=ILLEGAL)
def test_check__illegal(holds: list[Hold]) -> None:
    """What no lock may allow is found."""
    with pytest.raises(AssertionError):
        History(holds).check()
