"""The documents have the figures of the last results about lock schemes, and the curves can be drawn from them."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.schemes import report
from benchmarks.schemes.catalogue import SCHEMES
from benchmarks.schemes.report import Result, Results
from benchmarks.schemes.tap import Traffic

PAGE = Path(__file__).resolve().parents[2] / "docs" / "explanation" / "figures.md"

pytestmark = pytest.mark.once


def test_figures__are_those_of_the_results() -> None:
    """The tables are what `make bench WHAT=herd` makes of its results, and a page includes them."""
    assert report.FIGURES.read_text(encoding="utf-8") == report.figures(Results.load())
    assert f"_static/figures/{report.FIGURES.name}" in PAGE.read_text(encoding="utf-8")


def test_results__are_complete() -> None:
    """There is a result of each scheme for each number of waiters."""
    results = Results.load()
    waiters = sorted({each.waiters for each in results.results})
    assert waiters == [2, 10, 20, 100, 1000]
    assert [[each.waiters for each in results.of(scheme)] for scheme in SCHEMES] == [waiters] * len(SCHEMES)


def test_results__support_the_page() -> None:
    """What the text of the page says in words is so in the results."""
    results = Results.load()
    found = {(each.scheme, each.waiters): each for each in results.results}
    for waiters in (10, 20, 100, 1000):
        one, parent = found["one-node", waiters].hand_over, found["parent", waiters].hand_over
        assert (one.requests, one.notifications) == (2 * waiters, waiters)
        assert (parent.requests, parent.notifications) == (waiters + 1, waiters)
        recipe, ours = found["predecessor", waiters].hand_over, found["ours", waiters].hand_over
        assert (recipe.requests, recipe.notifications) == (2, 1)
        assert ours.requests <= 3
        assert ours.notifications <= 3
        assert found["ours", waiters].join.requests <= found["predecessor", waiters].join.requests + 2
    most = results.most_waiters
    assert found["parent", most].server_cpu_ms > 10 * found["ours", most].server_cpu_ms
    assert found["shared-parent", most].server_cpu_ms > 10 * found["shared-ours", most].server_cpu_ms


def test_results__saved_and_loaded(tmp_path: Path) -> None:
    """What is written is read again."""
    result = Result("ours", 2, Traffic(3, 3, 814.0), Traffic(4, 0, 1043.5), 1.25, 0.5, 40)
    results = Results("2026-11-23", "a server", "a machine", 1.0, (result,))
    results.save(tmp_path / "results.json")
    assert Results.load(tmp_path / "results.json") == results


@pytest.mark.timeout(600)  # A first drawing reads all fonts.
def test_plots(tmp_path: Path) -> None:
    """Each picture has a curve for each scheme, and the same results draw the same picture."""
    pytest.importorskip("matplotlib")
    from benchmarks.schemes import plots

    files = plots.draw(Results.load(), tmp_path)
    assert [file.name for file in files] == [
        "herd-exclusive-light.svg",
        "herd-exclusive-dark.svg",
        "herd-shared-light.svg",
        "herd-shared-dark.svg",
    ]
    for file in files:
        picture = file.read_text(encoding="utf-8")
        shared = "shared" in file.name
        assert all(f">{scheme.title}<" in picture for scheme in SCHEMES if scheme.is_shared is shared)
    again = plots.draw_one(Results.load(), plots.LOOKS[0], tmp_path / "again.svg", shared=False)
    assert again.read_bytes() == files[0].read_bytes()
