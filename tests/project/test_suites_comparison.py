"""The differences that count."""

from __future__ import annotations

from collections.abc import Mapping

import pytest

from tests.toolbox.suites.comparison import Comparison
from tests.toolbox.suites.outcome import Outcome, Word
from tests.toolbox.suites.report import Names, describe

LISTED = {"listed": "knows no TLS"}
NAMES = Names(
    reference="real", ours="ours", where="on real servers and on the test server", both="on both",
    first="on real servers", project="kazoo", listed="tests/testserver/kazoo_suite/differences.py",
)  # fmt: skip


def outcomes(**words: Word) -> Mapping[str, Outcome]:
    return {test: Outcome(test=test, word=word, note=f"{test} {word}") for test, word in words.items()}


def compared(
    real: Word, ours: Word, *, test: str = "plain", reasons: Mapping[str, str] = LISTED, whole: bool = False
) -> Comparison:
    return Comparison.of(outcomes(**{test: real}), outcomes(**{test: ours}), reasons, whole=whole)


@pytest.mark.parametrize(
    ("real", "ours", "test", "is_good"),
    [
        ("passed", "passed", "plain", True),
        ("skipped", "skipped", "plain", True),
        ("failed", "failed", "plain", True),
        ("passed", "failed", "plain", False),
        ("failed", "passed", "plain", False),
        ("skipped", "failed", "plain", False),
        ("passed", "failed", "listed", True),
        ("passed", "skipped", "listed", True),
        ("passed", "passed", "listed", False),
        ("failed", "failed", "listed", False),
        ("failed", "passed", "listed", False),
    ],
)
def test_comparison(real: Word, ours: Word, test: str, is_good: bool) -> None:
    """A test has the same result on both servers; one that is listed passes on real ones only."""
    comparison = compared(real, ours, test=test)
    assert comparison.is_good is is_good
    assert comparison.surprises == ([] if is_good else [test])


def test_comparison__listed_test_is_gone() -> None:
    """An entry for a test that does not exist must be removed, which only a whole run can show."""
    assert compared("passed", "passed").is_good
    whole = compared("passed", "passed", whole=True)
    assert whole.unknown == ("listed",)
    assert not whole.is_good


def test_comparison__ran_on_one_only() -> None:
    """A test that is missing in one of the runs has failed there."""
    comparison = Comparison.of(outcomes(one="passed", two="passed"), outcomes(one="passed"), {})
    assert comparison.surprises == ["two"]


def test_comparison__nothing_ran() -> None:
    """A run without tests is a failure."""
    assert not Comparison.of({}, {}, {}).is_good


def test_repeat__until_nothing_surprises() -> None:
    """Surprises alone are repeated, as often as is allowed, and not after they have gone."""
    tries = [compared("passed", "failed"), compared("passed", "passed")]
    comparison, asked = compared("passed", "failed"), list[tuple[int, list[str]]]()

    def run(number: int, tests: list[str]) -> Comparison:
        asked.append((number, tests))
        return tries[number - 1]

    comparison.repeat(run, tries=1)
    assert (asked, comparison.surprises) == ([(1, ["plain"])], ["plain"])
    comparison.repeat(run, tries=5)
    assert asked[1:] == [(1, ["plain"]), (2, ["plain"])]
    assert comparison.unsteady == ["plain"]


def test_describe__tells_each_test_once() -> None:
    """Every test is counted in one line, and those that did not pass on both are listed with their results."""
    real = outcomes(good="passed", listed="passed", bad="failed", away="skipped", worse="passed")
    ours = outcomes(good="passed", listed="failed", bad="failed", away="skipped", worse="failed")
    lines = [line.strip() for line in describe(Comparison.of(real, ours, {**LISTED, "gone": "went"}), NAMES)]
    assert lines == [
        "5 tests on real servers and on the test server",
        "1 passed on both",
        "1 skipped on both",
        "1: away skipped",
        "1 failed on both",
        "bad: bad failed",
        "1 passed on real servers only, as listed",
        "listed: knows no TLS",
        "0 went as they should in a further try",
        "1 DIFFER from what tests/testserver/kazoo_suite/differences.py says",
        "worse: real passed, ours failed",
        "ours: worse failed",
        "1 listed that kazoo does not have",
        "gone",
    ]
