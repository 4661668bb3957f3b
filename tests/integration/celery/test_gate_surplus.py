"""Tasks that are granted together, for which their worker has no slots: another worker that has slots runs them."""

from __future__ import annotations

import threading
from typing import Any

import pytest

from django_zklock.contrib.celery.gate.attempt import CHECK_INTERVAL
from tests.integration.celery import broker_audit
from tests.integration.celery.broker_audit import TIMEOUT
from tests.toolbox.timing import wait_until

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]

SESSION_TIMEOUT = 50.0
SLOTS = 2
COUNT = 12


def given_back(workshop: Any) -> int:
    return int(broker_audit.ask(workshop, "zklock_gate")["given_back"])


@pytest.mark.shows("faults#one-worker-has-the-locks-of-many-tasks-and-no-slots-for-them")
@pytest.mark.parametrize(
    ("broker_name", "pool"),
    [("redis", "prefork"), pytest.param("rabbitmq", "threads", marks=pytest.mark.xdist_group("rabbitmq"))],
)
def test_granted_together__idle_worker_has_some(
    open_workshop: Any, request: pytest.FixtureRequest, broker_name: str, pool: str, key: str
) -> None:
    """Readers without a slot go to a worker that has some: once, also while all workers are full, and all run."""
    rabbitmq = broker_audit.broker_of(request, broker_name)
    # As many messages as slots in the window of each worker.
    environment = {"WORKSHOP_PREFETCH": "1"}
    with open_workshop(
        pool=pool, concurrency=SLOTS, session_timeout=SESSION_TIMEOUT, rabbitmq=rabbitmq, environment=environment
    ) as workshop:
        workshop.other_client.take(key)
        tasks = [workshop.send("workshop.journal.read_and_stay", key, f"{key}:gate") for _ in range(COUNT)]
        workshop.wait_count(key, COUNT + 1, TIMEOUT)
        # A task that has not seen yet that it has to wait would be one that has not waited.
        wait_until(lambda: broker_audit.ask(workshop, "zklock_gate")["waiting"] == COUNT, TIMEOUT, "all wait")
        workshop.other_client.release(key)
        first = [workshop.entered(f"{key}:gate") for _ in range(SLOTS)]
        other = workshop.start_another(pool=pool, concurrency=SLOTS)
        second = [workshop.entered(f"{key}:gate") for _ in range(SLOTS)]
        if pool == "threads":
            assert {each["pid"] for each in first} == {workshop.worker.pid} != {each["pid"] for each in second}
        wait_until(lambda: broker_audit.ask(workshop, "zklock_gate")["ready"] == SLOTS, TIMEOUT, "some are kept")
        # The last of them is counted when RabbitMQ has confirmed those before it.
        wait_until(lambda: given_back(workshop) >= COUNT - 2 * SLOTS, TIMEOUT, "the others have gone back")
        before = given_back(workshop)
        # Longer than a task has to wait for a slot before it goes back.
        threading.Event().wait(3 * CHECK_INTERVAL)
        assert given_back(workshop) == before
        for _ in range(COUNT):
            workshop.let_go(f"{key}:gate")
        for task in tasks:
            workshop.outcome(task)
        assert workshop.board.llen(f"{key}:gate:in") == COUNT - 2 * SLOTS
        assert other.is_running()
        workshop.wait_empty(key, TIMEOUT)
        broker_audit.assert_as_before(workshop, key, prefetch=SLOTS, slots=SLOTS)
