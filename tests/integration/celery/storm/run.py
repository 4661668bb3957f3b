"""One storm from its beginning to its end."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
import time
import uuid
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from .faults import Faults
from .journal import Row
from .model import Model
from .plan import Plan, Send, draw
from .scene import SESSION_TIMEOUT, SLOTS, Scene, StormWorker

WORKERS_A_BROKER = 2
# Seconds until all tasks have ended, and until nothing is left.
SETTLE_TIMEOUT = 240.0
REMAINS_TIMEOUT = 60.0
PROBE_TIMEOUT = 60.0
# Interval of the inspections of a worker during the storm, and the limit for its reply, in seconds.
WATCH_INTERVAL, ANSWER_TIMEOUT = 2.0, 12.0
# The number of wrong tasks that are printed in full.
MAX_TIMELINES = 10
# Figures that are the same whenever a worker is idle.
_COMPARED = (
    "processes", "free_slots", "slots", "reserved", "active", "scheduled", "requests",
    "jobs", "threads",
)  # fmt: skip
# Celery and redis-py open these when they need them, and keep them: the numbers differ between workers.
_MORE_DESCRIPTORS = {"broker": 8, "anon_inode": 4}
# billiard keeps the pipes of a process that the pool has given up.
_PIPES_OF_A_PROCESS = 6
# Descriptors that billiard may leave of children that were killed while they started.
_PIPES_OF_THE_KILLED = 2


@dataclass
class Report:
    """The outcome of a storm."""

    wrong: list[tuple[str, str]]
    counts: dict[str, int]
    lines: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return "\n".join(self.lines)


def storm(seed: int, seconds: float, *, rate: float, gate: bool, log: Path | None) -> Report:
    """Run the storm of ``seed`` for ``seconds`` with ``rate`` tasks a second, and judge it."""
    plan = draw(seed, seconds, rate=rate, workers=2 * WORKERS_A_BROKER, session_timeout=SESSION_TIMEOUT)
    with Scene(gate=gate, workers_a_broker=WORKERS_A_BROKER) as scene:
        run = Run(scene, plan)
        try:
            run.warm_up()
            run.rage()
            run.settle()
            # A worker that was restarted last may not have had a lock, and so has fewer threads than before.
            run.probe()
            run.look_for_remains()
        finally:
            rows = run.collect()
            write_log(log, rows)
            if log is not None:
                for worker in scene.workers:
                    shutil.copy(worker.process.log, log.with_suffix(f".{worker.number}.log"))
        logs = {f"worker {each.number}, {each.broker}": each.process.log_tail(15) for each in scene.workers}
        return judge(rows, run.wrong, logs if run.wrong else {}, log)


def judge(rows: list[Row], wrong: list[tuple[str, str]], logs: dict[str, str], log: Path | None) -> Report:
    """Judge the journal; ``wrong`` has the findings of the run itself."""
    model = Model(rows, 2 * WORKERS_A_BROKER)
    report = Report(wrong=wrong + model.judge(), counts=dict(model.counts))
    report.lines = [*_describe(report, model, log), *(f"{name}:\n{tail}" for name, tail in logs.items())]
    return report


def write_log(log: Path | None, rows: list[Row]) -> None:
    """Write all rows to a file, one per line."""
    if log is not None:
        log.write_text("".join(f"{json.dumps(row)}\n" for row in rows))


def read_log(log: Path) -> list[Row]:
    """Return the rows of a file."""
    return [json.loads(line) for line in log.read_text().splitlines()]


class Run:
    """The steps of one storm."""

    def __init__(self, scene: Scene, plan: Plan) -> None:
        self._scene = scene
        self._plan = plan
        self._faults = Faults(scene)
        self._before: dict[int, dict[str, Any]] = {}
        self._sent: list[str] = []
        self.wrong: list[tuple[str, str]] = []

    def warm_up(self) -> None:
        """Let each worker load and connect what it needs and lose its connection once, and store its state then."""
        self.probe()
        for worker in self._scene.workers:
            # The main process itself stores the expiry.
            sender = self._scene.senders[worker.broker]
            sender.send("storm.meet", ["", 0], worker.own_queue, self._scene.note, expires=-1.0)
        self._faults.cut_connections()
        self.probe()
        for worker in self._scene.workers:
            # It makes a connection to send its first reply.
            self._scene.ask(worker, "storm_state")
            self._before[worker.number] = self._scene.ask(worker, "storm_state")

    def rage(self) -> None:
        """Send all tasks and begin all faults, each at its time."""
        began = time.monotonic()
        revocations: list[tuple[float, str, Send]] = []
        sends, faults = list(self._plan.sends), list(self._plan.faults)
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(over,), name="watcher", daemon=True)
        watcher.start()
        self._scene.note("storm", seed=self._plan.seed, seconds=self._plan.seconds, gate=self._scene.gate)
        while sends or faults or revocations:
            now = time.monotonic() - began
            if faults and faults[0].at <= now:
                self._faults.strike(faults.pop(0))
            elif revocations and revocations[0][0] <= now:
                _, task, send = revocations.pop(0)
                self._revoke(task, send)
            elif sends and sends[0].at <= now:
                send = sends.pop(0)
                task = self._send(send)
                if send.revoked is not None:
                    revocations.append((now + send.revoked, task, send))
                    revocations.sort(key=lambda each: each[0])
            else:
                time.sleep(0.005)
        self._scene.note("sent")
        self._faults.calm()
        over.set()
        watcher.join()
        self.wrong += [("", error) for error in self._faults.errors]
        self._scene.note("calm")

    def _watch(self, over: threading.Event) -> None:
        """Inspect each worker in turn, unless a fault prevents a reply; a silent one writes its stack to the log."""
        for worker in itertools.cycle(self._scene.workers):
            if over.wait(WATCH_INTERVAL):
                return
            if worker.guard.acquire(blocking=False):
                try:
                    self._scene.supervise(worker)
                    self._scene.ask(worker, "storm_state", ANSWER_TIMEOUT)
                finally:
                    worker.guard.release()

    def _send(self, send: Send) -> str:
        options = {"countdown": send.countdown, "expires": send.expires, "priority": send.priority}
        sender = self._scene.senders[send.broker]
        task = sender.send(
            send.task,
            [list(send.keys), send.lasts, send.failures],
            self._scene.name,
            self._scene.note,
            **{name: value for name, value in options.items() if value is not None},
        )
        self._scene.note("send", id=task, send=asdict(send))
        self._sent.append(task)
        return task

    def _revoke(self, task: str, send: Send) -> None:
        self._scene.note("terminating" if send.terminate else "revoking", id=task)
        try:
            self._scene.senders[send.broker].app.control.revoke(task, terminate=send.terminate, signal="SIGKILL")
        except Exception as error:  # noqa: BLE001 - a revocation may be lost
            self._scene.note("not_revoked", id=task, error=repr(error))

    def settle(self) -> None:
        """Wait until the brokers have no messages and the workers are idle."""
        deadline = time.monotonic() + SETTLE_TIMEOUT
        quiet = 0
        left: dict[str, Any] = {}
        while quiet < 2:
            left = self._left()
            quiet = 0 if any(left.values()) else quiet + 1
            if time.monotonic() > deadline:
                self.wrong.append(("", f"the storm does not settle: {left}"))
                break
            time.sleep(1.5)
        self._scene.note("settled")

    def _left(self) -> dict[str, Any]:
        for worker in self._scene.workers:
            state = self._scene.ask(worker, "storm_state")
            if state is None:
                return {f"worker {worker.number}": "does not answer"}
            busy = {
                name: state[name] for name in ("reserved", "active", "scheduled", "requests", "jobs") if state[name]
            }
            if busy:
                return {f"worker {worker.number}": busy}
        return self._scene.unfinished_messages()

    def probe(self) -> None:
        """Check that each worker runs as many tasks at once as it has slots, with locks and without."""
        for name in ("storm.meet", "storm.meet_locked"):
            sent: list[tuple[StormWorker, str]] = []
            for worker in self._scene.workers:
                place = f"meet:{uuid.uuid4()}"
                for _ in range(SLOTS):
                    args = [place, SLOTS] if name == "storm.meet" else [f"probe-{uuid.uuid4()}", place, SLOTS]
                    sender = self._scene.senders[worker.broker]
                    sent.append((worker, sender.send(name, args, worker.own_queue, self._scene.note)))
            deadline = time.monotonic() + PROBE_TIMEOUT
            for worker, task in sent:
                while (meta := self._meta(task))["status"] not in {"SUCCESS", "FAILURE"}:
                    if time.monotonic() > deadline:
                        break
                    time.sleep(0.02)
                if meta["status"] != "SUCCESS" or meta["result"] is not True:
                    self.wrong.append(("", f"{name} of worker {worker.number}, {worker.broker}: {meta}"))

    def look_for_remains(self) -> None:
        """Check that nothing is left in ZooKeeper, and that each worker has its state from before the storm."""
        deadline = time.monotonic() + REMAINS_TIMEOUT
        while found := self._remains():
            if time.monotonic() > deadline:
                self.wrong += [("", each) for each in found]
                return
            time.sleep(1.0)

    def _remains(self) -> list[str]:
        found = [f"a node is left: {node}" for node in self._scene.held_nodes()]
        found += [f"a watch is left: {path}" for path in self._scene.watches()]
        for worker in self._scene.workers:
            before, now = self._before[worker.number], self._scene.ask(worker, "storm_state")
            if now is None:
                found.append(f"worker {worker.number} does not answer")
                continue
            self._scene.note("state", worker=worker.number, before=before, now=now)
            name = f"worker {worker.number}, {worker.broker}"
            found += [
                f"{name}: {what} was {before[what]} and is {now[what]}"
                for what in _COMPARED
                if before[what] != now[what]
            ]
            found += [f"{name}: {wrong}" for wrong in _wrong_counts(before, now)]
            allowed = _MORE_DESCRIPTORS | {"pipe": _PIPES_OF_A_PROCESS * worker.shrunk + _PIPES_OF_THE_KILLED}
            had, has = (self._scene.descriptors(worker, state) for state in (before, now))
            if any(count > had[what] + allowed.get(what, 0) for what, count in has.items()):
                found.append(f"{name}: descriptors were {had} and are {has}")
        return found

    def _meta(self, task: str) -> dict[str, Any]:
        meta: dict[str, Any] = self._scene.results.backend.get_task_meta(task, cache=False)
        return meta

    def collect(self) -> list[Row]:
        """Return all rows, with the result of each task."""
        for task in self._sent:
            self._scene.note("stored", id=task, status=self._meta(task)["status"])
        return self._scene.journal()


def _wrong_counts(before: dict[str, Any], now: dict[str, Any]) -> Iterator[str]:
    """Return what an idle worker has counted wrong."""
    # After a reconnect Celery counts up again from a lower number, and loses countdowns, also without the gate.
    if not SLOTS <= now["prefetch"] <= before["prefetch"]:
        yield f"the prefetch count was {before['prefetch']} and is {now['prefetch']}"
    gate = now["gate"]
    if gate is not None:
        if gate["prefetch"] != now["prefetch"]:
            yield f"the broker may deliver {gate['prefetch']} messages, and Celery asks for {now['prefetch']}"
        yield from (f"the gate has {gate[what]} {what}" for what in ("waiting", "running", "scoreboard") if gate[what])


def _describe(report: Report, model: Model, log: Path | None) -> Iterator[str]:
    (storm,) = (row for row in model.rows if row["what"] == "storm")
    zero = storm["at"]
    yield f"seed {storm['seed']}, {storm['seconds']:g} s, {len(model.sends)} tasks, log {log}"
    yield "  " + ", ".join(f"{name}: {count}" for name, count in sorted(report.counts.items()))
    faults = [row for row in model.rows if row["what"] == "fault" and row["at"] > zero]
    yield "faults: " + "; ".join(
        f"{row['at'] - zero:.1f} {row['fault']} of {row['worker']} for {row['lasts']:.1f}" for row in faults
    )
    states = {row["worker"]: row["now"] for row in model.rows if row["what"] == "state" and row["now"]}
    yield from (f"gate of worker {number}: {state['gate']}" for number, state in states.items() if state["gate"])
    yield f"{len(report.wrong)} wrong"
    shown: set[str] = set()
    for task, what in report.wrong:
        yield f"- {task} {what}"
        if task and task not in shown and len(shown) < MAX_TIMELINES:
            shown.add(task)
            yield from model.timeline(task, zero)
