"""What must not be in a history, whatever the faults were.

A hold counts from its first certain moment to its last one: until then its process had asked it and had been told that
it is not lost. The rules take nothing from the package: they are the words of the guarantees.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from tests.toolbox.timing import scaled

from .history import Row

# What may end a call. The errors of a lost lock and of an absent ZooKeeper need a fault.
EXPECTED = {"held", "taken", "skipped", "LockTimeout", "LockLost", "ZooKeeperUnavailable"}
# Those of calls that have not got the lock.
WITHOUT_BODY = {"taken", "skipped", "LockTimeout"}
# Seconds by which a process may be late on a busy machine.
LATE = scaled(20)
# Seconds for which the node of a dead process may be in its queue: the longest session, and some ticks. Faults of
# servers prolong it.
STALE = 15.0
# KB by which a process may grow between its start and its end: caches, and code that is imported late.
GROWTH = 40_000
# Seconds within which a call may not reach ZooKeeper though nothing is wrong.
BRIEF = 1.0
# Seconds after the end of a fault within which its effects are still explained by it. More than this is left between
# the last fault of a season and the end of the calls.
BELATED = 10.0
# The victims of a fault that every client notices.
SERVERS = {"leader", "follower"}
# How the name of a node shows its kind.
KINDS = {"lock-": "exclusive", "__WRIT__": "write", "__READ__": "read", "lease-": "lease"}


@dataclass(frozen=True)
class Hold:
    """A hold of one key; ``sure`` is the last moment at which it was certain.

    ``process`` has the session, and its owner was done at ``over``: infinity if that was not seen.
    """

    began: float
    sure: float
    over: float
    process: int
    call: str
    key: str
    kind: str
    limit: int | None
    token: int
    node: str | None

    def excludes(self, other: Hold) -> bool:
        """Whether the two may not be at the same time, limits aside."""
        return excludes(self.kind, other.kind)


def excludes(kind: str, other: str) -> bool:
    """Whether two of these kinds may not hold at the same time, limits aside."""
    return kind != other or kind not in {"read", "lease"}


@dataclass(frozen=True)
class Finding:
    """Something wrong: the rule, when it was, and what."""

    rule: str
    at: float
    text: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.text}"


class Checker:
    """Judges a history."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        self.by: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            self.by[row["what"]].append(row)
        self.calls = {row["call"]: row for row in self.by["call"]}
        self.done = {row["call"]: row for row in self.by["done"]}
        # When a process has ended by force, and a client with all of its children.
        self._killed = {row["victim"]: row["at"] for row in self.by["killed"]}
        self._killed_clients: dict[str, list[float]] = defaultdict(list)
        for row in self.by["killed"]:
            if "client" in row:
                self._killed_clients[row["client"]].append(row["at"])
        # The ensemble has lost its data and starts anew, and so do tokens. Until now the last of its servers granted.
        self.wiped = [row["at"] for row in self.by["wiped"]]
        self.holds = self._collect_holds()
        self.counts: Counter[str] = Counter(row["outcome"] for row in self.by["done"])
        self.counts["calls"] = len(self.calls)
        self.counts["holds"] = len(self.by["begin"])
        self.counts["diverged"] = len(self.by["diverged"])
        self.counts["faults"] = len(self.by["fault"])

    def check(self) -> list[Finding]:
        """Return all that is wrong, in the order of time."""
        rules = [
            self._overlaps, self._limits, self._tokens, self._queues, self._nested, self._coalesced, self._outcomes,
            self._bodies, self._stuck, self._remains, self._errors,
        ]  # fmt: skip
        return sorted((found for rule in rules for found in rule()), key=lambda found: found.at)

    def _collect_holds(self) -> dict[str, list[Hold]]:
        """Return by key, in the order of their beginning, the holds, and when each was certain."""
        sure: dict[str, float] = {}
        for row in self.rows:
            if row["what"] == "sure":
                sure[row["call"]] = row["at"]
            elif row["what"] == "end":
                sure[row["call"]] = row["sure"]
        over = {row["call"]: row["at"] for row in self.by["end"]}
        # A worker's main process holds the locks of its children, and releases that of one that was killed.
        mains: dict[int, int] = {row["pid"]: row["main"] for row in self.by["child"]}
        killed = {row["child"]: row["at"] for row in self.by["child_killed"]}
        found: dict[str, list[Hold]] = defaultdict(list)
        for row in self.by["begin"]:
            if row["lost"]:
                continue
            process: int = row["pid"]
            for key, token in row["tokens"].items():
                hold = Hold(
                    began=row["at"],
                    sure=max(sure.get(row["call"], row["at"]), row["at"]),
                    over=over.get(row["call"], killed.get(process, math.inf)),
                    process=mains.get(process, process),
                    call=row["call"],
                    key=key,
                    kind=row["kind"],
                    limit=row["limit"],
                    token=token,
                    node=row["node"],
                )
                found[key].append(hold)
        for holds in found.values():
            # Of two that begin at one moment, either may have been the first.
            holds.sort(key=lambda hold: (hold.began, hold.token))
        return found

    def _generation(self, at: float) -> int:
        return sum(wiped <= at for wiped in self.wiped)

    def _present(self, holds: list[Hold]) -> Iterator[tuple[Hold, list[Hold]]]:
        """Return each hold with those that are certain when it begins."""
        inside: list[Hold] = []
        for hold in holds:
            inside = [each for each in inside if each.sure > hold.began]
            # A hold of a moment may have been before one that begins at this moment.
            yield hold, [each for each in inside if hold.sure > hold.began or each.began < hold.began]
            inside.append(hold)

    def death(self, call: Row) -> float:
        """Return when the process of a call was killed after it had begun; infinity if it was not."""
        deaths = [at for at in self._killed_clients[call["client"]] if at >= call["at"]]
        own: float = self._killed.get(call["pid"], math.inf)
        return min([*deaths, own])

    # Safety.

    def _overlaps(self) -> Iterator[Finding]:
        """Two that exclude each other are never certain at the same time."""
        for hold, inside in itertools.chain.from_iterable(map(self._present, self.holds.values())):
            for other in inside:
                if hold.excludes(other):
                    together = min(hold.sure, other.sure) - hold.began
                    yield Finding("overlap", hold.began, f"{hold.key}: {hold} and {other} for {together:.3f} s")

    def _limits(self) -> Iterator[Finding]:
        """A holder of a semaphore is never one of more than its limit, nor of more than another one's."""
        for hold, inside in itertools.chain.from_iterable(map(self._present, self.holds.values())):
            leases = [each for each in [*inside, hold] if each.kind == "lease"]
            if hold.kind == "lease" and len(leases) > min(each.limit or 0 for each in leases):
                yield Finding("limit", hold.began, f"{hold.key}: {leases}")

    def _tokens(self) -> Iterator[Finding]:
        """Of two that exclude each other the later one has the larger token, and no token is given twice."""
        for key, holds in self.holds.items():
            newest: dict[tuple[int, str], Hold] = {}
            seen: dict[tuple[int, int], Hold] = {}
            for hold in holds:
                generation = self._generation(hold.began)
                for (other_generation, _kind), other in newest.items():
                    if other_generation == generation and hold.excludes(other) and other.token >= hold.token:
                        yield Finding("token", hold.began, f"{key}: {hold} after {other}")
                twin = seen.setdefault((generation, hold.token), hold)
                if twin is not hold:
                    yield Finding("token", hold.began, f"{key}: {hold} has the token of {twin}")
                best = newest.get((generation, hold.kind))
                if best is None or best.token < hold.token:
                    newest[generation, hold.kind] = hold

    def _queues(self) -> Iterator[Finding]:
        """A holder has a node, and none before it that it has to wait for.

        A row ``queue`` has the nodes that were there after its time, at two servers at least: they were read after a
        write. A node whose owner has released the lock stays until the server hears of it, and holds up every
        contender but the next one of its session.
        """
        looks = self.by["queue"]
        times = [row["at"] for row in looks]
        for key, holds in self.holds.items():
            # The nodes of a hold of several keys differ in their numbers alone.
            mine = {_stem(hold.node): hold for hold in holds if hold.node is not None}
            for stem, hold in mine.items():
                for row in looks[bisect_right(times, hold.began) : bisect_right(times, hold.sure)]:
                    nodes = sorted(row["queues"].get(key, []), key=_number)
                    stems = [_stem(name) for name in nodes]
                    if stem in stems:
                        before = [
                            name
                            for name, other in zip(nodes[: stems.index(stem)], stems, strict=False)
                            if not _is_passed_on(mine.get(other), hold)
                        ]
                        if blockers := _blockers(before, hold):
                            yield Finding("overtaken", row["at"], f"{key}: {hold} holds behind {blockers}")
                    elif row["servers"] > 1 and hold.sure >= row["until"]:
                        yield Finding("gone", row["at"], f"{key}: {hold} has no node")

    def _nested(self) -> Iterator[Finding]:
        """A hold inside a hold has the same node and token."""
        tokens = {row["call"]: row["tokens"] for row in self.by["begin"]}
        for row in self.by["nested"]:
            if not row["same"] or row["tokens"] != tokens.get(row["call"], row["tokens"]):
                yield Finding("nested", row["at"], f"{self.calls[row['call']]}: {row}")

    # Liveness.

    def _coalesced(self) -> Iterator[Finding]:
        """A call that was skipped is followed by a run of its function, for a call that waited then.

        If that one could not wait any longer, or was ended by force, no call runs. A node of a process that has died,
        or of a lost connection, counts as one that waits, until its session ends.
        """
        faults = self._disturbances()
        began = {row["call"]: row["at"] for row in self.by["begin"]}
        same: dict[tuple[str, str], list[Row]] = defaultdict(list)
        for call in self.calls.values():
            same[call["do"], call["keys"][0]].append(call)
        for name, done in self.done.items():
            call = self.calls[name]
            if done["outcome"] != "skipped":
                continue
            self.counts["coalesced"] += 1
            alike = same[call["do"], call["keys"][0]]
            until = waiters_until(
                done["at"],
                (
                    (each["at"], ended["at"])
                    for each in alike
                    if (ended := self.done.get(each["call"])) is not None and ended["outcome"] == "skipped"
                ),
            )
            earlier = [each for each in alike if each["at"] < until]
            if any(began.get(each["call"], -math.inf) > call["at"] for each in earlier):
                continue
            if any(
                each["call"] not in began and undisturbed(faults, self._gave_up(each), call["at"]) < STALE
                for each in reversed(earlier)
            ):
                self.counts["coalesced for one that gave up"] += 1
            else:
                yield Finding("coalesced", done["at"], f"{call} was skipped, and nobody has run for it")

    def _gave_up(self, call: Row) -> float:
        """Return when a call that has not run ended otherwise than because it was not to run."""
        done = self.done.get(call["call"])
        if done is None:
            return self.death(call)
        return -math.inf if done["outcome"] == "skipped" else float(done["at"])

    def _outcomes(self) -> Iterator[Finding]:
        """Each call ends as it may, and not before nor long after its time."""
        began: dict[str, float] = {row["call"]: row["at"] for row in self.by["begin"]}
        faults = self._disturbances()
        for name, done in self.done.items():
            call = self.calls[name]
            took, outcome, timeout = done["at"] - call["at"], done["outcome"], call["timeout"]
            about = f"{call} ended after {took:.2f} s as {outcome}: {done['text']}"
            allowed = outcome in EXPECTED
            allowed = allowed and (outcome != "LockTimeout" or (timeout is not None and call["do"] != "try"))
            allowed = allowed and (outcome != "skipped" or call["keys"][0].startswith("c"))
            allowed = allowed and (outcome != "taken" or call["do"] == "try")
            if not allowed:
                yield Finding("outcome", done["at"], about)
            elif (
                outcome in {"LockLost", "ZooKeeperUnavailable"}
                # To connect, and to answer, may take so long on a busy machine.
                and (outcome == "LockLost" or timeout is None or timeout > BRIEF)
                and not any(
                    victim in {call["client"], *SERVERS} and since <= done["at"] and until + BELATED >= call["at"]
                    for victim, since, until in faults
                )
            ):
                yield Finding("outcome", done["at"], f"{about}, and nothing was wrong")
            elif outcome == "LockTimeout" and took < timeout * 0.99 - 0.001:
                yield Finding("early", done["at"], about)
            else:
                # The body takes as long as it likes.
                ended: float = done["at"]
                decided = began.get(name, ended) if outcome in {"held", "LockLost"} else ended
                if self._is_late(call, decided):
                    yield Finding("late", decided, about)

    def _is_late(self, call: Row, decided: float) -> bool:
        """Whether ``call`` was without its lock long after its time, while its process was not stopped."""
        # A client is stopped together with what it has forked.
        client_of = {row["pid"]: row["client"] for row in self.by["client"]}
        away = sum(
            max(0.0, min(row["until"], decided) - max(row["at"], call["at"]))
            for row in self.by["stopped"]
            if client_of.get(row["victim"]) == call["client"]
        )
        return call["timeout"] is not None and decided - call["at"] > call["timeout"] + away + LATE

    def _bodies(self) -> Iterator[Finding]:
        """A holder has run the body to its end and has not lost the lock, and a call without it has not run."""
        for row in self.by["begin"]:
            if row["call"] in self.calls and not row["tokens"]:
                yield Finding("body", row["at"], f"{self.calls[row['call']]} has run without a lock")
        began = {row["call"] for row in self.by["begin"]}
        ended = {row["call"] for row in self.by["end"] if not row["lost"]}
        for name, done in self.done.items():
            if (done["outcome"] == "held" and name not in ended) or (done["outcome"] in WITHOUT_BODY and name in began):
                yield Finding("body", done["at"], f"{self.calls[name]} ended as {done['outcome']}")

    def faults(self) -> list[tuple[str, float, float]]:
        """Return of each fault what it hit, and from when until when."""
        ends = {(row["fault"], row["began"]): row["at"] for row in self.by["mended"]}
        return [(row["victim"], row["at"], ends.get((row["fault"], row["at"]), math.inf)) for row in self.by["fault"]]

    def _disturbances(self) -> list[tuple[str, float, float]]:
        """Return the same with the times when the machine was too busy, which hits the servers too."""
        starved = [("leader", row["at"], row["until"]) for row in self.by["starved"]]
        return sorted([*self.faults(), *starved], key=lambda each: each[1])

    def _stuck(self) -> Iterator[Finding]:
        """Each call of a process that lives has ended when all has settled, and has got its lock or not in its time."""
        began = {row["call"] for row in self.by["begin"]}
        for name, call in self.calls.items():
            if name in self.done:
                continue
            death = self.death(call)
            if death == math.inf or (name not in began and self._is_late(call, death)):
                yield Finding("stuck", call["at"], f"{call} has not ended")

    # What is left.

    def _remains(self) -> Iterator[Finding]:
        """Nothing is left in ZooKeeper after all turns, nor in a process after its sessions were closed."""
        for row in self.by["left"]:
            yield Finding("left", row["at"], f"{row['kind']}: {row['name']}")
        began = {row["pid"]: row for row in self.by["client"]}
        for row in self.by["closed"]:
            left: dict[str, int] = dict(row["objects"])
            left["threads"] = len([name for name in row["threads"] if name.startswith("zklock")])
            left["sockets"] = row["sockets"]
            # Its journal is one more than it had in the beginning.
            left["descriptors"] = max(0, row["descriptors"] - began[row["pid"]]["descriptors"] - 1)
            left["KB of memory"] = max(0, row["rss"] - began[row["pid"]]["rss"] - GROWTH)
            for what, count in left.items():
                if count:
                    yield Finding("left", row["at"], f"{row['client']} has {count} {what} left")

    def _errors(self) -> Iterator[Finding]:
        """What the harness has found at once, and what the package says of itself."""
        for row in self.by["error"]:
            yield Finding("error", row["at"], row["text"])
        for row in self.by["event"]:
            if row["error"]:
                yield Finding("error", row["at"], f"{row['client']} has logged {row['text']}")


def undisturbed(faults: Iterable[tuple[str, float, float]], since: float, until: float) -> float:
    """Return for how many seconds no server had a fault: without a majority no session ends, however long that takes.

    ``faults`` are those of :meth:`Checker.faults`, in the order of their beginning.
    """
    seconds, at = 0.0, since
    for victim, began, ended in faults:
        if victim in SERVERS and began < until:
            seconds, at = seconds + max(0.0, began - at), max(at, ended)
    return seconds + max(0.0, until - at)


def waiters_until(at: float, skipped: Iterable[tuple[float, float]]) -> float:
    """Return before which moment a call has come that is to run for one that was skipped at ``at``.

    ``skipped`` says of all calls that were skipped when they came and ended. T1 is skipped for T2, and T2, whose
    session ends, for T3, which came after the end of T1.
    """
    for came, ended in sorted(skipped):
        if came < at < ended:
            at = ended
    return at


def _number(name: str) -> int:
    return int(name[-10:])


def _stem(node: str) -> str:
    """Return what is the same in the names of all nodes of a hold."""
    return node.rpartition("/")[2][:-10]


def _is_passed_on(before: Hold | None, hold: Hold) -> bool:
    """Return whether the hold before another one had ended in the same process when that began."""
    return before is not None and before.process == hold.process and before.over <= hold.began


def _blockers(before: list[str], hold: Hold) -> list[str]:
    """Return the nodes before that of a hold for which it has to wait."""
    leases = [name for name in before if _kind(name) == "lease"]
    found = [name for name in before if excludes(_kind(name), hold.kind)]
    return found + leases if hold.kind == "lease" and len(leases) >= (hold.limit or 0) else found


def _kind(name: str) -> str:
    return next(kind for ending, kind in KINDS.items() if _stem(name).endswith(ending))
