"""A run of tests like Celery's, without the gate and with it."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.celery_suite.differences import UNIT
from tests.celery_suite.run import Run, run_both
from tests.toolbox.suites.outcome import Outcome
from tests.toolbox.suites.run import RunError

TESTS = """\
from celery import Celery

def steps():
    return [step.__name__ for step in Celery("made").steps["consumer"]]

def test_gate():
    assert steps() == ["GateStep"]

def test_celery_alone():
    assert steps() == []
"""


def write_source(folder: Path, text: str) -> Path:
    """Write a source with one file of tests in each folder of the part."""
    source = folder / "source"
    for path in UNIT.paths:
        (source / path).mkdir(parents=True)
    (source / UNIT.paths[0] / "test_apps.py").write_text(text, encoding="utf-8")
    (source / "pyproject.toml").write_text("[tool.pytest.ini_options]\n", encoding="utf-8")
    return source


def words(outcomes: dict[str, Outcome]) -> dict[str, str]:
    return {test.rpartition("::")[2]: outcome.word for test, outcome in outcomes.items()}


@pytest.mark.celery
def test_run_both__gate_in_one(tmp_path: Path) -> None:
    """Every app has the gate from its beginning in one of the runs, and in the other one it has not."""
    without, with_gate = run_both(UNIT, write_source(tmp_path, TESTS), tmp_path)
    assert words(without) == {"test_gate": "failed", "test_celery_alone": "passed"}
    assert words(with_gate) == {"test_gate": "passed", "test_celery_alone": "failed"}


@pytest.mark.celery
def test_run__cannot_be_imported(tmp_path: Path) -> None:
    """Tests that cannot be imported are an error, which shows pytest's output."""
    source = write_source(tmp_path, "import nothing_of_this_name")
    with (
        Run(UNIT, "without", source, tmp_path, working_folder=tmp_path, servers={}) as run,
        pytest.raises(RunError, match=r"(?s)unit-without ended with status 2; .*nothing_of_this_name"),
    ):
        run.finish()
