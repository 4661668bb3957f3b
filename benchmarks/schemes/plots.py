"""The curves of the page: what a hand-over costs, by the number of waiters."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

from benchmarks.schemes.catalogue import SCHEMES, Scheme
from benchmarks.schemes.report import ROOT, Result, Results, number, size

if TYPE_CHECKING:
    from matplotlib.axes import Axes

FOLDER = ROOT / "docs" / "_static"


@dataclass(frozen=True)
class Look:
    """The colours of one picture; ``schemes`` in the order of the legend."""

    name: str
    page: str
    ink: str
    grid: str
    schemes: tuple[str, ...]


# Five hues that stay apart for the colour-blind, darker on white and lighter on black. Markers differ too.
LOOKS = (
    Look("light", "#ffffff", "#1f2328", "#d8dee4", ("#8250df", "#bc4c00", "#bf8700", "#0969da", "#1a7f37")),
    Look("dark", "#131416", "#e6edf3", "#373e47", ("#bc8cff", "#f0883e", "#e3b341", "#58a6ff", "#3fb950")),
)
MARKERS = ("v", "s", "^", "D", "o")


@dataclass(frozen=True)
class Panel:
    """One pair of axes."""

    title: str
    value: Callable[[Result], float]
    unit: Callable[[float], str]


PANELS = (
    Panel("requests", lambda each: each.hand_over.requests, number),
    Panel("bytes", lambda each: each.hand_over.bytes, size),
    Panel("CPU of the server", lambda each: each.server_cpu_ms, lambda value: f"{number(value)} ms"),
    Panel("time to the next holder", lambda each: each.next_holder_ms, lambda value: f"{number(value)} ms"),
)

STYLE: Any = {
    # Text stays text, so that a browser draws it in its own font and a search finds it.
    "svg.fonttype": "none",
    # The same results give the same file.
    "svg.hashsalt": "django_zklock",
    "font.family": "sans-serif",
    "font.size": 10,
}


def draw(results: Results, folder: Path = FOLDER) -> list[Path]:
    """Draw the curves of the exclusive and of the shared schemes, light and dark; return the files."""
    return [
        draw_one(results, look, folder / f"herd-{'shared' if shared else 'exclusive'}-{look.name}.svg", shared=shared)
        for shared in (False, True)
        for look in LOOKS
    ]


def draw_one(results: Results, look: Look, path: Path, *, shared: bool) -> Path:
    """Draw one picture: a panel for each measure, a curve for each scheme."""
    schemes = [scheme for scheme in SCHEMES if scheme.is_shared is shared]
    with mpl.rc_context(STYLE):
        figure = Figure(figsize=(9, 6.6), facecolor=look.page, layout="constrained")
        panels = figure.subplots(2, 2)
        for axes, panel in zip(panels.flat, PANELS, strict=True):
            _prepare(axes, panel, look, sorted({each.waiters for each in results.results}))
            for scheme in schemes:
                found, place = results.of(scheme), _place(scheme)
                axes.plot(
                    [each.waiters for each in found],
                    [panel.value(each) for each in found],
                    color=look.schemes[place],
                    marker=MARKERS[place],
                    markersize=5,
                    linewidth=2,
                    label=scheme.title,
                )
        handles, titles = panels.flat[0].get_legend_handles_labels()
        figure.legend(
            handles,
            titles,
            loc="outside upper center",
            ncols=len(titles),
            frameon=False,
            labelcolor=look.ink,
            title="one hand-over",
        ).get_title().set_color(look.ink)
        figure.savefig(path, metadata={"Date": None})
    return path


def _place(scheme: Scheme) -> int:
    """Return the place of a scheme's colour; a shared scheme has the colour of its exclusive sibling."""
    return [each.name for each in SCHEMES].index(scheme.name.removeprefix("shared-"))


def _prepare(axes: Axes, panel: Panel, look: Look, waiters: list[int]) -> None:
    axes.set_title(panel.title, color=look.ink, loc="left", fontsize=11)
    axes.set_xscale("log")
    axes.set_yscale("log")
    axes.set_xticks(waiters, [number(each) for each in waiters])
    axes.set_xticks([], minor=True)
    axes.set_xlabel("waiters", color=look.ink)
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _place: panel.unit(value)))
    axes.set_facecolor(look.page)
    axes.grid(color=look.grid, linewidth=0.6)
    axes.tick_params(colors=look.ink, which="both")
    axes.tick_params(axis="y", which="minor", left=False)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    for side in ("left", "bottom"):
        axes.spines[side].set_color(look.grid)
