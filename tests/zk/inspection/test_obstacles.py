"""Who stands in whose way."""

from __future__ import annotations

import pytest

from django_zklock.zk import nodes
from django_zklock.zk.inspection.obstacles import Obstacles
from django_zklock.zk.inspection.survey import Line, Place

LABELS = {"x": "lock-", "w": "__WRIT__", "r": "__READ__", "l": "lease-"}


def line(pattern: str, holding: int, limit: int | None = None) -> Line:
    """Give a line with a place for each letter, the first so many of which hold."""
    standing = nodes.parse_all(f"{LABELS[letter]}{number:010}" for number, letter in enumerate(pattern))
    places = tuple(
        Place(
            node=node.name, path=node.name, kind=node.kind.value, sequence=node.sequence, position=position,
            held=position < holding, token=1, session_id=1, since=0.0, identity=None, limit=limit,
        )
        for position, node in enumerate(standing)
    )  # fmt: skip
    return Line(key="k", path="p", nodes=tuple(standing), places=places)


@pytest.mark.parametrize(
    ("pattern", "holding", "limit", "expected"),
    [
        ("xxx", 1, None, [[], [(0, 0)], [(0, 1)]]),
        ("rrwr", 2, None, [[], [], [(0, 1)], [(2, 2)]]),
        ("wrwwr", 1, None, [[], [(0, 0)], [(0, 1)], [(0, 2)], [(0, 0), (2, 3)]]),
        ("lll", 2, 2, [[], [], [(0, 1)]]),
        ("lxl", 1, 2, [[], [(0, 0)], [(1, 1)]]),
    ],
    ids=["exclusive", "readers", "runs", "semaphore", "lease behind another kind"],
)
def test_runs(pattern: str, holding: int, limit: int | None, expected: list[list[tuple[int, int]]]) -> None:
    """Nobody stands in the way of holders, all before an exclusive one, and of the others those that conflict."""
    standing = line(pattern, holding, limit)
    obstacles = Obstacles(standing)
    assert [obstacles.of(place) for place in standing.places] == expected


def test_runs__not_without_end() -> None:
    """Of readers and writers that take turns the first are enough."""
    standing = line("wr" * 1000, 1)
    found = Obstacles(standing).of(standing.places[-1])
    assert found == [(2 * number, 2 * number) for number in range(20)]
