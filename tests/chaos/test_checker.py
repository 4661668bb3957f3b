"""The checker refuses each planted violation, and nothing that may be."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.checker import Checker
from tests.chaos.history import Row
from tests.chaos.plants import PLANTS, plant_all


def call(name: str, at: float, **facts: Any) -> list[Row]:
    """Return the rows of a call that holds for a second."""
    turn: dict[str, Any] = {
        "do": "with", "keys": ["x0"], "kind": "exclusive", "limit": None, "timeout": None, "client": "threads",
    }  # fmt: skip
    turn |= {key: value for key, value in facts.items() if key in turn}
    token = facts.get("token", int(at * 100))
    held = {"kind": turn["kind"], "limit": turn["limit"], "lost": False}
    held |= {"tokens": {turn["keys"][0]: token}, "node": f"/chaos/{turn['keys'][0]}/lock-{token:010}"}
    return [
        {"at": at, "what": "call", "pid": 10, "call": name, **turn},
        {"at": at + 0.1, "what": "begin", "pid": 10, "call": name, **held},
        {"at": at + 1.1, "what": "end", "pid": 10, "call": name, "sure": at + 1.1, "lost": False},
        {"at": at + 1.2, "what": "done", "pid": 10, "call": name, "outcome": facts.get("outcome", "held"), "text": ""},
    ]


def history(*calls: list[Row]) -> list[Row]:
    """Return a history with a client, a fault, some calls, and what is left: nothing."""
    client = {"client": "threads", "pid": 10, "rss": 40_000}
    rows = [
        {"at": 0.0, "what": "client", **client},
        {"at": 1.0, "what": "fault", "fault": "server killed", "victim": "leader"},
        {"at": 2.0, "what": "mended", "fault": "server killed", "victim": "leader", "began": 1.0},
        *(row for rows in calls for row in rows),
        {"at": 900.0, "what": "closed", **client, "threads": ["MainThread"], "sockets": 0, "objects": {}},
    ]
    return sorted(rows, key=lambda row: row["at"])


def rules(rows: list[Row]) -> list[str]:
    return [found.rule for found in Checker(rows).check()]


def full() -> list[Row]:
    """Return a history in which each violation has a place."""
    leases = [call(f"s{number}", 20.0 + number, keys=["s0"], kind="lease", limit=2) for number in range(12)]
    skipped = call("c1", 41.0, do="rebuild", keys=["c0"], outcome="skipped")
    waits = [row | {"call": "w"} for row in call("w", 50.0, timeout=3.0)]
    rows = history(
        call("a", 10.0), call("b", 12.0), call("n", 14.0, do="nested"), *leases,
        [row for row in skipped if row["what"] in {"call", "done"}],
        call("c2", 43.0, do="rebuild", keys=["c0"]), waits,
    )  # fmt: skip
    rows.append({"at": 14.2, "what": "nested", "pid": 10, "call": "n", "same": True})
    rows.append({"at": 10.5, "what": "queue", "pid": 1, "queues": {"x0": ["lock-0000001000"]}})
    return sorted(rows, key=lambda row: row["at"])


def test_right() -> None:
    """What may be is not refused."""
    assert rules(full()) == []


@pytest.mark.parametrize("name", PLANTS)
def test_planted(name: str) -> None:
    """Each violation has a place in a full history, and is found."""
    assert plant_all(full(), [name]) == {name: True}


@pytest.mark.parametrize(
    ("kinds", "wrong"),
    [
        (("exclusive", "exclusive"), ["overlap"]),
        (("read", "write"), ["overlap"]),
        (("write", "read"), ["overlap"]),
        (("exclusive", "lease"), ["overlap"]),
        (("read", "read"), []),
        (("lease", "lease"), []),
    ],
)
def test_together(kinds: tuple[str, str], wrong: list[str]) -> None:
    """Two that exclude each other do not hold together, unless the first has known before that its lock was lost."""
    limits = [2 if kind == "lease" else None for kind in kinds]
    rows = history(
        *(
            call(f"c{at}", at, kind=kind, limit=limit)
            for at, kind, limit in zip((10.0, 10.5), kinds, limits, strict=True)
        )
    )
    assert rules(rows) == wrong
    for row in rows:
        if row["what"] == "end" and row["call"] == "c10.0":
            row.update(sure=10.4, lost=True)
    assert rules(rows) == []


def test_limits__differ() -> None:
    """The lowest limit of those that hold counts."""
    leases = [call(f"s{at}", at, kind="lease", limit=limit) for at, limit in ((10.0, 3), (10.1, 3), (10.2, 2))]
    assert rules(history(*leases)) == ["limit"]
    assert rules(history(*leases[:2])) == []


def test_tokens__after_a_loss_of_all_data() -> None:
    """They begin anew when the ensemble has lost its data."""
    rows = history(call("a", 10.0), call("b", 12.0, token=1))
    assert rules(rows) == ["token"]
    rows.append({"at": 11.9, "what": "wiped", "pid": 1})
    assert rules(rows) == []
    rows[-1]["at"] = 13.0
    assert rules(rows) == ["token"]


def test_death() -> None:
    """A process that was killed ends no call, nor do the children of its group."""
    rows = [row for row in history(call("a", 10.0)) if row["what"] != "done"]
    assert rules(rows) == ["stuck"]
    rows.append({"at": 10.5, "what": "killed", "pid": 1, "victim": 99, "client": "threads"})
    assert rules(rows) == []
    rows[-1] = {"at": 10.5, "what": "killed", "pid": 1, "victim": 10}
    assert rules(rows) == []


def test_coalesced__for_a_dead_one() -> None:
    """A call that was skipped for one whose process was killed is followed by no run, as the documents say."""
    skipped = [row for row in call("c1", 41.0, do="rebuild", keys=["c0"], outcome="skipped") if row["what"] != "begin"]
    waits = call("c0", 40.0, do="rebuild", keys=["c0"], client="more")[:1]
    rows = history(skipped, waits)
    assert rules(rows) == ["stuck"]
    rows.append({"at": 42.5, "what": "killed", "pid": 1, "victim": 11, "client": "more"})
    assert rules(rows) == []


def test_error__logged() -> None:
    """An error that the package logs is a finding."""
    rows = history(call("a", 10.0))
    rows.append({"at": 11.0, "what": "event", "pid": 10, "client": "threads", "event": "x", "text": "x", "error": True})
    assert rules(rows) == ["error"]
