"""Tasks that come back later where RabbitMQ delays their messages itself: quorum queues, and Celery from 5.5 on."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Exchange, Queue

from django_zklock.testing import ZooKeeperServer
from tests.integration.celery.broker_audit import TIMEOUT
from tests.toolbox.brokers.rabbitmq import RabbitMQ
from tests.toolbox.timing import scaled, wait_until

pytestmark = [
    pytest.mark.celery,
    pytest.mark.zookeeper,
    # So that one process alone starts a server.
    pytest.mark.xdist_group("rabbitmq"),
    pytest.mark.skipif(
        importlib.util.find_spec("kombu.transport.native_delayed_delivery") is None,
        reason="before 5.5 Celery lets no broker delay a message",
    ),
]

SESSION_TIMEOUT = 50.0
COUNT = 4
# RabbitMQ takes a message that expires for the second time for one that goes round in a circle.
DELAYS = 3
# Before kombu 5.7 the fifth delay did not fit into a routing key.
MANY_DELAYS = 6


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture(scope="module")
def workshop(open_workshop: Any, rabbitmq: RabbitMQ, server: ZooKeeperServer) -> Iterator[Any]:
    """Return a worker with a quorum queue that is bound to a topic exchange, without which RabbitMQ delays nothing."""
    with open_workshop(
        concurrency=2,
        session_timeout=SESSION_TIMEOUT,
        rabbitmq=rabbitmq,
        server=server,
        environment={"WORKSHOP_QUORUM": "1", "WORKSHOP_CONNECT_TIMEOUT": str(scaled(0.5)), "WORKSHOP_MAX_JOINING": "1"},
    ) as workshop:
        name = workshop.queue
        arguments = {"x-queue-type": "quorum"}
        queue = Queue(name, Exchange(name, type="topic"), routing_key=name, queue_arguments=arguments)
        workshop.sender.conf.task_queues = [queue]
        yield workshop


def wait_delays(workshop: Any, task: Any, count: int) -> None:
    """Wait until ``task`` was sent again ``count`` times."""

    def delays() -> int:
        lines = workshop.worker.log.read_text().splitlines()
        return sum("event=retry_later" in line and f"id={task.id} " in line for line in lines)

    wait_until(lambda: delays() >= count, TIMEOUT, f"{task.id} was delayed {count} times")


def left(rabbitmq: RabbitMQ, workshop: Any) -> dict[str, int]:
    """Return how many messages are in the queue of the worker and in those of RabbitMQ's delays."""
    found = rabbitmq.list_messages()
    return {
        name: count for name, count in found.items() if count and (name == workshop.queue or "celery_delayed" in name)
    }


@pytest.mark.shows("faults#rabbitmq-delays-a-message-several-times")
def test_conflict__comes_back(workshop: Any, rabbitmq: RabbitMQ, key: str) -> None:
    """Tasks that find their lock taken, by the default policy, come back again and again, and all of them run."""
    workshop.other_client.take(key)
    tasks = [workshop.send("come_back_by_default", key) for _ in range(COUNT)]
    for task in tasks:
        wait_delays(workshop, task, DELAYS)
    workshop.other_client.release(key)
    for task in tasks:
        result = workshop.result(task)
        assert (result["key"], result["retries"]) == (key, 0)
        assert result["conflicts"] >= DELAYS
    wait_until(lambda: left(rabbitmq, workshop) == {}, TIMEOUT, "the broker has no message")


@pytest.mark.shows("faults#rabbitmq-delays-a-message-several-times")
@pytest.mark.slow
def test_outage__comes_back(workshop: Any, server: ZooKeeperServer, rabbitmq: RabbitMQ, key: str) -> None:
    """Tasks that do not find ZooKeeper, by the default policy, come back again and again, and all of them run."""
    with server.faults.refuse():
        server.faults.drop()
        tasks = [workshop.send("come_back_by_default", f"{key}:{number}") for number in range(COUNT)]
        for task in tasks:
            wait_delays(workshop, task, DELAYS)
    for task in tasks:
        result = workshop.result(task)
        assert (result["retries"], result["conflicts"]) == (0, 0)
        assert result["outages"] >= DELAYS
    wait_until(lambda: left(rabbitmq, workshop) == {}, TIMEOUT, "the broker has no message")


@pytest.mark.shows("faults#rabbitmq-delays-a-message-several-times")
def test_conflict__many_short_delays(workshop: Any, key: str) -> None:
    """A delay that is shorter than RabbitMQ's shortest one is a second or more, any number of times."""
    workshop.other_client.take(key)
    task = workshop.send("come_back", key, f"{key}:run")
    wait_delays(workshop, task, MANY_DELAYS)
    workshop.other_client.release(key)
    assert workshop.result(task)["conflicts"] >= MANY_DELAYS
