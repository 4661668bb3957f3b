"""What is measured: a scenario has contestants, and each does a round after the other."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Protocol

from benchmarks.peers.arena import Arena
from benchmarks.peers.contestants import CONTESTANTS, Contestant
from benchmarks.peers.load import Load
from benchmarks.peers.program import Figures
from tests.toolbox.network.port import LOOPBACK

# Does the round of that number, and returns its figures.
Round = Callable[[int], Figures]

# Seconds for replies that nothing waits for, such as those to a last release.
SETTLE_TIME = 0.03


class Scenario(Protocol):
    """One thing that is measured. Figures are in seconds, bytes and pieces."""

    @property
    def name(self) -> str:
        """The name in the results and on the command line."""
        ...

    @property
    def max_rounds(self) -> int | None:
        """How many rounds are enough, if that is fewer than usual."""
        ...

    def open(self, arena: Arena) -> AbstractContextManager[dict[str, Round]]:
        """Prepare everything; return the rounds by the name of the contestant."""
        ...


@dataclass(frozen=True, kw_only=True)
class LockScenario:
    """Contenders acquire and release in a loop; the figures are for each cycle.

    ``delay`` is each way between client and server. All contestants that can do it take part.
    """

    name: str
    kind: str = "exclusive"
    contenders: int = 1
    processes: bool = False
    keys: int = 1
    delay: float = 0.0
    seconds: float = 0.4
    max_rounds: int | None = None

    @property
    def contestants(self) -> list[Contestant]:
        """Return the contestants that take part."""
        able = [each for each in CONTESTANTS.values() if self.kind in each.kinds]
        return [each for each in able if each.can_wait or self.contenders == 1]

    @contextmanager
    def open(self, arena: Arena) -> Iterator[dict[str, Round]]:
        """Start the programs."""
        yield {each.name: partial(self._measure, arena, each) for each in self.contestants}

    def _measure(self, arena: Arena, contestant: Contestant, number: int) -> Figures:
        team, server = arena.team(contestant, processes=self.processes), arena.service(contestant.service)
        load = Load(
            host=LOOPBACK,
            port=arena.port(contestant.service, self.delay),
            # Every round has its own keys, and leaves nothing to the next.
            key=f"{self.name}-{contestant.name}-{number}-{time.monotonic_ns()}",
            kind=self.kind,
            contenders=self.contenders,
            processes=self.processes,
            keys=self.keys,
        )
        team.open(load)
        settle = SETTLE_TIME + 2 * self.delay
        time.sleep(settle)
        before = server.read()
        ran = team.run(self.seconds * arena.seconds)
        time.sleep(settle)
        done = server.read() - before
        team.close()
        return {
            "time": ran["elapsed"] / ran["counted"],
            "longest": ran["longest"],
            "client_cpu": ran["cpu"] / ran["cycles"],
            "server_cpu": done.cpu / ran["cycles"],
            "requests": done.requests / ran["cycles"],
        }
