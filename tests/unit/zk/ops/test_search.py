"""Which locks the user wants to see, and in what order."""

from __future__ import annotations

from typing import Any

import pytest

from django_zklock.zk import paths
from django_zklock.zk.node_data import Identity, Work
from django_zklock.zk.ops.search import COLUMNS, KINDS, STATES, LockFilter, Ordering
from django_zklock.zk.ops.snapshots import LockSnapshot, QueueEntry
from django_zklock.zk.queue import Kind, Node

NOW = 1_000_000.0


def place(position: int, *, held: bool, kind: str = "exclusive", since: float = NOW, **values: Any) -> QueueEntry:
    values.setdefault("identity", Identity(host=f"web{position}", pid=1, work=Work(kind="task", name="billing.bill")))
    return QueueEntry(
        node=f"node-{position}", path="", kind=kind, position=position, held=held,
        token=100 + position, session_id=1, since=since, **values,
    )  # fmt: skip


def snapshot(key: str, *places: QueueEntry, **values: Any) -> LockSnapshot:
    nodes = tuple(Node(each.node, Kind(each.kind), "", each.position, each.limit) for each in places)
    return LockSnapshot(
        key=key, path=f"/django_zklock/{paths.escape(key)}", **{"nodes": nodes, "entries": places, **values}
    )


HELD = snapshot("held", place(0, held=True))
CONTENDED = snapshot("contended", place(0, held=True), place(1, held=False, kind="write"))
REVOKED = snapshot("revoked", place(0, held=True, revoked="deploy"))
UNKNOWN = snapshot("unknown", unknown_nodes=("readme",))
ALL = (HELD, CONTENDED, REVOKED, UNKNOWN)


def chosen(selection: LockFilter) -> list[str]:
    """Return the keys of the locks that match."""
    return [each.key for each in ALL if selection.matches(each, NOW)]


def test_selection__empty() -> None:
    """An empty filter matches every lock, and needs only the names."""
    assert chosen(LockFilter()) == [each.key for each in ALL]
    assert not LockFilter().needs_queues


@pytest.mark.parametrize(
    ("pattern", "keys_found"),
    [
        ("E", ["held", "contended", "revoked"]),
        ("un*", ["unknown"]),
        ("?eld", ["held"]),
        ("[rh]e*", ["held", "revoked"]),
        ("*", ["held", "contended", "revoked", "unknown"]),
        ("h*x", []),
    ],
)
def test_selection__key(pattern: str, keys_found: list[str]) -> None:
    """A part of the key matches, and a pattern matches the whole key; case does not matter."""
    selection = LockFilter(key=pattern)
    assert chosen(selection) == keys_found
    assert [each.key for each in ALL if selection.matches_name(each.key)] == keys_found
    assert not selection.needs_queues


def test_selection__shortened_name() -> None:
    """The whole key of a shortened name is in the data of the lock node."""
    key = "invoice:" + "é" * 400 + ":end"
    name = paths.escape(key)
    for pattern in ("VOICE:É", "*:end", key, "other"):
        assert LockFilter(key=pattern).matches_name(name)
        assert LockFilter(key=pattern).matches(snapshot(key), NOW) is (pattern != "other")
    assert LockFilter(key="a/b").matches_name(paths.escape("ba/b"))
    assert not LockFilter(key="a/b").matches_name(paths.escape("ab"))


@pytest.mark.parametrize(
    ("state", "keys_found"),
    [
        ("held", ["held", "contended", "revoked"]),
        ("contended", ["contended"]),
        ("revoked", ["revoked"]),
        ("unknown", ["unknown"]),
    ],
)
def test_selection__state(state: str, keys_found: list[str]) -> None:
    """Each state matches; a lock may have several."""
    assert chosen(LockFilter(state=state)) == keys_found
    assert LockFilter(state=state).needs_queues
    assert set(STATES) == {"held", "contended", "revoked", "unknown"}


def test_selection__contended_semaphore() -> None:
    """The waiters of a semaphore are known from its limit, which is in the names."""
    waiting = snapshot("gpu", *(place(number, held=number < 2, kind="lease", limit=2) for number in range(3)))
    selection = LockFilter(state="contended")
    assert not selection.needs_data
    assert selection.matches(waiting, NOW)


def test_selection__kind() -> None:
    """The kind of any node in the queue counts."""
    assert set(KINDS) == {kind.value for kind in Kind}
    assert chosen(LockFilter(kind="write")) == ["contended"]
    assert chosen(LockFilter(kind="lease")) == []
    assert not LockFilter(kind="write").needs_data


@pytest.mark.parametrize(
    ("selection", "keys_found"),
    [
        (LockFilter(host="WEB1"), ["contended"]),
        (LockFilter(host="web"), ["held", "contended", "revoked"]),
        (LockFilter(task="Billing"), ["held", "contended", "revoked"]),
        (LockFilter(host="web1", task="bill"), ["contended"]),
        (LockFilter(host="web1", task="settle"), []),
        (LockFilter(key="held", state="held", kind="exclusive", host="web0", task="bill"), ["held"]),
    ],
)
def test_selection__who(selection: LockFilter, keys_found: list[str]) -> None:
    """Host and task must match in the same entry, and all conditions must be met."""
    assert chosen(selection) == keys_found
    assert selection.needs_data


def test_selection__task_id() -> None:
    """A task is found by its id too."""
    work = Work(kind="task", name="bill", id="5B7E3C52")
    bill = snapshot("k", place(0, held=True, identity=Identity(host="web1", pid=1, work=work)))
    assert LockFilter(task="5b7e").matches(bill, NOW)


@pytest.mark.parametrize("who", [None, Identity(host="web1", pid=1)])
def test_selection__who_is_unknown(who: Identity | None) -> None:
    """An entry without an identity, or without work, matches no task."""
    nobody = snapshot("k", place(0, held=True, identity=who))
    assert not LockFilter(task="bill").matches(nobody, NOW)
    assert LockFilter(host="web1").matches(nobody, NOW) is (who is not None)


def test_selection__older() -> None:
    """The age of the first holder counts; a lock without a holder has no age."""
    old = snapshot("old", place(0, held=True, since=NOW - 90))
    selection = LockFilter(older=90.0)
    assert selection.needs_data
    assert selection.matches(old, NOW)
    assert not selection.matches(old, NOW - 1)
    assert not selection.matches(HELD, NOW)
    assert not selection.matches(UNKNOWN, NOW)


def test_selection__older_by_the_grant() -> None:
    """Where it is known when the lock was granted, the wait before does not count, neither in an order by age."""
    granted = snapshot("granted", place(0, held=True, since=NOW - 90, granted=NOW - 10))
    unknown = snapshot("unknown", place(0, held=True, since=NOW - 20))
    assert [LockFilter(older=15.0).matches(each, NOW) for each in (granted, unknown)] == [False, True]
    for column in ("age", "urgency"):
        ordering = Ordering(column=column, reverse=column == "age")
        assert [each.key for each in ordering.sort([granted, unknown])] == ["unknown", "granted"]


@pytest.mark.parametrize(
    ("column", "order"),
    [
        ("key", ["a", "b", "c", "d"]),
        ("state", ["a", "b", "c", "d"]),
        ("kind", ["c", "a", "b", "d"]),
        ("age", ["b", "a", "c", "d"]),
        ("waiters", ["a", "c", "d", "b"]),
        ("token", ["a", "b", "c", "d"]),
        ("holder", ["c", "a", "b", "d"]),
        ("urgency", ["b", "c", "a", "d"]),
    ],
)
def test_ordering(column: str, order: list[str]) -> None:
    """Locks are sorted by each column, then by key; those without a value come last in both directions."""
    bill = Identity(host="web1", pid=1, work=Work(kind="task", name="bill"))
    audit = Identity(host="web1", pid=1, work=Work(kind="task", name="AUDIT"))
    snapshots = [
        snapshot("d", unknown_nodes=("x",)),
        snapshot("c", place(3, held=True, kind="exclusive", since=NOW - 30, identity=audit)),
        snapshot(
            "b", place(2, held=True, kind="read", since=NOW - 10, identity=bill), place(9, held=False, kind="write")
        ),
        snapshot("a", place(1, held=True, kind="read", since=NOW - 20, identity=bill)),
    ]
    assert [each.key for each in Ordering(column=column).sort(snapshots)] == order
    valueless = [] if column in {"key", "state", "waiters"} else ["d"]
    downwards = [each.key for each in Ordering(column=column, reverse=True).sort(snapshots)]
    assert downwards[len(downwards) - len(valueless) :] == valueless
    value = Ordering(column=column).value
    values = [value(each) for each in snapshots if each.key not in valueless]
    by_key = {each.key: each for each in snapshots}
    assert [value(by_key[key]) for key in downwards if key not in valueless] == sorted(values, reverse=True)


def test_ordering__what_it_takes() -> None:
    """Keys need only names, states and kinds the names in the queues, the rest the data of the nodes."""
    takes = {column: (Ordering(column=column).needs_queues, Ordering(column=column).needs_data) for column in COLUMNS}
    assert takes == {
        "key": (False, False),
        "state": (True, False),
        "kind": (True, False),
        "age": (True, True),
        "waiters": (True, False),
        "token": (True, True),
        "holder": (True, True),
        "urgency": (True, True),
    }
