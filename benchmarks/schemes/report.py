"""The results as a JSON file, and as the tables in the documents."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.schemes.catalogue import SCHEMES, Scheme
from benchmarks.schemes.tap import Traffic

if TYPE_CHECKING:
    from typing import Self

ROOT = Path(__file__).resolve().parents[2]
RESULTS = ROOT / "benchmarks" / "results" / "herd.json"
FIGURES = ROOT / "docs" / "_static" / "figures" / "schemes.txt"

UNIT = re.compile(r"(?<=\d) (?=[kMG]?B|ms)")
KILO = 1000.0


@dataclass(frozen=True)
class Result:
    """What one scheme costs with this number of waiters. Times are milliseconds, the traffic is a mean."""

    scheme: str
    waiters: int
    hand_over: Traffic
    join: Traffic
    next_holder_ms: float
    server_cpu_ms: float
    hand_overs_timed: int


@dataclass(frozen=True)
class Results:
    """One run: where it was made, and its results."""

    date: str
    server: str
    machine: str
    poll_interval: float
    results: tuple[Result, ...]

    def save(self, path: Path = RESULTS) -> None:
        """Write the file."""
        path.write_text(json.dumps(asdict(self), indent=1) + "\n", encoding="utf-8")

    @classmethod
    def load(cls, path: Path = RESULTS) -> Self:
        """Read the file."""
        found: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        results = tuple(
            Result(**{**each, "hand_over": Traffic(**each["hand_over"]), "join": Traffic(**each["join"])})
            for each in found.pop("results")
        )
        return cls(**found, results=results)

    def of(self, scheme: Scheme) -> list[Result]:
        """Return the results of one scheme, the fewest waiters first."""
        return [each for each in self.results if each.scheme == scheme.name]

    @property
    def most_waiters(self) -> int:
        """The largest number of waiters."""
        return max(each.waiters for each in self.results)


def number(value: float) -> str:
    """Return a number with three digits at least, and not more decimals than these need."""
    decimals = 0 if value >= 100 or value == int(value) else 1 if value >= 10 else 2
    text = f"{value:,.{decimals}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text


def size(count: float) -> str:
    """Return a number of bytes with a unit."""
    units = ["B", "kB", "MB", "GB"]
    while count >= KILO and len(units) > 1:
        count /= KILO
        units.pop(0)
    return f"{number(round(count) if units[0] == 'B' else count)} {units[0]}"


def table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table in Markdown; all columns but the first are numbers."""
    # A number stays in one line with its unit.
    unbroken = [[UNIT.sub("&nbsp;", cell) for cell in row] for row in rows]
    lines = [header, ["---", *["---:"] * (len(header) - 1)], *unbroken]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


COLUMNS = (
    "requests",
    "notifications",
    "bytes",
    "next holder after",
    "CPU of the server",
    "requests to join",
    "bytes to join",
)


def cells(result: Result) -> list[str]:
    """Return the figures of one result, in the order of the columns."""
    return [
        number(result.hand_over.requests),
        number(result.hand_over.notifications),
        size(result.hand_over.bytes),
        f"{number(result.next_holder_ms)} ms",
        f"{number(result.server_cpu_ms)} ms",
        number(result.join.requests),
        size(result.join.bytes),
    ]


def scheme_table(results: Sequence[Result]) -> str:
    """Return a table of one scheme, a row for each number of waiters."""
    return table(("waiters", *COLUMNS), [[number(each.waiters), *cells(each)] for each in results])


def summary(results: Results, *, shared: bool) -> str:
    """Return a table of the schemes for the largest number of waiters."""
    rows = [
        [scheme.title, *cells(each)]
        for scheme in SCHEMES
        for each in results.of(scheme)
        if each.waiters == results.most_waiters and scheme.is_shared is shared
    ]
    return table((f"with {number(results.most_waiters)} waiters", *COLUMNS), rows)


def figures(results: Results) -> str:
    """Return the tables, as the page of figures includes them."""
    run = (
        f"Measured on {results.date}, with {results.server}, on {results.machine}.\n"
        f"Waiters that poll list the queue every {number(results.poll_interval)} s.\n"
    )
    parts = [
        run,
        summary(results, shared=False),
        *(
            f"### {scheme.title[0].upper()}{scheme.title[1:]}\n\n{scheme_table(results.of(scheme))}"
            for scheme in SCHEMES
            if not scheme.is_shared
        ),
        f"### Readers and writers\n\n{summary(results, shared=True)}",
        *(
            f"### Readers and writers: {scheme.title}\n\n{scheme_table(results.of(scheme))}"
            for scheme in SCHEMES
            if scheme.is_shared
        ),
    ]
    return "\n".join(parts)
