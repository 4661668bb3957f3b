"""What has happened to locks between two looks at them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from django_zklock.zk.inspection.survey import Line, Place


@dataclass(frozen=True, kw_only=True)
class Change:
    """One event in a line.

    ``what`` is "taken" (without waiting, as far as seen), "handed over" (to somebody who has waited), "released",
    "joined", "left" or "revoked" (asked to let go). ``place`` is whose.
    """

    what: str
    place: Place


def between(before: Line | None, after: Line | None) -> Iterator[Change]:
    """Tell what has happened to one lock: who went, who came, and who was asked to let go."""
    old, new = _by_node(before), _by_node(after)
    for node, place in old.items():
        if node not in new:
            yield Change(what="released" if place.held else "left", place=place)
    for node, place in new.items():
        earlier = old.get(node)
        if earlier is None:
            yield Change(what="taken" if place.held else "joined", place=place)
        elif place.held and not earlier.held:
            yield Change(what="handed over", place=place)
        if place.revoked is not None and (earlier is None or earlier.revoked is None):
            yield Change(what="revoked", place=place)


def _by_node(line: Line | None) -> dict[str, Place]:
    return {place.node: place for place in line.places} if line else {}
