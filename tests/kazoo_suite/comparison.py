"""The outcomes of the two runs beside each other, and which of them nobody has foreseen."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from .outcome import Outcome


@dataclass(frozen=True, kw_only=True)
class Pair:
    """One test on both servers; ``reason`` is given if it is listed as one that only the real server can pass."""

    real: Outcome
    ours: Outcome
    reason: str | None = None

    @property
    def is_same(self) -> bool:
        return self.real.word == self.ours.word

    @property
    def is_foreseen(self) -> bool:
        """Tell whether the test went as the list says, which it does of every test: by naming it, or by not."""
        if self.reason is None:
            return self.is_same
        return self.real.word == "passed" and self.ours.word != "passed"


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """All tests of a run. ``again`` has the further tries of the tests that surprised in the first one."""

    pairs: Mapping[str, Pair]
    unknown: tuple[str, ...] = ()
    again: dict[str, list[Pair]] = field(default_factory=dict)

    @classmethod
    def of(
        cls, real: Mapping[str, Outcome], ours: Mapping[str, Outcome], reasons: Mapping[str, str], *, whole: bool = True
    ) -> Comparison:
        """Put the runs beside each other; only a ``whole`` one shows which tests of the list there are not."""
        tests = sorted({*real, *ours})
        return cls(
            pairs={
                test: Pair(
                    real=real.get(test, _missing(test)),
                    ours=ours.get(test, _missing(test)),
                    reason=reasons.get(test),
                )
                for test in tests
            },
            unknown=tuple(test for test in reasons if whole and test not in tests),
        )

    def add_try(self, other: Comparison) -> None:
        """Take the outcomes of tests that were run once more."""
        for test, pair in other.pairs.items():
            self.again.setdefault(test, []).append(pair)

    def last(self, test: str) -> Pair:
        """Return how the test went in the end."""
        return self.again.get(test, [self.pairs[test]])[-1]

    @property
    def surprises(self) -> list[str]:
        """The tests that have not gone as foreseen in any try."""
        return [test for test in self.pairs if not self.last(test).is_foreseen]

    @property
    def unsteady(self) -> list[str]:
        """The tests that went as foreseen, but not at once."""
        return [test for test in self.again if self.last(test).is_foreseen]

    @property
    def is_good(self) -> bool:
        return bool(self.pairs) and not self.surprises and not self.unknown


def _missing(test: str) -> Outcome:
    return Outcome(test=test, word="failed", note="has not been run")
