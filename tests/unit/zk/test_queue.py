"""Names of nodes, and their order."""

from __future__ import annotations

import itertools
import uuid

import pytest

from django_zklock.zk import queue
from django_zklock.zk.queue import Kind, Node, Queue
from tests.unit.zk.scripted_session import curators, other, parse_names

GUID = "0f8fad5b-d9cb-469f-a165-70867728950e"
HEX = GUID.replace("-", "")


@pytest.mark.parametrize(
    ("name", "kind", "guid", "sequence"),
    [
        (f"_c_{GUID}-lock-0000000012", Kind.EXCLUSIVE, GUID, 12),
        (f"_c_{GUID}-__WRIT__0000000013", Kind.WRITE, GUID, 13),
        (f"_c_{GUID}-__READ__0000000014", Kind.READ, GUID, 14),
        (f"_c_{GUID}-lease-0000000015", Kind.PERMIT, GUID, 15),
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
    assert queue.parse_name(name) == queue.Node(name, kind, guid, sequence)


def test_node__limit() -> None:
    """A lease of ours has its limit in its name, and only a lease has."""
    name = queue.name_prefix(GUID, Kind.PERMIT, 4) + "0000000012"
    assert queue.parse_name(name) == queue.Node(name, Kind.PERMIT, GUID, 12, 4)
    assert queue.parse_name(queue.name_prefix(GUID, Kind.PERMIT, 10**30) + "0000000012") is not None
    assert queue.parse_name(f"_c_{GUID}-4-lock-0000000012") is None


def test_node__ours() -> None:
    """Our nodes are told from Curator's and kazoo's by the version of their GUID."""
    assert all(parsed(queue.name_prefix(queue.new_guid(), kind)).is_ours for kind in Kind)
    assert uuid.UUID(queue.new_guid()).variant == uuid.RFC_4122
    assert len({queue.new_guid() for _ in range(100)}) == 100
    assert not parsed(f"_c_{GUID}-__WRIT__").is_ours
    assert not parsed("__WRIT__").is_ours
    # Whatever the digit is at the place where a GUID with dashes has its version.
    assert not parsed("8" * 32 + "__lock__").is_ours


def test_node__mark() -> None:
    """The GUID of a marked node is a UUID like every one of ours, tells the mark, and is new each time."""
    mark = queue.Mark.of("shop.tasks.rebuild", "5b7e")
    guids = {queue.new_guid(mark) for _ in range(100)}
    assert len(guids) == 100
    for guid in guids:
        assert (uuid.UUID(guid).version, uuid.UUID(guid).variant) == (8, uuid.RFC_4122)
        node = parsed(queue.name_prefix(guid, Kind.PERMIT, 4))
        assert (node.mark, node.is_ours, node.limit) == (mark, True, 4)
    # Processes on all hosts and of all versions have to agree.
    assert mark == ("df1f250ba2e6", "cbdbba92")
    assert parsed(queue.name_prefix(queue.new_guid(), Kind.EXCLUSIVE)).mark.run != mark.run
    assert queue.Mark.of("shop.tasks.other", "5b7e").run != mark.run
    assert queue.Mark.of("shop.tasks.rebuild", "\ud800").call != mark.call


def parsed(stem: str) -> queue.Node:
    node = queue.parse_name(f"{stem}0000000001")
    assert node is not None
    return node


@pytest.mark.parametrize(
    "name",
    ["", "lock", "lock-12", "lock-00000000\u0661\u0662", f"_c_{GUID}-\u0664-lease-0000000001",
     f"_c_{GUID}-0-lease-0000000001", "4-lease-0000000001",
     "lock-00000000123", f"_c_{GUID}-other-0000000001", "x-lock-0000000001", "readme",
     f"_c_{GUID}-lock-0000000001\n", f"{HEX}__lock__x", "__lock__0000000001"],
)  # fmt: skip
def test_node__foreign(name: str) -> None:
    """Any other name is not a contender."""
    assert queue.parse_name(name) is None


def nodes_of(*entries: tuple[str, int]) -> list[queue.Node]:
    labels = {"x": "lock-", "w": "__WRIT__", "r": "__READ__", "k": "lease-"}
    return parse_names(named(number, labels[kind], sequence) for number, (kind, sequence) in enumerate(entries))


def named(number: int, label: str, sequence: int, version: int = 4) -> str:
    return f"_c_0f8fad5b-d9cb-{version}69f-a165-7086772895{number:02}-{label}{sequence:010d}"


@pytest.mark.parametrize(
    ("entries", "safe"),
    [
        ("", True),
        ("x0 x1 x2", True),
        ("x5 x5", False),
        ("x2147483647 x2147483647", False),
        ("x1 x2147483647", False),
        (f"x{2**31 - 2 - 2**20}", True),
        (f"x{2**31 - 1 - 2**20}", False),
        (f"x{-(2**31)} x7", False),
        # Readers that were writers have the number of the write node, which may be gone.
        ("r5 w5 x6", True),
        ("r5 r5 w5 r6", True),
        ("r5 r5 x6", True),
        ("w5 w5", False),
        ("x5 r5", False),
    ],
)
def test_order__safe(entries: str, safe: bool) -> None:
    """Near the end of the counter, after it and with equal numbers the sequence says nothing."""
    nodes = nodes_of(*((each[0], int(each[1:])) for each in entries.split()))
    assert queue.sort_by_sequence(nodes) == (nodes, safe)


def test_order__downgraded() -> None:
    """A reader that was a writer stands right behind its write node, in whatever order they are listed."""
    for entries in itertools.permutations([("w", 5), ("r", 5), ("x", 4), ("w", 6)]):
        assert [(node.kind, node.sequence) for node in nodes_of(*entries)] == [
            (Kind.EXCLUSIVE, 4), (Kind.WRITE, 5), (Kind.READ, 5), (Kind.WRITE, 6),
        ]  # fmt: skip


END = 2**31 - 1


@pytest.mark.shows("faults#a-writer-of-curator-becomes-a-reader")
@pytest.mark.parametrize(
    ("created", "expected"),
    [
        # In the order of creation: what it asks for and its number; and the places of these in the queue.
        ([("x", 3), ("x", 1), ("x", 2)], [0, 1, 2]),
        ([("x", END), ("x", END), ("r", END), ("x", END)], [0, 1, 2, 3]),
        ([("x", END - 1), ("r", END), ("x", -(2**31)), ("r", -(2**31) + 1)], [0, 1, 2, 3]),
        ([("w", 5), ("x", 6), ("r", 5)], [0, 2, 1]),
        ([("w", 5), ("r", 6), ("x", 7), ("r", 5), ("r", 5)], [0, 3, 4, 1, 2]),
        # Its write node is gone.
        ([("x", 6), ("r", 5)], [1, 0]),
        ([("w", END), ("x", -(2**31)), ("r", END)], [0, 2, 1]),
    ],
)
def test_order__of_creation(created: list[tuple[str, int]], expected: list[int]) -> None:
    """The transactions tell which node came first, but a reader that was a writer keeps the place of that."""
    labels = {"x": "lock-", "w": "__WRIT__", "r": "__READ__"}
    found = [queue.parse_name(named(place, labels[kind], sequence)) for place, (kind, sequence) in enumerate(created)]
    ordered = queue.sort_by_creation((node, czxid) for czxid, node in enumerate(found) if node)
    assert [found.index(node) for node in ordered] == expected


def test_order__of_creation__our_readers() -> None:
    """A reader of ours never was a writer, and keeps its place whatever its number."""
    names = [named(1, "lock-", 6), named(2, "__READ__", 5, version=8)]
    ordered = queue.sort_by_creation(
        (parsed, place) for place, parsed in enumerate(map(queue.parse_name, names)) if parsed
    )
    assert [node.name for node in ordered] == names


KINDS = [Kind.EXCLUSIVE, Kind.READ, Kind.READ, Kind.PERMIT, Kind.WRITE, Kind.READ]
NODES = [Node(other(place, kind), kind, "", place) for place, kind in enumerate(KINDS)]
GUID = "0f8fad5b-d9cb-469f-a165-708677289502"
CHOICES = [frozenset(choice) for size in range(5) for choice in itertools.combinations(Kind, size)]


@pytest.mark.parametrize("kinds", CHOICES)
def test_kinds(kinds: frozenset[Kind]) -> None:
    """Of any kinds, all that stand there are given, and those before anybody, each time that it is asked."""
    order = Queue(NODES)
    for _ in range(2):
        assert order.of(kinds) == [node for node in NODES if node.kind in kinds]
        for place, node in enumerate(NODES):
            before = [each for each in NODES[:place] if each.kind in kinds]
            assert (order.before(node.name, kinds), order.count_before(node.name, kinds)) == (before, len(before))


def test_not_there() -> None:
    """No node stands before one that is not there."""
    order = Queue(NODES[:2])
    assert NODES[1].name in order
    assert NODES[2].name not in order
    with pytest.raises(LookupError):
        order.before(NODES[2].name, frozenset(Kind))


def test_downgraded() -> None:
    """Before a reader that was a writer stands everything but its own write node."""
    names = [other(4), curators(5, Kind.WRITE), f"_c_{GUID}-__READ__0000000005", other(6, Kind.READ)]
    nodes = parse_names(names)
    order = Queue(nodes)
    assert order.before(names[2], frozenset(Kind)) == nodes[:1]
    assert order.before(names[3], frozenset(Kind)) == nodes[:3]
    assert order.before(names[2], frozenset({Kind.READ})) == []


@pytest.mark.parametrize(
    ("limits", "room"),
    [([], 0), ([2], 1), ([2, 2, 2], 2), ([9, 9, 9], 3), ([9, 9, 2, 9], 2), ([9, 9, 3, 9], 3), ([9, 1, 9], 1),
     ([None, 2, None], 2), ([None, None], 2)],
)  # fmt: skip
def test_room(limits: list[int | None], room: int) -> None:
    """As many leases hold together as all of their limits allow, in their order, whatever stands between them."""
    names = [other(2 * place, Kind.PERMIT, limit) for place, limit in enumerate(limits)]
    assert Queue(parse_names([*names, other(1, Kind.READ)])).room == room


def test_order__is_kept() -> None:
    """The order is the one given, whatever the sequences say: near the end of the counter they say nothing."""
    order = Queue(NODES[::-1])
    assert list(order) == NODES[::-1]
    assert order.before(NODES[3].name, frozenset(Kind)) == [NODES[5], NODES[4]]


def queue_of(*kinds: Kind, limit: int | None = None) -> tuple[list[str], queue.Queue]:
    """Return the names of new nodes of these kinds, and a queue of them."""
    prefixes = [queue.name_prefix(queue.new_guid(), kind, limit) for kind in kinds]
    names = [f"{prefix}{number:010d}" for number, prefix in enumerate(prefixes)]
    return names, queue.Queue([node for node in map(queue.parse_name, names) if node is not None])


def test_waiting_behind__readers() -> None:
    """Readers hold beside a reader, except readers behind a writer."""
    names, found = queue_of(Kind.READ, Kind.READ, Kind.WRITE, Kind.READ)
    assert [node.name for node in queue.waiting_behind(names[0], found)] == names[2:]
    assert queue.waiting_behind(names[3], found) == []


def test_waiting_behind__writers_and_permits() -> None:
    """All nodes wait behind a writer; behind a permit those above the limit wait."""
    names, found = queue_of(Kind.WRITE, Kind.READ, Kind.WRITE)
    assert [node.name for node in queue.waiting_behind(names[0], found)] == names[1:]
    names, found = queue_of(*[Kind.PERMIT] * 3, limit=2)
    assert [node.name for node in queue.waiting_behind(names[0], found)] == names[2:]


def test_waiting_behind__not_there() -> None:
    """Nothing waits behind a node that is not in the queue."""
    _names, found = queue_of(Kind.WRITE, Kind.READ)
    assert queue.waiting_behind("", found) == []
