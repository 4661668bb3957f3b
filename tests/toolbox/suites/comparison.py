"""The comparison of the two runs, and their unexpected differences."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from tests.toolbox.suites.outcome import Outcome


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One test in both runs; ``reason`` is set if the list says that it passes in the first one only."""

    reference: Outcome
    ours: Outcome
    reason: str | None = None

    @property
    def is_same(self) -> bool:
        return self.reference.word == self.ours.word

    @property
    def is_foreseen(self) -> bool:
        """Return whether the result is as listed; a test that is not listed must have the same result in both."""
        if self.reason is None:
            return self.is_same
        return self.reference.word == "passed" and self.ours.word != "passed"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All tests of a run. ``again`` has the repetitions of the tests that were unexpected in the first run."""

    pairs: Mapping[str, Pair]
    unknown: tuple[str, ...] = ()
    again: dict[str, list[Pair]] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        reference: Mapping[str, Outcome],
        ours: Mapping[str, Outcome],
        reasons: Mapping[str, str],
        *,
        whole: bool = True,
    ) -> Comparison:
        """Compare the runs; only a ``whole`` run shows which tests of the list do not exist."""
        tests = sorted({*reference, *ours})
        return cls(
            pairs={
                test: Pair(
                    reference=reference.get(test, _missing(test)),
                    ours=ours.get(test, _missing(test)),
                    reason=reasons.get(test),
                )
                for test in tests
            },
            unknown=tuple(test for test in reasons if whole and test not in tests),
        )

    def add_try(self, other: Comparison) -> None:
        """Add the outcomes of repeated tests."""
        for test, pair in other.pairs.items():
            self.again.setdefault(test, []).append(pair)

    def repeat(self, run: Callable[[int, list[str]], Comparison], *, tries: int) -> None:
        """Let ``run`` repeat the surprises, at most ``tries`` times; it gets the number of the try."""
        for number in range(1, tries + 1):
            surprises = self.surprises
            if not surprises:
                break
            print_now(f"once more, because they surprised: {', '.join(surprises)}")
            self.add_try(run(number, surprises))

    def last(self, test: str) -> Pair:
        """Return the last result of the test."""
        return self.again.get(test, [self.pairs[test]])[-1]

    @property
    def surprises(self) -> list[str]:
        """The tests that were unexpected in every try."""
        return [test for test in self.pairs if not self.last(test).is_foreseen]

    @property
    def unsteady(self) -> list[str]:
        """The tests that were as expected only in a repetition."""
        return [test for test in self.again if self.last(test).is_foreseen]

    @property
    def passed(self) -> list[str]:
        """The tests that passed in both runs."""
        return [test for test in self.pairs if self.last(test).is_same and self.last(test).ours.word == "passed"]

    @property
    def is_good(self) -> bool:
        return bool(self.pairs) and not self.surprises and not self.unknown


def _missing(test: str) -> Outcome:
    return Outcome(test=test, word="failed", note="has not been run")


def print_now(line: str) -> None:
    """Print a line at once."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()
