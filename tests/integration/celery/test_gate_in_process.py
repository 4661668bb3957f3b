"""The gate of workers whose tasks run in the main process: threads, and greenlets of gevent and eventlet."""

from __future__ import annotations

import time
from collections.abc import Iterator
from itertools import pairwise
from typing import Any

import pytest

from tests.integration.celery import broker_audit
from tests.toolbox.timing import scaled, wait_until

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]

SOON = 20.0
# Seconds for which a granted lock waits for a slot while another contender waits.
READY = scaled(2)


# What differs with eventlet: how a body is interrupted, and what its loop does with an error.
EVENTLET_TOO = pytest.mark.parametrize("workshop", ["threads", "gevent", "eventlet"], indirect=True)


@pytest.fixture(scope="module", params=["threads", "gevent"])
def workshop(request: pytest.FixtureRequest, open_workshop: Any) -> Iterator[Any]:
    environment = {"WORKSHOP_WATCH_RESULTS": "1", "WORKSHOP_MAX_READY": str(READY)}
    with open_workshop(pool=request.param, concurrency=1, session_timeout=4.0, environment=environment) as workshop:
        yield workshop


@EVENTLET_TOO
def test_hold__is_told_of_its_loss(workshop: Any, key: str) -> None:
    """A task with `on_lost="interrupt"` is interrupted when its node is deleted."""
    task = workshop.send("hold_interruptibly", key, f"{key}:gate")
    workshop.entered(f"{key}:gate")
    workshop.delete(f"{workshop.pool.path(key)}/{workshop.nodes(key)[0]}")
    assert type(task.outcome(20)).__name__ == "LockLost"


def test_terminate__interrupts(workshop: Any, key: str) -> None:
    """`on_lost="terminate"` interrupts too, because the process runs other tasks as well."""
    task = workshop.send("turn_terminably", key, f"{key}:gate")
    workshop.entered(f"{key}:gate")
    workshop.delete(f"{workshop.pool.path(key)}/{workshop.nodes(key)[0]}")
    assert type(task.outcome(20)).__name__ == "LockLost"
    assert workshop.result(workshop.send("shared_below", key))["key"] == key


def test_cut__ends_what_waits_in_the_pool(workshop: Any, key: str) -> None:
    """A task that waits for a thread or greenlet when the broker is lost is delivered again, and runs once."""
    workshop.send("idle", f"{key}:gate")
    workshop.entered(f"{key}:gate")
    workshop.send("workshop.journal.locked", key, f"{key}:journal")
    wait_until(lambda: states(workshop, key) == ["granted"], SOON, "the pool has the task")
    broker_audit.cut_and_wait(workshop, None)
    wait_until(lambda: states(workshop, key) == ["granted"], SOON, "it is delivered again")
    workshop.let_go(f"{key}:gate")
    broker_audit.wait_runs(workshop, f"{key}:journal", 1)
    workshop.wait_empty(key, SOON)
    # What would run once more is before this in the queue of the pool.
    workshop.result(workshop.send("shared_below", key))
    assert broker_audit.runs(workshop, f"{key}:journal").total() == 1


def test_revoked__while_it_waits_in_the_pool(workshop: Any, key: str) -> None:
    """A task that is revoked while it waits for a thread or greenlet does not run, and its lock is free."""
    workshop.send("idle", f"{key}:gate")
    workshop.entered(f"{key}:gate")
    task = workshop.send("shared_below", key)
    wait_until(lambda: states(workshop, key) == ["granted"], SOON, "the pool has the task")
    assert workshop.control.revoke(task.id, reply=True)
    workshop.let_go(f"{key}:gate")
    wait_until(lambda: task.state == "REVOKED", SOON, "the task is revoked")
    workshop.wait_empty(key, SOON)
    assert workshop.result(workshop.send("shared_below", key))["key"] == key


def states(workshop: Any, key: str) -> list[str]:
    """Return the states of the requests for ``key``."""
    return [each["state"] for each in broker_audit.ask(workshop, "zklocks") or [] if each["key"] == key]


@EVENTLET_TOO
def test_accepted__error(workshop: Any, key: str) -> None:
    """When Celery fails to note that a task has started, the task does not run, and its lock is free."""
    workshop.send("not_started", kwargs={"key": key, "gate": f"{key}:gate"})
    workshop.entered(f"{key}:gate")
    workshop.wait_empty(key, SOON)


def test_retry__leaves_no_result_to_the_garbage_collector(workshop: Any, key: str) -> None:
    """A task that goes back leaves no result of Celery that uses the network when the collector finalizes it."""
    workshop.other_client.take(key)
    sent = [workshop.send("come_back", key, f"{key}:run") for _ in range(6)]
    wait_until(lambda: all(task.state == "RETRY" for task in sent), SOON, "every task has gone back once")
    workshop.other_client.release(key)
    wait_until(lambda: len(workshop.notes(f"{key}:run")) == 6, 2 * SOON, "every task has run")
    finalized = workshop.result(workshop.send("count_finalized"))
    assert finalized["all"] >= 6
    assert finalized["in_collector"] == 0


def test_window__is_refilled(workshop: Any, key: str) -> None:
    """The broker is asked for more as soon as there is room, and not two seconds after the window was full."""
    sent = [workshop.send("shared_below", f"{key}:{number}") for number in range(150)]
    wait_until(lambda: all(task.state == "SUCCESS" for task in sent), 120, "every task has run")
    ended = sorted(task.ended for task in sent)
    pauses = [(after - before).total_seconds() for before, after in pairwise(ended)]
    # Celery's loop sleeps for two seconds when it finds the window full: a dozen times here.
    assert len([pause for pause in pauses if 1.9 < pause < 2.1]) < 4


@pytest.mark.shows("faults#all-slots-are-busy-when-the-lock-is-granted")
@EVENTLET_TOO
def test_granted_without_a_slot__many(workshop: Any, key: str) -> None:
    """Many tasks whose locks are granted while the pool is busy pass the lock on together, not one after the other."""
    count = 20
    workshop.other_client.take(key)
    tasks = [workshop.send("shared_below", key) for _ in range(count)]
    workshop.wait_count(key, 1 + count)
    # It waits in the only slot, behind all of them.
    wanting = workshop.send("past_the_gate", key, f"{key}:gate")
    workshop.wait_count(key, 2 + count)
    workshop.other_client.release(key)
    began = time.monotonic()
    workshop.entered(f"{key}:gate")
    # One after the other, each would have waited for longer than this alone.
    assert time.monotonic() - began < count * READY
    workshop.let_go(f"{key}:gate")
    for task in [wanting, *tasks]:
        workshop.result(task)
    workshop.wait_empty(key)
