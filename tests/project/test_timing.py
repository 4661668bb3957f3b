"""How slow the machine is, and what follows from it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.toolbox import timing

pytestmark = pytest.mark.once
pytest_plugins = ["pytester"]

ROOT = Path(__file__).resolve().parents[2]


def printed(**environment: str) -> float:
    """Return what the program prints."""
    command = [sys.executable, "-m", "tests.toolbox.timing"]
    found = subprocess.run(
        command, cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True, check=True
    )
    return float(found.stdout)


@pytest.mark.parametrize(
    ("given", "expected"), [("3", 3.0), ("0.5", 1.0), ("2.345", 2.35), ("100", timing.MAX_SLOWNESS)]
)
def test_slowness__given(given: str, expected: float) -> None:
    """A program takes the measure that it finds, within bounds: no time is shorter than on a quiet machine."""
    assert printed(**{timing.VARIABLE: given}) == pytest.approx(expected, abs=0.01)


def test_slowness__measured() -> None:
    """Without one it measures, and passes the measure on to the programs that it starts."""
    assert 1.0 <= printed(**{timing.VARIABLE: ""}) <= timing.MAX_SLOWNESS
    assert float(os.environ[timing.VARIABLE]) == timing.SLOWNESS


@pytest.mark.parametrize(
    ("slowness", "cores", "expected"),
    [
        (1.0, 2, 8),
        (1.05, 2, 8),
        (2.0, 2, 4),
        (3.0, 2, 3),
        (3.2, 2, 3),
        (10.0, 2, 2),
        (1.0, 1, 4),
        (1.0, 64, 16),
        (4.0, 64, 4),
    ],
)
def test_processes(slowness: float, cores: int, expected: int) -> None:
    """Four for each core, fewer on a slow machine, never one alone, and no more than the memory is for."""
    assert timing.processes(slowness, cores) == expected


def test_limit(request: pytest.FixtureRequest) -> None:
    """The limit of each test is scaled, that of the configuration too."""
    assert isinstance(request.node, pytest.Item)
    (marker,) = request.node.iter_markers("timeout")
    assert marker.args == (timing.scaled(float(request.config.getini("timeout"))),)


def test_timely__without_a_reason(pytester: pytest.Pytester) -> None:
    """A test that is marked so says why."""
    pytester.makeconftest("from tests.conftest import pytest_collection_modifyitems")
    pytester.makepyfile("import pytest\n@pytest.mark.timely\ndef test_it(): pass")
    result = pytester.runpytest("-p", "no:randomly", "-p", "no:django")
    result.stderr.fnmatch_lines("*test_it does not say why it is timely*")
