"""What waiting at the gate is worth and what it costs, beside tasks that wait in their slots: ``make bench WHAT=gate``.

Real workers with prefork, Redis, a real ZooKeeper, and every comparison within one run.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import signal
import statistics
import time
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tests.toolbox.brokers.redis import Redis
from tests.toolbox.celery.workshop import Sent, Workshop
from tests.toolbox.processes.status import status
from tests.toolbox.zookeeper.observer import Observer
from tests.toolbox.zookeeper.server import ZooKeeper

TIMEOUT = 120.0
# As many messages for each slot as Celery asks for by default.
PREFETCH = {"WORKSHOP_PREFETCH": "4"}


@contextmanager
def workshops() -> Iterator[Any]:
    """Start what surrounds the workers; return what starts one."""
    with ZooKeeper() as zookeeper, Redis() as broker:
        observer = Observer(zookeeper.hosts)

        @contextmanager
        def open_one(*, gate: bool, **options: Any) -> Iterator[Workshop]:
            workshop = Workshop(zookeeper, broker, broker, observer, session_timeout=15.0, gate=gate)
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
            observer.close()


def seconds_for(sent: list[Sent], since: float) -> float:
    """Wait for tasks, and return the seconds from ``since`` to the end of the last."""
    for task in sent:
        task.outcome(TIMEOUT)
    return time.perf_counter() - since


def unrelated(workshop: Workshop, contending: int) -> float:
    """Return the seconds that 20 unrelated tasks take behind some that contend for one key, half a second each."""
    key = uuid.uuid4().hex
    ahead = [workshop.send("last", key, 0.5) for _ in range(contending)]
    begin = time.perf_counter()
    took = seconds_for([workshop.send("last_unlocked", 0.01) for _ in range(20)], begin)
    for task in ahead:
        task.outcome(TIMEOUT)
    return took


def gaps(workshop: Workshop, count: int, *, locked: bool = True) -> list[float]:
    """Return the milliseconds from the end of one body to the beginning of the next, over a line of ``count`` tasks.

    All are in the queue before the worker takes the first.
    """
    key = uuid.uuid4().hex
    consume(workshop, wanted=False)
    sent = [workshop.send(*(["span", key] if locked else ["span_unlocked"])) for _ in range(count)]
    consume(workshop, wanted=True)
    spans = sorted(task.outcome(TIMEOUT) for task in sent)
    return [(later[0] - earlier[1]) * 1000 for earlier, later in itertools.pairwise(spans)]


def consume(workshop: Workshop, *, wanted: bool) -> None:
    """Let the workers take tasks, or none."""
    command = workshop.control.add_consumer if wanted else workshop.control.cancel_consumer
    # Workers of other workshops at this broker would take tasks of this queue too.
    workers = [worker.node_name for worker in workshop.workers]
    command(workshop.queue, destination=workers, reply=True, timeout=TIMEOUT, limit=len(workers))


def compare_gaps(open_one: Any, rounds: int) -> None:
    """Compare twenty tasks of one key in one worker with unlocked tasks of one slot, in turns."""
    with contextlib.ExitStack() as stack:
        one, four = (stack.enter_context(open_one(gate=True, concurrency=count)) for count in (1, 4))
        kinds = {"unlocked, one slot": (one, False), "one key, one slot": (one, True), "one key, four": (four, True)}
        found: dict[str, list[float]] = {kind: [] for kind in kinds}
        for _ in range(rounds):
            for kind, (workshop, locked) in kinds.items():
                found[kind].append(statistics.median(gaps(workshop, 20, locked=locked)))
    for kind, medians in found.items():
        each = " ".join(f"{median:.2f}" for median in medians)
        print(f"from body to body, {kind}: {statistics.median(medians):.2f} ms, median of {each}")


def after_a_kill(workshop: Workshop) -> float:
    """Return the milliseconds from the killing of a child to the beginning of the next task of its key."""
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
    """Return how many unrelated tasks a second the worker does."""
    begin = time.perf_counter()
    return count / seconds_for([workshop.send("last_unlocked", 0.0) for _ in range(count)], begin)


def full_slots(workshop: Workshop) -> tuple[float, int]:
    """Return the seconds that 40 unrelated tasks of 1.5 s take with 20 of one key, of 0.5 s, between them.

    And how many places the locks were granted out of order, at most.
    """
    key = uuid.uuid4().hex
    sent, locked = [], []
    begin = time.perf_counter()
    for _ in range(20):
        sent += [workshop.send("last_unlocked", 1.5) for _ in range(2)]
        locked.append(workshop.send("last", key, 0.5))
    took = seconds_for([*sent, *locked], begin)
    tokens = [task.outcome(TIMEOUT) for task in locked]
    return took, max(abs(place - sorted(tokens).index(token)) for place, token in enumerate(tokens))


def compare_full_slots(open_one: Any, rounds: int) -> None:
    """Compare the gate with slots where all slots are full, in turns."""
    with contextlib.ExitStack() as stack:
        both = {
            gate: stack.enter_context(open_one(gate=gate, concurrency=2, environment=PREFETCH))
            for gate in (True, False)
        }
        for workshop in both.values():
            workshop.start_another(concurrency=2)
        results: dict[bool, list[tuple[float, int]]] = {True: [], False: []}
        for _ in range(rounds):
            for gate, workshop in both.items():
                results[gate].append(full_slots(workshop))
    for gate, found in results.items():
        took, places = [each[0] for each in found], [each[1] for each in found]
        print(f"{'gate' if gate else 'slot'}: full slots, {rounds} rounds: median {statistics.median(took):.2f} s "
              f"({min(took):.2f} to {max(took):.2f}), places out of order {places}")  # fmt: skip


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--parked", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=5, help="of what is compared in turns")
    parser.add_argument("--full-slots", action="store_true", help="measure nothing else")
    parser.add_argument("--gaps", action="store_true", help="measure the times between bodies, and nothing else")
    arguments = parser.parse_args()
    parked = arguments.parked
    with workshops() as open_one:
        if arguments.gaps:
            compare_gaps(open_one, arguments.rounds)
            return
        compare_full_slots(open_one, arguments.rounds)
        if arguments.full_slots:
            return
        for gate in (True, False):
            with open_one(gate=gate, concurrency=2) as workshop:
                alone, behind = unrelated(workshop, 0), unrelated(workshop, 6)
                print(f"{'gate' if gate else 'slot'}: 20 unrelated tasks alone {alone:.2f} s, behind 6 {behind:.2f} s")
                one = gaps(workshop, 200)
                workshop.start_another(concurrency=2)
                two = gaps(workshop, 200)
                print(f"  hand-over, median: {statistics.median(one):.1f} ms on one worker, "
                      f"{statistics.median(two):.1f} ms on two")  # fmt: skip
        with open_one(gate=True, concurrency=4) as workshop:
            kills = [after_a_kill(workshop) for _ in range(5)]
            print(f"gate: the next task begins {statistics.median(kills):.0f} ms after a kill, median of 5")
        settings = {"WORKSHOP_SETTINGS": json.dumps({"CELERY_ZKLOCK_GATE_MAX_PARKED": parked})}
        with open_one(gate=True, concurrency=4, environment=settings) as workshop:
            key = uuid.uuid4().hex
            pid = workshop.worker.pid
            throughput(workshop)
            before, idle = status(pid)["VmRSS"], throughput(workshop)
            workshop.other_client.take(key)
            for _ in range(parked):
                workshop.send("shared_below", key)
            workshop.wait_count(key, parked + 1, TIMEOUT)
            full, after = throughput(workshop), status(pid)["VmRSS"]
            print(f"gate: {parked} parked take {(after - before) / 1024:.1f} MB; unrelated tasks a second: "
                  f"{idle:.0f} before, {full:.0f} then ({full / idle:.0%})")  # fmt: skip


if __name__ == "__main__":
    main()
