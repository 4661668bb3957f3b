"""The search: one world after the other, each from its seed."""

from __future__ import annotations

import gc
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field

from tests.simulation.judge import Violation
from tests.simulation.scenes import draw
from tests.simulation.setting import Setting
from tests.simulation.world import World, check_log, quiet

# Steps of one world, before it comes to its end.
STEPS = 500
# Worlds between two collections of what is left of them.
COLLECT = 20


@dataclass(frozen=True)
class Failure:
    """A world that went wrong: how, and the steps that it has taken."""

    setting: Setting
    reason: str
    decisions: tuple[str, ...]
    # Whether it must come to its end to go wrong.
    comes_to_end: bool = True

    @property
    def kind(self) -> str:
        """What the reason of another failure begins with, if it is of the same kind."""
        words = [word for word in self.reason.split("\n", 1)[0].split() if not any(each.isdigit() for each in word)]
        return " ".join(words[:6])


@dataclass
class Figures:
    """What a search has seen."""

    worlds: int = 0
    steps: int = 0
    grants: int = 0
    refusals: int = 0
    elections: int = 0
    seconds: float = 0.0
    # How many courses were not run.
    left: int = 0
    failures: list[Failure] = field(default_factory=list)
    ways: Counter[str] = field(default_factory=Counter)

    def add(self, world: World) -> None:
        """Count a world."""
        self.worlds += 1
        self.steps += world.steps
        self.grants += world.judge.granted_count
        self.refusals += world.judge.refused_count
        self.elections += world.ensemble.elections
        self.ways.update(client.plan.way for client in world.clients)

    def __str__(self) -> str:
        speed = self.steps / self.seconds if self.seconds else 0.0
        return (
            f"{self.worlds} worlds, {self.steps} steps, {self.grants} grants, {self.refusals} refusals, "
            f"{self.elections} elections in {self.seconds:.0f} s ({speed:.0f} steps a second); "
            f"{len(self.failures)} wrong"
        )


def run(
    setting: Setting,
    *,
    steps: int = STEPS,
    decisions: Sequence[str] | None = None,
    comes_to_end: bool = True,
    course: Callable[[World], None] | None = None,
    is_recorded: bool = False,
) -> tuple[World, Failure | None]:
    """Run one world, by its seed, a list of decisions or a course; return it, and how it went wrong.

    Without ``comes_to_end`` nothing follows on the last decision.
    """
    with quiet() as errors:
        world = World(setting, is_recorded=is_recorded)
        reason = None
        try:
            if course is not None:
                course(world)
            elif decisions is None:
                world.run(steps)
            else:
                world.replay(decisions, comes_to_end=comes_to_end)
            if errors.texts or comes_to_end:
                check_log(errors, world)
        except Violation as error:
            reason = str(error)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not happen
            reason = f"{error!r}\n{traceback.format_exc()}"
        world.close()
        check = None if reason is None else Failure(setting, reason, tuple(world.decisions), comes_to_end)
        return world, check


def search(
    seeds: Iterable[int],
    *,
    scene: str | None = None,
    seconds: float | None = None,
    most_failures: int = 1,
    steps: int = STEPS,
) -> Figures:
    """Run the worlds of these seeds, or those of one scene, until so many have failed, or the time is up."""
    figures, began = Figures(), time.monotonic()
    for seed in seeds:
        world, failure = run(draw(seed, scene), steps=steps)
        figures.add(world)
        if failure is not None:
            figures.failures.append(failure)
        if figures.worlds % COLLECT == 0:
            del world
            gc.collect()
        if len(figures.failures) >= most_failures or (seconds is not None and time.monotonic() - began > seconds):
            break
    figures.seconds = time.monotonic() - began
    return figures
