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


def test_revoked__leaves_the_queue(workshop: Any, key: str) -> None:
    """A waiting task that is revoked leaves the queue and does not run."""
    workshop.other_client.take(key)
    task = workshop.send("contend", key, f"{key}:run")
    workshop.wait_count(key, 2)
    workshop.control.revoke(task.id)
    workshop.wait_count(key, 1, SOON)
    wait_until(lambda: task.state == "REVOKED", SOON, "the task is over")
    workshop.other_client.release(key)
    assert workshop.result(workshop.send("shared_below", key))["key"] == key
    assert workshop.notes(f"{key}:run") == []


def test_lost_connection__waiting_tasks_run_once(workshop: Any, rabbitmq: RabbitMQ, key: str) -> None:
    """When RabbitMQ closes the connection, waiting tasks leave the queue, are delivered again, and run once."""
    running = workshop.send("hold", key, f"{key}:gate")
    workshop.entered(f"{key}:gate")
    waiting = [workshop.send("contend", key, f"{key}:run") for _ in range(5)]
    workshop.wait_count(key, 6)
    before = set(workshop.nodes(key))
    rabbitmq.close_connections()
    # Only the holder's node stays; the waiting tasks have new nodes.
    wait_until(lambda: len(before & set(workshop.nodes(key))) == 1, SOON, "the waiter has left the queue")
    workshop.wait_count(key, 6)
    workshop.let_go(f"{key}:gate")
    assert workshop.result(running)["key"] == key
    for task in waiting:
        assert workshop.result(task)["key"] == key
    assert sorted(note["id"] for note in workshop.notes(f"{key}:run")) == sorted(task.id for task in waiting)
    workshop.wait_empty(key, SOON)


def test_shutdown__waiting_tasks_are_delivered_again(workshop: Any, key: str) -> None:
    """A worker that is shut down returns waiting tasks, and the next one runs them."""
    workshop.other_client.take(key)
    waiting = [workshop.send("contend", key, f"{key}:run") for _ in range(5)]
    workshop.wait_count(key, 6)
    workshop.worker.stop()
    workshop.wait_count(key, 1, SOON)
    workshop.worker.start()
    workshop.wait_count(key, 6)
    workshop.other_client.release(key)
    for task in waiting:
        assert workshop.result(task)["key"] == key
    assert sorted(note["id"] for note in workshop.notes(f"{key}:run")) == sorted(task.id for task in waiting)
    workshop.wait_empty(key, SOON)
