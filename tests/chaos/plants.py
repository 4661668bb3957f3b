"""Planted violations: each changes a history into one that the checker must refuse.

They are planted into what has really been, so they show that the checker would have found them there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable

from .checker import STALE, Checker, Hold
from .history import Row

# Changes the rows in place; ``False`` if there is no place for it in this history.
Plant = Callable[[list[Row]], bool]


def _exclusive(rows: list[Row]) -> list[tuple[Hold, Hold]]:
    """Return pairs of holds of one key, one right after the other, of which the first is known to have ended."""
    ended = {row["call"] for row in rows if row["what"] == "end"}
    return [
        (first, second)
        for holds in Checker(rows).holds.values()
        for first, second in itertools.pairwise(holds)
        if first.kind == second.kind == "exclusive" and first.call in ended and second.call in ended
        and first.token < second.token
    ]  # fmt: skip


def _find(rows: list[Row], what: str, call: str) -> Row:
    return next(row for row in rows if row["what"] == what and row["call"] == call)


def overlap(rows: list[Row]) -> bool:
    """A holder is certain a hundredth of a second longer than it may."""
    for first, second in _exclusive(rows):
        _find(rows, "end", first.call)["sure"] = second.began + 0.01
        return True
    return False


def limit(rows: list[Row]) -> bool:
    """One lease more than the limit is held for a hundredth of a second."""
    ended = {row["call"] for row in rows if row["what"] == "end"}
    for holds in Checker(rows).holds.values():
        leases = [hold for hold in holds if hold.kind == "lease" and hold.call in ended]
        for position, last in enumerate(leases):
            before = leases[max(0, position - (last.limit or 0)) : position]
            if len(before) == last.limit:
                for hold in before:
                    _find(rows, "end", hold.call)["sure"] = max(hold.sure, last.began + 0.01)
                return True
    return False


def overtaken(rows: list[Row]) -> bool:
    """Two holders change places in the queue."""
    for first, second in _exclusive(rows):
        one, two = _find(rows, "begin", first.call), _find(rows, "begin", second.call)
        one["tokens"], two["tokens"] = two["tokens"], one["tokens"]
        return True
    return False


def twins(rows: list[Row]) -> bool:
    """Two holders have one token."""
    for first, second in _exclusive(rows):
        _find(rows, "begin", second.call)["tokens"] = _find(rows, "begin", first.call)["tokens"]
        return True
    return False


def skipped(kind: str, waits: str) -> Plant:
    """A contender of the kind that ``waits`` names is in the queue before a holder of ``kind``."""

    def plant(rows: list[Row]) -> bool:
        holders = {
            hold.node.rpartition("/")[2]: hold
            for holds in Checker(rows).holds.values()
            for hold in holds
            if hold.kind == kind and hold.node is not None
        }
        for row in rows:
            for key, names in row["queues"].items() if row["what"] == "queue" else ():
                for name in names:
                    hold = holders.get(name)
                    if hold is not None and hold.began < row["at"] <= hold.sure:
                        before = [f"_c_planted-{waits}{int(name[-10:]) - each:010}" for each in (1, 2, 3)]
                        row["queues"] = {**row["queues"], key: [*names, *before]}
                        return True
        return False

    return plant


def nodeless(rows: list[Row]) -> bool:
    """The node of a holder is not in the queue."""
    looks = [row for row in rows if row["what"] == "queue" and row["servers"] > 1]
    for hold in itertools.chain.from_iterable(Checker(rows).holds.values()):
        for row in looks:
            if hold.node is not None and hold.began < row["at"] and row["until"] <= hold.sure:
                row["queues"] = {}
                return True
    return False


def unnested(rows: list[Row]) -> bool:
    """A hold inside a hold has another node."""
    for row in rows:
        if row["what"] == "nested":
            row["same"] = False
            return True
    return False


def unserved(rows: list[Row]) -> bool:
    """No other call runs for a call that was skipped."""
    calls = {row["call"]: row for row in rows if row["what"] == "call"}
    for done in [row for row in rows if row["what"] == "done" and row["outcome"] == "skipped"]:
        call = calls[done["call"]]
        same = {name for name, each in calls.items() if (each["do"], each["keys"]) == (call["do"], call["keys"])}
        earlier = {name for name in same if calls[name]["at"] < done["at"]}
        ends = {row["call"]: row for row in rows if row["what"] == "done" and row["call"] in earlier}
        if any(
            name not in ends
            or (ends[name]["outcome"] not in {"held", "skipped"} and ends[name]["at"] > call["at"] - STALE)
            for name in earlier
        ):
            continue
        # Those for which it was skipped had begun before. What is called later runs.
        began = {row["call"] for row in rows if row["what"] == "begin" and row["at"] > call["at"]} & earlier
        for row in rows:
            if row.get("call") in began and row["what"] == "begin":
                row["at"] = call["at"]
        rows.sort(key=lambda row: row["at"])
        return True
    return False


def strange(rows: list[Row]) -> bool:
    """A call ends with an error that is not of the package."""
    for row in rows:
        if row["what"] == "done" and row["outcome"] == "held":
            row.update(outcome="RuntimeError", text="planted")
            return True
    return False


def early(rows: list[Row]) -> bool:
    """A call gives up before its time."""
    return _time_out(rows, lambda call: call["at"] + 0.5 * call["timeout"])


def late(rows: list[Row]) -> bool:
    """A call gives up long after its time."""
    return _time_out(rows, lambda call: call["at"] + 1000.0)


def held_late(rows: list[Row]) -> bool:
    """A call begins to hold long after its time."""
    begins = {row["call"]: row for row in rows if row["what"] == "begin"}
    for row in rows:
        if row["what"] == "call" and row["timeout"] == 3.0 and row["call"] in begins:
            row["at"] -= 1000.0
            return True
    return False


def _time_out(rows: list[Row], when: Callable[[Row], float]) -> bool:
    for call in rows:
        if call["what"] == "call" and call["timeout"] == 3.0:
            for row in rows:
                if row["what"] == "done" and row["call"] == call["call"]:
                    row.update(outcome="LockTimeout", at=when(call))
                    return True
    return False


def unexplained(rows: list[Row]) -> bool:
    """A lock is lost although nothing was wrong."""
    rows[:] = [row for row in rows if row["what"] != "fault"]
    for row in rows:
        if row["what"] == "done" and row["outcome"] == "held":
            row.update(outcome="LockLost")
            calls = {each["call"]: each for each in rows if each["what"] == "call"}
            calls[row["call"]]["timeout"] = None
            return True
    return False


def stuck(rows: list[Row]) -> bool:
    """A call never ends."""
    checker = Checker(rows)
    for row in rows:
        if row["what"] == "done" and checker.death(checker.calls[row["call"]]) == math.inf:
            rows.remove(row)
            return True
    return False


def left(kind: str) -> Plant:
    """Something is left in ZooKeeper."""

    def plant(rows: list[Row]) -> bool:
        rows.append({"at": rows[-1]["at"], "what": "left", "pid": 0, "kind": kind, "name": "/chaos/x0/planted"})
        return True

    return plant


def kept(what: str, value: object) -> Plant:
    """Something is left in a process."""

    def plant(rows: list[Row]) -> bool:
        for row in rows:
            if row["what"] == "closed":
                row[what] = value
                return True
        return False

    return plant


PLANTS: dict[str, tuple[str, Plant]] = {
    "two holders at a time": ("overlap", overlap),
    "one lease too many": ("limit", limit),
    "tokens out of order": ("token", overtaken),
    "one token for two": ("token", twins),
    "a waiter that was skipped": ("overtaken", skipped("exclusive", "lock-")),
    "a writer that was skipped": ("overtaken", skipped("read", "__WRIT__")),
    "a lease that was skipped": ("overtaken", skipped("lease", "lease-")),
    "a hold without a node": ("gone", nodeless),
    "a nested hold of another node": ("nested", unnested),
    "a coalesced call without a run": ("coalesced", unserved),
    "an error of another kind": ("outcome", strange),
    "a lock that was lost for nothing": ("outcome", unexplained),
    "a timeout before its time": ("early", early),
    "a timeout long after its time": ("late", late),
    "a hold long after its time": ("late", held_late),
    "a waiter that is stuck": ("stuck", stuck),
    "a node that is left": ("left", left("node")),
    "a watch that is left": ("left", left("watch")),
    "a thread that is left": ("left", kept("threads", ["zklock-timers"])),
    "a socket that is left": ("left", kept("sockets", 1)),
    "a descriptor that is left": ("left", kept("descriptors", 1000)),
    "a contender that is left": ("left", kept("objects", {"Contender": 1})),
    "memory that is left": ("left", kept("rss", 10_000_000)),
}


def plant_all(rows: list[Row], names: Iterable[str] = tuple(PLANTS)) -> dict[str, bool | None]:
    """Plant each violation into the history by itself, and say whether it was found; ``None`` if it had no place."""
    found: dict[str, bool | None] = {}
    for name in names:
        rule, plant = PLANTS[name]
        # A plant replaces what is in a row, and never changes that itself.
        changed = [dict(row) for row in rows]
        placed = plant(changed)
        found[name] = any(each.rule == rule for each in Checker(changed).check()) if placed else None
    return found
