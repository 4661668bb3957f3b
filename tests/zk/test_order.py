"""What a line answers of those who stand in it."""

from __future__ import annotations

import itertools

import pytest

from django_zklock.zk.nodes import Kind, Node
from django_zklock.zk.order import Order
from tests.zk.script import other

KINDS = [Kind.EXCLUSIVE, Kind.READ, Kind.READ, Kind.LEASE, Kind.WRITE, Kind.READ]
NODES = [Node(other(place, kind), kind, "", place) for place, kind in enumerate(KINDS)]
CHOICES = [frozenset(choice) for size in range(5) for choice in itertools.combinations(Kind, size)]


@pytest.mark.parametrize("kinds", CHOICES)
def test_kinds(kinds: frozenset[Kind]) -> None:
    """Of any kinds, all who stand there are given, and those before anybody, each time that it is asked."""
    order = Order(NODES)
    for _ in range(2):
        assert order.of(kinds) == [node for node in NODES if node.kind in kinds]
        for place, node in enumerate(NODES):
            assert order.before(node.name, kinds) == [each for each in NODES[:place] if each.kind in kinds]


def test_not_there() -> None:
    """Nobody stands before one who is not there."""
    order = Order(NODES[:2])
    assert NODES[1].name in order
    assert NODES[2].name not in order
    with pytest.raises(LookupError):
        order.before(NODES[2].name, frozenset(Kind))


def test_order__is_kept() -> None:
    """The order is the one given, whatever the sequences say: near the end of the counter they say nothing."""
    order = Order(NODES[::-1])
    assert list(order) == NODES[::-1]
    assert order.before(NODES[3].name, frozenset(Kind)) == [NODES[5], NODES[4]]
