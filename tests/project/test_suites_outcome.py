"""The outcome of a test."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import pytest

from tests.toolbox.suites.outcome import Outcome, Word, read_outcomes

TRACEBACK = """\
kazoo/tests/test_lock.py:7: in test_lock
    assert 1 == 2
E   assert 1 == 2
E    +  where 1 = one()
"""


def report(when: Literal["setup", "call", "teardown"], word: Word, text: str = "") -> pytest.TestReport:
    return pytest.TestReport("test", ("file", 1, "test"), {}, word, text, when, duration=0.5)


def test_outcome__worst_phase_speaks() -> None:
    """A test whose teardown fails has failed, with the first line of that error and the seconds of all phases."""
    phases = [report("setup", "passed"), report("call", "passed"), report("teardown", "failed", TRACEBACK)]
    assert Outcome.of("test", phases) == Outcome(test="test", word="failed", seconds=1.5, note="assert 1 == 2")


def test_outcome__skipped() -> None:
    """A skipped test has its reason."""
    skipped = report("setup", "skipped", "('/kazoo/test_sasl.py', 134, 'Skipped: no Kerberos here')")
    assert Outcome.of("test", [skipped]).note == "no Kerberos here"


def test_read_outcomes__what_was_written(tmp_path: Path) -> None:
    """The lines are read back unchanged, and a run without lines has no outcomes."""
    file = tmp_path / "outcomes"
    assert read_outcomes(file) == {}
    outcome = Outcome(test="test", word="failed", seconds=0.25, note="a “note”")
    file.write_text(outcome.as_line() + Outcome(test="other", word="passed").as_line(), encoding="utf-8")
    assert read_outcomes(file) == {"test": outcome, "other": Outcome(test="other", word="passed")}
