"""Cut a world that goes wrong down to what it needs for that: fewer callers, turns and faults, and fewer steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

from tests.simulation.callers import CallerPlan
from tests.simulation.processes import ProcessPlan
from tests.simulation.search import Failure, run
from tests.simulation.setting import Setting

# Seconds for which it is tried to cut a world down further.
MAX_TIME = 120.0


def shrink(failure: Failure, *, max_time: float = MAX_TIME, tell: Callable[[str], object] = str) -> Failure:
    """Return the smallest world that has been found in so many seconds which goes wrong in the same way.

    In the end it goes wrong no more if any one of its steps is left out, unless the time was up before.
    """
    ends = time.monotonic() + max_time
    # Most go wrong at their last step, and not because of what is left at the end.
    best = _try(failure.setting, failure.decisions, replace(failure, comes_to_end=False)) or failure
    while time.monotonic() < ends:
        size = len(best.decisions), _size(best.setting)
        best = _simplify(best, ends)
        best = _shorten(best, ends)
        tell(f"{len(best.decisions)} steps, {len(best.setting.callers)} callers")
        if (len(best.decisions), _size(best.setting)) == size:
            break
    return best


def _size(setting: Setting) -> int:
    return sum(1 + len(caller.turns) for caller in setting.callers) + len(setting.processes) + setting.servers


def _try(setting: Setting, decisions: Sequence[str], like: Failure) -> Failure | None:
    """Run these steps; return the failure if there is one of the same kind, with the steps that were possible."""
    _, failure = run(setting, decisions=decisions, comes_to_end=like.comes_to_end)
    return failure if failure is not None and failure.kind == like.kind else None


def _simplify(best: Failure, ends: float) -> Failure:
    """Leave out of the setting what is not needed."""
    changed = True
    while changed and time.monotonic() < ends:
        changed = False
        for setting in _simpler(best.setting):
            smaller = _try(setting, best.decisions, best)
            if smaller is not None:
                best, changed = smaller, True
                break
    return best


def _simpler(setting: Setting) -> Iterator[Setting]:
    callers = setting.callers
    for number, caller in enumerate(callers):
        # A caller keeps its number, which its steps have: one without turns does nothing.
        if caller.turns:
            yield _with(setting, number, replace(caller, turns=()))
        if len(caller.turns) > 1:
            yield _with(setting, number, replace(caller, turns=caller.turns[:-1]))
        for position, turn in enumerate(caller.turns):
            for simple in (
                replace(turn, is_nested=False),
                replace(turn, is_released_elsewhere=False),
                replace(turn, confirms=False),
                replace(turn, gives_up_after=None),
                replace(turn, runs=None),
                replace(turn, timeout=None),
                replace(turn, pause=0.0),
                replace(turn, work=turn.work[:1]),
            ):
                if simple != turn:
                    turns = [*caller.turns[:position], simple, *caller.turns[position + 1 :]]
                    yield _with(setting, number, replace(caller, turns=tuple(turns)))
    for plan in (ProcessPlan(),):
        if any(each != plan for each in setting.processes):
            yield replace(setting, processes=tuple(plan for _ in setting.processes))
    if setting.is_fine:
        yield replace(setting, is_fine=False)
    if setting.first_number:
        yield replace(setting, first_number=0)
    while callers and not callers[-1].turns:
        callers = callers[:-1]
    if callers != setting.callers:
        yield replace(setting, callers=callers)


def _with(setting: Setting, number: int, caller: CallerPlan) -> Setting:
    callers = [*setting.callers[:number], caller, *setting.callers[number + 1 :]]
    return replace(setting, callers=tuple(callers))


def _shorten(best: Failure, ends: float) -> Failure:
    """Leave out steps: halves, quarters, and in the end one after the other (A. Zeller's ddmin)."""
    length = max(1, len(best.decisions) // 2)
    while time.monotonic() < ends:
        start, shortened = 0, False
        while start < len(best.decisions) and time.monotonic() < ends:
            rest = [*best.decisions[:start], *best.decisions[start + length :]]
            smaller = _try(best.setting, rest, best)
            if smaller is not None and len(smaller.decisions) < len(best.decisions):
                best, shortened = smaller, True
            else:
                start += length
        if length == 1 and not shortened:
            return best
        length = max(1, length // 2)
    return best
