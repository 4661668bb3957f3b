"""Slots: a granted task gets the next one, a busy worker starves no task, and no error loses a slot."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from celery import Celery

from django_zklock import LockTimeout
from django_zklock.contrib.celery.gate.run import MAX_READY
from django_zklock.zk.lock import Lock
from tests.integration.celery import broker_audit
from tests.integration.celery.broker_audit import TIMEOUT
from tests.toolbox.brokers.redis import Redis
from tests.toolbox.threads import Runner
from tests.toolbox.timing import scaled, wait_until

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]

SESSION_TIMEOUT = 50.0
# Seconds, less than the session timeout.
SOON = 20.0


@pytest.fixture
def result_backend() -> Iterator[Redis]:
    """Return a server for results alone, which a test may stop."""
    with Redis() as redis:
        yield redis


@pytest.fixture
def with_results(result_backend: Redis) -> dict[str, str]:
    """Return the environment of a worker that stores its results there, with short timeouts."""
    options = {"retry_policy": {"max_retries": 1, "interval_start": 0, "interval_step": 0.1, "interval_max": 0.1}}
    return {"WORKSHOP_PREFETCH": "4"} | broker_audit.settings(
        CELERY_RESULT_BACKEND=result_backend.url, CELERY_RESULT_BACKEND_TRANSPORT_OPTIONS=options
    )


@contextlib.contextmanager
def results_from(workshop: Any, result_backend: Redis) -> Iterator[None]:
    """Let the workshop read results where the worker stores them."""
    own, workshop.results = workshop.results, Celery("results", backend=result_backend.url, set_as_current=False)
    try:
        yield
    finally:
        workshop.results.close()
        workshop.results = own


def expire_after(seconds: float) -> datetime:
    return datetime.now(UTC) + timedelta(seconds=scaled(seconds))


def wait_for(moment: datetime) -> None:
    wait_until(lambda: datetime.now(UTC) > moment, TIMEOUT, f"it is {moment}")


@pytest.mark.shows("faults#a-step-of-the-gate-raises-an-error")
def test_error_between_grant_and_pool__slot_is_returned(
    open_workshop: Any, result_backend: Redis, with_results: dict[str, str], key: str
) -> None:
    """A result backend that is away when an expired task is granted costs no slot and no lock, and loses no message.

    Meanwhile another task times out as it should.
    """
    other = f"{key}:other"
    with (
        open_workshop(concurrency=2, session_timeout=SESSION_TIMEOUT, environment=with_results) as workshop,
        results_from(workshop, result_backend),
    ):
        workshop.other_client.take(key)
        workshop.other_client.take(other)
        workshop.send("workshop.journal.patient", other, f"{key}:patient")
        workshop.wait_count(other, 2)
        expires = expire_after(3)
        task = workshop.send("workshop.journal.locked", key, f"{key}:journal", expires=expires)
        workshop.wait_count(key, 2)
        result_backend.stop()
        # The gate has looked for what has expired by then.
        wait_for(expires + timedelta(seconds=2))
        workshop.other_client.release(key)
        workshop.wait_empty(key, TIMEOUT)
        result_backend.start()
        workshop.wait_count(other, 1, SOON)
        broker_audit.assert_as_before(workshop, key, prefetch=8, slots=2)
        wait_until(
            lambda: task.state == "REVOKED" or broker_audit.runs(workshop, f"{key}:journal")[0] == 1,
            TIMEOUT,
            "the task is revoked, or has run",
        )


@pytest.mark.shows("faults#all-slots-are-busy-when-the-lock-is-granted")
def test_busy_worker__granted_task_has_the_next_slot(open_workshop: Any, key: str) -> None:
    """The first in the queue runs although its worker is busy and others contend for the same lock all the time."""
    count, seconds = 12, 1.5
    with open_workshop(
        concurrency=1, session_timeout=SESSION_TIMEOUT, environment={"WORKSHOP_PREFETCH": "4"}
    ) as workshop:
        over = threading.Event()

        def contend() -> None:
            lock = Lock(key, workshop.pool)
            while not over.is_set():
                held = lock.acquire(scaled(60))
                over.wait(0.2)
                held.release()

        workshop.other_client.take(key)
        workshop.send("workshop.journal.locked", key, f"{key}:journal")
        workshop.wait_count(key, 2)
        threads = [threading.Thread(target=contend) for _ in range(2)]
        for number, thread in enumerate(threads, 3):
            thread.start()
            workshop.wait_count(key, number)
        try:
            for number in range(count):
                workshop.send("workshop.journal.unlocked", f"{key}:busy", number, seconds)
            broker_audit.wait_runs(workshop, f"{key}:busy", 1)
            workshop.other_client.release(key)
            broker_audit.wait_runs(workshop, f"{key}:journal", 1)
            begun = len(broker_audit.entries(workshop, f"{key}:busy"))
        finally:
            over.set()
            for thread in threads:
                thread.join()
            workshop.other_client.release_all()
        assert begun <= count / 2


# One task, or one kilobyte, of which each task uses more.
@pytest.mark.shows("faults#the-pool-replaces-its-children-after-some-tasks")
@pytest.mark.parametrize("limit", ["CELERY_WORKER_MAX_TASKS_PER_CHILD", "CELERY_WORKER_MAX_MEMORY_PER_CHILD"])
def test_children_replaced__no_more_tasks_than_children(open_workshop: Any, limit: str, key: str) -> None:
    """In a pool that replaces its children a lock is not taken for a task that no child could begin."""
    environment = broker_audit.settings(**{limit: 1})
    with open_workshop(concurrency=2, session_timeout=SESSION_TIMEOUT, environment=environment) as workshop:
        gates = [f"{key}:{number}" for number in range(6)]
        for gate in gates:
            workshop.send("idle", gate)
        locked = workshop.send("workshop.journal.locked", key, f"{key}:journal")
        for gate in gates[:3]:
            workshop.entered(gate)
            workshop.let_go(gate)
        # Both children have a task, and a third one is before the locked one.
        for gate in gates[3:5]:
            workshop.entered(gate)
        assert workshop.nodes(key) == []
        for gate in gates[3:]:
            workshop.let_go(gate)
        workshop.result(locked)


@pytest.mark.shows("faults#the-pool-replaces-its-children-after-some-tasks")
def test_children_replaced__place_is_kept(open_workshop: Any, key: str) -> None:
    """A task whose lock is granted while its child starts keeps it, however long the start takes."""
    start = f"{key}:start"
    environment = broker_audit.settings(CELERY_WORKER_MAX_TASKS_PER_CHILD=1, CELERY_WORKER_PROC_ALIVE_TIMEOUT=60)
    environment["WORKSHOP_START_LATE"] = start
    with open_workshop(concurrency=1, session_timeout=SESSION_TIMEOUT, environment=environment) as workshop:
        workshop.let_go(start)
        workshop.result(workshop.send("idle"))
        for _ in range(2):
            workshop.entered(start)
        task = workshop.send("hold", key, f"{key}:gate")
        workshop.wait_count(key, 1)
        # It waits behind for longer than a granted lock may wait for a body that could begin.
        behind = Runner(lambda: Lock(key, workshop.pool).acquire(scaled(2 * MAX_READY + 1)))
        with pytest.raises(LockTimeout):
            behind.result(TIMEOUT)
        workshop.let_go(start)
        workshop.entered(f"{key}:gate")
        workshop.let_go(f"{key}:gate")
        assert workshop.result(task)["key"] == key


@pytest.mark.shows("faults#all-slots-are-busy-when-the-lock-is-granted")
@pytest.mark.parametrize("pool", ["prefork", "solo"])
def test_body_wants_the_lock__gets_it(open_workshop: Any, pool: str, key: str) -> None:
    """A task in the only slot acquires in its body a lock that was granted to a task that waits for the slot."""
    with open_workshop(pool=pool, concurrency=1, session_timeout=SESSION_TIMEOUT) as workshop:
        workshop.other_client.take(key)
        waiting = workshop.send("workshop.journal.locked", key, f"{key}:journal")
        workshop.wait_count(key, 2)
        wanting = workshop.send("workshop.journal.lock_in_body", key, f"{key}:gate")
        # Without the gate the first task has the slot.
        workshop.board.blpop([f"{key}:gate:in"], timeout=2)
        workshop.other_client.release(key)
        workshop.let_go(f"{key}:gate")
        assert workshop.result(wanting) > 0
        broker_audit.wait_runs(workshop, f"{key}:journal", 1)
        workshop.result(waiting)
        workshop.wait_empty(key, SOON)
        if pool == "solo":
            assert broker_audit.ask(workshop, "zklock_gate")["gate"] is False


@pytest.mark.shows("faults#all-slots-are-busy-when-the-lock-is-granted")
def test_body_in_a_thread__runs(open_workshop: Any, key: str) -> None:
    """A task whose body runs in another thread of the child runs, and its lock is free afterwards."""
    with open_workshop(concurrency=1, session_timeout=SESSION_TIMEOUT) as workshop:
        for _ in range(2):
            assert workshop.result(workshop.send("workshop.journal.in_thread", key)) == {"key": key, "thread": True}
            workshop.wait_empty(key, SOON)
        broker_audit.assert_as_before(workshop, key, prefetch=10, slots=1)


def test_limit_of_the_prefetch_count__unrelated_tasks_run(open_workshop: Any, key: str) -> None:
    """`worker_eta_task_limit` stops no unrelated task while others wait, and the prefetch count is restored."""
    environment = broker_audit.settings(CELERY_WORKER_ETA_TASK_LIMIT=8) | {"WORKSHOP_PREFETCH": "2"}
    with open_workshop(
        concurrency=2,
        session_timeout=SESSION_TIMEOUT,
        environment=environment,
    ) as workshop:
        workshop.other_client.take(key)
        for number in range(8):
            workshop.send("workshop.journal.locked", key, f"{key}:journal", number)
        workshop.wait_count(key, 9, TIMEOUT)
        for number in range(3):
            workshop.send("workshop.journal.unlocked", f"{key}:unrelated", number)
        broker_audit.wait_runs(workshop, f"{key}:unrelated", 3)
        workshop.other_client.release(key)
        broker_audit.wait_runs(workshop, f"{key}:journal", 8)
        assert broker_audit.more_than_once(workshop, f"{key}:journal") == {}
        broker_audit.assert_as_before(workshop, key, prefetch=4, slots=2)
