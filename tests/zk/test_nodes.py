"""The names of contenders and the order among them."""

from __future__ import annotations

import pytest

from django_zklock.zk import nodes
from django_zklock.zk.nodes import Kind

GUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
HEX = GUID.replace("-", "")


@pytest.mark.parametrize(
    ("name", "kind", "guid", "sequence"),
    [
        (f"_c_{GUID}-lock-0000000012", Kind.EXCLUSIVE, GUID, 12),
        (f"_c_{GUID}-__WRIT__0000000013", Kind.WRITE, GUID, 13),
        (f"_c_{GUID}-__READ__0000000014", Kind.READ, GUID, 14),
        (f"_c_{GUID}-lease-0000000015", Kind.LEASE, GUID, 15),
        ("lock-0000000016", Kind.EXCLUSIVE, "", 16),
        (f"{HEX}__lock__0000000017", Kind.EXCLUSIVE, HEX, 17),
        (f"{HEX}__rlock__0000000018", Kind.READ, HEX, 18),
        (f"_c_{GUID}-lock-2147483647", Kind.EXCLUSIVE, GUID, 2**31 - 1),
        (f"_c_{GUID}-lock--2147483648", Kind.EXCLUSIVE, GUID, -(2**31)),
        # Java's %010d counts the sign.
        (f"_c_{GUID}-lock--000000001", Kind.EXCLUSIVE, GUID, -1),
    ],
)
def test_node__known(name: str, kind: Kind, guid: str, sequence: int) -> None:
    """Curator's and kazoo's names are read, with the sequence of a counter that has wrapped."""
    assert nodes.parse(name) == nodes.Node(name, kind, guid, sequence)


@pytest.mark.parametrize(
    "name",
    ["", "lock", "lock-12", "lock-00000000123", f"_c_{GUID}-other-0000000001", "x-lock-0000000001", "readme",
     f"_c_{GUID}-lock-0000000001\n", f"{HEX}__lock__x", "__lock__0000000001"],
)  # fmt: skip
def test_node__foreign(name: str) -> None:
    """Any other name is not a contender."""
    assert nodes.parse(name) is None


@pytest.mark.parametrize("kind", Kind)
def test_node__own(kind: Kind) -> None:
    """What we create is what we read."""
    node = nodes.parse(nodes.prefix(GUID, kind) + "0000000001")
    assert node is not None
    assert (node.kind, node.guid) == (kind, GUID)


def line(*entries: tuple[str, int]) -> list[nodes.Node]:
    labels = {"x": "lock-", "w": "__WRIT__", "r": "__READ__", "k": "lease-"}
    return nodes.parse_all(f"_c_{GUID[:-2]}{number:02}-{labels[kind]}{sequence:010d}"
                           for number, (kind, sequence) in enumerate(entries))  # fmt: skip


def test_line__order() -> None:
    """The order is that of the numbers, whatever the prefix."""
    assert [node.sequence for node in line(("x", 3), ("w", 1), ("r", 2))] == [1, 2, 3]


@pytest.mark.parametrize(
    ("sequences", "safe"),
    [
        ([], True),
        ([0, 1, 2], True),
        ([5, 5], False),
        ([2**31 - 1, 2**31 - 1], False),
        ([1, 2**31 - 1], False),
        ([2**31 - 2 - 2**20], True),
        ([2**31 - 1 - 2**20], False),
        ([-(2**31), 7], False),
    ],
)
def test_order__safe(sequences: list[int], safe: bool) -> None:
    """Near the end of the counter, after it and with equal numbers the sequence says nothing."""
    assert nodes.order_is_safe(line(*(("x", sequence) for sequence in sequences))) is safe
