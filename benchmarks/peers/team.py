"""The programs of a contestant as one: a single program, or one for each contender."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from benchmarks.peers.clients.crew import Outcome
from benchmarks.peers.load import Load
from benchmarks.peers.program import TIMEOUT, Figures, Program, ProgramError
from benchmarks.peers.warm_up import WarmUp

# Seconds until all contenders begin together.
START_DELAY = 0.05


class Team:
    """Answers to three commands; after a failure all programs are killed, and start again when they are needed.

    With ``is_apart`` each contender of a load has a program of its own, and else one program has all of them.
    """

    def __init__(self, new_program: Callable[[], Program], *, is_apart: bool, warm_up: WarmUp) -> None:
        """Start nothing yet."""
        self._new_program = new_program
        self._is_apart = is_apart
        self._warm_up = warm_up
        self._programs: list[Program] = []
        self._open: list[Program] = []

    def open(self, load: Load) -> None:
        """Connect the contenders of a load, and let each work for a moment."""
        count = load.contenders if self._is_apart else 1
        share = replace(load, contenders=1, processes=False) if self._is_apart else load
        while len(self._programs) < count:
            self._programs.append(self._new_program())
        self._open = self._programs[:count]
        with self._killed_by_failure():
            new = [program for program in self._open if not program.is_started]
            for program in new:
                self._warm_up.alone(program)
            for number, program in enumerate(self._open):
                program.ask(f"open {share.words()} number={number}")
            if new and self._is_apart:
                self._warm_up.together(self.run)

    def run(self, seconds: float) -> Figures:
        """Let all contenders work at the same time; return the figures of all of them together."""
        start = time.monotonic() + START_DELAY
        words = {"timeout": seconds + TIMEOUT, "seconds": seconds, "start": start}
        with self._killed_by_failure(), ThreadPoolExecutor(len(self._open)) as threads:
            found = list(threads.map(lambda program: program.ask("run", **words), self._open))
        return dict(Outcome.merge([outcome_of(each) for each in found]).figures(start))

    def close(self) -> None:
        """Disconnect the contenders."""
        with self._killed_by_failure():
            for program in self._open:
                program.ask("close")
        self._open = []

    def end(self) -> None:
        """End all programs."""
        for program in self._programs:
            program.close()

    @contextmanager
    def _killed_by_failure(self) -> Iterator[None]:
        try:
            yield
        except ProgramError:
            # The others still have what was opened.
            for program in self._programs:
                program.kill()
            raise


def outcome_of(figures: Figures) -> Outcome:
    """Return the outcome that a program has answered."""
    return Outcome(
        cycles=round(figures["cycles"]),
        counted=round(figures["counted"]),
        last=figures["last"],
        end=figures["end"],
        longest=figures["longest"],
        cpu=figures["cpu"],
    )
