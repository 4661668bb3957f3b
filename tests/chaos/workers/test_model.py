"""The model of the storm explains what may happen, and nothing else."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

from django_zklock.contrib.celery.gate import inherited
from tests.chaos.history import Row
from tests.chaos.workers.model import GIVEN_UP, Model
from tests.chaos.workers.plan import Send
from tests.chaos.workers.workers import FAREWELL, MAX_WAIT, VISIBILITY_TIMEOUT

pytestmark = pytest.mark.celery

MAIN, CHILD = 10, 11
SEND: dict[str, Any] = {
    "number": 0,
    "broker": "redis",
    "policy": "wait",
    "kind": "exclusive",
    "late": True,
    "failures": 0,
    "keys": ("k",),
    "lasts": 1.0,
    "countdown": None,
    "expires": None,
    "revoked": None,
    "terminate": False,
    "priority": None,
}
OWN = "/here/django_zklock/contrib/celery/gate/gate.py:1 run"
Change = Callable[[list[Row]], None]


def message(task: str) -> dict[str, Any]:
    return {"id": task, "retries": 0, "conflicts": 0}


def course(task: str, begins: float, **properties: Any) -> list[Row]:
    """Return the rows of a task that is sent, delivered, run under its lock, and acknowledged."""
    send = Send(**SEND | {"at": begins} | properties)
    began, same = begins + 0.2, message(task)
    held = {"call": task, "kind": send.kind, "limit": None, "tokens": {"k": 1}, "node": "/n", "lost": False}
    done = {"state": "SUCCESS", "error": None, "text": "", "result": int(began * 1000)}
    return [
        {"at": begins, "what": "publish", "pid": 1, **same},
        {"at": begins, "what": "published", "pid": 1, **same},
        {"at": begins, "what": "send", "pid": 1, "id": task, "send": asdict(send)},
        {"at": begins + 0.1, "what": "received", "pid": MAIN, "main": MAIN, **same},
        {"at": began, "what": "acquired", "pid": CHILD, "lost": False},
        {"at": began, "what": "begin", "pid": CHILD, **held, **same},
        {"at": began + 1, "what": "end", "pid": CHILD, "began": began, "sure": began + 1, "lost": False, **same},
        {"at": began + 1.1, "what": "finished", "pid": CHILD, "main": MAIN, **done, **same},
        {"at": began + 1.2, "what": "ack", "pid": MAIN, "main": MAIN, **same},
        {"at": 100.0, "what": "stored", "pid": 1, "id": task, "status": "SUCCESS"},
    ]


def storm(*courses: list[Row], gate: bool = True) -> list[Row]:
    start = {"at": 0.0, "what": "sends", "pid": 1, "gate": gate, "workers": 4}
    main = {"at": 0.0, "what": "main", "pid": MAIN, "main": MAIN, "worker": 0}
    return [start, main, *(row for rows in courses for row in rows)]


def judge(rows: list[Row]) -> list[str]:
    return [what for _, what in Model(sorted(rows, key=lambda row: row["at"])).judge()]


def without(*kinds: str) -> Change:
    def change(rows: list[Row]) -> None:
        rows[:] = [row for row in rows if row["what"] not in kinds]

    return change


def replace(what: str, **facts: Any) -> Change:
    def change(rows: list[Row]) -> None:
        for row in rows:
            if row["what"] == what:
                row.update(facts)

    return change


def add(*rows: Row) -> Change:
    return lambda all_rows: all_rows.extend(rows)


def both(first: Change, second: Change) -> Change:
    def change(rows: list[Row]) -> None:
        first(rows)
        second(rows)

    return change


def failure(error: str, text: str = "") -> Change:
    return replace("finished", state="FAILURE", error=error, text=text)


def skipped(reason: str, holder: str) -> Change:
    return replace("finished", result={"zklock": "skipped", "reason": reason, "holder": holder})


AGAIN = {"at": 15.0, "what": "received", "pid": 20, "main": 20, **message("a")}
FAULT = {"at": 9.0, "what": "fault", "fault": "server stopped", "victim": "leader"}
MENDED = FAULT | {"at": 11.0, "what": "mended", "began": 9.0}
# What a body leaves, and nothing else of its task.
RUN = ("acquired", "begin", "end", "finished")
LATER = AGAIN | {"at": 10 + VISIBILITY_TIMEOUT + 1}


def test_undisturbed() -> None:
    """Two tasks of one key, one after the other, are right."""
    assert judge(storm(course("a", 10.0), course("b", 12.0))) == []


@pytest.mark.parametrize(
    ("properties", "change", "wrong"),
    [
        ({}, both(without("finished"), replace("stored", status="PENDING")), "has not ended"),
        ({}, failure("ValueError"), "has failed: ValueError"),
        ({}, failure("LockConflict"), "has failed: LockConflict"),
        ({"policy": "raise"}, failure("LockConflict", "held by task [a]"), "gave way to itself"),
        ({"policy": "timeout"}, failure("LockTimeout"), "has given up after 1.3 s"),
        ({"policy": "retry"}, failure("LockConflict"), "has given up after 1.3 s"),
        ({}, skipped("conflict", "b"), "was skipped"),
        ({"policy": "skip"}, skipped("conflict", "task [a]"), "was skipped"),
        ({}, replace("finished", result=1), "has a result without a body"),
        ({}, replace("finished", state="RETRY", error="Retry"), "retries, and nobody asked for that"),
        ({}, add({"at": 11.0, "what": "revoked", "id": "a", "expired": False}), "was revoked, which nobody asked for"),
        ({}, add({"at": 11.0, "what": "failed", "id": "a", "error": "KeyError", "text": ""}), "has failed in the main"),
        ({}, add({"at": 11.0, "what": "failed", "id": "a", "error": "WorkerLostError", "text": ""}), "with its child"),
        ({}, add(AGAIN), "was delivered 2 times, published 1 times"),
        ({}, add(LATER), "was delivered 2 times, published 1 times"),
        ({}, without("received"), "has run 1 times"),
        ({"countdown": 1.0}, add(), "began 0.20 s after it was sent"),
        ({}, replace("acquired", lost=True), "a lock that is lost was given to a body"),
        ({}, failure("LockLost", f"lost: the worker's {GIVEN_UP}"), "was given up under its body"),
        ({}, failure("LockLost", "lost: the session expired"), "has lost its lock, and nothing was wrong"),
        ({}, replace("end", lost=True), "has a result though its lock was lost"),
        ({}, replace("begin", tokens={}, node=None, lost=True), "has run without a lock"),
        ({}, replace("ack", at=10.15), "was acknowledged before it had ended"),
        ({}, without(*RUN), "was acknowledged before it had ended"),
        ({}, without(*RUN), "has not run (stored: SUCCESS)"),
        ({"late": False}, both(without(*RUN), replace("stored", status="PENDING")), "has not ended (stored: PENDING)"),
        (
            {"policy": "timeout"},
            both(failure("LockTimeout"), replace("finished", at=90.0)),
            "has given up after 80.0 s",
        ),
        ({"policy": "coalesce"}, skipped("coalesced", "b"), "has not run for another one"),
        ({}, add({"at": 9.0, "what": "silent", "worker": 1, "stack": [OWN]}), "worker 1 does not answer"),
        ({}, add({"at": 9.0, "what": "ended", "worker": 1, "traceback": [OWN]}), "worker 1 has ended by itself"),
    ],
)
def test_wrong(properties: dict[str, Any], change: Change, wrong: str) -> None:
    """The model finds what neither the policy nor the broker explains."""
    rows = storm(course("a", 10.0, **properties))
    change(rows)
    assert any(wrong in found for found in judge(rows)), judge(rows)


@pytest.mark.parametrize(
    "cause",
    [
        {"at": 14.0, "what": "disconnected", "main": MAIN},
        {"at": 14.0, "what": "worker_killed", "main": MAIN},
        {"at": 14.0, "what": "attempt", **message("a")},
    ],
    ids=lambda cause: cause["what"],
)
def test_delivered_again__explained(cause: Row) -> None:
    """A lost connection, a dead worker and a second publication explain a second delivery."""
    rows = storm(course("a", 10.0))
    rows += [AGAIN, cause]
    # Its acknowledgement was late.
    replace("ack", at=16.0)(rows)
    assert judge(rows) == []


def test_delivered_again__acknowledged() -> None:
    """A message that was acknowledged long before does not come back with a lost connection."""
    rows = storm(course("a", 10.0))
    rows += [AGAIN | {"at": 50.0}, {"at": 49.0, "what": "disconnected", "main": MAIN}]
    assert any("was delivered 2 times" in found for found in judge(rows))


@pytest.mark.parametrize(("gate", "wrong"), [(True, ["was kept for 21.0 s and not begun"]), (False, [])])
def test_kept(*, gate: bool, wrong: list[str]) -> None:
    """The gate keeps no message until Redis delivers it again; a slot may."""
    rows = storm(course("a", 10.0), gate=gate)
    # The first delivery is never begun; the second runs at once.
    late = VISIBILITY_TIMEOUT + 1
    for row in rows:
        if row["what"] in {"begin", "acquired", "end", "finished", "ack"}:
            row["at"] += late
            if row["what"] == "end":
                row.update(began=row["began"] + late, sure=row["sure"] + late)
            if row["what"] == "finished":
                row["result"] += int(late * 1000)
    rows += [{"at": float(second), "what": "beat", "main": MAIN} for second in range(10, 40)]
    rows.append({"at": 10.1 + late, "what": "received", "pid": 20, "main": 20, **message("a")})
    assert [found.partition(",")[0] for found in judge(rows)] == wrong


@pytest.mark.parametrize(("pause", "found"), [(1.5, ["has lost its lock"]), (2.5, [])])
def test_lost__busy_machine(pause: float, found: list[str]) -> None:
    """A worker that got no time for half of its session may lose a lock."""
    rows = storm(course("a", 10.0))
    failure("LockLost", "lost: the lease ran out")(rows)
    rows += [{"at": at, "what": "beat", "main": MAIN} for at in (8.0, 8.0 + pause)]
    assert [each.partition(",")[0] for each in judge(rows)] == found


@pytest.mark.parametrize(("waited", "wrong"), [(1.0, ["was given back 1.0 s after its delivery"]), (MAX_WAIT, [])])
def test_given_back(waited: float, wrong: list[str]) -> None:
    """A message without a fault is returned after half the limit, and no sooner."""
    rows = storm(course("a", 10.0))
    at = 10.1 + waited
    rows.append({"at": at, "what": "reject", "main": MAIN, "requeue": True, **message("a")})
    assert judge(rows) == wrong


def test_outage() -> None:
    """A short outage of ZooKeeper explains some failures, but not those of a whole queue."""
    few, many = ([course(f"t{number}", 10.0, keys=(f"k{number}",)) for number in range(count)] for count in (5, 60))
    for courses, wrong in ((few, []), (many, ["60 tasks have failed because ZooKeeper was away"])):
        rows = [*storm(*courses), FAULT, MENDED]
        failure("ZooKeeperUnavailable")(rows)
        assert [found.partition(",")[0] for found in judge(rows)] == wrong


def test_children() -> None:
    """A child that was killed explains one failure."""
    courses = [course(task, 10.0, late=False, keys=(task,)) for task in "ab"]
    lost = [{"at": 11.0, "what": "failed", "id": task, "error": "WorkerLostError", "text": ""} for task in "ab"]
    kill = {"at": 10.9, "what": "child_killed", "main": MAIN, "child": CHILD}
    assert judge([*storm(*courses), lost[0], kill]) == []
    assert judge([*storm(*courses), *lost, kill]) == ["2 tasks have failed with their children, 1 children were killed"]


@pytest.mark.parametrize(
    ("sent", "change", "wrong"),
    [
        (10.5, add(), False),
        # It ran already, and has come when the other one was skipped.
        (9.0, add(), True),
        (12.0, add(), True),
        # It does not run, and that is not because it was skipped for another one.
        (10.5, both(without("begin"), failure("ZooKeeperUnavailable")), False),
        (10.5, both(without("begin"), skipped("coalesced", "c")), True),
    ],
)
def test_coalesced(sent: float, change: Change, wrong: bool) -> None:
    """A task is skipped for another one that waits then, and runs or fails."""
    skip, other = course("a", 10.0, policy="coalesce"), course("b", sent, policy="coalesce")
    both(without("acquired", "begin", "end"), skipped("coalesced", "b"))(skip)
    change(other)
    found = [text for text in judge(storm(skip, other)) if "was skipped" in text]
    assert bool(found) == wrong, found


def test_given_up__by_the_end_of_the_worker() -> None:
    """A worker that ends gives up its locks, and one that has lost its session has not given them up."""
    assert GIVEN_UP in Path(inherited.__file__).read_text()
    rows = storm(course("a", 10.0))
    failure("LockLost", f"lost: the worker's {GIVEN_UP}")(rows)
    assert judge([*rows, {"at": 11.0, "what": "stopping", "main": MAIN}]) == []
    failure("LockLost", "lost: the worker's main process has lost it: the session expired")(rows)
    assert judge([*rows, FAULT, MENDED]) == []


def test_farewell() -> None:
    """A warm shutdown that does not end is explained if the event loop hangs."""
    end = 30.0 + FAREWELL
    farewell = {"at": end, "what": "farewell_too_long", "worker": 1, "main": MAIN, "stack": []}
    beats = [{"at": float(second), "what": "beat", "main": MAIN} for second in range(25, math.ceil(end) + 1)]
    rows = [*storm(course("a", 10.0)), farewell]
    assert judge([*rows, *beats]) == ["the warm shutdown of worker 1 did not end: []"]
    assert judge([*rows, *beats[:30]]) == []


@pytest.mark.parametrize(("gone", "wrong"), [(12.0, []), (91.0, ["has not ended (stored: PENDING)"])])
def test_lost_with_its_worker(gone: float, wrong: list[str]) -> None:
    """A task that is acknowledged early is lost with its worker, unless it should have ended long before."""
    rows = storm(course("a", 10.0, late=False))
    both(without(*RUN), replace("stored", status="PENDING"))(rows)
    assert judge([*rows, {"at": gone, "what": "worker_gone", "main": MAIN}]) == wrong


@pytest.mark.parametrize("late", [False, True])
def test_ended__without_a_row(late: bool) -> None:
    """A child that is killed may have stored its result before."""
    rows = storm(course("a", 10.0, late=late))
    without("finished")(rows)
    (end,) = (row["at"] for row in rows if row["what"] == "end")
    assert judge([*rows, {"at": end + 0.01, "what": "child_killed", "main": MAIN, "child": CHILD}]) == []
    if late:
        (wrong,) = judge([*rows, {"at": end - 0.01, "what": "child_killed", "main": MAIN, "child": CHILD}])
        assert wrong.startswith("was acknowledged before it had ended")


def test_lost_on_its_way() -> None:
    """A message that Redis has sent over a breaking connection is lost; one that was never sent is not explained."""
    rows = storm(course("a", 10.0))
    without("received", "acquired", "begin", "end", "finished", "ack")(rows)
    replace("stored", status="PENDING")(rows)
    assert judge(rows) == ["has not ended (stored: PENDING)"]
    assert judge([*rows, {"at": 10.5, "what": "disconnected", "main": MAIN}]) == []
