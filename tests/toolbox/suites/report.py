"""The comparison as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from tests.toolbox.suites.comparison import Comparison, Pair

INDENT = " " * 9


@dataclass(frozen=True, kw_only=True)
class Names:
    """What the two runs are called, where they took place, and where the differences are listed."""

    reference: str
    ours: str
    where: str
    both: str
    first: str
    project: str
    listed: str


def describe(comparison: Comparison, names: Names) -> Iterator[str]:
    """Return the lines: the number of tests for each pair of results, and the tests that failed in a run."""
    pairs = [comparison.last(test) for test in comparison.pairs]
    same = {
        word: [pair for pair in pairs if pair.is_foreseen and pair.is_same and pair.reference.word == word]
        for word in ("passed", "skipped", "failed")
    }
    yield f"{len(pairs):6} tests {names.where}"
    yield f"{len(same['passed']):6} passed {names.both}"
    yield f"{len(same['skipped']):6} skipped {names.both}"
    for reason, number in Counter(pair.reference.note for pair in same["skipped"]).most_common():
        yield f"{INDENT}{number}: {reason}"
    yield f"{len(same['failed']):6} failed {names.both}"
    for pair in same["failed"]:
        yield f"{INDENT}{pair.reference.test}: {pair.reference.note}"
    listed = [pair for pair in pairs if pair.is_foreseen and pair.reason is not None]
    yield f"{len(listed):6} passed {names.first} only, as listed"
    for pair in listed:
        yield f"{INDENT}{pair.reference.test}: {pair.reason}"
    yield f"{len(comparison.unsteady):6} went as they should in a further try"
    for test in comparison.unsteady:
        yield from _in_full(comparison.pairs[test], names)
    yield f"{len(comparison.surprises):6} DIFFER from what {names.listed} says"
    for test in comparison.surprises:
        yield from _in_full(comparison.last(test), names)
    if comparison.unknown:
        yield f"{len(comparison.unknown):6} listed that {names.project} does not have"
        yield from (f"{INDENT}{test}" for test in comparison.unknown)


def _in_full(pair: Pair, names: Names) -> Iterator[str]:
    yield f"{INDENT}{pair.reference.test}: {names.reference} {pair.reference.word}, {names.ours} {pair.ours.word}"
    if pair.reason is not None:
        yield f"{INDENT}  listed: {pair.reason}"
    for name, outcome in ((names.reference, pair.reference), (names.ours, pair.ours)):
        if outcome.word != "passed":
            yield f"{INDENT}  {name}: {outcome.note}"
