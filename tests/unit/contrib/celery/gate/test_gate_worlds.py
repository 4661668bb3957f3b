"""Small worlds of the gate, explored whole: no slot, message or lock is lost or doubled, no body without its lock."""

from __future__ import annotations

from functools import cache

import pytest

from django_zklock.contrib.celery.gate import request
from django_zklock.contrib.celery.gate.states import STEPS, Effect, Event, Pair, effects_of
from tests.unit.contrib.celery.gate.worlds import FAULTS, Step, explore

# In one process, which explores each world once.
pytestmark = [pytest.mark.celery, pytest.mark.slow, pytest.mark.xdist_group("gate-worlds"), pytest.mark.timeout(900)]

EVERY = {(event, before, after) for event, made in STEPS.items() for before, after in made.items()}


@cache
def steps_in(faults: tuple[str, ...], size: int = 1) -> set[Step]:
    """Return the steps of requests in the world with these faults."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        states, steps = explore(faults, size, monkeypatch.setattr)
    assert states > 100
    return steps


@pytest.mark.parametrize("faults", FAULTS, ids=lambda faults: " and ".join(faults) or "none")
def test_world(faults: tuple[str, ...]) -> None:
    """Whatever happens in whatever order: what must hold does, and at the end nothing is left."""
    assert steps_in(faults) <= EVERY


def test_world__two_slots() -> None:
    """So too with two slots, where both tasks ask at once."""
    assert steps_in((), 2) <= EVERY


def test_steps__all_are_met() -> None:
    """The table has no step that never happens."""
    assert EVERY - set().union(*map(steps_in, FAULTS)) == set()


@pytest.mark.parametrize(
    ("effect", "faults"),
    [
        (Effect.RELEASE, ()),
        (Effect.FORGET, ()),
        (Effect.SEEK, ("taken", "fail")),
        (Effect.SUBMIT, ()),
        (Effect.SETTLE, ("revoke",)),
        (Effect.GIVE_BACK, ("fail",)),
        (Effect.FAIL, ("lose",)),
    ],
)
def test_plants(monkeypatch: pytest.MonkeyPatch, effect: Effect, faults: tuple[str, ...]) -> None:
    """The exploration finds what is wrong if the gate does not do what is to be done after a step."""

    def without(event: Event, before: Pair, after: Pair) -> tuple[Effect, ...]:
        return tuple(each for each in effects_of(event, before, after) if each is not effect)

    monkeypatch.setattr(request, "effects_of", without)
    with pytest.raises(AssertionError, match="in the world"):
        explore(faults, 1, monkeypatch.setattr)
