"""Which locks somebody wants to see, and in what order."""

from __future__ import annotations

from typing import Any

import pytest

from django_zklock.zk import keys
from django_zklock.zk.identity import Identity, Work
from django_zklock.zk.inspection.selection import COLUMNS, KINDS, STATES, Ordering, Selection
from django_zklock.zk.inspection.survey import Line, Place
from django_zklock.zk.nodes import Kind, Node

NOW = 1_000_000.0


def place(position: int, *, held: bool, kind: str = "exclusive", since: float = NOW, **values: Any) -> Place:
    values.setdefault("identity", Identity(host=f"web{position}", pid=1, work=Work(kind="task", name="billing.bill")))
    return Place(
        node=f"node-{position}", path="", kind=kind, sequence=position, position=position, held=held,
        token=100 + position, session_id=1, since=since, **values,
    )  # fmt: skip


def line(key: str, *places: Place, **values: Any) -> Line:
    nodes = tuple(Node(each.node, Kind(each.kind), "", each.sequence) for each in places)
    return Line(key=key, path=f"/django_zklock/{keys.escape(key)}", **{"nodes": nodes, "places": places, **values})


HELD = line("held", place(0, held=True))
CONTENDED = line("contended", place(0, held=True), place(1, held=False, kind="write"))
REVOKED = line("revoked", place(0, held=True, revoked="deploy"))
UNKNOWN = line("unknown", foreign=("readme",))
ALL = (HELD, CONTENDED, REVOKED, UNKNOWN)


def chosen(selection: Selection) -> list[str]:
    """Give the keys of those that are chosen."""
    return [each.key for each in ALL if selection.has(each, NOW)]


def test_selection__empty() -> None:
    """What asks for nothing gets everything, and needs the names alone."""
    assert chosen(Selection()) == [each.key for each in ALL]
    assert not Selection().asks_for_lines


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
    """A part of the key is enough, and a pattern is for all of it, whatever the case."""
    selection = Selection(key=pattern)
    assert chosen(selection) == keys_found
    assert [each.key for each in ALL if selection.has_name(each.key)] == keys_found
    assert not selection.asks_for_lines


def test_selection__shortened_name() -> None:
    """What a shortened name is short for is known by its line."""
    key = "invoice:" + "é" * 400 + ":end"
    name = keys.escape(key)
    for pattern in ("VOICE:É", "*:end", key, "other"):
        assert Selection(key=pattern).has_name(name)
        assert Selection(key=pattern).has(line(key), NOW) is (pattern != "other")
    assert Selection(key="a/b").has_name(keys.escape("ba/b"))
    assert not Selection(key="a/b").has_name(keys.escape("ab"))


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
    """Each state, of which a lock may have several."""
    assert chosen(Selection(state=state)) == keys_found
    assert Selection(state=state).asks_for_lines
    assert set(STATES) == {"held", "contended", "revoked", "unknown"}


def test_selection__contended_semaphore() -> None:
    """Who waits for a semaphore is known by its limit, so the data is asked for."""
    waiting = line("gpu", *(place(number, held=number < 2, kind="lease", limit=2) for number in range(3)))
    selection = Selection(state="contended")
    assert selection.asks_for_data
    assert selection.has(waiting, NOW)


def test_selection__kind() -> None:
    """Any kind in the line counts."""
    assert set(KINDS) == {kind.value for kind in Kind}
    assert chosen(Selection(kind="write")) == ["contended"]
    assert chosen(Selection(kind="lease")) == []
    assert not Selection(kind="write").asks_for_data


@pytest.mark.parametrize(
    ("selection", "keys_found"),
    [
        (Selection(host="WEB1"), ["contended"]),
        (Selection(host="web"), ["held", "contended", "revoked"]),
        (Selection(task="Billing"), ["held", "contended", "revoked"]),
        (Selection(host="web1", task="bill"), ["contended"]),
        (Selection(host="web1", task="settle"), []),
        (Selection(key="held", state="held", kind="exclusive", host="web0", task="bill"), ["held"]),
    ],
)
def test_selection__who(selection: Selection, keys_found: list[str]) -> None:
    """Host and task are of one and the same in the line; all that is asked for must be so."""
    assert chosen(selection) == keys_found
    assert selection.asks_for_data


def test_selection__task_id() -> None:
    """A task is found by its id too."""
    work = Work(kind="task", name="bill", id="5B7E3C52")
    bill = line("k", place(0, held=True, identity=Identity(host="web1", pid=1, work=work)))
    assert Selection(task="5b7e").has(bill, NOW)


@pytest.mark.parametrize("who", [None, Identity(host="web1", pid=1)])
def test_selection__who_is_unknown(who: Identity | None) -> None:
    """Who has left no identity, or does no work, is found by none."""
    nobody = line("k", place(0, held=True, identity=who))
    assert not Selection(task="bill").has(nobody, NOW)
    assert Selection(host="web1").has(nobody, NOW) is (who is not None)


def test_selection__older() -> None:
    """The age of the first holder counts; what nobody holds is not old."""
    old = line("old", place(0, held=True, since=NOW - 90))
    selection = Selection(older=90.0)
    assert selection.asks_for_data
    assert selection.has(old, NOW)
    assert not selection.has(old, NOW - 1)
    assert not selection.has(HELD, NOW)
    assert not selection.has(UNKNOWN, NOW)


@pytest.mark.parametrize(
    ("column", "order"),
    [
        ("key", ["a", "b", "c", "d"]),
        ("state", ["a", "b", "c", "d"]),
        ("kind", ["c", "a", "b", "d"]),
        ("age", ["b", "a", "c", "d"]),
        ("waiting", ["a", "c", "d", "b"]),
        ("token", ["a", "b", "c", "d"]),
        ("holder", ["c", "a", "b", "d"]),
    ],
)
def test_ordering(column: str, order: list[str]) -> None:
    """By each column, then by key; what has nothing in the column comes last both ways."""
    bill = Identity(host="web1", pid=1, work=Work(kind="task", name="bill"))
    audit = Identity(host="web1", pid=1, work=Work(kind="task", name="AUDIT"))
    lines = [
        line("d", foreign=("x",)),
        line("c", place(3, held=True, kind="exclusive", since=NOW - 30, identity=audit)),
        line("b", place(2, held=True, kind="read", since=NOW - 10, identity=bill), place(9, held=False, kind="write")),
        line("a", place(1, held=True, kind="read", since=NOW - 20, identity=bill)),
    ]
    assert [each.key for each in Ordering(column=column).sort(lines)] == order
    valueless = [] if column in {"key", "state", "waiting"} else ["d"]
    downwards = [each.key for each in Ordering(column=column, reverse=True).sort(lines)]
    assert downwards[len(downwards) - len(valueless) :] == valueless
    values = [COLUMNS[column](each) for each in lines if each.key not in valueless]
    by_key = {each.key: each for each in lines}
    assert [COLUMNS[column](by_key[key]) for key in downwards if key not in valueless] == sorted(values, reverse=True)


def test_ordering__what_it_takes() -> None:
    """Keys are known by name, kinds and states by the names in the line, the rest by what is in the nodes."""
    takes = {
        column: (Ordering(column=column).asks_for_lines, Ordering(column=column).asks_for_data) for column in COLUMNS
    }
    assert takes == {
        "key": (False, False),
        "state": (True, False),
        "kind": (True, False),
        "age": (True, True),
        "waiting": (True, True),
        "token": (True, True),
        "holder": (True, True),
    }
