"""Contenders that work at the same time: threads that share a session, or processes that have their own."""

from __future__ import annotations

import contextlib
import itertools
import multiprocessing
import random
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Protocol

from benchmarks.peers.clients.recipe import Cycle, MakeCycle, Recipe
from benchmarks.peers.load import Load

# Of ten turns of a contender of the kind "mixed", one is a writer's.
TURNS = 10
# Cycles of each contender before the round, at least one with each key.
WARM_CYCLES = 2
# Seconds for children to end.
JOIN_TIMEOUT = 20.0


@dataclass(frozen=True)
class Outcome:
    """What contenders did in a round.

    ``counted`` cycles ended before the round did, the last of them at ``last`` of the monotonic clock. ``cycles`` also
    has those that were under way then and ended until ``end``. ``longest`` is the time of the longest of all, mostly
    spent waiting, and ``cpu`` is what all of them took, in seconds.
    """

    cycles: int
    counted: int
    last: float
    end: float
    longest: float
    cpu: float = 0.0

    @classmethod
    def merge(cls, outcomes: Sequence[Outcome], cpu: float | None = None) -> Outcome:
        """Return the outcome of all; ``cpu`` if it is known for all of them only."""
        return cls(
            cycles=sum(each.cycles for each in outcomes),
            counted=sum(each.counted for each in outcomes),
            last=max(each.last for each in outcomes),
            end=max(each.end for each in outcomes),
            longest=max(each.longest for each in outcomes),
            cpu=sum(each.cpu for each in outcomes) if cpu is None else cpu,
        )

    def figures(self, start: float) -> Mapping[str, float]:
        """Return what the round is reported as; ``elapsed`` is until the end of the last cycle that counts.

        If a machine is so busy that none ended in time, all of them count.
        """
        return {
            "cycles": self.cycles,
            "counted": self.counted or self.cycles,
            "elapsed": (self.last if self.counted else self.end) - start,
            "longest": self.longest,
            "cpu": self.cpu,
        }


class Crew(Protocol):
    """Contenders that are connected and warm."""

    def run(self, start: float, end: float) -> Outcome:
        """Let them work between two moments of the monotonic clock."""
        ...


def cycles_of(load: Load, make: MakeCycle, number: int) -> list[Cycle]:
    """Return the cycles that contender ``number`` repeats, in an order of its own."""
    if load.kind == "several":
        return [make("several", load.names)]
    if load.kind == "mixed":
        turns = ["write", *["read"] * (TURNS - 1)]
        shift = number % TURNS
        cycles = {kind: make(kind, load.names) for kind in ("write", "read")}
        return [cycles[kind] for kind in turns[shift:] + turns[:shift]]
    cycles_by_key = [make(load.kind, [name]) for name in load.names]
    random.Random(number).shuffle(cycles_by_key)
    return cycles_by_key


def repeat(cycles: Sequence[Cycle], start: float, end: float) -> Outcome:
    """Go through the cycles again and again, from ``start`` until ``end``."""
    time.sleep(max(0.0, start - time.monotonic()))
    last, longest = start, 0.0
    for done in itertools.count():
        cycles[done % len(cycles)]()
        now = time.monotonic()
        longest = max(longest, now - last)
        if now > end:
            return Outcome(done + 1, done, last, now, longest)
        last = now
    raise AssertionError


class ThreadCrew:
    """Threads of this process."""

    def __init__(self, threads: ThreadPoolExecutor, work: Sequence[Sequence[Cycle]]) -> None:
        """Warm up."""
        self._threads = threads
        self._work = work
        list(threads.map(self._warm_up, work))

    @staticmethod
    def _warm_up(cycles: Sequence[Cycle]) -> None:
        for number in range(max(WARM_CYCLES, len(cycles))):
            cycles[number % len(cycles)]()

    def run(self, start: float, end: float) -> Outcome:
        """Let the threads work."""
        cpu = time.process_time()
        outcomes = list(self._threads.map(lambda cycles: repeat(cycles, start, end), self._work))
        return Outcome.merge(outcomes, time.process_time() - cpu)


class ProcessCrew:
    """Children of this process."""

    def __init__(self, pipes: Sequence[Connection]) -> None:
        """Wait until all are connected and warm."""
        self._pipes = pipes
        for pipe in pipes:
            pipe.recv()

    def run(self, start: float, end: float) -> Outcome:
        """Let the children work."""
        for pipe in self._pipes:
            pipe.send((start, end))
        return Outcome.merge([pipe.recv() for pipe in self._pipes])


@contextmanager
def open_crew(load: Load, recipe: Recipe) -> Iterator[Crew]:
    """Connect the contenders of a load, warm them up, and disconnect them at the end."""
    if load.processes:
        with _fork(load, recipe) as pipes:
            yield ProcessCrew(pipes)
    else:
        with recipe(load) as make, ThreadPoolExecutor(load.contenders) as threads:
            yield ThreadCrew(threads, [cycles_of(load, make, number) for number in range(load.contenders)])


@contextmanager
def _fork(load: Load, recipe: Recipe) -> Iterator[list[Connection]]:
    """Run each contender in a child. This process has no thread and no session, so that it can fork."""
    context = multiprocessing.get_context("fork")
    pipes, children = [], []
    try:
        for number in range(load.contenders):
            ours, theirs = context.Pipe()
            child = context.Process(target=_work_alone, args=(load, recipe, number, theirs), daemon=True)
            child.start()
            theirs.close()
            pipes.append(ours)
            children.append(child)
        yield pipes
    finally:
        for pipe in pipes:
            # Closing it is not enough: the children that were forked later have copies of this end.
            with contextlib.suppress(BrokenPipeError):
                pipe.send(None)
            pipe.close()
        for child in children:
            child.join(JOIN_TIMEOUT)
            child.kill()
            child.join()
            child.close()


def _work_alone(load: Load, recipe: Recipe, number: int, pipe: Connection) -> None:
    """Be one contender, until the order to end."""
    with recipe(replace(load, contenders=1, processes=False)) as make, ThreadPoolExecutor(1) as threads:
        crew = ThreadCrew(threads, [cycles_of(load, make, number)])
        pipe.send(None)
        while (order := pipe.recv()) is not None:
            pipe.send(crew.run(*order))
