"""The gate of a worker whose tasks are greenlets of eventlet."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]


@pytest.fixture(scope="module")
def workshop(open_workshop: Any) -> Iterator[Any]:
    with open_workshop(pool="eventlet", concurrency=20, session_timeout=4.0) as workshop:
        yield workshop


def test_contention__one_at_a_time(workshop: Any, key: str) -> None:
    """Tasks for one key wait at the gate and run in their order, and unrelated tasks run meanwhile."""
    workshop.other_client.take(key)
    sent = [workshop.send("contend", key, f"{key}:run") for _ in range(40)]
    # More tasks than greenlets.
    workshop.wait_count(key, 41)
    assert workshop.result(workshop.send("idle"))["key"] is None
    workshop.other_client.release(key)
    for task in sent:
        assert workshop.result(task)["key"] == key
    notes = workshop.notes(f"{key}:run")
    assert {note["id"] for note in notes} == {task.id for task in sent}
    assert {note["together"] for note in notes} == {1}
    assert [note["token"] for note in notes] == sorted(note["token"] for note in notes)
    workshop.wait_empty(key)


def test_lost__interrupts(workshop: Any, key: str) -> None:
    """A task with `on_lost="interrupt"` is interrupted when its node is deleted, and the next one runs."""
    task = workshop.send("hold_interruptibly", key, f"{key}:gate")
    workshop.entered(f"{key}:gate")
    workshop.delete(f"{workshop.pool.path(key)}/{workshop.nodes(key)[0]}")
    assert type(task.outcome(20)).__name__ == "LockLost"
    assert workshop.result(workshop.send("shared_below", key))["key"] == key


def test_accepted__error(workshop: Any, key: str) -> None:
    """When Celery fails to note that a task has started, the task does not run, and its lock is free."""
    workshop.send("not_started", kwargs={"key": key, "gate": f"{key}:gate"})
    workshop.entered(f"{key}:gate")
    workshop.wait_empty(key)
