"""Small worlds, explored whole: every step that is possible, taken at every moment, up to a number of deviations.

A deviation is a step that the prompt course of a world would not take there: a fault, a message that arrives before
another one, or time that goes on although something is under way. Between deviations a world takes its prompt course,
so a course is told by its deviations (delay-bounded scheduling: M. Emmi, S. Qadeer, Z. Rakamarić, POPL 2011).
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

from tests.simulation import deliveries, faults
from tests.simulation.callers import CallerPlan, Turn
from tests.simulation.processes import ProcessPlan
from tests.simulation.search import Failure, Figures, run
from tests.simulation.servers import PING_INTERVAL, SESSION_TIMEOUT
from tests.simulation.setting import ENDS, FAULTS, NORMAL, Setting
from tests.simulation.steps import Step
from tests.simulation.world import World

Deviation = tuple[int, str]
"""The number of a step, and its name."""

# The longest time that goes on at once in between.
STRIDE = SESSION_TIMEOUT / 7
# At each moment time may also go on for so long that the lease is over.
LONG = 1.1 * SESSION_TIMEOUT


def small_settings() -> Iterator[Setting]:
    """Return the worlds that are explored: one key, two sessions, two or three callers, and one kind of fault each."""
    leases = ("lease of 1", "lease of 2", "lease of 2")
    for kind in ("cut", "break", "refuse done", "kill", "split", "stop"):
        for rules in (("exclusive",) * 3, ("write", "read", "read"), leases):
            yield _setting(kind, rules, lasts=1.0)
    # The first one holds for longer than a lease lasts, and the second waits.
    for kind in ("split", "part client", "stop", "freeze", "leave leader"):
        for leader in (0, 2):
            yield replace(_setting(kind, ("exclusive", "exclusive"), lasts=2 * SESSION_TIMEOUT), leader=leader)


def _setting(kind: str, rules: Sequence[str], *, lasts: float) -> Setting:
    callers = tuple(
        CallerPlan(process=number % 2, turns=(Turn(rule=rule, pause=0.01 * number, work=(lasts,)),))
        for number, rule in enumerate(rules)
    )
    is_alone = kind in {"cut", "break", "refuse done", "kill"} or (lasts < SESSION_TIMEOUT and kind == "stop")
    return Setting(
        seed=0,
        servers=1 if is_alone else 3,
        processes=(ProcessPlan(),) * 2,
        callers=callers,
        weights={**NORMAL, **ENDS, kind: FAULTS[kind]},
        sync_limit=PING_INTERVAL,
    )


class Course:
    """One course of a world: what it takes at each step, and what else it could have taken."""

    def __init__(self, deviations: tuple[Deviation, ...], depth: int, *, reorders: bool) -> None:
        self._deviations = dict(deviations)
        self._reorders = reorders
        self._depth = depth
        # By the number of the step.
        self.others: list[list[str]] = []

    def __call__(self, world: World) -> None:
        """Take the course to its end."""
        while not world.is_over and world.steps < self._depth:
            found = deliveries.find(world)
            if not found:
                world.judge.check_idle()
            usual = found[0] if found else _time(world, STRIDE)
            others = faults.find(world)
            if self._reorders:
                others += [*found[1:], _time(world, LONG)]
                if found:
                    others.append(_time(world, STRIDE))
            self.others.append([name for _, name, _ in others])
            wanted = self._deviations.get(world.steps)
            world.take(next((each for each in others if each[1] == wanted), usual))
        world.finish()


def _time(world: World, seconds: float) -> Step:
    return 1.0, f"time {seconds:.4f}", partial(world.pass_time, seconds)


def explore(setting: Setting, *, deviations: int, depth: int, seconds: float | None = None) -> Figures:
    """Run every course with at most so many deviations among its first ``depth`` steps; stop at one that goes wrong.

    Where callers hold for long only faults are deviations: what is under way arrives in the order of its sending.
    With ``seconds`` it ends when the time is up, though some courses are left then.
    """
    figures, began = Figures(), time.monotonic()
    reorders = setting.callers[0].turns[0].work[0] < SESSION_TIMEOUT
    waiting: list[tuple[Deviation, ...]] = [()]
    while waiting and (seconds is None or time.monotonic() - began < seconds):
        chosen = waiting.pop()
        course = Course(chosen, depth, reorders=reorders)
        world, failure = run(setting, course=course)
        figures.add(world)
        if failure is not None:
            figures.failures.append(Failure(setting, f"{failure.reason}\nafter {chosen}", failure.decisions))
            break
        if len(chosen) < deviations:
            first = chosen[-1][0] + 1 if chosen else 0
            for step, names in enumerate(course.others[first:], first):
                waiting += [(*chosen, (step, name)) for name in names]
    figures.left = len(waiting)
    figures.seconds = time.monotonic() - began
    return figures
