"""Two minutes of chaos; ``make chaos`` runs as long as one likes."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from tests.chaos.picture import draw
from tests.chaos.season import season

# Of faults; before them all is started and warmed up, and after them each task ends, is counted, and leaves nothing.
SECONDS = 40.0


@pytest.mark.celery
@pytest.mark.zookeeper
@pytest.mark.slow
@pytest.mark.once
@pytest.mark.xdist_group("rabbitmq")
@pytest.mark.timeout(900)
def test_season(tmp_path: Path) -> None:
    """Under faults of every kind no promise is broken, of clients of every kind and of Celery's workers."""
    seed = f"{random.randrange(2**32)}.0"
    outcome = season(seed, SECONDS, tmp_path / "season")
    picture = tmp_path / "season.png"
    draw(outcome.rows, outcome.findings, picture)
    found = "\n".join(map(str, outcome.findings))
    assert not outcome.findings, f"`make chaos ARGS='--seed {seed} --season {SECONDS:g}'`, {picture}:\n{found}"
    # What it was to meet, it has met.
    assert min(outcome.counts[name] for name in ("faults", "holds", "tasks: runs")) >= 10
