"""What Java programs do before they count, until they have compiled what they use."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from benchmarks.peers.load import Load
from benchmarks.peers.program import TIMEOUT, Figures, Program

# Programs are warm when so many times in a row no cycle took less than this share of the least processor time before:
# while they compile, a cycle takes now more and now less. If they never are, they are taken as they are after so many.
SETTLED = 0.9
ALONE, TOGETHER = 1, 3
MAX_TURNS = 15


class WarmUp:
    """Each program works alone at first, where it gets through the most cycles, and then beside the others.

    A turn takes so many ``seconds``; 0 leaves all of it out.
    """

    def __init__(self, seconds: float, loads: Sequence[Load] = ()) -> None:
        """Take the loads of a program alone."""
        self._seconds = seconds
        self._loads = loads

    def alone(self, program: Program) -> None:
        """Let a program that has just started work, under one load after the other."""
        for load in self._loads if self._seconds else ():
            program.ask(f"open {load.words()}")
            self._work(
                lambda seconds: program.ask(
                    "run", start=time.monotonic(), seconds=seconds, timeout=TIMEOUT + self._seconds
                ),
                ALONE,
            )
            program.ask("close")

    def together(self, run: Callable[[float], Figures]) -> None:
        """Let programs or servers work for the first time as they will be measured; ``run`` takes the seconds."""
        self._work(run, TOGETHER)

    def _work(self, run: Callable[[float], Figures], turns: int) -> None:
        least, settled = math.inf, 0
        for _ in range(MAX_TURNS if self._seconds else 0):
            ran = run(self._seconds)
            spent = ran["cpu"] / ran["cycles"]
            settled = settled + 1 if spent > SETTLED * least else 0
            if settled == turns:
                return
            least = min(least, spent)
