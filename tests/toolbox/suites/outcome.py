"""The outcome of one test in one run."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Literal, get_args

import pytest

Word = Literal["passed", "skipped", "failed"]
# From best to worst: the worst phase decides.
WORDS: tuple[Word, ...] = get_args(Word)
NOTE_LENGTH = 160


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The result of a test, its seconds, and for a failure one line with the reason."""

    test: str
    word: Word
    seconds: float = 0.0
    note: str = ""

    @classmethod
    def of(cls, test: str, reports: Iterable[pytest.TestReport]) -> Outcome:
        """Combine the phases of a test: setup, call, teardown."""
        reports = list(reports)
        worst = max(reports, key=lambda report: WORDS.index(report.outcome))
        return cls(
            test=test,
            word=worst.outcome,
            seconds=round(sum(report.duration for report in reports), 3),
            note="" if worst.outcome == "passed" else _reason(worst.longreprtext),
        )

    def as_line(self) -> str:
        """Return a line of JSON."""
        return json.dumps(asdict(self)) + "\n"


def read_outcomes(file: Path) -> dict[str, Outcome]:
    """Return the outcomes that the plugin has written, by test."""
    lines = file.read_text(encoding="utf-8").splitlines() if file.exists() else []
    outcomes = [Outcome(**json.loads(line)) for line in lines]
    return {outcome.test: outcome for outcome in outcomes}


def _reason(text: str) -> str:
    """Return the exception: from a traceback, where pytest marks its lines with an E, or from a skip report."""
    _, skipped, reason = text.rpartition("Skipped: ")
    if skipped:
        return reason.rstrip("')")
    marked = [line[1:].strip() for line in text.splitlines() if line.startswith("E ")]
    return "".join(marked[:1] or text.splitlines()[-1:])[:NOTE_LENGTH]


class Recorder:
    """Writes one line after each test, so that the tests before a crash are known."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._reports: list[pytest.TestReport] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._reports.append(report)

    def pytest_runtest_logfinish(self, nodeid: str) -> None:
        outcome = Outcome.of(nodeid, self._reports)
        self._reports.clear()
        with self._file.open("a", encoding="utf-8") as file:
            file.write(outcome.as_line())
