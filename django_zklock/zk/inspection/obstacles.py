"""Whom somebody in a line waits for. No I/O here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from typing import TYPE_CHECKING

from django_zklock.zk.nodes import Kind
from django_zklock.zk.rules import LEASES, RULES, semaphore

if TYPE_CHECKING:
    from django_zklock.zk.inspection.survey import Line, Place

Run = tuple[int, int]
"""The first and the last of positions that follow each other."""

# Readers and writers that take turns make as many runs as there are places.
MOST = 20


class Obstacles:
    """Who stands in whose way in one line. What serves everybody in it is found once, as lines are long."""

    def __init__(self, line: Line) -> None:
        self._line = line
        self._runs: dict[frozenset[Kind], list[Run]] = {}
        self._leases = [position for position, node in enumerate(line.nodes) if node.kind is Kind.LEASE]

    def of(self, place: Place) -> list[Run]:
        """Give the positions of those in the way of ``place``, the first 20 runs of them; none, if it holds.

        Of the leases of a semaphore it is enough that one of them, whichever, is given back.
        """
        if place.held:
            return []
        kinds = self._conflicts(place)
        if kinds not in self._runs:
            self._runs[kinds] = list(self._find(kinds))
        runs = self._runs[kinds]
        found = runs[: min(bisect_left(runs, (place.position,)), MOST)]
        return [(first, min(last, place.position - 1)) for first, last in found]

    def _conflicts(self, place: Place) -> frozenset[Kind]:
        kind = Kind(place.kind)
        if kind is not Kind.LEASE:
            return RULES[kind].conflicts
        rule = semaphore(place.limit or 1)
        is_full = place.limit is not None and bisect_left(self._leases, place.position) >= place.limit
        return rule.conflicts | LEASES if is_full else rule.conflicts

    def _find(self, kinds: frozenset[Kind]) -> Iterator[Run]:
        """Give all runs of nodes of these kinds."""
        first = None
        for position, node in enumerate(self._line.nodes):
            if node.kind in kinds:
                first = position if first is None else first
            elif first is not None:
                yield first, position - 1
                first = None
        if first is not None:
            yield first, len(self._line.nodes) - 1
