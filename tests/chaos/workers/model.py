"""The possible ends of each task, given the journal of the workers.

Each rule is a method that yields what is wrong. The rules know what Celery and kombu do by themselves:

- A message is delivered again if its worker disconnects or dies before it has acknowledged it, if the message is
  rejected to be requeued, and with Redis if it is not acknowledged within the visibility timeout. Each of these
  happens once to one delivery.
- A task that is acknowledged early is lost with its worker, and has failed if its child is killed.
- kombu removes a message from Redis before it stores it as delivered: a message on its way to a worker is lost when the
  connection is lost or the worker dies.
- If the connection is lost while a task is sent again for a retry, the task fails.
- A worker can end when a child is killed while the worker connects again.
- RabbitMQ drops a message that expires in a queue, and the task has no stored end.
"""

from __future__ import annotations

import itertools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from tests.chaos.checker import SERVERS, STALE, undisturbed, waiters_until
from tests.chaos.history import Row

from .plan import REDIS, RETRY_TIMEOUT, TIMEOUT, Send
from .workers import CONNECT_TIMEOUT, FAREWELL, MAX_WAIT, SLOTS, VISIBILITY_TIMEOUT, names

Message = tuple[str, int, int]

READY = {"SUCCESS", "FAILURE", "REVOKED"}
# Our files in a stack or a traceback; the checkout may have the same name.
OWN_FRAME = re.compile(r"/django_zklock/(contrib/|zk/|calls|locks|locked_call|api)")
# Whatever waits in our code is called from there by way of so many others: deeper, it is Celery's or kombu's that wait.
WAITING_FRAMES = 4
# Seconds without a row after which an event loop counts as hanging.
STILL = 5.0
# Seconds between two rows, written once a second, by which half of a worker's session was over before it ran again.
LATE_BEAT = 2.0
# Published by this program, and by a worker.
PUBLICATIONS = {"publish", "attempt"}
# Of children, and of workers with theirs.
ENDS_OF_PROCESSES = ("child_killed", "terminating", "pool_shrink", "worker_gone")
# Seconds before the loss of a connection within which an acknowledgement may be lost with it.
ON_ITS_WAY = 3.0
# Seconds that a worker may take to act on the end of a child or of a connection.
BELATED = 20.0
# Seconds from the reception of a message until its task has begun or given up, or is returned: with the gate, stopped
# and on a busy machine.
LONGEST_WAIT = 45.0
# What a child says when its main process has no record of its hold any more.
GIVEN_UP = "main process no longer holds it"
LOCK_ERRORS = {
    "LockConflict": {"raise", "retry"},
    "LockTimeout": {"timeout"},
    "LockLost": {"wait", "timeout", "raise", "skip", "retry", "coalesce"},
    "ZooKeeperUnavailable": {"wait", "timeout", "raise", "skip", "retry", "coalesce"},
}


@dataclass
class Delivery:
    """One delivery of a message to the worker whose main process is ``main``."""

    at: float
    main: int
    acked: float | None = None
    # When and why it went back to its queue, or may have gone back.
    returns: list[tuple[float, str]] = field(default_factory=list)


class Model:
    """Judges a season of the workers by what was written down; holds are for the rules that all clients have."""

    def __init__(self, rows: list[Row]) -> None:
        self.rows = rows
        (start,) = (row for row in rows if row["what"] == "sends")
        self._began = start["at"]
        self._gate = start["gate"]
        self.sends = {row["id"]: Send.of(row["send"]) for row in rows if row["what"] == "send"}
        # The results of all tasks.
        self._stored = {row["id"]: row["status"] for row in rows if row["what"] == "stored"}
        self._slots = start["workers"] * SLOTS
        self.by_task: dict[str, list[Row]] = defaultdict(list)
        self._what: dict[str, list[Row]] = defaultdict(list)
        for row in rows:
            self._what[row["what"]].append(row)
            if row.get("id") in self.sends:
                self.by_task[row["id"]].append(row)
        self._broker_of_main = {
            row["main"]: self.sends[row["id"]].broker for row in self._what["received"] if row["id"] in self.sends
        }
        self._worker_of_main = {row["main"]: row["worker"] for row in self._what["main"]}
        self._beats: dict[int, list[float]] = defaultdict(list)
        for row in self._what["beat"]:
            self._beats[row["main"]].append(row["at"])
        self.counts: Counter[str] = Counter()
        self._deliveries = self._collect_deliveries()

    def judge(self) -> list[tuple[str, str]]:
        """Return what is wrong, each finding with the id of its task or an empty text."""
        rules = [
            self._ended, self._outcomes, self._deliveries_explained, self._runs_explained, self._returns_explained,
            self._countdowns, self._grants, self._acknowledged, self._given_up, self._coalesced, self._outages,
            self._deaths, self._stuck, self._kept,
        ]  # fmt: skip
        return [found for rule in rules for found in rule()]

    # The course of each message.

    def _collect_deliveries(self) -> dict[Message, list[Delivery]]:
        found: dict[Message, list[Delivery]] = defaultdict(list)
        disconnected: dict[int, list[float]] = defaultdict(list)
        died: dict[int, float] = {}
        cuts: dict[str, list[Row]] = defaultdict(list)
        for row in self._what["cut"]:
            cuts[row["broker"]].append(row)
        for row in self.rows:
            if row["what"] == "disconnected":
                disconnected[row["main"]].append(row["at"])
            elif row["what"] in {"worker_killed", "worker_gone"}:
                died.setdefault(row["main"], row["at"])
            elif row.get("id") in self.sends and row["what"] == "received":
                found[_message(row)].append(Delivery(row["at"], row["main"]))
            elif row.get("id") in self.sends and row["what"] in {"ack", "reject"}:
                mine = [each for each in found[_message(row)] if each.main == row["main"]]
                if mine and row["what"] == "ack":
                    mine[-1].acked = row["at"]
                elif mine and row["requeue"]:
                    # After a redelivery a task has two messages that look alike. A worker with both returns the older.
                    since = max(disconnected[row["main"]], default=0.0)
                    open_ = [each for each in mine if each.at > since and each.acked is None and not each.returns]
                    (open_ or mine[-1:])[0].returns.append((row["at"], "rejected"))
        # Celery does not report the reception of a revoked task.
        found = {message: deliveries for message, deliveries in found.items() if deliveries}
        for message, deliveries in found.items():
            for each in deliveries:
                acked = math.inf if each.acked is None else each.acked
                ends = [at for at in disconnected[each.main] if at >= each.at]
                ends += [died[each.main]] if each.main in died else []
                # The broker has it back at once, whenever the worker notices.
                ends += [cut["at"] for cut in cuts[self.sends[message[0]].broker] if cut["until"] >= each.at]
                if ends and acked > min(ends) - ON_ITS_WAY:
                    # The message is on its way before the worker has written the reason.
                    each.returns.append((max(each.at, min(ends) - BELATED), "disconnected"))
                visible = each.at + VISIBILITY_TIMEOUT
                if self.sends[message[0]].broker == REDIS and acked > visible - ON_ITS_WAY:
                    each.returns.append((visible - ON_ITS_WAY, "visible again"))
        return found

    def _published(self, message: Message) -> int:
        """Return how many times a message may have been published."""
        rows = [row for row in self.by_task[message[0]] if _is_message(row, message)]
        count = len([row for row in rows if row["what"] in PUBLICATIONS])
        # kombu repeats an interrupted publication, and this program does not note its own.
        ended = max((row["at"] for row in rows if row["what"] == "published"), default=0.0)
        broker = self.sends[message[0]].broker
        began = min(row["at"] for row in rows)
        cuts = [row for row in self._what["cut"] if row["broker"] == broker]
        return count + len([cut for cut in cuts if cut["at"] <= ended and cut["until"] >= began])

    # The rules.

    def _ended(self) -> Iterator[tuple[str, str]]:
        """Each task has an end."""
        for task in self.sends:
            status = self._stored[task]
            if any(_is_final(row) for row in self.by_task[task]):
                self.counts[f"stored {status}"] += 1
                continue
            if status in READY:
                # The result of a child is stored before its row is written.
                self.counts["ended by the backend alone"] += 1
                came = self.by_task[task][0]["at"]
                if not any(row["at"] > came for what in ENDS_OF_PROCESSES for row in self._what[what]):
                    yield task, f"has not run (stored: {status})"
                continue
            last = max(
                (_message(row) for row in self.by_task[task] if row["what"] in PUBLICATIONS), key=lambda each: each[1:]
            )
            explanation = self._explain_loss(last)
            if explanation is None:
                yield task, f"has not ended (stored: {status})"
            else:
                self.counts[f"lost: {explanation}"] += 1

    def _explain_loss(self, message: Message) -> str | None:
        send, deliveries = self.sends[message[0]], self._deliveries.get(message, [])
        ends = {row["main"]: row["at"] for row in self._what["worker_gone"]}
        # The gate has it acknowledged when it begins.
        longest = LONGEST_WAIT if self._gate else math.inf
        if not send.late and any(
            each.acked is not None and each.acked < ends.get(each.main, 0) < each.acked + longest for each in deliveries
        ):
            return "acknowledged early, and its worker ended"
        if not all(each.returns for each in deliveries):
            return None
        if send.broker != REDIS:
            # The broker knows when a message expires, and drops it; Celery stores no end of the task then.
            return None if send.expires is None else "expired in RabbitMQ"
        since = max(
            [at for each in deliveries for at, _ in each.returns]
            + [row["at"] for row in self.by_task[message[0]] if row["what"] in PUBLICATIONS]
        )
        broken = [
            row for what in ("disconnected", "worker_killed") for row in self._what[what]
            if row["at"] > since - 1.0 and self._broker_of_main.get(row["main"], REDIS) == REDIS
        ]  # fmt: skip
        return "on its way from Redis when the connection broke" if broken else None

    def _outcomes(self) -> Iterator[tuple[str, str]]:
        """Each end is allowed by the policy of the task."""
        for task, send in self.sends.items():
            for row in self.by_task[task]:
                if row["what"] == "revoked":
                    self.counts["expired" if row["expired"] else "revoked"] += 1
                    if (send.expires if row["expired"] else send.revoked) is None:
                        yield task, f"was revoked, which nobody asked for: {row}"
                elif row["what"] == "failed" and row["error"] == "WorkerLostError":
                    self.counts["failed with their child"] += 1
                    if send.late:
                        yield task, f"has failed with its child instead of being delivered again: {row['text']}"
                elif row["what"] == "failed" and row["error"] == "Reject" and self._was_cut(send, row):
                    self.counts["failed to be sent again"] += 1
                elif row["what"] == "failed":
                    yield task, f"has failed in the main process: {row['error']}: {row['text']}"
                elif row["what"] == "finished":
                    self.counts[f"done {send.policy} {row['error'] or _skipped(row) or row['state']}"] += 1
                    wrong = self._wrong_end(send, row)
                    if wrong:
                        yield task, wrong

    def _wrong_end(self, send: Send, row: Row) -> str | None:
        if row["state"] == "RETRY":
            return None if send.failures or send.policy == "retry" else "retries, and nobody asked for that"
        if row["state"] == "FAILURE":
            return self._wrong_failure(send, row)
        if row["state"] != "SUCCESS":
            # The pool has ended the child, or the retry could not be sent.
            explained = {None: self._was_shrunk(row), "REJECTED": self._was_cut(send, row)}
            return None if explained.get(row["state"]) else f"has ended as {row['state']}: {row['text']}"
        reason = _skipped(row)
        if reason is None:
            ran = {int(each["began"] * 1000): each for each in self.by_task[row["id"]] if each["what"] == "end"}
            if row["result"] not in ran:
                return f"has a result without a body: {row['result']}"
            lost = ran[row["result"]]["lost"]
            return "has a result though its lock was lost" if lost and send.policy != "none" else None
        wanted = {"skip": "skipped conflict", "coalesce": "skipped coalesced"}.get(send.policy)
        # A coalesced task may meet its own earlier delivery as the holder, and is skipped for another that waits.
        itself = send.policy == "skip" and row["id"] in str(row["result"].get("holder"))
        return f"was skipped: {row['result']}" if itself or reason != wanted else None

    def _wrong_failure(self, send: Send, row: Row) -> str | None:
        error, text = row["error"], row["text"]
        if send.policy == "retry" and error not in LOCK_ERRORS and self._was_cut(send, row):
            return None
        if send.policy not in LOCK_ERRORS.get(error, set()):
            return f"has failed: {error}: {text}"
        if error == "LockConflict" and row["id"] in text:
            return f"gave way to itself: {text}"
        if error == "LockLost" and not self._was_hit(row):
            return f"has lost its lock, and nothing was wrong: {text}"
        limits = {("LockConflict", "retry"): RETRY_TIMEOUT, ("LockTimeout", "timeout"): TIMEOUT}
        waited = row["at"] - self.by_task[row["id"]][0]["at"]
        early = waited < limits.get((error, send.policy), 0.0) * 0.95
        last = max((each["at"] for each in self.by_task[row["id"]] if each["what"] == "received"), default=row["at"])
        late = error == "LockTimeout" and self._gate and row["at"] - last > TIMEOUT + LONGEST_WAIT
        return f"has given up after {waited:.1f} s: {text}" if early or late else None

    def _was_hit(self, row: Row) -> bool:
        """Return whether the servers or the worker had a fault or an end that the body of ``row`` may have noticed."""
        victims = {*SERVERS, names()[self._worker_of_main[row["main"]]]}
        began = min(each["at"] for each in self.by_task[row["id"]] if each["what"] in {"begin", "finished"})
        ends = [each for what in ("stopping", "worker_killed", "worker_gone") for each in self._what[what]]
        faults = [(each["at"], self._mended(each)) for each in self._what["fault"] if each["victim"] in victims]
        # The machine was too busy, for all or for this worker.
        faults += [(each["at"], each["until"]) for each in self._what["starved"]]
        beats = itertools.pairwise(self._beats[row["main"]])
        faults += [(earlier, later) for earlier, later in beats if later - earlier > LATE_BEAT]
        return any(since <= row["at"] and until + BELATED >= began for since, until in faults) or any(
            each["main"] == row["main"] and each["at"] <= row["at"] + BELATED for each in ends
        )

    def _was_shrunk(self, row: Row) -> bool:
        """Return whether the pool of this worker gave up a process at the time of ``row``."""
        worker = self._worker_of_main.get(row["main"])
        return any(
            each["worker"] == worker and abs(each["at"] - row["at"]) < BELATED for each in self._what["pool_shrink"]
        )

    def _was_cut(self, send: Send, row: Row) -> bool:
        """Return whether the task could not be sent again for a retry because its connection was lost."""
        return any(
            cut["broker"] == send.broker and cut["at"] <= row["at"] <= cut["until"] + BELATED
            for cut in self._what["cut"]
        )

    def _deliveries_explained(self) -> Iterator[tuple[str, str]]:
        """No message is delivered more often than it was published and put back."""
        for message, deliveries in self._deliveries.items():
            last = deliveries[-1].at
            returns = [why for each in deliveries for at, why in each.returns if at <= last]
            self.counts["deliveries"] += len(deliveries)
            self.counts["deliveries again"] += len(deliveries) - 1
            published = self._published(message)
            if len(deliveries) > published + len(returns):
                times = f"{len(deliveries)} times, published {published} times and put back {returns}"
                yield message[0], f"{message[1:]} was delivered {times}"

    def _runs_explained(self) -> Iterator[tuple[str, str]]:
        """No message runs more often than it was delivered."""
        for task in self.sends:
            runs = Counter(_message(row) for row in self.by_task[task] if row["what"] == "begin")
            for message, count in runs.items():
                self.counts["runs"] += count
                if count > 1:
                    self.counts["runs again"] += count - 1
                if count > len(self._deliveries.get(message, [])):
                    yield task, f"{message[1:]} has run {count} times"

    def _returns_explained(self) -> Iterator[tuple[str, str]]:
        """A worker returns a message when its child or itself ends, for want of a slot, or after half the limit."""
        losses = [row for what in ("child_killed", "terminating") for row in self._what[what]]
        ends = [row for what in ("stopping", "disconnected") for row in self._what[what]]
        spare: dict[str, list[Row]] = defaultdict(list)
        for row in self._what["no_slot"]:
            spare[row["id"]].append(row)
        for message, deliveries in self._deliveries.items():
            for each in deliveries:
                for at, why in each.returns:
                    if why != "rejected":
                        continue
                    self.counts["rejected"] += 1
                    lost = any(row["at"] <= at <= row["at"] + BELATED for row in losses)
                    ending = any(row["main"] == each.main and abs(row["at"] - at) < BELATED for row in ends)
                    lost = lost or self._was_shrunk({"main": each.main, "at": at})
                    if any(row["main"] == each.main and row["at"] <= at for row in spare[message[0]]):
                        self.counts["without a slot"] += 1
                        continue
                    if not lost and not ending and at - each.at < MAX_WAIT * 0.9:
                        yield message[0], f"was given back {at - each.at:.1f} s after its delivery"

    def _countdowns(self) -> Iterator[tuple[str, str]]:
        """No task begins before its time."""
        for task, send in self.sends.items():
            rows = self.by_task[task]
            began = min((row["at"] for row in rows if row["what"] == "begin"), default=math.inf)
            # Celery rounds to milliseconds.
            if send.countdown is not None and began < rows[0]["at"] + send.countdown - 0.01:
                yield task, f"began {began - rows[0]['at']:.2f} s after it was sent, countdown {send.countdown:.2f} s"

    def _grants(self) -> Iterator[tuple[str, str]]:
        """No body runs without its lock, nor gets one that is known to be lost."""
        for row in self._what["begin"]:
            if row.get("id") in self.sends and self.sends[row["id"]].policy != "none" and not row["tokens"]:
                yield row["id"], "has run without a lock"
        self.counts["bodies that began lost"] = sum(row["lost"] for row in self._what["begin"] if "id" in row)
        for row in self._what["acquired"]:
            if row["lost"]:
                yield "", f"a lock that is lost was given to a body: {row}"

    def _acknowledged(self) -> Iterator[tuple[str, str]]:
        """A message of a task that is acknowledged late is, when the task has ended or was published again."""
        for message, deliveries in self._deliveries.items():
            rows = self.by_task[message[0]]
            ends = [row["at"] for row in rows if row["what"] in {"finished", "failed", "revoked", "attempt"}]
            # A child may have stored the result, and be killed before it writes that down.
            bodies = {row["pid"]: row["at"] for row in rows if row["what"] == "end"}
            kills = self._what["child_killed"]
            ends += [row["at"] for row in kills if bodies.get(row["child"], math.inf) <= row["at"]]
            for each in deliveries:
                acked = each.acked if self.sends[message[0]].late else None
                # Of two deliveries to one worker the acknowledgement may be that of the first.
                came = min(other.at for other in deliveries if other.main == each.main)
                if acked is not None and not any(came <= at <= acked for at in ends):
                    yield message[0], "was acknowledged before it had ended"

    def _given_up(self) -> Iterator[tuple[str, str]]:
        """No main process gives up the hold of a body that runs, unless its worker ends."""
        ends = {row["main"] for what in ("stopping", "worker_gone") for row in self._what[what]}
        for row in self._what["finished"]:
            if row["error"] == "LockLost" and GIVEN_UP in row["text"] and row["main"] not in ends:
                yield row["id"], f"was given up under its body: {row['text']}"

    def _coalesced(self) -> Iterator[tuple[str, str]]:
        """After a task was skipped for a waiting one, the same body begins for one that waited, or that one fails."""
        faults = [(row["victim"], row["at"], self._mended(row)) for row in self._what["fault"]]
        alike: dict[tuple[str, tuple[str, ...]], list[str]] = defaultdict(list)
        for task, send in self.sends.items():
            if send.policy == "coalesce":
                alike[send.task, send.keys].append(task)
        for tasks in alike.values():
            came = {task: self.by_task[task][0]["at"] for task in tasks}
            skips = [(task, row["at"]) for task in tasks for row in self.by_task[task] if _is_skip(row)]
            for task, at in skips:
                since = max(row["at"] for row in self.by_task[task] if row["what"] in PUBLICATIONS and row["at"] < at)
                until = waiters_until(at, [(came[other], ended) for other, ended in skips])
                others = [self.by_task[other] for other in tasks if other != task and came[other] < until]
                if not any(_ran_or_failed(rows, since, faults) for rows in others):
                    yield task, "was skipped, and has not run for another one since it was sent"

    def _outages(self) -> Iterator[tuple[str, str]]:
        """While ZooKeeper is away, each slot fails no more than one task in a connect timeout."""
        failed = [row for row in self._what["finished"] if row["error"] == "ZooKeeperUnavailable"]
        bound = 0.0
        for row in self._what["fault"]:
            lasted = self._mended(row) - row["at"]
            if row["fault"].endswith(" stopped") and row["victim"] in names():
                bound += SLOTS * 2
            elif row["victim"] in names():
                bound += SLOTS * (lasted / CONNECT_TIMEOUT + 2)
            elif row["victim"] in {"leader", "follower"}:
                bound += self._slots * (lasted / CONNECT_TIMEOUT + 2)
        if len(failed) > bound:
            yield "", f"{len(failed)} tasks have failed because ZooKeeper was away, {bound:.0f} would be explained"

    def _deaths(self) -> Iterator[tuple[str, str]]:
        """Only killed children end, and a worker's end takes some time."""
        deaths = sum(len(self._what[what]) for what in ("child_killed", "terminating", "pool_shrink"))
        deaths += SLOTS * len(self._what["worker_killed"])
        failed = [row for row in self._what["failed"] if row["error"] == "WorkerLostError"]
        if len(failed) > deaths:
            yield "", f"{len(failed)} tasks have failed with their children, {deaths} children were killed"
        for row in self._what["ended"]:
            self.counts["workers that ended by themselves"] += 1
            if any(OWN_FRAME.search(line) for line in row["traceback"]):
                yield "", f"worker {row['worker']} has ended by itself: {row['traceback']}"

    def _stuck(self) -> Iterator[tuple[str, str]]:
        """No worker hangs in our code, and a warm shutdown ends unless the event loop hangs."""
        for row in self._what["silent"]:
            self.counts["silent workers"] += 1
            if any(OWN_FRAME.search(frame) for frame in row["stack"][:WAITING_FRAMES]):
                yield "", f"worker {row['worker']} does not answer: {row['stack']}"
        for row in self._what["farewell_too_long"]:
            stuck = self._stood_still(row["main"], row["at"] - FAREWELL, row["at"])
            if not stuck or any(OWN_FRAME.search(frame) for frame in row["stack"][:WAITING_FRAMES]):
                yield "", f"the warm shutdown of worker {row['worker']} did not end: {row['stack']}"

    def _stood_still(self, main: int, since: float, until: float) -> bool:
        """Return whether the event loop of ``main`` hung for a while then."""
        beats = [since, *(at for at in self._beats[main] if since <= at <= until), until]
        return any(later - earlier > STILL for earlier, later in itertools.pairwise(beats))

    def _kept(self) -> Iterator[tuple[str, str]]:
        """The gate keeps no message until Redis delivers it again, except messages that the pool has."""
        away = [
            (self._main_of_worker(row), row["at"], self._mended(row))
            for row in self._what["fault"]
            if row["fault"] in {"main stopped", "worker stopped"}
        ]
        for message, deliveries in self._deliveries.items() if self._gate else ():
            if self.sends[message[0]].policy == "none":
                continue
            begun = [row["at"] for row in self.by_task[message[0]] if row["what"] in {"begin", "handed_over"}]
            for each, following in itertools.pairwise(deliveries):
                end = each.at + VISIBILITY_TIMEOUT
                again = any(why == "visible again" for _, why in each.returns) and following.at >= end - ON_ITS_WAY
                stopped = any(main == each.main and since < end and until > each.at for main, since, until in away)
                stopped = stopped or self._stood_still(each.main, each.at, end)
                gone = any(why != "visible again" and at < end for at, why in each.returns)
                if again and not stopped and not gone and not any(each.at <= at < end for at in begun):
                    yield message[0], f"was kept for {following.at - each.at:.1f} s and not begun, then delivered again"

    def _mended(self, fault: Row) -> float:
        """Return when a fault has ended."""
        ends = [
            row["at"] for row in self._what["mended"] if (row["fault"], row["began"]) == (fault["fault"], fault["at"])
        ]
        return max(ends, default=float(fault["at"]))

    def _main_of_worker(self, fault: Row) -> Any:
        """Return the main process of the worker that a fault has hit."""
        mains = [
            row["main"]
            for row in self._what["main"]
            if names()[row["worker"]] == fault["victim"] and row["at"] <= fault["at"]
        ]
        return mains[-1] if mains else None

    def timeline(self, task: str, zero: float) -> list[str]:
        """Return all rows of a task as text, one line for each, with the seconds since ``zero``."""
        return [f"    {self.sends[task]}"] + [
            f"    {row['at'] - zero:8.3f} {row['what']} "
            + " ".join(f"{name}={value}" for name, value in row.items() if name not in {"at", "what", "id", "send"})
            for row in self.by_task[task]
        ]


def _message(row: Row) -> Message:
    return row["id"], row["retries"], row["conflicts"]


def _is_message(row: Row, message: Message) -> bool:
    return "retries" in row and _message(row) == message


def _is_skip(row: Row) -> bool:
    return row["what"] == "finished" and _skipped(row) is not None


def _ran_or_failed(rows: list[Row], since: float, faults: list[tuple[str, float, float]]) -> bool:
    """Return whether a task has begun since then, or else has failed without a run, or not ended.

    The node of a worker that has died waits until its session ends, even if the task has failed elsewhere before.
    """
    begun = [row["at"] for row in rows if row["what"] == "begin"]
    if any(at > since for at in begun):
        return True
    asked = max(row["at"] for row in rows if row["what"] in PUBLICATIONS)
    ends = [row for row in rows if _is_final(row)]
    failed = [row["at"] for row in ends if not _skipped(row) and row.get("state") != "SUCCESS"]
    waited = max(begun, default=0.0) < asked
    return not ends or (waited and any(undisturbed(faults, at, since) < STALE for at in failed))


def _is_final(row: Row) -> bool:
    return row["what"] in {"revoked", "failed"} or (row["what"] == "finished" and row["state"] in READY)


def _skipped(row: Row) -> str | None:
    result = row.get("result")
    return f"skipped {result['reason']}" if isinstance(result, dict) and result.get("zklock") == "skipped" else None
