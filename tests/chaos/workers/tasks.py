"""One task for each policy, each kind of lock and each way to acknowledge."""

from __future__ import annotations

import functools
import itertools
import os
import time
from collections.abc import Callable
from typing import Any

import redis
from celery import current_task

from django_zklock import current_lock, zk_locked
from django_zklock.contrib.celery import RetryLater
from tests.chaos.history import write
from tests.toolbox.timing import scaled

from .app import app
from .plan import LIMIT, POLICIES, RETRY_TIMEOUT, TIMEOUT, kinds_of, task_name

# Interval in seconds of a body's checks of its hold, and of its rows about it.
STEP, STEPS_A_ROW = 0.01, 5
MEETING_TIMEOUT = scaled(30)

_ON_CONFLICT: dict[str, dict[str, Any]] = {
    "wait": {},
    "timeout": {"timeout": TIMEOUT},
    "raise": {"on_conflict": "raise"},
    "skip": {"on_conflict": "skip"},
    "retry": {"on_conflict": RetryLater(max_wait=RETRY_TIMEOUT, delay=0.5, max_delay=2.0)},
    "coalesce": {"on_conflict": "coalesce"},
}
_RULES: dict[str, dict[str, Any]] = {
    "exclusive": {},
    "read": {"mode": "read"},
    "write": {"mode": "write"},
    "semaphore": {"limit": LIMIT},
    "several": {},
}


# For the rules about holds, which know these two as other kinds.
_KINDS = {"semaphore": "lease", "several": "exclusive"}


@functools.cache
def _connection(_pid: int) -> redis.Redis:
    return redis.Redis.from_url(os.environ["CHAOS_RECORDS"], decode_responses=True, socket_timeout=None)


def records() -> redis.Redis:
    """Return this process's connection to the server for results, which has no faults."""
    return _connection(os.getpid())


class Hiccup(Exception):  # noqa: N818 - it is no fault of anything
    """The error of a task that is to be retried."""


def message() -> dict[str, Any]:
    """Return the message of the running task: a retry has the same task id."""
    request = current_task.request
    return {
        "id": request.id,
        "retries": request.retries,
        "conflicts": (request.headers or {}).get("zklock_conflicts", 0),
    }


def work(kind: str, keys: list[str], lasts: float, failures: int) -> int:
    """Write when this body began and ended, and until when it certainly held its lock."""
    # Before the check: a lock that is held after it was held at this time.
    began = time.monotonic()
    held = current_lock()
    lost = held is not None and held.lost
    facts = message()
    # The time is that of the result.
    call = f"{os.getpid()}-{began}"
    write(
        "begin", at=began, call=call, tokens=held.tokens if held is not None else {}, lost=lost or held is None,
        node=held.node if held is not None else None, kind=_KINDS.get(kind, kind),
        limit=LIMIT if kind == "semaphore" else None, **facts,
    )  # fmt: skip
    sure, steps = began, 0
    while True:
        now = time.monotonic()
        if held is None or not held.lost:
            sure = now
        if now >= began + lasts:
            break
        steps += 1
        if steps % STEPS_A_ROW == 0:
            write("sure", at=sure, call=call, id=facts["id"])
        time.sleep(min(STEP, began + lasts - now))
    write("end", at=now, call=call, began=began, sure=sure, lost=held is not None and held.lost, **facts)
    if current_task.request.retries < failures:
        raise Hiccup(facts["id"])
    return int(began * 1000)


def define(policy: str, kind: str, *, late: bool, retrying: bool) -> None:
    """Define the task of these properties."""

    def body(keys: list[str], lasts: float, failures: int = 0) -> int:
        return work(kind, keys, lasts, failures)

    locked: Callable[..., int] = body
    if policy != "none":
        key = (lambda keys, **_: keys) if kind == "several" else "{keys[0]}"
        locked = zk_locked(key, **_RULES[kind], **_ON_CONFLICT[policy])(body)
    options: dict[str, Any] = {"name": task_name(policy, kind, late=late, retrying=retrying)}
    if retrying:
        options |= {"autoretry_for": (Hiccup,), "retry_kwargs": {"countdown": 1.0, "max_retries": 5}}
    task: Any = app.task(acks_late=late, reject_on_worker_lost=late, **options)
    task(locked)


for _policy, _late, _retrying in itertools.product(POLICIES, (False, True), (False, True)):
    for _kind in kinds_of(_policy):
        define(_policy, _kind, late=_late, retrying=_retrying)


# The tasks for each slot of a worker after the faults.


def meet(place: str, count: int) -> bool:
    """Return whether ``count`` tasks were here at the same time."""
    records().incr(place)
    deadline = time.monotonic() + MEETING_TIMEOUT
    while int(records().get(place) or 0) < count:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


@app.task(name="chaos.meet")
def meet_unlocked(place: str, count: int) -> bool:
    """Meet other tasks without a lock."""
    return meet(place, count)


@app.task(name="chaos.meet_locked")
@zk_locked("{key}")
def meet_locked(key: str, place: str, count: int) -> bool:
    """Meet other tasks under locks."""
    held = current_lock()
    return meet(place, count) and held is not None and not held.lost
