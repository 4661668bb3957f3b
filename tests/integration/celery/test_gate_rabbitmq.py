"""The gate with RabbitMQ, where the server enforces the prefetch window and delivers unacknowledged messages again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from kombu import Queue

from tests.toolbox.brokers.rabbitmq import RabbitMQ
from tests.toolbox.timing import wait_until

# One group, so that one process alone starts a server.
pytestmark = [pytest.mark.celery, pytest.mark.zookeeper, pytest.mark.xdist_group("rabbitmq")]

# Seconds, enough for a busy machine, and less than the session timeout.
SOON = 20.0


@pytest.fixture(scope="module")
def workshop(open_workshop: Any, rabbitmq: RabbitMQ) -> Iterator[Any]:
    # The window has the size of the pool; Celery would keep the task of a killed child for ten seconds.
    environment = {"WORKSHOP_PREFETCH": "1", "WORKSHOP_LOST_WAIT": "0.5"}
    with open_workshop(concurrency=2, session_timeout=30, environment=environment, rabbitmq=rabbitmq) as workshop:
        yield workshop


def test_contention__unrelated_tasks_run_past(workshop: Any, key: str) -> None:
    """More tasks than the prefetch window can wait; unrelated tasks run meanwhile, and they run one by one."""
    workshop.other_client.take(key)
    waiting = [workshop.send("contend", key, f"{key}:run") for _ in range(20)]
    workshop.wait_count(key, 21)
    for _ in range(4):
        assert workshop.result(workshop.send("idle"))["key"] is None
    workshop.other_client.release(key)
    for task in waiting:
        assert workshop.result(task)["key"] == key
    notes = workshop.notes(f"{key}:run")
    assert {note["together"] for note in notes} == {1}
    assert [note["token"] for note in notes] == sorted(note["token"] for note in notes)
    workshop.wait_empty(key, SOON)


def test_killed_child__delivered_again(workshop: Any, key: str) -> None:
    """A task whose child is killed is delivered again after its lock is free, and runs to its end."""
    task = workshop.send("hold_late", key, f"{key}:gate")
    facts = workshop.entered(f"{key}:gate")
    os.kill(facts["pid"], signal.SIGKILL)
    result = workshop.result(task)
    assert (result["id"], result["key"]) == (task.id, key)
    assert result["token"] > facts["token"]
    assert workshop.board.get(f"{key}:gate:deliveries") == "2"
    workshop.wait_empty(key, SOON)


def test_failure__acknowledged_or_not(workshop: Any, rabbitmq: RabbitMQ, key: str) -> None:
    """The message of a failed task is acknowledged or rejected, as its settings say; the lock is free either way."""
    letters = f"{workshop.queue}-dead"
    with workshop.sender.connection() as connection:
        dead = Queue(letters).bind(connection.default_channel)
        dead.declare()
        rabbitmq.keep_dead_letters(workshop.queue, letters)
        failed = [workshop.send(name, key) for name in ("fail_acknowledged", "fail_unacknowledged")]
        for task in failed:
            with pytest.raises(KeyError):
                workshop.result(task)
        workshop.wait_empty(key, SOON)
        letter = wait_until(lambda: dead.get(no_ack=True), SOON, "one message is rejected")
        assert letter.headers["id"] == failed[1].id
        assert dead.get() is None
        dead.delete()
