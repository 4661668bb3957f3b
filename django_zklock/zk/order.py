"""Who stands in a line, as one look at it has found them. No I/O here."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence

from django_zklock.zk.nodes import Kind, Node


class Order:
    """The nodes of a line, first come first.

    One look serves many: what it takes to answer a question for one of them is kept for the next.
    """

    __slots__ = ("_nodes", "_of", "_places")

    def __init__(self, nodes: Iterable[Node] = ()) -> None:
        self._nodes = list(nodes)
        self._places = {node.name: place for place, node in enumerate(nodes)}
        # The nodes of some kinds, and their places.
        self._of: dict[frozenset[Kind], tuple[Sequence[int], list[Node]]] = {}

    def __repr__(self) -> str:
        return f"<Order {' '.join(node.name for node in self._nodes)}>"

    def __iter__(self) -> Iterator[Node]:
        return iter(self._nodes)

    def __contains__(self, name: str) -> bool:
        return name in self._places

    def of(self, kinds: frozenset[Kind]) -> list[Node]:
        """Give the nodes of these kinds."""
        return self._select(kinds)[1]

    def before(self, name: str, kinds: frozenset[Kind]) -> list[Node]:
        """Give the nodes of these kinds that stand before the one of that name; raise ``LookupError`` without it."""
        places, nodes = self._select(kinds)
        return nodes[: bisect_left(places, self._places[name])]

    def _select(self, kinds: frozenset[Kind]) -> tuple[Sequence[int], list[Node]]:
        if kinds not in self._of:
            # The hash of an enum's member is made in Python, so none is asked for; and mostly all of them are wanted.
            chosen = tuple(kinds)
            places: Sequence[int] = range(len(self._nodes))
            if len(chosen) < len(Kind):
                places = [place for place, node in enumerate(self._nodes) if node.kind in chosen]
            self._of[kinds] = places, [self._nodes[place] for place in places]
        return self._of[kinds]
