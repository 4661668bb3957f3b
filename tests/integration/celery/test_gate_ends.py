"""However a task ends, the worker's main process releases its lock at once, and never before the body has ended.

The session timeout is longer than every timeout here, so no lock is freed by it.
"""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import celery
import pytest
from celery.exceptions import TimeLimitExceeded

from django_zklock.zk.ops import snapshots
from tests.integration.celery import broker_audit
from tests.toolbox.celery.workshop import TIMEOUT, Sent
from tests.toolbox.timing import scaled, wait_until

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper, pytest.mark.oldest]

SESSION_TIMEOUT = 40.0
# Seconds, less than the hundred after which Celery itself reports a child as lost.
SOON = 25.0
# A task begins, and waits in the queue, before it is over.
TIME_LIMIT = math.ceil(scaled(1))
LATE = {"WORKSHOP_LOST_WAIT": str(scaled(100))}


@pytest.fixture(scope="module")
def workshop(open_workshop: Any) -> Iterator[Any]:
    with open_workshop(concurrency=4, session_timeout=SESSION_TIMEOUT, environment=LATE) as workshop:
        yield workshop


@pytest.mark.shows("guarantees#the-end-of-a-process-frees-its-locks")
@pytest.mark.parametrize("how", ["succeed", "fail", "retry", "ignore", "reject", "exit", "die"])
def test_end__frees_the_lock(workshop: Any, key: str, how: str) -> None:
    """A task that ends by itself, in any way, frees its lock, and the next waiter runs."""
    workshop.send("end", key, f"{key}:gate", how)
    first = workshop.entered(f"{key}:gate")
    waiting = workshop.send("shared_below", key)
    workshop.wait_count(key, 2)
    workshop.let_go(f"{key}:gate")
    assert waiting.outcome(SOON)["token"] > first["token"]
    workshop.wait_empty(key, SOON)


def test_soft_time_limit__frees_the_lock(workshop: Any, key: str) -> None:
    """A soft time limit in the body frees the lock."""
    task = workshop.send("hold", key, f"{key}:gate", soft_time_limit=TIME_LIMIT)
    workshop.entered(f"{key}:gate")
    assert type(workshop.outcome(task)).__name__ == "SoftTimeLimitExceeded"
    workshop.wait_empty(key, SOON)


@pytest.mark.shows("guarantees#the-end-of-a-process-frees-its-locks")
def test_hard_time_limit__frees_the_lock_of_the_dead(workshop: Any, key: str) -> None:
    """A hard time limit frees the lock when the child has ended, even if the child ignores SIGTERM."""
    task = workshop.send("hold_stubbornly", key, f"{key}:gate", time_limit=TIME_LIMIT)
    pid = workshop.entered(f"{key}:gate")["pid"]
    waiting = workshop.send("look_for", key, pid)
    assert waiting.outcome(SOON)["other"] in {"gone", "Z", "X"}
    assert isinstance(workshop.outcome(task), TimeLimitExceeded)


@pytest.mark.shows("guarantees#the-end-of-a-process-frees-its-locks")
def test_killed_child__frees_the_lock(workshop: Any, key: str) -> None:
    """The lock of a child that is killed is free at once, before Celery reports the child as lost."""
    workshop.send("hold", key, f"{key}:gate")
    pid = workshop.entered(f"{key}:gate")["pid"]
    waiting = workshop.send("look_for", key, pid)
    workshop.wait_count(key, 2)
    os.kill(pid, signal.SIGKILL)
    assert waiting.outcome(SOON)["other"] in {"gone", "Z", "X"}
    workshop.wait_empty(key, SOON)


def test_revoked__while_it_runs(workshop: Any, key: str) -> None:
    """A task that is revoked while it runs, without an end by force, keeps its lock until its end."""
    task = workshop.send("hold", key, f"{key}:gate")
    facts = workshop.entered(f"{key}:gate")
    waiting = workshop.send("shared_below", key)
    workshop.wait_count(key, 2)
    assert workshop.control.revoke(task.id, reply=True)
    # The worker has handled it, and answers to a command after it.
    assert task.id in next(iter(workshop.inspect().revoked().values()))
    (holder,) = snapshots.one_lock(workshop.pool, key, timeout=scaled(10)).holders
    assert (holder.token, len(workshop.nodes(key))) == (facts["token"], 2)
    workshop.let_go(f"{key}:gate")
    assert workshop.result(task)
    assert workshop.result(waiting)["token"] > facts["token"]


def test_release__inside_of_the_body(workshop: Any, key: str) -> None:
    """A task may release its lock before its end; `wait=True` waits until the node is deleted."""
    workshop.send("release_early", key, f"{key}:gate")
    assert workshop.entered(f"{key}:gate")["key"] is None
    assert workshop.nodes(key) == []
    assert workshop.result(workshop.send("shared_below", key))["key"] == key
    workshop.let_go(f"{key}:gate")


@pytest.mark.slow
def test_warm_shutdown__parked_tasks_go_back(workshop: Any, key: str) -> None:
    """A worker in a warm shutdown finishes running tasks and returns waiting ones, which run after the next start."""
    running = workshop.send("hold", key, f"{key}:gate")
    workshop.entered(f"{key}:gate")
    waiting = [workshop.send("shared_below", key) for _ in range(3)]
    workshop.wait_count(key, 4)
    workshop.worker.signal(signal.SIGTERM)
    workshop.wait_count(key, 1, SOON)
    workshop.let_go(f"{key}:gate")
    assert workshop.worker.wait(scaled(SOON)) == 0
    assert workshop.result(running)["key"] == key
    workshop.wait_empty(key, SOON)
    workshop.worker.stop()
    workshop.worker.start()
    for task in waiting:
        assert workshop.result(task)["key"] == key


@dataclass(frozen=True)
class LateBody:
    """A task whose body acquires its lock during a shutdown, and the key that another task of its worker waits for."""

    task: Sent
    gate: str
    waits: str


def begin_late_body(workshop: Any, key: str) -> LateBody:
    """Run the task up to its body."""
    late = LateBody(workshop.send("workshop.journal.late_in_thread", key, f"{key}:gate"), f"{key}:gate", f"{key}:waits")
    workshop.entered(late.gate)
    workshop.wait_count(key, 1)
    workshop.other_client.take(late.waits)
    workshop.send("shared_below", late.waits)
    workshop.wait_count(late.waits, 2)
    # So that the signal interrupts no step of the gate: the worker has handled the request when it replies.
    wait_until(
        lambda: [each["state"] for each in broker_audit.ask(workshop, "zklocks")] == ["held", "waiting"],
        SOON,
        "one task runs, and one waits",
    )
    return late


@pytest.mark.parametrize("pool", ["prefork", "threads"])
def test_warm_shutdown__body_acquires_late(open_workshop: Any, pool: str, key: str) -> None:
    """A body that acquires its lock itself during a warm shutdown gets it from its worker, which then ends."""
    with open_workshop(pool=pool, concurrency=2, session_timeout=SESSION_TIMEOUT, environment=LATE) as workshop:
        late = begin_late_body(workshop, key)
        workshop.worker.signal(signal.SIGTERM)
        # The gate has stopped: only tasks that run hold locks.
        workshop.wait_count(late.waits, 1, SOON)
        workshop.let_go(late.gate)
        assert workshop.result(late.task) == key
        assert workshop.worker.wait(scaled(SOON)) == 0
        workshop.wait_empty(key, SOON)


if celery.VERSION >= (5, 5):

    def test_soft_shutdown__body_acquires_late(open_workshop: Any, key: str) -> None:
        """A body that acquires its lock itself during a soft shutdown gets it from its worker."""
        with open_workshop(
            concurrency=2,
            session_timeout=SESSION_TIMEOUT,
            environment=LATE,
            options=[f"worker.soft_shutdown_timeout={scaled(3 * TIMEOUT)}"],
        ) as workshop:
            late = begin_late_body(workshop, key)
            workshop.worker.signal(signal.SIGQUIT)
            workshop.wait_count(late.waits, 1, SOON)
            workshop.let_go(late.gate)
            assert workshop.result(late.task) == key
            workshop.wait_empty(key, SOON)
            assert workshop.worker.is_running()


def test_cold_shutdown__frees_everything(workshop: Any, key: str) -> None:
    """A cold shutdown frees all locks and removes all waiters."""
    workshop.send("hold", key, f"{key}:gate")
    workshop.entered(f"{key}:gate")
    workshop.send("shared_below", key)
    workshop.wait_count(key, 2)
    try:
        workshop.worker.signal(signal.SIGQUIT)
        workshop.wait_empty(key, SOON)
    finally:
        workshop.worker.stop()
        workshop.worker.start()


@pytest.mark.slow
def test_killed_worker__runs_once_more(open_workshop: Any, key: str) -> None:
    """A task of a killed worker waits at another one for the node of its first delivery, and runs once."""
    with open_workshop(concurrency=1, session_timeout=4) as workshop:
        task = workshop.send("hold_late", key, f"{key}:gate")
        facts = workshop.entered(f"{key}:gate")
        workshop.worker.kill()
        workshop.start_another(concurrency=1)
        # Redis delivers it again after the visibility timeout, which kombu checks every hundred seconds.
        workshop.send("hold_late", key, f"{key}:gate", task_id=task.id)
        result = workshop.result(task)
        assert (result["id"], result["key"]) == (task.id, key)
        assert result["token"] > facts["token"]
        assert workshop.board.get(f"{key}:gate:deliveries") == "2"
        workshop.wait_empty(key)
