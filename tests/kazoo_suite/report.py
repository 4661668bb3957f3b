"""The comparison as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from .comparison import Comparison, Pair

INDENT = " " * 9


def describe(comparison: Comparison) -> Iterator[str]:
    """Return the lines: the number of tests for each pair of results, and the tests that failed on a server."""
    pairs = [comparison.last(test) for test in comparison.pairs]
    same = {
        word: [pair for pair in pairs if pair.is_foreseen and pair.is_same and pair.real.word == word]
        for word in ("passed", "skipped", "failed")
    }
    yield f"{len(pairs):6} tests on real servers and on the test server"
    yield f"{len(same['passed']):6} passed on both"
    yield f"{len(same['skipped']):6} skipped on both"
    for reason, number in Counter(pair.real.note for pair in same["skipped"]).most_common():
        yield f"{INDENT}{number}: {reason}"
    yield f"{len(same['failed']):6} failed on both"
    for pair in same["failed"]:
        yield f"{INDENT}{pair.real.test}: {pair.real.note}"
    listed = [pair for pair in pairs if pair.is_foreseen and pair.reason is not None]
    yield f"{len(listed):6} passed on real servers only, as listed"
    for pair in listed:
        yield f"{INDENT}{pair.real.test}: {pair.reason}"
    yield f"{len(comparison.unsteady):6} went as they should in a further try"
    for test in comparison.unsteady:
        yield from _in_full(comparison.pairs[test])
    yield f"{len(comparison.surprises):6} DIFFER from what tests/kazoo_suite/differences.py says"
    for test in comparison.surprises:
        yield from _in_full(comparison.last(test))
    if comparison.unknown:
        yield f"{len(comparison.unknown):6} listed that kazoo does not have"
        yield from (f"{INDENT}{test}" for test in comparison.unknown)


def _in_full(pair: Pair) -> Iterator[str]:
    yield f"{INDENT}{pair.real.test}: real {pair.real.word}, ours {pair.ours.word}"
    if pair.reason is not None:
        yield f"{INDENT}  listed: {pair.reason}"
    for name, outcome in (("real", pair.real), ("ours", pair.ours)):
        if outcome.word != "passed":
            yield f"{INDENT}  {name}: {outcome.note}"
