"""Worlds of fixed and of new seeds: no property is violated in any, and a seed leads to the same world each time."""

from __future__ import annotations

import random

import pytest

from tests.simulation.explore import explore, small_settings
from tests.simulation.scenes import draw
from tests.simulation.search import run, search
from tests.simulation.setting import Setting

pytestmark = pytest.mark.once

# Worlds are counted, and not seconds: a slow machine runs as many.
FIXED = 120
NEW = 60
# The first steps of small worlds that are explored.
DEPTH = 40


def test_worlds__fixed() -> None:
    """The first worlds, the same in each run."""
    figures = search(range(FIXED))
    assert not figures.failures, figures.failures[0].reason
    assert figures.worlds == FIXED
    # They are worth something.
    assert figures.grants > FIXED
    assert figures.elections > 0
    assert set(figures.ways) == {"blocking", "coroutines", "gate"}


def test_worlds__new() -> None:
    """Worlds that have never been run. A failure names its seed."""
    first = random.randrange(10**6, 10**9)
    figures = search(range(first, first + NEW))
    assert not figures.failures, f"{figures.failures[0].setting.name}: {figures.failures[0].reason}"


@pytest.mark.parametrize("seed", range(6))
def test_run__again(seed: int) -> None:
    """A seed, or the steps that were drawn from it, lead to the same story."""
    first, _ = run(draw(seed), steps=200, is_recorded=True)
    again, _ = run(draw(seed), steps=200, is_recorded=True)
    assert again.story == first.story
    replayed, _ = run(draw(seed), decisions=first.decisions, comes_to_end=False, is_recorded=True)
    assert replayed.story == first.story[: len(replayed.story)]
    assert replayed.decisions == first.decisions


@pytest.mark.parametrize("setting", [each for each in small_settings() if each.callers[0].turns[0].rule == "exclusive"])
def test_explore(setting: Setting) -> None:
    """In small worlds each step that is possible is taken at each moment, one at a time."""
    figures = explore(setting, deviations=1, depth=DEPTH)
    assert not figures.failures, figures.failures[0].reason
    assert figures.left == 0
    assert figures.worlds > DEPTH
