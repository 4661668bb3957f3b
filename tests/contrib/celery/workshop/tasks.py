"""Tasks of every kind."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import signal
import socket
import sqlite3
import sys
import time
from pathlib import Path
from typing import Any

import redis
from celery import Task, chain, current_task, shared_task, signature
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from celery.result import allow_join_result

from django_zklock import LockConflict, LockTimeout, current_lock, zk_lock, zk_locked
from django_zklock.connections import connections
from django_zklock.contrib.celery import RetryLater

from .app import app

kept: list[Any] = []


@functools.cache
def board() -> redis.Redis:
    """Give the place where tasks and tests leave notes for each other."""
    # Some versions of the client would give up on a task that stays.
    return redis.Redis.from_url(os.environ["WORKSHOP_BOARD"], decode_responses=True, socket_timeout=None)


def facts(**more: Any) -> dict[str, Any]:
    """Say what the running task holds, and what it knows of its own history."""
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
    """Do something that nobody else may do at the same time, and leave a note of it."""
    together = board().incr(f"{run}:together")
    time.sleep(0.01)
    noted = facts(together=together)
    board().rpush(run, json.dumps(noted))
    board().decr(f"{run}:together")
    return noted


def stay(gate: str) -> dict[str, Any]:
    """Say that the body runs, and wait until the test says to end."""
    board().rpush(f"{gate}:in", json.dumps(facts()))
    board().blpop([f"{gate}:out"], timeout=60)
    return facts()


# Conflicts.


@shared_task
@zk_locked("{key}")
def contend(key: str, run: str) -> dict[str, Any]:
    return work(run)


@shared_task
@zk_locked("{key}", on_conflict=RetryLater(max_wait=60, delay=0.1, max_delay=0.3))
def come_back(key: str, run: str) -> dict[str, Any]:
    return work(run)


@zk_locked("{key}", on_conflict=RetryLater(max_wait=0.5, delay=0.1, max_delay=0.2))
@shared_task(autoretry_for=(Exception,), retry_kwargs={"countdown": 0.2, "max_retries": 5})
def come_back_for_a_while(key: str, fail_after: str = "") -> dict[str, Any]:
    # Fails once, so that the task itself is retried while somebody else has the lock.
    if fail_after and not board().get(fail_after):
        board().set(fail_after, "1")
        board().rpush(f"{fail_after}:in", "1")
        raise KeyError(fail_after)
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


@shared_task
@zk_locked("{key}", timeout=3)
def give_up(key: str) -> dict[str, Any]:
    return facts()


# Autoretry. Not at once: Celery may store that a task is retried after it has stored that the retry is done.

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
@zk_locked("{key}", timeout=1.0)
def time_out(key: str, run: str) -> dict[str, Any]:
    return work(run)


@shared_task(**TRY)  # type: ignore[untyped-decorator]
def time_out_inside(key: str, run: str) -> dict[str, Any]:
    board().incr(f"{run}:attempts")
    with zk_lock(key).acquire(1.0):
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


@shared_task
@zk_locked("{key}")
def hold(key: str, gate: str) -> dict[str, Any]:
    return stay(gate)


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
    # The first delivery stays, the second is done at once.
    if board().incr(f"{gate}:deliveries") == 1:
        return stay(gate)
    return facts()


@shared_task
def leak(key: str) -> int | None:
    """Keep a lock beyond the task, and tell the session's id."""
    kept.append(zk_lock(key).acquire(20))
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
    """Stay until the test lets go, and end in a way of its choice."""
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
    """Stay, and do not heed SIGTERM."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    stay(gate)


@shared_task
@zk_locked("{key}")
def look_for(key: str, pid: int) -> dict[str, Any]:
    """Say whether another process can still do something."""
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        state = "gone"
    return facts(other=state)


@shared_task
def idle(gate: str = "") -> dict[str, Any]:
    """Do something that needs no lock."""
    return stay(gate) if gate else facts()


@shared_task
@zk_locked("{key}", timeout=30)
def report(key: str, gate: str) -> dict[str, Any]:
    """Stay, then say what has become of the lock."""
    held = current_lock()
    assert held is not None
    board().rpush(f"{gate}:in", json.dumps(facts(node=held.node)))
    board().blpop([f"{gate}:out"], timeout=60)
    return {"lost": held.lost, "token": held.token}


@shared_task
@zk_locked("{key}", on_lost="interrupt")
def hold_interruptibly(key: str, gate: str) -> dict[str, Any]:
    board().rpush(f"{gate}:in", json.dumps(facts()))
    for _ in range(6000):
        time.sleep(0.01)
    return facts()


@shared_task
@zk_locked("{key}")
def release_early(key: str, gate: str) -> dict[str, Any]:
    """Give the lock back before the end."""
    held = current_lock()
    assert held is not None
    held.release(wait=True)
    return stay(gate)


@shared_task
@zk_locked("{key}", on_conflict=lambda conflict: {"busy": conflict.key, "holder": str(conflict.holder)})
def tell_conflict(key: str) -> dict[str, Any]:
    return facts()


@shared_task
@zk_locked(lambda key: f"{key}:{os.getpid()}")
def differ(key: str) -> dict[str, Any]:
    """Have a key that no other process can make."""
    return facts()


@shared_task
@zk_locked("{key.missing}")
def fail_to_name(key: str) -> dict[str, Any]:
    """Have a key that cannot be made of a text."""
    return facts()


@shared_task
@zk_locked("{key}")
def nest(key: str) -> dict[str, Any]:
    """Take the same lock again, and another one."""
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
    """Ask until the lock is lost, and say why it is."""
    held = current_lock()
    assert held is not None
    board().rpush(f"{gate}:in", json.dumps(facts()))
    for _ in range(6000):
        if held.lost:
            board().rpush(f"{gate}:lost", json.dumps(str(held.loss())))
            return
        time.sleep(0.01)


@shared_task
@zk_locked("{key}")
def hold_until_revoked(key: str, gate: str) -> str | None:
    """Let go when somebody asks, and say why they do."""
    held = current_lock()
    assert held is not None
    board().rpush(f"{gate}:in", json.dumps(facts()))
    for _ in range(6000):
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
    # The first delivery stays, the second is done at once.
    if board().incr(f"{gate}:deliveries") == 1:
        return stay(gate)
    return facts()


@shared_task(acks_late=True, reject_on_worker_lost=True)
@zk_locked("{key}")
def enter_in_ledger(key: str, ledger: str, number: int) -> None:
    """Note when the body began and ended, under which token; whoever is killed leaves no end."""
    held = current_lock()
    assert held is not None
    with contextlib.closing(sqlite3.connect(ledger, timeout=30, isolation_level=None)) as database:
        database.execute(
            "insert into runs (line, token, number, began) values (?, ?, ?, ?)",
            (key, held.token, number, time.monotonic()),
        )
        time.sleep(0.005)
        held.check()
        database.execute("update runs set ended = ? where line = ? and token = ?", (time.monotonic(), key, held.token))


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
    for _ in range(6000):
        time.sleep(0.01)
    return facts()


def peek(self: Any, key: str) -> str:
    """Make the key, and remember the header that the task has come with."""
    self.seen = self.request.get("zklock_hold")
    return key


@shared_task(bind=True)
@zk_locked(peek)
def tell_header(self: Any, key: str) -> str | None:
    """Give what nobody should be able to use again."""
    return str(self.seen)


@shared_task
@zk_locked("{key}")
def last(key: str, seconds: float) -> None:
    time.sleep(seconds)


@shared_task
def last_unlocked(seconds: float) -> None:
    time.sleep(seconds)


# What Celery makes of tasks.


@shared_task
def conduct(canvas: dict[str, Any]) -> list[str]:
    """Send a canvas, and give the ids of the tasks that have its results."""
    sent = signature(canvas, app=app).apply_async()
    return [each.id for each in getattr(sent, "results", [sent])]


@shared_task
@zk_locked("{key}")
def carry(before: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    """Give what others have given, and the facts of this task."""
    return [*before, facts()]


@shared_task
@zk_locked("{key}")
def fail(key: str) -> None:
    raise ZeroDivisionError(key)


@shared_task(rate_limit="1/h")
@zk_locked("{key}")
def seldom(key: str) -> dict[str, Any]:
    return facts()


@shared_task
@zk_locked("{key}")
def look_around(key: str) -> dict[str, Any]:
    """Say what this process has of the one that it was forked from."""
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
