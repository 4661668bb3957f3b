"""Planted faults: each has its place in the package still, and is found; a world that it spoils is told and drawn."""

from __future__ import annotations

import subprocess
import sys
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from tests.simulation.plants import PACKAGE, PLANTS, Plant
from tests.toolbox.timing import scaled

pytestmark = pytest.mark.once


def test_plants__text() -> None:
    """The text of each fault is in the package once. When that has changed, the fault is to be planted anew."""
    for plant in PLANTS:
        text = (PACKAGE / plant.file).read_text(encoding="utf-8")
        assert text.count(plant.old) == 1, plant.name
        compile(text.replace(plant.old, plant.new), plant.file, "exec")


@pytest.fixture(scope="module")
def found() -> dict[str, list[str]]:
    """Return how each fault was found, and what was wrong then, by its name."""
    # Half a minute; longer when one is not found as it is recorded, and is looked for anew.
    command = [sys.executable, "-m", "tests.simulation", "--plants", "--seconds", str(scaled(40))]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=scaled(1150))
    lines = [line.split("\t") for line in ended.stdout.splitlines()]
    return {name: facts for name, *facts in lines}


@pytest.mark.slow
@pytest.mark.timeout(1200)
# One process runs them all.
@pytest.mark.xdist_group("plants")
@pytest.mark.parametrize("plant", [each for each in PLANTS if each.found_by], ids=lambda plant: plant.name)
def test_plants__found(plant: Plant, found: dict[str, list[str]]) -> None:
    """The recorded world goes wrong with the fault, or another one does that is found soon."""
    way, reason = found[plant.name]
    assert reason, (
        f"{way}, and {plant.found_by} does not find it any more; "
        f'to record anew how each is found: make simulate ARGS="--plants --record --seconds 60"'
    )


@pytest.mark.slow
def test_plant__told_and_drawn(tmp_path: Path) -> None:
    """A world that goes wrong is cut down to a few steps, printed, and drawn."""
    options = ["--plant", "a reader passes a writer", "--worlds", "300", "--max-time", str(scaled(5)), "--folder"]
    command = [sys.executable, "-m", "tests.simulation", *options, str(tmp_path)]
    ended = subprocess.run(command, capture_output=True, text=True, check=False, timeout=scaled(100))
    assert ended.returncode == 1, ended.stderr
    assert "to see all of it: make simulate ARGS=" in ended.stdout
    before, _, told = ended.stdout.partition("steps:\n")
    assert "steps are cut down" in before
    assert "believes to hold" in told
    (picture,) = tmp_path.glob("seed-*.svg")
    texts = [each.text for each in ET.parse(picture).iter() if each.text]
    assert any("believes to hold" in text for text in texts)
