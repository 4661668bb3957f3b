"""``python -m tests.chaos --seconds 3600``: seasons one after the other; the seed of one runs that season again."""

from __future__ import annotations

import argparse
import random
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

from .history import read, save
from .picture import describe, draw
from .plants import PLANTS, plant_all
from .season import CLIENTS, Outcome, judge, season

# Seconds of faults in a season.
SEASON = 240.0
# Seconds before and after the first finding that its picture shows.
AROUND = 20.0
# Findings that are printed of a season.
SHOWN = 20


def say(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


def main() -> int:
    """Run seasons for some time and print their outcome; return 1 if something was wrong."""
    parser = argparse.ArgumentParser(prog="chaos", description=__doc__)
    parser.add_argument("--seconds", type=float, default=120.0, help="how long new seasons begin")
    parser.add_argument("--season", type=float, default=SEASON, help="seconds of faults in a season")
    parser.add_argument("--seed", help="draw the same again; the seed of a season, such as 7.3, runs that season alone")
    parser.add_argument(
        "--clients",
        default=",".join([*CLIENTS, "celery"]),
        help="who takes locks, with commas between (%(default)s)",
    )
    parser.add_argument("--without-gate", action="store_true", help="the control: tasks wait in their slots")
    parser.add_argument(
        "--queues",
        choices=["classic", "quorum"],
        help="of RabbitMQ in each season; by default the seed of a season says",
    )
    parser.add_argument("--folder", type=Path, help="where histories and pictures are left")
    parser.add_argument("--report", type=Path, metavar="FOLDER", help="where figures and a picture of all are left")
    parser.add_argument("--judge", type=Path, metavar="HISTORY", help="judge an earlier run, or one season, again")
    arguments = parser.parse_args()
    if arguments.judge is not None:
        return judge_again(arguments)
    seed = arguments.seed or str(random.randrange(2**32))
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    who = arguments.clients.split(",")
    names = [f"{seed}.{number}" for number in range(10_000)] if "." not in seed else [seed]
    run = Run(folder, began=time.monotonic(), again=again(arguments))
    say(f"seed {seed}, clients {arguments.clients}, histories in {folder}")
    for name in names:
        left = arguments.seconds - (time.monotonic() - run.began)
        if left <= 0:
            break
        run.add(
            season(
                name,
                min(max(left, 30.0), arguments.season),
                folder / name,
                clients={each: kind for each, kind in CLIENTS.items() if each in who},
                celery="celery" in who,
                gate=not arguments.without_gate,
                quorum=None if arguments.queues is None else arguments.queues == "quorum",
            )
        )
    return run.end(arguments.report)


def judge_again(arguments: argparse.Namespace) -> int:
    """Judge all seasons of an earlier run, or one history, by the rules of today, and write the report."""
    journals = sorted(arguments.judge.glob("*/journal"), key=lambda path: int(path.parent.name.rpartition(".")[2]))
    seasons = {path.parent.name: read(path) for path in journals or [arguments.judge]}
    lasted = max(rows[-1]["at"] for rows in seasons.values()) - min(rows[0]["at"] for rows in seasons.values())
    folder = arguments.folder or Path(tempfile.mkdtemp(prefix="chaos-"))
    run = Run(folder, began=time.monotonic() - lasted, again=again(arguments))
    for name, rows in seasons.items():
        run.add(judge(name, rows))
    return run.end(arguments.report)


def again(arguments: argparse.Namespace) -> str:
    """Return what has to be said beside the seed to draw the same turns and faults again."""
    said = f"--season {arguments.season:g} --clients {arguments.clients}"
    said += f" --queues {arguments.queues}" if arguments.queues else ""
    return f"{said} --without-gate" if arguments.without_gate else said


def tell(outcome: Outcome) -> None:
    """Print what a season has come to."""
    counts = {name: outcome.counts.get(name, 0) for name in ("faults", "calls", "holds", "tasks: runs")}
    figures = ", ".join(f"{name} {count}" for name, count in counts.items())
    say(f"season {outcome.seed}: {figures}; {len(outcome.findings)} wrong")
    if outcome.forgotten:
        counts_ = "only what was before counts" if outcome.violations else "does not count"
        say(f"  {counts_}: ZooKeeper has lost {outcome.forgotten} acknowledged writes of the witness")
    elif outcome.is_void:
        say("  does not count: ZooKeeper has brought back nodes that were gone")
    for finding in outcome.findings[:SHOWN]:
        say(f"  {finding}")


class Run:
    """All seasons of a run."""

    def __init__(self, folder: Path, *, began: float, again: str) -> None:
        self._folder = folder
        self._again = again
        self.began = began
        self._counts: Counter[str] = Counter()
        self._faults: Counter[str] = Counter()
        self._planted: dict[str, bool | None] = dict.fromkeys(PLANTS)
        self._wrong = 0
        # Seasons that count, and those in which ZooKeeper has lost what it had acknowledged, or brought back the rest.
        self._proven = self._void = 0
        self._seasons: list[Outcome] = []

    def add(self, outcome: Outcome) -> None:
        """Count a season, tell of it, and leave what is needed to understand it if something was wrong.

        Where ZooKeeper has lost acknowledged writes, or what was wrong comes after it has brought back others, nothing
        counts but what was wrong before.
        """
        tell(outcome)
        place = self._folder / outcome.seed
        place.mkdir(parents=True, exist_ok=True)
        if outcome.is_void:
            self._void += 1
            save(outcome.rows, place / "history.jsonl")
            return
        self._proven += 1
        self._counts.update(outcome.counts)
        self._faults.update(row["fault"] for row in outcome.rows if row["what"] == "fault")
        self._wrong += len(outcome.violations)
        if outcome.violations:
            command = f"make chaos ARGS='--seed {outcome.seed} {self._again}'"
            zero = next(row["at"] for row in outcome.rows if row["what"] == "season")
            save(outcome.rows, place / "history.jsonl")
            found = [f"{each.at - zero:8.3f} {each}\n" for each in outcome.findings]
            (place / "findings.txt").write_text(f"{command}\n{''.join(found)}")
            first = outcome.violations[0].at - zero
            draw(outcome.rows, outcome.findings, place / "season.png")
            draw(outcome.rows, outcome.findings, place / "first.png", since=first - AROUND, until=first + AROUND)
            say(f"  history, findings and pictures in {place}; again: {command}")
        # What had no place in an earlier history may have one here.
        missing = [name for name, found in self._planted.items() if found is None]
        if missing and not outcome.findings:
            self._planted |= plant_all(outcome.rows, missing)
        if not self._seasons or len(outcome.rows) > len(self._seasons[0].rows):
            self._seasons = [outcome]

    def end(self, report: Path | None) -> int:
        """Tell of all seasons and write the report; return 1 if something was wrong, or no season counts."""
        unfound = [name for name, found in self._planted.items() if found is False]
        minutes = (time.monotonic() - self.began) / 60
        figures = describe(self._counts, self._faults, self._planted)
        result = f"{self._wrong} violations in {minutes:.0f} minutes."
        if self._void:
            result += f"\nSeasons that do not count: {self._void}, because ZooKeeper has lost or brought back writes."
        say(f"{figures}\n{result} Planted and not found: {unfound or 'none'}")
        if report is not None:
            report.mkdir(parents=True, exist_ok=True)
            (report / "figures.txt").write_text(f"{result}\n\n{figures}")
            for longest in self._seasons:
                draw(longest.rows, longest.findings, report / "season.png")
        return 1 if self._wrong or unfound or not self._proven else 0


if __name__ == "__main__":
    sys.exit(main())
