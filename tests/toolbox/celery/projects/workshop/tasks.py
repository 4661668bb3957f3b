"""Tasks of every kind."""

from __future__ import annotations

import contextlib
import functools
import gc
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any

import redis
from billiard.connection import Connection
from celery import Task, chain, current_task, shared_task, signature
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from celery.result import allow_join_result
from celery.signals import task_success
from celery.worker.request import Request

from django_zklock import LockConflict, LockTimeout, current_lock, zk_lock, zk_locked
from django_zklock.connections import connections
from django_zklock.contrib.celery import RetryLater
from django_zklock.contrib.celery.gate.child import gates
from tests.toolbox.celery.projects.workshop.app import app, finalized
from tests.toolbox.timing import scaled

kept: list[Any] = []


@functools.cache
def board() -> redis.Redis:
    """Return the client of the database in which tasks and tests leave notes for each other."""
    # Some versions of the client have a timeout that is shorter than a waiting task.
    return redis.Redis.from_url(os.environ["WORKSHOP_BOARD"], decode_responses=True, socket_timeout=None)


def facts(**more: Any) -> dict[str, Any]:
    """Return the hold of the running task, and its own history."""
    held = current_lock()
    if held is not None:
        held.check()
    request = current_task.request
    return {
        "id": request.id,
        "key": held.key if held else None,
        "token": held.token if held else None,
        "waited": held.waited if held else None,
        "retries": request.retries,
        "conflicts": (request.headers or {}).get("zklock_conflicts", 0),
        "pid": os.getpid(),
        **more,
    }


def work(run: str) -> dict[str, Any]:
    """Do something that no other task may do at the same time, and leave a note of it."""
    together = board().incr(f"{run}:together")
    time.sleep(0.01)
    noted = facts(together=together)
    board().rpush(run, json.dumps(noted))
    board().decr(f"{run}:together")
    return noted


def stay(gate: str, limit: float = 60) -> dict[str, Any]:
    """Note that the body runs, and wait until the test ends it, or has failed."""
    board().rpush(f"{gate}:in", json.dumps(facts()))
    board().blpop([f"{gate}:out"], timeout=scaled(limit))
    return facts()


@shared_task
def count_finalized() -> dict[str, int]:
    """Collect the garbage, and return how the results of Celery were finalized."""
    gc.collect()
    return finalized


# Conflicts.


@shared_task
@zk_locked("{key}")
def contend(key: str, run: str) -> dict[str, Any]:
    return work(run)


@shared_task
@zk_locked("{key}", on_conflict=RetryLater(max_wait=60, delay=0.1, max_delay=0.3))
def come_back(key: str, run: str) -> dict[str, Any]:
    return work(run)


@shared_task
@zk_locked("{key}", on_conflict="retry", on_unavailable="retry")
def come_back_by_default(key: str) -> dict[str, Any]:
    return facts(outages=(current_task.request.headers or {}).get("zklock_outages", 0))


# One retry, after the whole maximum wait. The child of the first attempt says that there is a retry; if it says so when
# the retry has failed already, the task is never done. Celery keeps a success, and no failure.
FOR_A_WHILE = RetryLater(max_wait=scaled(1), delay=scaled(2), max_delay=scaled(2))


@zk_locked("{key}", on_conflict=FOR_A_WHILE)
@shared_task(autoretry_for=(Exception,), retry_kwargs={"countdown": 0.2, "max_retries": 5})
def come_back_for_a_while(key: str) -> dict[str, Any]:
    return facts()


@zk_locked("{key}", on_conflict=RetryLater(max_wait=60, delay=0.1, max_delay=0.2))
@shared_task(autoretry_for=(Exception,), retry_kwargs={"countdown": 0.2, "max_retries": 5})
def come_back_and_fail_once(key: str, fail_after: str) -> dict[str, Any]:
    if not board().get(fail_after):
        board().set(fail_after, "1")
        board().rpush(f"{fail_after}:in", "1")
        raise KeyError(fail_after)
    return facts()


@shared_task(autoretry_for=(Exception,), retry_kwargs={"countdown": 0.2, "max_retries": 5})
@zk_locked("{key}", on_unavailable=RetryLater(max_wait=60, delay=0.1, max_delay=0.3))
def outlast(key: str) -> dict[str, Any]:
    return facts(outages=(current_task.request.headers or {}).get("zklock_outages", 0))


@shared_task
@zk_locked("{key}", on_unavailable=FOR_A_WHILE)
def outlast_for_a_while(key: str) -> dict[str, Any]:
    return facts()


@shared_task
@zk_locked("{key}", on_conflict="skip")
def skip(key: str) -> dict[str, Any]:
    return facts()


@shared_task
@zk_locked("{key}", on_conflict="raise")
def refuse(key: str) -> dict[str, Any]:
    return facts()


@shared_task
@zk_locked("{key}", on_conflict="coalesce")
def coalesce(key: str) -> dict[str, Any]:
    return facts()


# Calls that are not sent while one waits. Tests send these themselves, see tests/integration/celery/test_unique.py.


@shared_task
@zk_locked("{key}", unique_until="start")
def once(key: str, gate: str) -> dict[str, Any]:
    return stay(gate)


@shared_task(acks_late=True, reject_on_worker_lost=True)
@zk_locked("{key}", unique_until="start")
def once_noted(key: str, run: str) -> None:
    board().rpush(run, json.dumps(facts(began=time.time())))
    time.sleep(0.05)


@shared_task
@zk_locked("{key}", unique_until="start", on_conflict="skip", on_unavailable="skip")
def once_or_skip(key: str, gate: str) -> dict[str, Any]:
    return stay(gate)


@shared_task
@zk_locked("{key}", unique_until="start", on_conflict="coalesce")
def once_or_coalesce(key: str, gate: str) -> dict[str, Any]:
    return stay(gate)


@shared_task
@zk_locked("{key}", unique_until="start", on_conflict=RetryLater(max_wait=60, delay=0.2, max_delay=0.5))
def once_or_later(key: str, gate: str) -> dict[str, Any]:
    return stay(gate)


def _made_by_a_factory(number: int) -> Any:
    @shared_task(name=f"workshop.tasks.made{number}")
    @zk_locked("{key}", on_conflict="coalesce")
    def made(key: str) -> dict[str, Any]:
        return facts(number=number)

    return made


made1, made2 = map(_made_by_a_factory, (1, 2))


@shared_task
@zk_locked("{key}", timeout=scaled(3), on_unavailable="run")
def give_up_or_run_without(key: str) -> dict[str, Any]:
    return facts()


@shared_task
@zk_locked("{key}", timeout=scaled(3))
def give_up(key: str) -> dict[str, Any]:
    return facts()


# Autoretry, with a delay: Celery may store the state of a retry after the result of the retried task.

TRY: dict[str, Any] = {"autoretry_for": (Exception,), "retry_kwargs": {"countdown": 0.2, "max_retries": 3}}


@shared_task(**TRY)  # type: ignore[untyped-decorator]
@zk_locked("{key}", on_conflict="raise")
def refuse_below(key: str, run: str) -> dict[str, Any]:
    return work(run)


@zk_locked("{key}", on_conflict="raise")
@shared_task(**TRY)  # type: ignore[untyped-decorator]
def refuse_above(key: str, run: str) -> dict[str, Any]:
    return work(run)


@shared_task(**TRY)  # type: ignore[untyped-decorator]
@zk_locked("{key}", timeout=scaled(1.0))
def time_out(key: str, run: str) -> dict[str, Any]:
    return work(run)


@shared_task(**TRY)  # type: ignore[untyped-decorator]
def time_out_inside(key: str, run: str) -> dict[str, Any]:
    board().incr(f"{run}:attempts")
    with zk_lock(key).acquire(scaled(1.0)):
        return work(run)


@shared_task(autoretry_for=(LockTimeout,), retry_kwargs={"countdown": 0.1, "max_retries": 50})
@zk_locked("{key}", timeout=0)
def time_out_by_name(key: str, run: str) -> dict[str, Any]:
    return work(run)


def fail_twice(key: str) -> dict[str, Any]:
    if current_task.request.retries < 2:
        raise ZeroDivisionError(key)
    return facts()


@shared_task(**TRY)  # type: ignore[untyped-decorator]
@zk_locked("{key}", on_conflict="skip")
def fail_twice_below(key: str) -> dict[str, Any]:
    return fail_twice(key)


@zk_locked("{key}", on_conflict="skip")
@shared_task(**TRY)  # type: ignore[untyped-decorator]
def fail_twice_above(key: str) -> dict[str, Any]:
    return fail_twice(key)


@shared_task(**TRY)  # type: ignore[untyped-decorator]
def handle_conflict_and_fail(key: str) -> dict[str, Any]:
    try:
        refusing = zk_locked(key, on_conflict="raise")(facts)
        refusing()
    except LockConflict:
        return fail_twice(key)
    raise AssertionError("there was no conflict")


@shared_task(bind=True, max_retries=2)
@zk_locked("{key}", on_conflict="skip")
def retry_itself(self: Any, key: str) -> dict[str, Any]:
    if self.request.retries < 2:
        raise self.retry(countdown=0.2)
    return facts()


# Ends.


@shared_task(bind=True)
@zk_locked(lambda self, key: f"{key}:{self.request.root_id}")
def rooted(self: Any, key: str) -> dict[str, Any]:
    return {**facts(), "root": self.request.root_id}


@shared_task(bind=True, max_retries=1)
@zk_locked(lambda self, key: f"{(self.request.headers or {}).get('tenant')}:{key}")
def of_tenant(self: Any, key: str) -> dict[str, Any]:
    """Retry once under the key of the tenant that the message names."""
    if not self.request.retries:
        raise self.retry(countdown=0.1)
    return facts()


@shared_task
@zk_locked("{key}")
def hold(key: str, gate: str) -> dict[str, Any]:
    return stay(gate)


@shared_task
@zk_locked("{key}", using=lambda key: "elsewhere" if key.endswith(":elsewhere") else "default")
def hold_by_key(key: str, gate: str) -> dict[str, Any]:
    return stay(gate)


@shared_task
@zk_locked("{shop}:{document}")
def bill(shop: str, document: str, gate: str, stubborn: bool = False) -> dict[str, Any]:
    """Work as long as the test wants; a stubborn task does not end by SIGTERM, like code that catches everything."""
    if stubborn:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    return stay(gate, limit=600)


@shared_task
def wait_softly(key: str, run: str) -> dict[str, Any]:
    try:
        zk_lock(key).acquire()
    except SoftTimeLimitExceeded:
        return facts(ended="softly")
    return facts(ended="held")


@shared_task
def hold_softly(key: str, gate: str) -> dict[str, Any]:
    try:
        with zk_lock(key):
            stay(gate)
    except SoftTimeLimitExceeded:
        return facts(ended="softly")
    return facts(ended="held")


@shared_task(acks_late=True, reject_on_worker_lost=True)
@zk_locked("{key}", on_conflict="skip")
def hold_late(key: str, gate: str) -> dict[str, Any]:
    # The first delivery waits, the second ends at once.
    if board().incr(f"{gate}:deliveries") == 1:
        return stay(gate)
    return facts()


@shared_task
def leak(key: str) -> int | None:
    """Keep a lock beyond the task, and return the session's id."""
    kept.append(zk_lock(key).acquire(scaled(20)))
    return connections["default"].sessions()[0].id


# Every kind of task.


@shared_task
@zk_locked("{key}")
def shared_below(key: str) -> dict[str, Any]:
    """Work."""
    return facts()


@zk_locked("{key}")
@shared_task
def shared_above(key: str) -> dict[str, Any]:
    """Work."""
    return facts()


@app.task
@zk_locked("{key}")
def app_below(key: str) -> dict[str, Any]:
    """Work."""
    return facts()


@zk_locked("{key}")
@app.task
def app_above(key: str) -> dict[str, Any]:
    """Work."""
    return facts()


@shared_task(bind=True)
@zk_locked(lambda self, key: f"{key}")
def shared_bound_below(self: Any, key: str) -> dict[str, Any]:
    return facts(name=self.name)


@zk_locked(lambda self, key: f"{key}")
@shared_task(bind=True)
def shared_bound_above(self: Any, key: str) -> dict[str, Any]:
    return facts(name=self.name)


@app.task(bind=True, **TRY)
@zk_locked("{key}")
def app_bound_retrying_below(self: Any, key: str) -> dict[str, Any]:
    return facts(name=self.name)


@zk_locked("{key}")
@app.task(bind=True, **TRY)
def app_bound_retrying_above(self: Any, key: str) -> dict[str, Any]:
    return facts(name=self.name)


@zk_locked("{key}")
@shared_task(name="another.name")
def renamed_above(key: str) -> dict[str, Any]:
    return facts()


@zk_locked("{key}:outer")
@zk_locked("{key}")
@shared_task
def twice_above(key: str) -> dict[str, Any]:
    outer = current_lock(f"{key}:outer")
    assert outer is not None
    return facts()


@zk_locked("{key}")
class Locked(Task):  # type: ignore[type-arg]
    name = "workshop.tasks.class_based"

    def run(self, key: str) -> dict[str, Any]:
        return facts(name=self.name)


class LockedRun(Task):  # type: ignore[type-arg]
    name = "workshop.tasks.class_based_run"
    autoretry_for = (Exception,)

    @zk_locked("{key}")
    def run(self, key: str) -> dict[str, Any]:
        return facts(name=self.name)


app.register_task(Locked())
app.register_task(LockedRun())
zk_locked("{key}")(
    app.register_task(
        type("Late", (Task,), {"name": "workshop.tasks.class_based_late", "run": lambda self, key: facts()})()
    )
)


# Ends under the gate.


@shared_task(bind=True, max_retries=1)
@zk_locked("{key}")
def end(self: Any, key: str, gate: str, how: str) -> dict[str, Any]:
    """Wait for the test, and end in the way that it has chosen."""
    if self.request.retries:
        return facts()
    stay(gate)
    if how == "fail":
        raise ZeroDivisionError(key)
    if how == "retry":
        raise self.retry(countdown=0.1)
    if how == "ignore":
        raise Ignore
    if how == "reject":
        raise Reject(key, requeue=False)
    if how == "exit":
        sys.exit(3)
    if how == "die":
        os._exit(3)
    return facts()


@shared_task
@zk_locked("{key}")
def hold_stubbornly(key: str, gate: str) -> None:
    """Wait for the test, and ignore SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stay(gate)


@shared_task
@zk_locked("{key}")
def look_for(key: str, pid: int) -> dict[str, Any]:
    """Return whether another process is still alive."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        state = "gone"
    return facts(other=state)


@shared_task
def idle(gate: str = "") -> dict[str, Any]:
    """Run without a lock."""
    return stay(gate) if gate else facts()


@shared_task
@zk_locked("{key}", timeout=30)
def report(key: str, gate: str) -> dict[str, Any]:
    """Wait for the test, then return the state of the lock."""
    held = current_lock()
    assert held is not None
    board().rpush(f"{gate}:in", json.dumps(facts(node=held.node)))
    board().blpop([f"{gate}:out"], timeout=scaled(60))
    return {"lost": held.lost, "token": held.token}


@shared_task
@zk_locked("{key}", on_lost="interrupt")
def hold_interruptibly(key: str, gate: str) -> dict[str, Any]:
    board().rpush(f"{gate}:in", json.dumps(facts()))
    for _ in range(round(scaled(6000))):
        time.sleep(0.01)
    return facts()


@shared_task
@zk_locked("{key}")
def release_early(key: str, gate: str) -> dict[str, Any]:
    """Release the lock before the end."""
    held = current_lock()
    assert held is not None
    held.release(wait=True)
    return stay(gate)


def numbered_key(key: str) -> str:
    """Return a key that differs with each call and process, and note it."""
    numbered = f"{key}:{os.getpid()}:{board().incr(f'{key}:calls')}"
    board().rpush(f"{key}:keys", numbered)
    return numbered


@shared_task
@zk_locked(numbered_key)
def number_key(key: str) -> dict[str, Any]:
    return facts()


@shared_task
@zk_locked("{key.missing}")
def fail_to_name(key: str) -> dict[str, Any]:
    """Run under a key that cannot be made from a text."""
    return facts()


@shared_task
@zk_locked("{key}")
def nest(key: str) -> dict[str, Any]:
    """Acquire the same lock again, and another one."""
    outer = facts()["token"]
    with zk_lock(key) as inner, zk_lock(f"{key}:other") as other:
        return {"outer": outer, "inner": inner.token, "other": other.token}


@shared_task(zklock_gate=False)  # type: ignore[call-overload, untyped-decorator]
@zk_locked("{key}")
def past_the_gate(key: str, gate: str) -> dict[str, Any]:
    return stay(gate)


@shared_task
@zk_locked("{key}")
def watch_itself(key: str, gate: str) -> None:
    """Check until the lock is lost, and note the reason."""
    held = current_lock()
    assert held is not None
    board().rpush(f"{gate}:in", json.dumps(facts()))
    for _ in range(round(scaled(6000))):
        if held.lost:
            board().rpush(f"{gate}:lost", json.dumps(str(held._loss_error())))
            return
        time.sleep(0.01)


@shared_task
@zk_locked("{key}")
def hold_until_revoked(key: str, gate: str) -> str | None:
    """Release when the holder is asked to, and return the reason."""
    held = current_lock()
    assert held is not None
    board().rpush(f"{gate}:in", json.dumps(facts()))
    for _ in range(round(scaled(6000))):
        if held.revoked:
            break
        time.sleep(0.01)
    return held.revoked


@shared_task
@zk_locked("{key}", on_lost="terminate")
def hold_terminably(key: str, gate: str) -> dict[str, Any]:
    return stay(gate)


@shared_task(acks_late=True, reject_on_worker_lost=True)
@zk_locked("{key}", on_lost="terminate")
def hold_terminably_late(key: str, gate: str) -> dict[str, Any]:
    # The first delivery waits, the second ends at once.
    if board().incr(f"{gate}:deliveries") == 1:
        return stay(gate)
    return facts()


@shared_task
@zk_locked("{key}", on_lost="terminate")
def end_unnoticed(key: str, gate: str) -> dict[str, Any]:
    """Close the pipe in which the main process reads that the body has ended; the task goes on for a while after it."""
    gate_here: Any
    (gate_here,) = gates.values()
    os.close(gate_here.child_watcher._inherited.fd)
    return facts(gate=gate)


@task_success.connect
def _go_on(sender: Any, result: Any, **_facts: Any) -> None:
    if sender.name == end_unnoticed.name:
        stay(result["gate"])


@shared_task
@zk_locked("{key}")
def span(key: str) -> tuple[float, float]:
    """Return when the body began and ended."""
    return span_unlocked()


@shared_task
def span_unlocked() -> tuple[float, float]:
    return time.monotonic(), time.monotonic()


@shared_task(acks_late=True)
@zk_locked("{key}")
def fail_acknowledged(key: str) -> None:
    raise KeyError(key)


@shared_task(acks_late=True, acks_on_failure_or_timeout=False)
@zk_locked("{key}")
def fail_unacknowledged(key: str) -> None:
    raise KeyError(key)


@shared_task
@zk_locked("{key}", on_lost="terminate")
def turn_terminably(key: str, gate: str) -> dict[str, Any]:
    board().rpush(f"{gate}:in", json.dumps(facts()))
    for _ in range(round(scaled(6000))):
        time.sleep(0.01)
    return facts()


@shared_task
@zk_locked("{key}")
def last(key: str, seconds: float) -> int | None:
    time.sleep(seconds)
    held = current_lock()
    return held.token if held is not None else None


@shared_task
def last_unlocked(seconds: float) -> None:
    time.sleep(seconds)


# Canvas, children and calls.


@shared_task
def conduct(canvas: dict[str, Any]) -> list[str]:
    """Send a canvas, and return the ids of the tasks that have its results."""
    sent = signature(canvas, app=app).apply_async()
    return [each.id for each in getattr(sent, "results", [sent])]


@shared_task
@zk_locked("{key}")
def carry(before: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Return the results of the other tasks, and the facts of this task."""
    return [*before, facts()]


@shared_task
@zk_locked("{key}")
def fail(key: str) -> None:
    raise ZeroDivisionError(key)


class FailingAtStart(Request):
    """A request whose task starts with an error in the main process, as one that a receiver of an event raises."""

    def on_accepted(self, pid: Any, time_accepted: Any) -> None:
        board().rpush(f"{self.kwargs['gate']}:in", json.dumps({"pid": pid}))
        raise ZeroDivisionError(self.id)


class NotStarted(Task):  # type: ignore[type-arg]
    """A class of tasks with such requests."""

    Request = "workshop.tasks:FailingAtStart"


@shared_task(base=NotStarted)
@zk_locked("{key}")
def not_started(key: str, gate: str) -> dict[str, Any]:
    return facts()


@shared_task(rate_limit="1/h")
@zk_locked("{key}")
def seldom(key: str) -> dict[str, Any]:
    return facts()


@shared_task
@zk_locked("{key}")
def look_around(key: str) -> dict[str, Any]:
    """Return what this process has inherited from its parent."""
    peers = []
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(OSError), socket.socket(fileno=os.dup(int(descriptor.name))) as inherited:
            if inherited.family == socket.AF_INET:
                peers.append("{}:{}".format(*inherited.getpeername()))
    sessions = len(connections["default"].sessions())
    found = facts(to_zookeeper=peers.count(os.environ["ZOOKEEPER_HOSTS"]), sessions=sessions)
    with zk_lock(f"{key}:own") as own:
        return {**found, "own": own.token}


@shared_task
@zk_locked("{key}")
def call_others(key: str) -> dict[str, Any]:
    """Run tasks here, by a call and eagerly, and keep the lock."""
    with allow_join_result():
        return {
            "called": shared_below(key),
            "called_other": shared_below(f"{key}:other"),
            "eager": shared_below.apply((key,)).get(),
            "eager_other": shared_above.apply((f"{key}:other",)).get(),
            "chain": chain(carry.s([], key), carry.s(f"{key}:other")).apply().get(),
            "after": facts(),
        }


@app.task
@zk_locked("{key}")
def fail_in_pieces(key: str, gate: str) -> None:
    """Fail with a result that the child writes in two pieces, and wait between them until the gate is opened."""
    connection: Any = Connection
    write = connection._send

    def write_and_wait(self: Any, piece: bytes) -> None:
        write(self, piece)
        # The length of what follows.
        if len(piece) == 4:
            connection._send = write
            board().rpush(f"{gate}:in", json.dumps(key))
            board().blpop([f"{gate}:out"], timeout=scaled(60))

    connection._send = write_and_wait
    msg = "much to say" * 2_000
    raise ValueError(msg)
