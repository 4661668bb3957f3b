"""``python -m tests.celery_suite``: exit 0 if Celery's tests pass with the gate as without, 1 if not, 2 if not run."""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from tests.toolbox.processes.process import NotInstalledError, StartError
from tests.toolbox.suites.comparison import Comparison, print_now
from tests.toolbox.suites.report import Names, describe
from tests.toolbox.suites.run import REPOSITORY, RunError
from tests.toolbox.suites.source import SourceError, fetch_source

from .differences import CANVAS, REASONS, TASKS, UNIT
from .run import Part, run_both

CACHE = REPOSITORY / ".cache" / "celery"
# The number of repetitions of an unexpected test in both ways. Many of Celery's tests count on time that a busy machine
# does not have.
TRIES = 3
PARTS = {part.name: part for part in (UNIT, TASKS, CANVAS)}
NAMES = Names(
    reference="without", ours="with", where="without the gate and with it", both="in both runs",
    first="without the gate", project="Celery", listed="tests/celery_suite/differences.py",
)  # fmt: skip


def main(arguments: Sequence[str]) -> int:
    """Run all tests, or those of one part that options of pytest choose, and print the result."""
    parser = argparse.ArgumentParser(prog="tests.celery_suite", epilog="Other options are those of pytest.")
    parser.add_argument("--part", choices=sorted(PARTS), help="run this part alone")
    chosen, options = parser.parse_known_args(arguments)
    began = time.monotonic()
    comparisons = []
    try:
        source = fetch_source("celery", CACHE)
        print_now(f"the tests of {source.name}; what pytest writes goes to {CACHE.relative_to(REPOSITORY)}/*.log")
        for part in [PARTS[chosen.part]] if chosen.part else PARTS.values():
            print_now(f"{part.name}: {', '.join(part.paths)}")
            comparisons.append(compare(part, source, options))
            for line in describe(comparisons[-1], NAMES):
                print_now(line)
            for test, reason in part.left_out.items():
                print_now(f"         left out: {test}: {reason}")
    except (SourceError, RunError, NotInstalledError, StartError) as error:
        print_now(f"could not run: {error}")
        return 2
    # Where nothing passes the two ways do not differ either.
    is_good = all(each.is_good and each.passed for each in comparisons)
    print_now(f"{'ok' if is_good else 'NOT OK'} after {time.monotonic() - began:.0f} s")
    return 0 if is_good else 1


def compare(part: Part, source: Path, options: Sequence[str]) -> Comparison:
    """Run a part in both ways, and unexpected tests up to ``TRIES`` times more, alone."""
    reasons = {test: reason for test, reason in REASONS.items() if test.startswith(tuple(part.paths))}
    both = run_both(part, source, CACHE, options=options)
    comparison = Comparison.of(*both, reasons, whole=not options)

    def again(number: int, tests: list[str]) -> Comparison:
        found = run_both(part, source, CACHE, name=f"-again-{number}", tests=tests)
        return Comparison.of(*found, reasons, whole=False)

    comparison.repeat(again, tries=TRIES)
    return comparison


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
