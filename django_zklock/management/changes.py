"""What has happened to locks between two looks at them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from django_zklock.zk.inspection.survey import Line, Place


@dataclass(frozen=True, kw_only=True)
class Change:
    """One event in a line.

    ``what`` is "taken" (without waiting, as far as seen), "handed over" (to somebody who has waited), "released",
    "joined", "left" or "revoked" (asked to let go). ``place`` is whose, and ``line`` where it was seen: after the
    change, or before it if the place is gone.
    """

    what: str
    line: Line
    place: Place


def between(before: Line | None, after: Line | None) -> Iterator[Change]:
    """Tell what has happened to one lock: who went, who came, and who was asked to let go."""
    if before is not None:
        yield from _departures(before, _by_node(after))
    if after is not None:
        yield from _arrivals(_by_node(before), after)


def _departures(before: Line, new: Mapping[str, Place]) -> Iterator[Change]:
    for place in before.places:
        if place.node not in new:
            yield Change(what="released" if place.held else "left", line=before, place=place)


def _arrivals(old: Mapping[str, Place], after: Line) -> Iterator[Change]:
    for place in after.places:
        earlier = old.get(place.node)
        if earlier is None:
            yield Change(what="taken" if place.held else "joined", line=after, place=place)
        elif place.held and not earlier.held:
            yield Change(what="handed over", line=after, place=place)
        if place.revoked is not None and (earlier is None or earlier.revoked is None):
            yield Change(what="revoked", line=after, place=place)


def _by_node(line: Line | None) -> Mapping[str, Place]:
    return {place.node: place for place in line.places} if line else {}
