"""What the decorator costs beside a block under the same lock."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from benchmarks.peers.arena import Arena, module
from benchmarks.peers.program import Figures, Program
from benchmarks.peers.scenario import Round

CALLS = 600


@dataclass(frozen=True)
class DecoratorScenario:
    """Both in one process, in turns."""

    name: str = "decorator"
    max_rounds: int | None = None

    @contextmanager
    def open(self, arena: Arena) -> Iterator[dict[str, Round]]:
        """Start the program."""
        calls = max(1, round(CALLS * arena.seconds))
        with module("clients.decorator", arena.zookeeper.server.hosts) as program:
            yield {name: partial(self._call, program, name, calls) for name in ("block", "decorated")}

    def _call(self, program: Program, name: str, calls: int, _number: int) -> Figures:
        return program.ask(name, calls=calls)
