"""The figures of a quick look, for the terminal."""

from __future__ import annotations

from benchmarks.peers.results import Results
from benchmarks.peers.summary import amount, middle

# Figures that are shown in another unit than seconds.
MICRO = 1e-6
IN_MICROSECONDS = ("time", "longest", "client_cpu", "server_cpu", "caller_cpu", "main_cpu", "children_cpu", "latency",
                   "open_time", "open_cpu", "ping_cpu")  # fmt: skip


def summary_of(results: Results) -> str:
    """Return a line for each figure; the first has its quartiles."""
    lines = []
    for scenario, contestants in results.figures.items():
        for contestant, figures in contestants.items():
            lines.append(f"{scenario}, {contestant}")
            for name, values in figures.items():
                in_micro = name.partition("@")[0] in IN_MICROSECONDS
                show = amount if name == next(iter(figures)) else middle
                lines.append(f"  {name:22}{show(values, MICRO if in_micro else 1.0)}{' µs' if in_micro else ''}")
    return "\n".join(lines)
