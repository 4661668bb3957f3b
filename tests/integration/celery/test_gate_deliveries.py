"""Messages that go back to the broker: a delivery limit loses none, and their order and timeouts are kept."""

from __future__ import annotations

import contextlib
import signal
import time
from typing import Any

import pytest
from amqp.exceptions import MessageNacked
from kombu.exceptions import OperationalError

from tests.integration.celery import broker_audit
from tests.integration.celery.broker_audit import BROKERS, TIMEOUT
from tests.toolbox.brokers.rabbitmq import RabbitMQ
from tests.toolbox.timing import scaled, wait_until

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]

SESSION_TIMEOUT = 50.0
HOUR = 3600.0
# What a producer raises if the broker does not confirm its message; kombu may wrap that of its client.
REFUSED = (MessageNacked, OperationalError)


def nodes_made(workshop: Any, key: str) -> int:
    """Return how many contenders the queue has had, from the sequence number of the next node."""
    return max((int(node[-10:]) + 1 for node in workshop.nodes(key)), default=0)


@pytest.mark.shows("faults#the-broker-counts-deliveries")
@pytest.mark.slow
@pytest.mark.xdist_group("rabbitmq")
def test_delivery_limit__no_task_is_lost(open_workshop: Any, rabbitmq: RabbitMQ, key: str) -> None:
    """On a quorum queue with a delivery limit, tasks can go back to the broker any number of times, and run."""
    count, limit = 5, 3
    environment = broker_audit.settings(CELERY_TASK_DEFAULT_QUEUE_TYPE="quorum", CELERY_ZKLOCK_GATE_MAX_WAIT=1)
    with open_workshop(
        concurrency=2, session_timeout=SESSION_TIMEOUT, rabbitmq=rabbitmq, environment=environment
    ) as workshop:
        workshop.sender.conf.task_create_missing_queue_type = "quorum"
        rabbitmq.limit_deliveries(workshop.queue, limit)
        workshop.other_client.take(key)
        for number in range(count):
            workshop.send("workshop.journal.locked", key, f"{key}:journal", number)
        # A task is a new contender after each return to the broker.
        most = 1 + count * (limit + 2)
        wait_until(lambda: nodes_made(workshop, key) >= most, TIMEOUT, "all have gone back more than the limit")
        workshop.other_client.release(key)
        broker_audit.wait_runs(workshop, f"{key}:journal", count)
        assert broker_audit.more_than_once(workshop, f"{key}:journal") == {}
        workshop.wait_empty(key, TIMEOUT)
        broker_audit.assert_as_before(workshop, key, prefetch=20, slots=2)


@pytest.mark.shows("faults#a-message-may-live-in-its-queue-for-less-time-than-its-task-waits")
@pytest.mark.xdist_group("rabbitmq")
@pytest.mark.parametrize("policy", [True, False], ids=["queue", "message"])
def test_expiry__no_task_is_lost(open_workshop: Any, rabbitmq: RabbitMQ, policy: bool, key: str) -> None:
    """A task that has waited for longer than a message may live in its queue goes back to it, and runs."""
    count, life = 3, scaled(3)
    environment = broker_audit.settings(CELERY_ZKLOCK_GATE_MAX_WAIT=life + 2)
    with open_workshop(
        concurrency=1, session_timeout=SESSION_TIMEOUT, rabbitmq=rabbitmq, environment=environment
    ) as workshop:
        if policy:
            rabbitmq.expire_messages(workshop.queue, life, f"{workshop.queue}-dead")
        workshop.other_client.take(key)
        for number in range(count):
            options = {} if policy else {"expiration": life}
            workshop.send("workshop.journal.locked", key, f"{key}:journal", number, **options)
        wait_until(lambda: nodes_made(workshop, key) >= 1 + 2 * count, TIMEOUT, "all have gone back")
        workshop.other_client.release(key)
        broker_audit.wait_runs(workshop, f"{key}:journal", count)
        assert broker_audit.more_than_once(workshop, f"{key}:journal") == {}
        workshop.wait_empty(key, TIMEOUT)


def fill_up(workshop: Any, key: str) -> int:
    """Send tasks until the broker refuses one for its full queue, and return how many it has taken."""
    sent = 0
    confirming = workshop.sender.connection(transport_options={"confirm_publish": True})
    with confirming as connection, contextlib.suppress(*REFUSED):
        while True:
            workshop.send("workshop.journal.unlocked", f"{key}:others", sent, connection=connection)
            sent += 1
    return sent


@pytest.mark.shows("faults#the-broker-refuses-a-message")
@pytest.mark.xdist_group("rabbitmq")
def test_full_queue__no_task_is_lost(open_workshop: Any, rabbitmq: RabbitMQ, key: str) -> None:
    """A task that goes back while the broker refuses messages for its queue is not lost, and runs later."""
    # All that the worker can take is the task that waits.
    environment = broker_audit.settings(CELERY_ZKLOCK_GATE_MAX_WAIT=5, CELERY_ZKLOCK_GATE_MAX_PARKED=0)
    with open_workshop(
        concurrency=1,
        session_timeout=SESSION_TIMEOUT,
        rabbitmq=rabbitmq,
        environment=environment | {"WORKSHOP_PREFETCH": "1"},
    ) as workshop:
        rabbitmq.limit_length(workshop.queue, 1)
        workshop.other_client.take(key)
        workshop.send("workshop.journal.very_patient", key, f"{key}:journal")
        workshop.wait_count(key, 2)
        others = fill_up(workshop, key)
        workshop.wait_log("event=given_back")
        workshop.other_client.release(key)
        broker_audit.wait_runs(workshop, f"{key}:others", others)
        broker_audit.wait_runs(workshop, f"{key}:journal", 1)
        workshop.wait_empty(key, TIMEOUT)


@pytest.mark.shows("faults#the-broker-refuses-a-message")
@pytest.mark.xdist_group("rabbitmq")
def test_full_queue__retried_task_fails(open_workshop: Any, rabbitmq: RabbitMQ, key: str) -> None:
    """A task that would come back by `RetryLater` fails if the broker refuses it: no worker would run it."""
    with open_workshop(concurrency=1, session_timeout=SESSION_TIMEOUT, rabbitmq=rabbitmq) as workshop:
        rabbitmq.limit_length(workshop.queue, 1)
        workshop.other_client.take(key)
        workshop.send("idle", f"{key}:gate")
        workshop.entered(f"{key}:gate")
        task = workshop.send("come_back", key, f"{key}:run")
        workshop.wait_log(f"come_back[{task.id}] received")
        broker_audit.consume(workshop, workshop.worker, wanted=False)
        fill_up(workshop, key)
        workshop.let_go(f"{key}:gate")
        assert type(workshop.outcome(task)).__name__ in {kind.__name__ for kind in REFUSED}


@pytest.mark.shows("faults#the-broker-does-not-answer-as-in-an-alarm")
@pytest.mark.xdist_group("rabbitmq")
def test_alarm__retried_task_leaves_its_slot(open_workshop: Any, rabbitmq: RabbitMQ, key: str) -> None:
    """While the broker takes no message, a task that would come back fails, says so, and keeps no slot from others."""
    with open_workshop(concurrency=1, session_timeout=SESSION_TIMEOUT, rabbitmq=rabbitmq) as workshop:
        workshop.other_client.take(key)
        workshop.send("idle", f"{key}:gate")
        workshop.entered(f"{key}:gate")
        task = workshop.send("come_back", key, f"{key}:run")
        workshop.send("workshop.journal.unlocked", f"{key}:others", 1)
        workshop.wait_log("unlocked[")
        with rabbitmq.alarm():
            workshop.let_go(f"{key}:gate")
            broker_audit.wait_runs(workshop, f"{key}:others", 1)
            error = workshop.outcome(task)
            assert "it may take it later" in str(error)
        # What the broker has taken after the alarm runs.
        workshop.other_client.release(key)
        wait_until(lambda: workshop.notes(f"{key}:run"), TIMEOUT, "the task has run")


@pytest.mark.shows("faults#the-broker-delivers-messages-again-after-a-time")
@pytest.mark.parametrize("broker_name", BROKERS)
def test_timeout__over_all_deliveries(
    open_workshop: Any, request: pytest.FixtureRequest, broker_name: str, key: str
) -> None:
    """A timeout longer than the maximum wait ends with LockTimeout: it does not begin anew with each delivery."""
    with open_workshop(
        concurrency=1,
        session_timeout=SESSION_TIMEOUT,
        rabbitmq=broker_audit.broker_of(request, broker_name),
        environment=broker_audit.settings(CELERY_ZKLOCK_GATE_MAX_WAIT=1),
    ) as workshop:
        workshop.other_client.take(key)
        begun = time.monotonic()
        task = workshop.send("workshop.journal.bounded", key, f"{key}:journal")
        assert type(workshop.outcome(task)).__name__ == "LockTimeout"
        assert time.monotonic() - begun >= 3
        workshop.wait_count(key, 1)
        assert broker_audit.entries(workshop, f"{key}:journal") == []
        # The rest of a timeout after a delivery is short: that must not look like an outage of ZooKeeper.
        unprotected = workshop.send("give_up_or_run_without", key)
        assert type(workshop.outcome(unprotected)).__name__ == "LockTimeout"
        broker_audit.assert_as_before(workshop, key, prefetch=10, slots=1)


@pytest.mark.shows("guarantees#that-clocks-are-right", "faults#the-clocks-of-workers-differ")
def test_timeout__another_clock(open_workshop: Any, key: str) -> None:
    """A timeout that goes on at a host whose clock is ahead ends when it is used up, and not before."""
    with open_workshop(
        concurrency=1,
        session_timeout=SESSION_TIMEOUT,
        # kombu compares clocks of hosts: with its timeout of an hour the second one would have messages that the first
        # one has not given back yet delivered again.
        environment=broker_audit.settings(
            CELERY_ZKLOCK_GATE_MAX_WAIT=1, CELERY_BROKER_TRANSPORT_OPTIONS={"visibility_timeout": 3 * HOUR}
        ),
    ) as workshop:
        workshop.other_client.take(key)
        first = workshop.worker
        tasks = [
            workshop.send(f"workshop.journal.{name}", key, f"{key}:{name}") for name in ("very_patient", "bounded")
        ]
        workshop.wait_count(key, 3)
        broker_audit.consume(workshop, first, wanted=False)
        second = workshop.start(environment={"WORKSHOP_AHEAD": str(HOUR)})
        patient, bounded = tasks
        wait_until(lambda: "event=given_back" in second.log.read_text(), TIMEOUT, "the second worker has waited too")
        assert type(workshop.outcome(bounded)).__name__ == "LockTimeout"
        assert patient.state == "PENDING"
        workshop.other_client.release(key)
        broker_audit.wait_runs(workshop, f"{key}:very_patient", 1)
        assert broker_audit.entries(workshop, f"{key}:bounded") == []


@pytest.mark.parametrize("broker_name", BROKERS)
def test_warm_shutdown__order_of_waiting_tasks(
    open_workshop: Any, request: pytest.FixtureRequest, broker_name: str, key: str
) -> None:
    """Tasks that waited when their worker was shut down run in the order in which they were sent."""
    count = 100 if broker_name == "redis" else 50
    with open_workshop(
        concurrency=1,
        session_timeout=SESSION_TIMEOUT,
        rabbitmq=broker_audit.broker_of(request, broker_name),
        environment={"WORKSHOP_PREFETCH": "1"},
    ) as workshop:
        workshop.other_client.take(key)
        for number in range(count):
            workshop.send("workshop.journal.locked", key, f"{key}:journal", number)
        workshop.wait_count(key, count + 1, TIMEOUT)
        workshop.worker.signal(signal.SIGTERM)
        workshop.wait_count(key, 1, TIMEOUT)
        assert workshop.worker.wait(scaled(TIMEOUT)) == 0
        workshop.worker.stop()
        workshop.worker.start()
        workshop.wait_count(key, count + 1, TIMEOUT)
        workshop.other_client.release(key)
        broker_audit.wait_runs(workshop, f"{key}:journal", count)
        assert [entry["number"] for entry in broker_audit.entries(workshop, f"{key}:journal")] == list(range(count))
        broker_audit.assert_as_before(workshop, key, prefetch=1, slots=1)


@pytest.mark.shows("faults#the-broker-delivers-messages-again-after-a-time")
@pytest.mark.parametrize("broker_name", BROKERS)
def test_come_of_age__order_of_waiting_tasks(
    open_workshop: Any, request: pytest.FixtureRequest, broker_name: str, key: str
) -> None:
    """Tasks that have waited too long go back together in the order in which they have come."""
    count = 10
    with open_workshop(
        concurrency=1,
        session_timeout=SESSION_TIMEOUT,
        rabbitmq=broker_audit.broker_of(request, broker_name),
        environment=broker_audit.settings(CELERY_ZKLOCK_GATE_MAX_WAIT=3),
    ) as workshop:
        workshop.other_client.take(key)
        for number in range(count):
            workshop.send("workshop.journal.locked", key, f"{key}:journal", number)
        workshop.wait_count(key, count + 1)
        broker_audit.consume(workshop, workshop.worker, wanted=False)
        workshop.wait_count(key, 1)
        workshop.other_client.release(key)
        broker_audit.consume(workshop, workshop.worker, wanted=True)
        broker_audit.wait_runs(workshop, f"{key}:journal", count)
        assert [entry["number"] for entry in broker_audit.entries(workshop, f"{key}:journal")] == list(range(count))
