"""How many waiters are granted without a request, when a lock is wanted again at once: ``make bench WHAT=saturation``.

Each contender joins the queue again as soon as it has released, over a network with a delay. A waiter that was not
ready when its predecessor released, because the machine was busy, has to list the queue.
"""

from __future__ import annotations

import argparse
import contextlib
import statistics
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions

CONTENDERS, SESSIONS, TURNS = 8, 4, 25
ROUNDS = 5


@dataclass(frozen=True)
class Run:
    """What one round took, in seconds, and the lists that it took, for each acquisition."""

    took: float
    lists: float


def measure(server: ZooKeeperServer, pools: list[Pool], delay: float) -> Run:
    """Let all contenders acquire in turn."""
    together = threading.Barrier(CONTENDERS)

    def take_turns(number: int) -> None:
        lock = Lock("k", pools[number % SESSIONS])
        together.wait()
        for _ in range(TURNS):
            lock.acquire().release()

    server.requests.clear()
    began = time.perf_counter()
    with server.faults.delay(delay), ThreadPoolExecutor(CONTENDERS) as threads:
        for each in [threads.submit(take_turns, number) for number in range(CONTENDERS)]:
            each.result()
    took = time.perf_counter() - began
    return Run(took, server.requests.count("getChildren") / (CONTENDERS * TURNS))


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--delay", type=float, default=0.01, help="seconds, each way")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    with ZooKeeperServer() as server, contextlib.ExitStack() as stack:
        pools = [
            Pool(
                f"pool{number}",
                PoolOptions(connection=ConnectionOptions(hosts=server.hosts, session_timeout=30.0), root="/bench"),
            )
            for number in range(SESSIONS)
        ]
        for pool in pools:
            stack.callback(pool.close)
            Lock("warm", pool).acquire().release(wait=True)
        runs = [measure(server, pools, options.delay) for _ in range(options.rounds)]
    turns = CONTENDERS * TURNS
    print(f"{turns} turns of {CONTENDERS} contenders, {options.delay * 1000:g} ms each way, {options.rounds} rounds")
    print(f"  turns a second      {turns / statistics.median(run.took for run in runs):8.1f}")
    # One to join and one to become ready, which contenders of one session may share; one more where that is too late.
    print(f"  lists for each turn {statistics.median(run.lists for run in runs):8.2f}")


if __name__ == "__main__":
    main()
