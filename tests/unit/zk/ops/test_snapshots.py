"""Which positions of a queue an entry waits for, and what a snapshot says of its owner."""

from __future__ import annotations

import pytest

from django_zklock.zk import node_data
from django_zklock.zk.ops.snapshots import LockSnapshot, QueueEntry, _granted
from tests.unit.zk.scripted_session import parse_names, stat

GUID = "0f8fad5b-d9cb-869f-a165-70867728950e"
LABELS = {"x": "lock-", "w": "__WRIT__", "r": "__READ__"}


def lock(pattern: str, holding: int, limit: int | None = None) -> LockSnapshot:
    """Return a lock with an entry for each letter; the first ``holding`` of them hold it."""
    nodes = parse_names(
        (f"_c_{GUID}-{limit}-lease-" if letter == "l" else LABELS[letter]) + f"{number:010}"
        for number, letter in enumerate(pattern)
    )
    entries = tuple(
        QueueEntry(
            node=node.name, path=node.name, kind=node.kind.value, position=position,
            held=position < holding, token=1, session_id=1, since=0.0, identity=None, limit=limit,
        )
        for position, node in enumerate(nodes)
    )  # fmt: skip
    return LockSnapshot(key="k", path="p", nodes=tuple(nodes), entries=entries)


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
def test_blockers_of(pattern: str, holding: int, limit: int | None, expected: list[list[tuple[int, int]]]) -> None:
    """A holder waits for nothing, an exclusive waiter for all before it, another waiter for the conflicting kinds."""
    snapshot = lock(pattern, holding, limit)
    assert [snapshot.blockers_of(entry) for entry in snapshot.entries] == expected


def test_blockers_of__many_spans() -> None:
    """If readers and writers take turns, the first twenty spans are returned."""
    snapshot = lock("wr" * 1000, 1)
    found = snapshot.blockers_of(snapshot.entries[-1])
    assert found == [(2 * number, 2 * number) for number in range(20)]


@pytest.mark.parametrize(
    ("sequence", "data", "expected"),
    [
        (0, b"", 0.0),
        (7, b"", None),
        (7, b"[]", None),
        (7, b'{"granted": "now"}', None),
        (7, b'{"granted": 60.5}', 60.5),
        (7, b'{"granted": -60.5}', 0.0),
        (0, b'{"keys": 2}', None),
        (0, b'{"keys": 1}', 0.0),
        (0, b'{"keys": 2, "granted": 60.5}', 60.5),
    ],
    ids=[
        "first",
        "unknown",
        "junk",
        "no number",
        "written",
        "clock behind",
        "first of several keys",
        "first of one key",
        "written of several keys",
    ],
)
def test_granted(sequence: int, data: bytes, expected: float | None) -> None:
    """The grant is known of the first node of a queue, unless it takes several, and of a holder that has written it."""
    (node,) = parse_names([f"lock-{sequence:010}"])
    assert _granted(node, node_data.decode_owner(data), stat()) == expected
