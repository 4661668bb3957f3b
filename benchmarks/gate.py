"""What waiting at the gate is worth and what it costs, beside tasks that wait in their slots.

``PYTHONPATH=testproject python -m benchmarks.gate``. Real workers with prefork, Redis, a real ZooKeeper, and every
comparison within one run.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import statistics
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from services.redis import Redis
from services.zookeeper import ZooKeeper

from tests.contrib.celery.conftest import Sent, Workshop
from tests.contrib.celery.test_gate_costs import status
from tests.zk.onlooker import Onlooker, wait_until

PATIENCE = 120.0


@contextmanager
def workshops() -> Iterator[Any]:
    """Start what surrounds the workers; give what starts one."""
    with ZooKeeper() as zookeeper, Redis() as broker:
        onlooker = Onlooker(zookeeper.hosts)

        @contextmanager
        def open_one(*, gate: bool, **options: Any) -> Iterator[Workshop]:
            workshop = Workshop(zookeeper, broker, onlooker, session_timeout=15.0, gate=gate)
            try:
                workshop.start(**options)
                # What is loaded and connected at the first use.
                for number in range(2):
                    workshop.result(workshop.send("shared_below", f"warm-{number}"))
                yield workshop
            finally:
                workshop.close()

        try:
            yield open_one
        finally:
            onlooker.close()


def seconds_for(sent: list[Sent], since: float) -> float:
    """Wait for tasks, and give the seconds from ``since`` to the end of the last."""
    for task in sent:
        task.outcome(PATIENCE)
    return time.perf_counter() - since


def unrelated(workshop: Workshop, contending: int) -> float:
    """Give the seconds that 20 unrelated tasks take behind some that contend for one key, half a second each."""
    key = uuid.uuid4().hex
    ahead = [workshop.send("last", key, 0.5) for _ in range(contending)]
    begin = time.perf_counter()
    took = seconds_for([workshop.send("last_unlocked", 0.01) for _ in range(20)], begin)
    for task in ahead:
        task.outcome(PATIENCE)
    return took


def hand_overs(workshop: Workshop, count: int) -> list[float]:
    """Give the milliseconds from the end of one body to the beginning of the next, over a line of ``count`` tasks."""
    key, run = uuid.uuid4().hex, uuid.uuid4().hex
    for number in range(count):
        workshop.send("enter_in_ledger", key, run, number)
    wait_until(lambda: workshop.board.scard(f"{run}:done") == count, PATIENCE, "every task is done")
    ledger = {str(name): float(moment) for name, moment in workshop.board.hgetall(run).items()}
    began = {name[: -len(":began")]: moment for name, moment in ledger.items() if name.endswith(":began")}
    order = sorted(began, key=lambda name: began[name])
    return [(began[later] - ledger[f"{earlier}:ended"]) * 1000 for earlier, later in itertools.pairwise(order)]


def after_a_kill(workshop: Workshop) -> float:
    """Give the milliseconds from the killing of a child to the beginning of the next task of its key."""
    key = uuid.uuid4().hex
    workshop.send("hold", key, f"{key}:first")
    pid = workshop.entered(f"{key}:first")["pid"]
    workshop.send("hold", key, f"{key}:second")
    workshop.wait_count(key, 2)
    begin = time.perf_counter()
    os.kill(pid, signal.SIGKILL)
    workshop.entered(f"{key}:second")
    took = time.perf_counter() - begin
    workshop.let_go(f"{key}:second")
    workshop.wait_empty(key)
    return took * 1000


def throughput(workshop: Workshop, count: int = 1000) -> float:
    """Give how many unrelated tasks a second the worker does."""
    begin = time.perf_counter()
    return count / seconds_for([workshop.send("last_unlocked", 0.0) for _ in range(count)], begin)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parked", type=int, default=5000)
    parked = parser.parse_args().parked
    with workshops() as open_one:
        for gate in (True, False):
            with open_one(gate=gate, concurrency=2) as workshop:
                alone, behind = unrelated(workshop, 0), unrelated(workshop, 6)
                print(f"{'gate' if gate else 'slot'}: 20 unrelated tasks alone {alone:.2f} s, behind 6 {behind:.2f} s")
                one = hand_overs(workshop, 200)
                workshop.start_another(concurrency=2)
                two = hand_overs(workshop, 200)
                print(f"  hand-over, median: {statistics.median(one):.1f} ms on one worker, "
                      f"{statistics.median(two):.1f} ms on two")  # fmt: skip
        with open_one(gate=True, concurrency=4) as workshop:
            kills = [after_a_kill(workshop) for _ in range(5)]
            print(f"gate: the next task begins {statistics.median(kills):.0f} ms after a kill, median of 5")
        with open_one(gate=True, concurrency=4) as workshop:
            key = uuid.uuid4().hex
            pid = workshop.worker.pid
            throughput(workshop)
            before, idle = status(pid)["VmRSS"], throughput(workshop)
            workshop.stranger.take(key)
            for _ in range(parked):
                workshop.send("shared_below", key)
            workshop.wait_count(key, parked + 1, PATIENCE)
            crowded, after = throughput(workshop), status(pid)["VmRSS"]
            print(f"gate: {parked} parked take {(after - before) / 1024:.1f} MB; unrelated tasks a second: "
                  f"{idle:.0f} before, {crowded:.0f} then ({crowded / idle:.0%})")  # fmt: skip


if __name__ == "__main__":
    main()
