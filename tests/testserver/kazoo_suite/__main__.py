"""``python -m tests.testserver.kazoo_suite``: exit 0 if both servers agree, 1 if not, 2 if the tests could not run."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.toolbox.suites.comparison import Comparison, print_now
from tests.toolbox.suites.report import Names, describe
from tests.toolbox.suites.run import REPOSITORY, RunError
from tests.toolbox.suites.source import SourceError, fetch_source

from .differences import REASONS
from .run import run_both

CACHE = REPOSITORY / ".cache" / "kazoo"
# The number of repetitions of an unexpected test on both servers. Some of kazoo's tests race with their server:
# test_connection_dropped fails if the reply is faster than the drop of the connection, which was one time in five on
# the test server and one in twenty on real ones.
TRIES = 3
NAMES = Names(
    reference="real", ours="ours", where="on real servers and on the test server", both="on both",
    first="on real servers", project="kazoo", listed="tests/testserver/kazoo_suite/differences.py",
)  # fmt: skip


def main(options: Sequence[str]) -> int:
    """Run all tests, or those that ``options`` of pytest choose, and print the result."""
    began = time.monotonic()
    try:
        source = fetch_source("kazoo", CACHE)
        print_now(f"the tests of {source.name}; what pytest writes goes to {CACHE.relative_to(REPOSITORY)}/*.log")
        comparison = compare(source, options)
    except (SourceError, RunError) as error:
        print_now(f"could not run: {error}")
        return 2
    for line in describe(comparison, NAMES):
        print_now(line)
    print_now(f"{'ok' if comparison.is_good else 'NOT OK'} after {time.monotonic() - began:.0f} s")
    return 0 if comparison.is_good else 1


def compare(source: Path, options: Sequence[str]) -> Comparison:
    """Run the tests on both servers, and unexpected ones up to ``TRIES`` times more, alone."""
    comparison = Comparison.of(*run_both(source, CACHE, name="all", options=options), REASONS, whole=not options)

    def again(number: int, tests: list[str]) -> Comparison:
        return Comparison.of(*run_both(source, CACHE, name=f"again-{number}", tests=tests), REASONS, whole=False)

    comparison.repeat(again, tries=TRIES)
    return comparison


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
