"""How many cycles a second servers carry before the latency doubles."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial

from benchmarks.peers.arena import MEMORY, Arena, LastingZooKeeper, module
from benchmarks.peers.counters import cpu_seconds
from benchmarks.peers.program import Figures, Program
from benchmarks.peers.scenario import Round
from benchmarks.peers.warm_up import WarmUp
from tests.toolbox.zookeeper.ensemble import Ensemble
from tests.toolbox.zookeeper.server import ZooKeeper

SECONDS = 0.6
# The ceiling is where a cycle takes this many times as long as with one client.
FACTOR = 2.0
# With 64 three servers that compiled on two cores have closed a connection.
WARM_UP_CLIENTS = 8
# Lets so many clients work for so many seconds.
Cycle = Callable[[int, float], Figures]


@dataclass(frozen=True)
class CeilingScenario:
    """Clients on raw connections, each with a lock of its own, in growing numbers.

    The contestants are servers. ``force_sync`` is ZooKeeper's default: a write is on the disk before it is answered.
    """

    steps: tuple[int, ...] = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64)
    name: str = "ceiling"
    max_rounds: int | None = 3

    @contextmanager
    def open(self, arena: Arena) -> Iterator[dict[str, Round]]:
        """Start all servers; those that are not measured are idle."""
        with ExitStack() as stack:
            servers: dict[str, Sequence[ZooKeeper]] = {}
            for suffix, force_sync in (("", False), ("-sync", True)):
                new_server = partial(LastingZooKeeper, memory=MEMORY, force_sync=force_sync)
                servers[f"standalone{suffix}"] = [stack.enter_context(new_server())]
                servers[f"ensemble{suffix}"] = stack.enter_context(Ensemble(new_server=new_server)).nodes
            rounds: dict[str, Round] = {}
            for name, nodes in servers.items():
                program = stack.enter_context(module("clients.surge", *(str(node.port) for node in nodes)))
                cycle = partial(self._cycle, program, nodes)
                WarmUp(arena.warm_up).together(partial(self._warm_up, cycle))
                rounds[name] = partial(self._climb, cycle, SECONDS * arena.seconds)
            yield rounds

    @staticmethod
    def _warm_up(cycle: Cycle, seconds: float) -> Figures:
        return {"cpu": cycle(WARM_UP_CLIENTS, seconds)["server_cpu"], "cycles": 1.0}

    def _climb(self, cycle: Cycle, seconds: float, _number: int) -> Figures:
        found: Figures = {}
        for clients in self.steps:
            found |= {step_name(name, clients): value for name, value in cycle(clients, seconds).items()}
        return found

    @staticmethod
    def _cycle(program: Program, nodes: Sequence[ZooKeeper], clients: int, seconds: float) -> Figures:
        before = sum(cpu_seconds(node.pid) for node in nodes)
        figures = program.ask("cycle", clients=clients, seconds=seconds)
        used = sum(cpu_seconds(node.pid) for node in nodes) - before
        return {**figures, "server_cpu": used / max(figures["rate"] * seconds, 1.0)}


def step_name(figure: str, clients: int) -> str:
    """Return the name of a figure at a step."""
    return f"{figure}@{clients}"


@dataclass(frozen=True)
class Step:
    """The medians with that number of clients: cycles a second, and seconds for each."""

    clients: int
    rate: float
    latency: float


def steps_of(figures: Mapping[str, Sequence[float]]) -> list[Step]:
    """Return the steps of one contestant."""
    numbers = [int(name.partition("@")[2]) for name in figures if name.startswith("rate@")]
    return [
        Step(
            number,
            statistics.median(figures[step_name("rate", number)]),
            statistics.median(figures[step_name("latency", number)]),
        )
        for number in numbers
    ]


def ceiling_of(steps: Sequence[Step]) -> Step:
    """Return the last step before the latency has doubled."""
    last = steps[0]
    for step in steps:
        if step.latency >= FACTOR * steps[0].latency:
            break
        last = step
    return last
