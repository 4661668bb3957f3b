"""``python -m tests.zookeeper_matrix``: what a version of ZooKeeper or Apache Curator can change, on each of them.

Exit 0 if all passed, 1 if not, 2 if a version is not to be had. The versions are those that the README names.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.toolbox.processes.java import DEBIAN_JARS
from tests.toolbox.suites.source_package import SourceError
from tests.toolbox.zookeeper.java_releases import CURATOR, PYSPARK, fetch_release, jar_version

REPOSITORY = Path(__file__).resolve().parents[1]
OTHERS = ["tests/contract/test_others.py", "tests/contract/test_downgrade.py"]
# Tests without this marker start no ZooKeeper: another version cannot change them.
ON_SERVERS = ["-m", "zookeeper and not asynchronous"]
TESTS = {
    "contract": ["tests/contract", *(f"--ignore={module}" for module in OTHERS), *ON_SERVERS],
    "interruptions": ["tests/contract", "-m", "zookeeper and asynchronous"],
    # The half on the test server too: another Curator is another client of it.
    "others": OTHERS,
    "faults": ["tests/integration/faults", *ON_SERVERS],
    "cluster": ["tests/integration/cluster", *ON_SERVERS],
    # What servers say about themselves, and how they refuse.
    "answers": ["tests/unit/doctor", "tests/unit/zk", *ON_SERVERS],
}
CHAOS = ["-m", "tests.chaos", "--seconds", "300"]
STEPS = (*TESTS, "chaos")
# They choose another server or another Curator.
VARIABLES = {"CURATOR_HOME", "ZOOKEEPER_HOME", "ZOOKEEPER_HOSTS"}


class Pair(NamedTuple):
    """A server and a Curator, and what is run with them."""

    zookeeper: str
    curator: str
    steps: tuple[str, ...] = STEPS


# Each Curator is a client of the test server and of some real one: not every pair would show something new.
PAIRS = (
    Pair("3.6.3", "5.4.0"),
    Pair("3.8.0", "5.4.0"),
    Pair("3.8.0", "5.7.1", ("others",)),
    Pair("3.9.3", "5.7.1"),
)


class Outcome(NamedTuple):
    """How a step went; the counts are empty where no tests are counted."""

    good: bool
    seconds: float
    passed: int | None = None
    failed: int | None = None
    skipped: int | None = None


def find_homes(pair: Pair) -> dict[str, str]:
    """Return the variables that choose the versions, without those for Debian's packages; or raise SourceError."""
    zookeeper = fetch_release(pair.zookeeper) if pair.zookeeper in PYSPARK else None
    curator = fetch_release(CURATOR[pair.curator]) / "lib" if pair.curator in CURATOR else None
    wanted = {
        ("zookeeper", zookeeper / "lib" if zookeeper else DEBIAN_JARS): pair.zookeeper,
        ("curator-recipes", curator or DEBIAN_JARS): pair.curator,
    }
    for (jar, folder), version in wanted.items():
        if (found := jar_version(folder, jar)) != version:
            raise SourceError(f"{jar} {version} is wanted, and in {folder} is {found}")
    homes = {"ZOOKEEPER_HOME": zookeeper, "CURATOR_HOME": curator}
    return {name: str(home) for name, home in homes.items() if home}


def run_step(step: str, homes: Mapping[str, str], processes: str) -> Outcome:
    """Run a step in a process of its own, which prints as it goes."""
    others = {name: value for name, value in os.environ.items() if name not in VARIABLES}
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder, "report.xml")
        arguments = CHAOS if step == "chaos" else _pytest(step, processes)
        _say(f"\n== {step}: {' '.join([*(f'{name}={value}' for name, value in homes.items()), 'python', *arguments])}")
        if step != "chaos":
            arguments = [*arguments, f"--junit-xml={report}"]
        began = time.monotonic()
        code = subprocess.run(
            [sys.executable, *arguments], cwd=REPOSITORY, env={**others, **homes}, check=False
        ).returncode
        return Outcome(code == 0, time.monotonic() - began, *_counts(report))


def _pytest(step: str, processes: str) -> list[str]:
    # An exception at any instruction could strike the code that talks to the other processes.
    parallel = [] if step == "interruptions" else ["--numprocesses", processes, "--dist", "loadgroup"]
    return ["-m", "pytest", "-q", *TESTS[step], *parallel]


def _counts(report: Path) -> tuple[int, int, int] | tuple[()]:
    if not report.exists():
        return ()
    suites = [suite.attrib for suite in ET.parse(report).iter("testsuite")]
    total, failures, errors, skipped = (
        sum(int(suite[name]) for suite in suites) for name in ("tests", "failures", "errors", "skipped")
    )
    return total - failures - errors - skipped, failures + errors, skipped


def table(outcomes: Mapping[tuple[Pair, str], Outcome]) -> Iterator[str]:
    """Show what was run, a line for each step of each pair."""
    yield f"{'ZooKeeper':9}  {'Curator':7}  {'step':13}  {'passed':>6}  {'failed':>6}  {'skipped':>7}  {'seconds':>7}"
    for (pair, step), outcome in outcomes.items():
        passed, failed, skipped = ("-" if count is None else str(count) for count in outcome[2:])
        yield (
            f"{pair.zookeeper:9}  {pair.curator:7}  {step:13}  {passed:>6}  {failed:>6}  {skipped:>7}  "
            f"{outcome.seconds:>7.0f}  {'ok' if outcome.good else 'NOT OK'}"
        )


def main(arguments: Sequence[str]) -> int:
    """Run the pairs that are asked for."""
    parser = argparse.ArgumentParser(prog="python -m tests.zookeeper_matrix")
    versions = sorted({version for pair in PAIRS for version in pair[:2]})
    parser.add_argument("--only", choices=versions, help="the pairs with this version of ZooKeeper or Curator")
    parser.add_argument("--step", choices=STEPS, action="append", help="only this; can be given several times")
    parser.add_argument("--without-chaos", action="store_true", help="leave out the five minutes of chaos")
    parser.add_argument("--processes", default="auto", help="how many tests run at once")
    options = parser.parse_args(arguments)
    steps = set(options.step or STEPS) - ({"chaos"} if options.without_chaos else set())
    pairs = [pair for pair in PAIRS if options.only in {None, *pair[:2]}]
    try:
        homes = {pair: find_homes(pair) for pair in pairs}
    except SourceError as error:
        _say(f"could not run: {error}")
        return 2
    outcomes = {
        (pair, step): run_step(step, homes[pair], options.processes)
        for pair in pairs
        for step in pair.steps
        if step in steps
    }
    _say("")
    for line in table(outcomes):
        _say(line)
    return 0 if all(outcome.good for outcome in outcomes.values()) else 1


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
