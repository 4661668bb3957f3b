"""What ten thousand waiters of one process cost, in the process and at the server."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from benchmarks.peers.arena import Arena, module
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
    def open(self, arena: Arena) -> Iterator[dict[str, Round]]:
        """Start nothing: each round has a process of its own, as memory that was used once is not returned."""
        yield {
            "ours": partial(self._wait, arena, "ours", self.ours),
            "kazoo": partial(self._wait, arena, "kazoo", self.kazoo),
        }

    def _wait(self, arena: Arena, name: str, count: int, number: int) -> Figures:
        server = arena.zookeeper
        key = f"waiters-{number}-{time.monotonic_ns()}"
        with module("clients.waiters", name, server.server.hosts) as program:
            before, was = server.read(), server.server.mntr()
            figures = program.ask("wait", count=count, key=key, timeout=TIMEOUT)
            # The last in the queue have still to set their watches.
            time.sleep(SETTLE_TIME)
            # Read in this order: the second is a request too.
            done, now = server.read() - before, server.server.mntr()
            program.ask("leave", timeout=TIMEOUT)
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
