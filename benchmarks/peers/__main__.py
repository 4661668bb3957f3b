"""How fast the locks are beside their peers: ``make bench``.

All contestants of a scenario take turns, round after round, so that what else the machine does meets all of them. A
whole run writes the figures as JSON, the tables and plots of the page about performance, and the data behind it; with
``--only`` the tables are only printed, and with ``--update`` too these figures are put in the place of the older ones.
"""

from __future__ import annotations

import argparse
import signal
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

from benchmarks.peers import machine
from benchmarks.peers.arena import Arena
from benchmarks.peers.contestants import CONTESTANTS
from benchmarks.peers.page import replace_blocks
from benchmarks.peers.plots import draw
from benchmarks.peers.results import Results
from benchmarks.peers.scenario import Round, Scenario
from benchmarks.peers.scenarios import SCENARIOS
from benchmarks.peers.tables import blocks, figures, speed
from benchmarks.peers.terminal import summary_of

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "peers.json"
README = ROOT / "README.md"
PAGE = ROOT / "docs" / "explanation" / "performance.md"
FIGURES = ROOT / "docs" / "_static" / "figures" / "performance.txt"
PLOTS = ROOT / "docs" / "_static" / "performance"
ROUNDS = 5
WARM_UP = 2.0


def measure(
    arena: Arena, scenarios: Sequence[Scenario], contestants: Sequence[str], rounds: int, results: Results
) -> list[str]:
    """Add the figures of all rounds to the results; return what has failed."""
    failures = []
    begin = time.monotonic()
    for scenario in scenarios:
        count = min(rounds, scenario.max_rounds or rounds)
        print(f"{time.monotonic() - begin:5.0f} s  {scenario.name}, rounds: {count}", file=sys.stderr, flush=True)
        try:
            with scenario.open(arena) as found:
                chosen = {name: each for name, each in found.items() if name in contestants or name not in CONTESTANTS}
                for number, name, run in turns(chosen, count):
                    try:
                        results.add(scenario.name, name, run(number))
                    except Exception as error:  # noqa: BLE001 - whatever it is, the others go on
                        failures.append(f"{scenario.name}, {name}, round {number + 1}: {error!r}")
        except Exception as error:  # noqa: BLE001 - as above
            failures.append(f"{scenario.name}: {error!r}")
    return failures


def turns(rounds: Mapping[str, Round], count: int) -> Iterator[tuple[int, str, Round]]:
    """Return the rounds of all contestants in turns, each time with another one first."""
    names = list(rounds)
    for number in range(count):
        shift = number % max(1, len(names))
        for name in names[shift:] + names[:shift]:
            yield number, name, rounds[name]


def write(results: Results, page: Path, readme: Path, data: Path, plots: Path) -> None:
    """Write the tables into the page and the README, the data behind them, and the plots."""
    for path, generated in ((page, blocks(results)), (readme, {"speed": speed(results)})):
        path.write_text(replace_blocks(path.read_text(encoding="utf-8"), generated), encoding="utf-8")
    data.write_text(figures(results), encoding="utf-8")
    draw(results, plots)


def parser() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    made = argparse.ArgumentParser(prog="make bench", description=__doc__)
    made.add_argument("--rounds", type=int, default=ROUNDS, help="of each contestant (default: %(default)s)")
    made.add_argument("--only", nargs="+", metavar="SCENARIO", choices=SCENARIOS, help=", ".join(SCENARIOS))
    made.add_argument("--contestants", nargs="+", metavar="NAME", choices=CONTESTANTS, help=", ".join(CONTESTANTS))
    made.add_argument("--seconds", type=float, default=1.0, help="factor for the length of rounds")
    made.add_argument("--warm-up", type=float, default=WARM_UP, help="seconds for each Java program")
    made.add_argument("--update", action="store_true", help="with --only: write, and keep the other figures")
    made.add_argument("--from-json", action="store_true", help="write tables and plots again, without measuring")
    made.add_argument("--results", type=Path, default=RESULTS, help=argparse.SUPPRESS)
    made.add_argument("--readme", type=Path, default=README, help=argparse.SUPPRESS)
    made.add_argument("--page", type=Path, default=PAGE, help=argparse.SUPPRESS)
    made.add_argument("--figures", type=Path, default=FIGURES, help=argparse.SUPPRESS)
    made.add_argument("--plots", type=Path, default=PLOTS, help=argparse.SUPPRESS)
    return made


def end(*_: Any) -> NoReturn:
    """End as Ctrl-C does, which closes everything."""
    raise KeyboardInterrupt


def main() -> int:
    """Measure, write, and return the exit status."""
    options = parser().parse_args()
    signal.signal(signal.SIGTERM, end)
    if options.from_json:
        write(Results.load(options.results), options.page, options.readme, options.figures, options.plots)
        return 0
    results = Results()
    try:
        with Arena(options.warm_up, options.seconds) as arena:
            failures = measure(
                arena,
                [SCENARIOS[name] for name in options.only or SCENARIOS],
                options.contestants or list(CONTESTANTS),
                options.rounds,
                results,
            )
            results.machine = machine.facts(arena.zookeeper.server)
    except KeyboardInterrupt:
        print("interrupted; nothing is written", file=sys.stderr)
        return 130
    is_update = options.update and not options.contestants and not failures
    if options.only or options.contestants:
        print(summary_of(results))
    if is_update:
        results = Results.load(options.results).updated(results)
    if is_update or not (options.only or options.contestants):
        results.save(options.results)
        write(results, options.page, options.readme, options.figures, options.plots)
    for failure in failures:
        print(f"FAILED  {failure}", file=sys.stderr)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
