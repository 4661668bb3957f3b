"""How many tiny tasks a Celery worker does in a second: without a lock, with a lock each, and without the gate."""

from __future__ import annotations

import time
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from benchmarks.peers.arena import Arena
from benchmarks.peers.counters import cpu_seconds
from benchmarks.peers.program import Figures, ProgramError
from benchmarks.peers.scenario import Round
from tests.toolbox.brokers.redis import Redis
from tests.toolbox.celery.workshop import Workshop
from tests.toolbox.zookeeper.observer import Observer

CONCURRENCY = 4
# Messages for each child that the worker takes in advance: Celery's default.
PREFETCH = {"WORKSHOP_PREFETCH": "4"}
TIMEOUT = 60.0
POLL_INTERVAL = 0.01
# What part of the tasks is done before the clock starts: the worker has to take its first messages.
HEAD = 0.1


@dataclass(frozen=True)
class TinyTaskScenario:
    """A prefork worker with Redis as broker and for the results; the task does nothing and has a key of its own."""

    tasks: int = 600
    name: str = "tasks"
    max_rounds: int | None = None

    @contextmanager
    def open(self, arena: Arena) -> Iterator[dict[str, Round]]:
        """Start a worker with the gate and one without; the one that is not measured is idle."""
        with ExitStack() as stack:
            broker, results = (stack.enter_context(Redis()) for _ in range(2))
            observer = stack.enter_context(closing(Observer(arena.zookeeper.server.hosts)))
            shops = {}
            for gate in (True, False):
                shops[gate] = stack.enter_context(closing(Workshop(
                    arena.zookeeper.server, broker, results, observer, session_timeout=15.0, gate=gate
                )))  # fmt: skip
                shops[gate].start(concurrency=CONCURRENCY, environment=PREFETCH, log_level="WARNING")
            yield {
                "unlocked": partial(self._measure, shops[True], "last_unlocked"),
                "gate-on": partial(self._measure, shops[True], "last"),
                "gate-off": partial(self._measure, shops[False], "last"),
            }

    def _measure(self, shop: Workshop, task: str, _number: int) -> Figures:
        assert shop.worker is not None
        shop.board.flushdb()
        # The tasks are in the queue before the worker takes the first, so that sending them takes nothing from it.
        # Without a destination the other worker would take tasks of this queue too.
        worker = [shop.worker.node_name]
        shop.control.cancel_consumer(shop.queue, destination=worker, reply=True, timeout=TIMEOUT, limit=1)
        run = uuid.uuid4().hex
        for number in range(self.tasks):
            shop.send(task, *([] if task == "last_unlocked" else [f"{run}-{number}"]), 0.0)
        children = children_of(shop.worker.pid)
        shop.control.add_consumer(shop.queue, destination=worker)
        head, start = wait_results(shop, round(self.tasks * HEAD))
        main_cpu, children_cpu = cpu_seconds(shop.worker.pid), sum(map(cpu_seconds, children))
        done, end = wait_results(shop, self.tasks)
        count = done - head
        return {
            "rate": count / (end - start),
            "main_cpu": (cpu_seconds(shop.worker.pid) - main_cpu) / count,
            "children_cpu": (sum(map(cpu_seconds, children)) - children_cpu) / count,
        }


def wait_results(shop: Workshop, count: int) -> tuple[int, float]:
    """Wait until at least ``count`` results are there; return how many there are, and when that was."""
    deadline = time.perf_counter() + TIMEOUT
    while (done := shop.board.dbsize()) < count:
        if time.perf_counter() > deadline:
            raise ProgramError(f"{done} of {count} tasks were done within {TIMEOUT:g} s")
        time.sleep(POLL_INTERVAL)
    assert isinstance(done, int)
    return done, time.perf_counter()


def children_of(pid: int) -> list[int]:
    """Return the processes that a process has started."""
    text = Path(f"/proc/{pid}/task/{pid}/children").read_text(encoding="ascii")
    return [int(child) for child in text.split()]
