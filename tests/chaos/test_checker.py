"""The checker refuses each planted violation, and nothing that may be."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.chaos.__main__ import main
from tests.chaos.checker import BELATED, LATE, STALE, Checker
from tests.chaos.history import Row, read, save
from tests.chaos.plants import PLANTS, plant_all
from tests.chaos.season import BLIND, judge

INFIXES = {"exclusive": "lock-", "write": "__WRIT__", "read": "__READ__", "lease": "lease-"}


def call(name: str, at: float, **facts: Any) -> list[Row]:
    """Return the rows of a call that holds for a second."""
    turn: dict[str, Any] = {
        "do": "with", "keys": ["x0"], "kind": "exclusive", "limit": None, "timeout": None, "client": "threads",
    }  # fmt: skip
    turn |= {key: value for key, value in facts.items() if key in turn}
    token = facts.get("token", int(at * 100))
    held = {"kind": turn["kind"], "limit": turn["limit"], "lost": False}
    node = f"_c_{name}-{INFIXES[turn['kind']]}{token:010}"
    held |= {"tokens": dict.fromkeys(turn["keys"], token), "node": f"/chaos/{turn['keys'][0]}/{node}"}
    rows = [
        {"at": at, "what": "call", **turn},
        {"at": at + 0.1, "what": "begin", **held},
        {"at": at + 1.1, "what": "end", "sure": at + 1.1, "lost": False},
        {"at": at + 1.2, "what": "done", "outcome": facts.get("outcome", "held"), "text": ""},
    ]
    return [row | {"pid": facts.get("pid", 10), "call": name} for row in rows]


def queue(at: float, key: str, *names: str) -> Row:
    """Return the row of a look at the queue of ``key``."""
    return {"at": at, "until": at + 0.1, "what": "queue", "pid": 1, "servers": 3, "queues": {key: list(names)}}


def history(*calls: list[Row]) -> list[Row]:
    """Return a history with a client, a fault, some calls, and what is left: nothing."""
    client = {"client": "threads", "pid": 10, "rss": 40_000, "descriptors": 6}
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
    reads = call("r", 16.0, keys=["rw0"], kind="read")
    skipped = call("c1", 41.0, do="rebuild", keys=["c0"], outcome="skipped")
    waits = [row | {"call": "w"} for row in call("w", 50.0, timeout=3.0)]
    rows = history(
        call("a", 10.0), call("b", 12.0), call("n", 14.0, do="nested"), reads, *leases,
        [row for row in skipped if row["what"] in {"call", "done"}],
        call("c2", 41.5, do="rebuild", keys=["c0"]), call("c3", 43.0, do="rebuild", keys=["c0"]), waits,
    )  # fmt: skip
    rows.append({"at": 14.2, "what": "nested", "pid": 10, "call": "n", "same": True, "tokens": {"x0": 1400}})
    for at, key, name in ((10.5, "x0", "a-lock-"), (16.5, "rw0", "r-__READ__"), (20.5, "s0", "s0-lease-")):
        rows.append(queue(at, key, f"_c_{name}{int(at) * 100:010}"))
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
        if row["what"] == "done" and row["call"] == "c10.0":
            row.update(outcome="LockLost")
    assert rules(rows) == []


def test_limits__differ() -> None:
    """The lowest limit of those that hold counts."""
    leases = [call(f"s{at}", at, kind="lease", limit=limit) for at, limit in ((10.0, 3), (10.1, 3), (10.2, 2))]
    assert rules(history(*leases)) == ["limit"]
    assert rules(history(*leases[:2])) == []


@pytest.mark.parametrize(
    ("kind", "before", "wrong"),
    [
        ("exclusive", ["read"], True),
        ("write", ["lease"], True),
        ("read", ["write"], True),
        ("read", ["lease"], True),
        ("read", ["read", "read"], False),
        ("lease", ["exclusive"], True),
        ("lease", ["lease"], False),
        ("lease", ["lease", "lease"], True),
    ],
)
def test_overtaken(kind: str, before: list[str], wrong: bool) -> None:
    """No contender holds behind a node that excludes it, nor a lease behind as many as its limit."""
    others = [f"_c_{number}-{INFIXES[each]}{number:010}" for number, each in enumerate(before)]
    own = f"_c_a-{INFIXES[kind]}0000001000"
    rows = history(call("a", 10.0, kind=kind, limit=2 if kind == "lease" else None))
    assert rules([*rows, queue(10.5, "x0", own, *others)]) == ["overtaken"] * wrong
    # It holds no more, or does not yet.
    assert rules([*rows, queue(11.5, "x0", own, *others), queue(10.05, "x0", own, *others)]) == []


@pytest.mark.parametrize(
    ("at", "servers", "wrong"),
    [(10.5, 2, ["gone"]), (10.5, 1, []), (10.05, 3, []), (11.05, 3, [])],
)
def test_gone(at: float, servers: int, wrong: list[str]) -> None:
    """A contender that certainly holds from before a look until after it has a node in the queue of each key."""
    rows = history(call("a", 10.0, keys=["x0", "x1"]))
    look = queue(at, "x0", "_c_a-lock-0000001000") | {"servers": servers}
    assert rules([*rows, look]) == wrong
    look["queues"]["x1"] = ["_c_a-lock-0000000007"]
    assert rules([*rows, look]) == []


def test_overtaken__several_keys() -> None:
    """A holder of several locks is behind no contender in any of their queues."""
    rows = history(call("a", 10.0, keys=["x0", "x1"]))
    rows.append(queue(10.5, "x1", "_c_b-lock-0000000006", "_c_a-lock-0000000007"))
    rows[-1]["queues"]["x0"] = ["_c_a-lock-0000001000"]
    assert rules(rows) == ["overtaken"]


@pytest.mark.parametrize(("process", "wrong"), [(10, []), (11, ["overtaken"])])
def test_overtaken__released(process: int, wrong: list[str]) -> None:
    """A node whose owner has released it holds up all but the next one of its session, until it is deleted."""
    rows = history(call("a", 10.0, pid=process), call("b", 12.0))
    rows.append(queue(12.5, "x0", "_c_a-lock-0000001000", "_c_b-lock-0000001200"))
    assert rules(rows) == wrong


@pytest.mark.parametrize("end", ["end", "child_killed"])
def test_overtaken__released_by_the_main_process(end: str) -> None:
    """The session of the tasks in all children of a worker is that of its main process."""
    first, second = call("a", 10.0, pid=21), call("b", 12.0, pid=22)
    rows = history(first[:2], second)
    rows += [{"at": 5.0, "what": "child", "pid": pid, "main": 20} for pid in (21, 22)]
    rows.append(queue(12.5, "x0", "_c_a-lock-0000001000", "_c_b-lock-0000001200"))
    rows.append({"at": 900.0, "what": "killed", "pid": 1, "victim": 21})
    assert rules(rows) == ["overtaken"]
    rows += [first[2]] if end == "end" else [{"at": 11.0, "what": "child_killed", "pid": 1, "main": 20, "child": 21}]
    assert rules(rows) == []


def test_tokens__after_a_loss_of_all_data() -> None:
    """They begin anew when the ensemble has lost its data."""
    rows = history(call("a", 10.0), call("b", 12.0, token=1))
    assert rules(rows) == ["token"]
    rows.append({"at": 11.9, "what": "wiped", "pid": 1})
    assert rules(rows) == []
    rows[-1]["at"] = 13.0
    assert rules(rows) == ["token"]


def test_coalesced__called_later() -> None:
    """A run of a call that came after another one was skipped is no run for that one."""
    skipped = [row for row in call("c1", 41.0, do="rebuild", keys=["c0"], outcome="skipped") if row["what"] != "begin"]
    assert rules(history(skipped, call("c2", 42.0, do="rebuild", keys=["c0"]))) == []
    assert rules(history(skipped, call("c2", 43.0, do="rebuild", keys=["c0"]))) == ["coalesced"]
    # The one that waited lost its session, queued again, and was skipped for a call that came meanwhile.
    waited = [row for row in call("c0", 41.5, do="rebuild", keys=["c0"], outcome="skipped") if row["what"] == "call"]
    waited += call("c0", 42.5, do="rebuild", keys=["c0"], outcome="skipped")[3:]
    assert rules(history(skipped, waited, call("c2", 43.0, do="rebuild", keys=["c0"]))) == []
    # It had begun already; and it is another function.
    assert rules(history(skipped, call("c2", 40.0, do="rebuild", keys=["c0"]))) == ["coalesced"]
    assert rules(history(skipped, call("c2", 42.0, do="refresh", keys=["c0"]))) == ["coalesced"]


@pytest.mark.parametrize(("outcome", "wrong"), [("ZooKeeperUnavailable", []), ("LockLost", []), ("skipped", True)])
def test_coalesced__for_one_that_gave_up(outcome: str, wrong: object) -> None:
    """No call runs for a call that was skipped for one that could not wait any longer, or whose node was left."""

    def without_run(*args: Any, **facts: Any) -> list[Row]:
        return [row for row in call(*args, **facts) if row["what"] in {"call", "done"}]

    skipped = without_run("c1", 41.0, do="rebuild", keys=["c0"], outcome="skipped")
    fault = [{"at": 39.0, "what": "fault", "pid": 1, "fault": "server killed", "victim": "leader"}]
    other = without_run("c0", 40.0, do="rebuild", keys=["c0"], outcome=outcome)
    assert rules(history(fault, skipped, other)) == (["coalesced", "coalesced"] if wrong else [])
    # The session of a node that was left has ended by now, unless the servers could not end it.
    other = without_run("c0", 37.0 - STALE, do="rebuild", keys=["c0"], outcome=outcome)
    assert "coalesced" in rules(history(fault, skipped, other))
    fault.append(fault[0] | {"at": 38.5 - STALE})
    fault.append(fault[-1] | {"at": 39.5 - STALE, "what": "mended", "began": 38.5 - STALE})
    assert ("coalesced" in rules(history(fault, skipped, other))) == bool(wrong)


@pytest.mark.parametrize(
    ("victim", "at", "wrong"),
    [
        ("leader", 9.0, []),
        ("threads", 9.0, []),
        ("gevent", 9.0, ["outcome"]),
        ("leader", 12.0, ["outcome"]),
        ("leader", 9.0 - BELATED, ["outcome"]),
    ],
)
def test_lost__for_a_fault(victim: str, at: float, wrong: list[str]) -> None:
    """A lock is lost for a fault of the servers or of its own client, then or not long before."""
    fault = {"fault": "stopped", "victim": victim, "pid": 1}
    rows = history(
        call("a", 10.0, outcome="LockLost"),
        [fault | {"at": at, "what": "fault"}, fault | {"at": at + 0.5, "what": "mended", "began": at}],
    )
    assert rules([row for row in rows if row.get("fault") != "server killed"]) == wrong


@pytest.mark.parametrize("outcome", ["held", "LockTimeout"])
def test_late(outcome: str) -> None:
    """A call neither gives up nor begins to hold long after its time, unless its process was stopped."""
    begins = call("a", 10.0, timeout=3.0)[:1]
    rows = history(begins + call("a", 13.5 + LATE, outcome=outcome)[1 if outcome == "held" else 3 :])
    assert rules(rows) == ["late"]
    rows.append({"at": 11.0, "what": "stopped", "pid": 1, "victim": 10, "until": 13.0})
    assert rules(rows) == []
    # What the client has forked is stopped with it.
    assert rules([row | {"pid": 11} if row.get("call") == "a" else row for row in rows]) == []


def test_stuck__until_it_was_killed() -> None:
    """A later death does not explain that a call was still waiting long after its time."""
    for timeout, wrong in ((3.0, ["stuck"]), (None, [])):
        rows = history(call("a", 10.0, timeout=timeout)[:1])
        rows.append({"at": 300.0, "what": "killed", "pid": 1, "victim": 10, "client": "threads"})
        assert rules(rows) == wrong


def test_history__partly_written(tmp_path: Path) -> None:
    """A process that was killed while it wrote a row leaves a history without that row."""
    rows = call("a", 10.0)
    file = tmp_path / "10.jsonl"
    save(rows, file)
    file.write_text(file.read_text() + '{"at": 12.0, "what": "ca')
    assert read(tmp_path) == rows


@pytest.mark.parametrize(("since", "counts"), [(11.0 + BLIND, 1), (10.0 + BLIND, 0), (10.0, 0)])
def test_forgotten(since: float, counts: int) -> None:
    """Writes that ZooKeeper has lost explain what was wrong since then, and no two holders before."""
    rows = history(call("a", 10.0), call("b", 10.5), call("s", 9.0, keys=["x1"])[:1])
    assert [found.rule for found in judge("1", rows).violations] == ["stuck", "overlap"]
    rows.append({"at": 800.0, "what": "forgotten", "pid": 1, "count": 1, "since": since, "names": ["0-1"]})
    outcome = judge("1", rows)
    assert [found.rule for found in outcome.violations] == ["overlap"] * counts
    assert outcome.is_void == (not counts)


@pytest.mark.shows("faults#a-server-has-nodes-that-the-other-servers-do-not-have")
@pytest.mark.parametrize(
    ("second", "is_back"),
    [
        (["lock-0000000012", "lock-0000000013"], True),
        (["lock-0000000013", "lock-0000000014"], False),
        # The lock's node was deleted in between, and its numbers began anew.
        (["lock-0000000000"], False),
    ],
)
def test_brought_back(second: list[str], is_back: bool) -> None:
    """A node that appears after a later one is ZooKeeper's fault, and explains what is wrong since then."""
    rows = history(call("s", 40.0, keys=["x1"])[:1])
    for at, names in ((41.0, ["lock-0000000013"]), (41.5, second)):
        rows.append({"at": at, "what": "queue", "pid": 1, "until": at, "servers": 3, "queues": {"x1": names}})
    outcome = judge("1", rows)
    assert [found.rule for found in outcome.findings] == ["stuck"]
    assert outcome.violations == ([] if is_back else outcome.findings)
    assert outcome.is_void == is_back


@pytest.mark.parametrize("whole", [True, False])
def test_judge_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], whole: bool
) -> None:
    """A recorded run is judged season by season, and a history alone too."""
    rows = {"7.2": history(call("a", 10.0)), "7.10": history(call("s", 9.0, keys=["x1"])[:1])}
    for name, each in rows.items():
        each.insert(0, {"at": 8.0, "what": "season", "pid": 1})
        (tmp_path / name / "journal").mkdir(parents=True)
        save(each, tmp_path / name / "journal" / "1.jsonl")
    chosen = tmp_path if whole else tmp_path / "7.2" / "journal"
    monkeypatch.setattr("sys.argv", ["chaos", "--judge", str(chosen), "--folder", str(tmp_path / "again")])
    assert main() == whole
    found = [line.partition(";")[2] for line in capsys.readouterr().out.splitlines() if line.startswith("season ")]
    assert found == ([" 0 wrong", " 1 wrong"] if whole else [" 0 wrong"])


def test_error__logged() -> None:
    """An error that the package logs is a finding."""
    rows = history(call("a", 10.0))
    rows.append({"at": 11.0, "what": "event", "pid": 10, "client": "threads", "event": "x", "text": "x", "error": True})
    assert rules(rows) == ["error"]


def test_lost__for_nothing_with_a_short_timeout() -> None:
    """A short time to wait explains that ZooKeeper was not reached, and no loss."""
    for outcome, wrong in (("LockLost", ["outcome"]), ("ZooKeeperUnavailable", [])):
        rows = history(call("a", 50.0, timeout=0.5, outcome=outcome))
        assert rules(rows) == wrong


@pytest.mark.parametrize(("do", "outcome"), [("with", "LockTimeout"), ("try", "taken"), ("rebuild", "skipped")])
def test_outcome__of_a_body_that_ran(do: str, outcome: str) -> None:
    """A call that has not got the lock has not run the body."""
    assert rules(history(call("a", 10.0, do=do, keys=["c0"], timeout=0.0, outcome=outcome))) == ["body"]


def test_outcome__of_a_try() -> None:
    """A call that only tries is told that the lock is taken, by no error."""
    tried = call("a", 10.0, do="try", timeout=0.0, outcome="LockTimeout")
    assert rules(history([row for row in tried if row["what"] in {"call", "done"}])) == ["outcome"]


def test_body__without_a_lock() -> None:
    """A body that has no lock at all is wrong, and one that begins with a lost lock may be."""
    lost = [row | {"lost": True} if row["what"] in {"begin", "end"} else row for row in call("a", 2.5)]
    lost = [row | {"outcome": "LockLost"} if row["what"] == "done" else row for row in lost]
    assert rules(history(lost)) == []
    assert rules(history([row | {"tokens": {}, "node": None} if row["what"] == "begin" else row for row in lost])) == [
        "body"
    ]


def test_together__at_one_moment() -> None:
    """A hold of a moment may be before one that begins then, and is not inside of one that has begun before."""
    moment = [row | {"sure": 10.1} if row["what"] == "end" else row for row in call("a", 10.0, token=999)]
    assert rules(history(call("b", 10.0, token=1000), moment)) == rules(history(moment, call("b", 10.0, token=1000)))
    assert "overlap" not in rules(history(call("b", 10.0, token=1000), moment))
    assert "overlap" in rules(history(call("b", 9.9, token=998), moment))


def test_lost__on_a_busy_machine() -> None:
    """A loss without a fault is explained if the harness itself got no time to run."""
    rows = history(call("a", 50.0, outcome="LockLost"))
    assert rules(rows) == ["outcome"]
    assert rules([*rows, {"at": 49.0, "what": "starved", "pid": 1, "until": 49.8}]) == []
    assert rules([*rows, {"at": 20.0, "what": "starved", "pid": 1, "until": 20.8}]) == ["outcome"]


def test_outcome__held_for_nothing() -> None:
    """A call that has held has run the body to its end, and has not lost the lock."""
    rows = history(call("a", 10.0))
    assert rules([row for row in rows if row["what"] not in {"begin", "end"}]) == ["body"]
    assert rules([row | {"lost": True} if row["what"] == "end" else row for row in rows]) == ["body"]
