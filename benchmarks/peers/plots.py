"""The plots of the page, each as an SVG for light and one for dark pages."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator, StrMethodFormatter

from benchmarks.peers.capacity import SERVERS, ceilings_of
from benchmarks.peers.contestants import CONTESTANTS
from benchmarks.peers.results import Results
from benchmarks.peers.summary import Summary
from benchmarks.peers.tables import ALONE, DELAYED, PROCESSES, TASKS, THREADS, label

MICRO, MILLI = 1e-6, 1e-3
CONTENDERS = [2, 8, 32]
DELAYS = [0, 1, 10]
# Colours that differ for the colour-blind too (Okabe and Ito), on white and on black.
COLOURS = {
    "ours": "#0072b2",
    "kazoo": "#d55e00",
    "curator": "#009e73",
    "curator-semaphore-mutex": "#cc79a7",
    "redis-py": "#e69f00",
    "python-redis-lock": "#8c6d00",
    "raw": "#7f7f7f",
}
MARKERS = dict(zip(COLOURS, "oDs^vP*", strict=True))
OPTIONS: dict[Any, Any] = {
    # The same file from the same figures.
    "svg.hashsalt": "peers",
    # Text stays text, in the font of the reader's choice.
    "svg.fonttype": "none",
    "font.family": "sans-serif",
    "font.size": 10,
    "figure.constrained_layout.use": True,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
}


@dataclass(frozen=True)
class Theme:
    """The colours of what is not data."""

    name: str
    ink: str


THEMES = (Theme("light", "#222222"), Theme("dark", "#dddddd"))


@contextmanager
def style(theme: Theme) -> Iterator[None]:
    """Draw with a theme inside the block."""
    names = ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color", "grid.color")
    with mpl.rc_context(OPTIONS | dict.fromkeys(names, theme.ink)):
        yield


def bars(axes: Axes, labels: list[str], values: list[Summary], colours: list[str]) -> None:
    """Draw medians as bars from top to bottom, with lines from quartile to quartile."""
    places = list(range(len(values)))
    axes.barh(
        places,
        [each.median for each in values],
        color=colours,
        xerr=[[each.median - each.low for each in values], [each.high - each.median for each in values]],
        error_kw={"ecolor": mpl.rcParams["text.color"], "elinewidth": 1, "capsize": 2},
    )
    axes.set_yticks(places, labels)
    axes.invert_yaxis()
    axes.grid(visible=False, axis="y")


def alone(results: Results, figure: Figure) -> None:
    """Draw the time of a cycle alone."""
    names = results.contestants("alone")
    axes = figure.subplots()
    values = [Summary.of([each / MICRO for each in results.values("alone", name, "time")]) for name in names]
    bars(axes, [label(name) for name in names], values, [COLOURS[name] for name in names])
    axes.set_xlabel("acquire and release, µs")


def lines(axes: Axes, results: Results, scenarios: list[str], places: list[int], unit: float) -> None:
    """Draw a line for each contestant over some scenarios."""
    for name in CONTESTANTS:
        points = [
            (place, statistics.median(values) / unit)
            for place, scenario in zip(places, scenarios, strict=True)
            if (values := results.values(scenario, name, "time"))
        ]
        if points:
            axes.plot(*zip(*points, strict=True), marker=MARKERS[name], color=COLOURS[name], label=label(name))


def contenders(results: Results, figure: Figure) -> None:
    """Draw the time of a turn over the number of contenders."""
    for axes, title, scenarios in zip(
        figure.subplots(1, 2, sharey=True), ("threads", "processes"), (THREADS, PROCESSES), strict=True
    ):
        lines(axes, results, list(scenarios), CONTENDERS, MICRO)
        axes.set_xscale("log", base=2)
        axes.set_xticks(CONTENDERS, map(str, CONTENDERS))
        set_log_scale(axes)
        axes.set_xlabel(f"contenders, {title}")
    figure.axes[0].set_ylabel("one turn, µs")
    legend(figure)


def delays(results: Results, figure: Figure) -> None:
    """Draw the time of a turn over the delay."""
    for axes, title, scenarios in zip(
        figure.subplots(1, 2), ("alone", "8 threads"), (ALONE, DELAYED), strict=True
    ):  # fmt: skip
        lines(axes, results, list(scenarios), DELAYS, MILLI)
        axes.set_xlabel(f"delay each way, ms; {title}")
    figure.axes[0].set_ylabel("one turn, ms")
    legend(figure)


def tasks(results: Results, figure: Figure) -> None:
    """Draw how many tasks a worker does."""
    names = results.contestants("tasks")
    values = [Summary.of(results.values("tasks", name, "rate")) for name in names]
    axes = figure.subplots()
    bars(axes, [TASKS[name] for name in names], values, [COLOURS["raw"], COLOURS["ours"], COLOURS["redis-py"]])
    axes.set_xlabel("tiny tasks a second")


def ceiling(results: Results, figure: Figure) -> None:
    """Draw the latency over the load, with a mark at the ceiling."""
    axes = figure.subplots()
    for (name, (steps, highest)), colour in zip(ceilings_of(results).items(), COLOURS.values(), strict=False):
        axes.plot(
            [step.rate for step in steps],
            [step.latency / MILLI for step in steps],
            marker=".",
            color=colour,
            label=SERVERS[name],
        )
        axes.plot([highest.rate], [highest.latency / MILLI], marker="o", markersize=9, color=colour)
    set_log_scale(axes)
    axes.set_xlabel("cycles a second")
    axes.set_ylabel("one cycle, ms")
    legend(figure)


def set_log_scale(axes: Axes) -> None:
    """Make the vertical axis logarithmic, with plain numbers."""
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,g}"))
    axes.yaxis.set_minor_locator(NullLocator())


def legend(figure: Figure) -> None:
    """Draw one legend below all parts."""
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, frameon=False)


# By the name of the file: what draws it, which scenario it needs, and its height in inches.
PLOTS: dict[str, tuple[Callable[[Results, Figure], None], str, float]] = {
    "alone": (alone, "alone", 2.6),
    "contenders": (contenders, "threads-2", 4.2),
    "delays": (delays, "threads-8-10ms", 4.2),
    "tasks": (tasks, "tasks", 1.6),
    "ceiling": (ceiling, "ceiling", 4.0),
}
WIDTH = 7.5


def draw(results: Results, folder: Path) -> None:
    """Write all plots of which there are figures."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, (plot, scenario, height) in PLOTS.items():
        if not results.contestants(scenario):
            continue
        for theme in THEMES:
            with style(theme):
                figure = Figure(figsize=(WIDTH, height))
                plot(results, figure)
                figure.savefig(folder / f"{name}-{theme.name}.svg", transparent=True, metadata={"Date": None})
