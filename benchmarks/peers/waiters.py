"""What ten thousand waiters of one process cost, in the process and at the server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from benchmarks.peers.arena import MEMORY, Arena, LastingZooKeeper, module
from benchmarks.peers.counters import CountedZooKeeper
from benchmarks.peers.program import Figures
from benchmarks.peers.scenario import Round

TIMEOUT = 180.0
SETTLE_TIME = 0.5


@dataclass(frozen=True)
class WaiterScenario:
    """Waiters for one lock in one process; kazoo, whose waiters are threads, has fewer of them."""

    ours: int = 10_000
    kazoo: int = 1_000
    name: str = "waiters"
    max_rounds: int | None = 2

    @contextmanager
    def open(self, _arena: Arena) -> Iterator[dict[str, Round]]:
        """Start nothing: each round has a server and a process of its own, which end with all that waits."""
        yield {"ours": partial(self._wait, "ours", self.ours), "kazoo": partial(self._wait, "kazoo", self.kazoo)}

    def _wait(self, name: str, count: int, _number: int) -> Figures:
        with LastingZooKeeper(memory=MEMORY) as server, module("clients.waiters", name, server.hosts) as program:
            counted = CountedZooKeeper(server)
            before, was = counted.read(), server.mntr()
            figures = program.ask("wait", count=count, timeout=TIMEOUT)
            # The last in the queue have still to set their watches.
            time.sleep(SETTLE_TIME)
            # Read in this order: the second is a request too.
            done, now = counted.read() - before, server.mntr()
            # With its threads and tasks the process would take long to end.
            program.kill()
        return {
            **figures,
            "count": count,
            "requests": done.requests / count,
            "server_cpu": done.cpu / count,
            "server_data": (int(now["zk_approximate_data_size"]) - int(was["zk_approximate_data_size"])) / count,
            "watches": (int(now["zk_watch_count"]) - int(was["zk_watch_count"])) / count,
        }
