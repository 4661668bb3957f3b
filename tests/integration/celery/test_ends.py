"""The ends of tasks, children and workers, and the locks that the children hold themselves."""

from __future__ import annotations

import math
import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from celery.exceptions import TimeLimitExceeded, WorkerLostError

from tests.toolbox.timing import scaled

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]

SESSION_TIMEOUT = 2.5
# The server checks for dead sessions once a tick, and this machine may be busy.
GRACE = 10.0
# A task begins, and waits in the queue, before it is over.
TIME_LIMIT = math.ceil(scaled(1))


@pytest.fixture(scope="module")
def workshop(open_workshop: Any) -> Iterator[Any]:
    with open_workshop(concurrency=2, session_timeout=SESSION_TIMEOUT, gate=False) as workshop:
        yield workshop


@pytest.mark.shows("guarantees#no-way-out-leaves-a-node")
def test_soft_time_limit__while_waiting(workshop: Any, key: str) -> None:
    """A soft time limit that is raised while a task waits for a lock leaves no node."""
    held = workshop.other_client.take(key)
    task = workshop.send("wait_softly", key, f"{key}:run", soft_time_limit=TIME_LIMIT)
    workshop.wait_count(key, 2)
    assert workshop.result(task)["ended"] == "softly"
    workshop.wait_count(key, 1)
    held.check()


@pytest.mark.shows("guarantees#no-way-out-leaves-a-node")
def test_soft_time_limit__while_holding(workshop: Any, key: str) -> None:
    """A soft time limit that is raised while a task holds a lock releases the lock."""
    task = workshop.send("hold_softly", key, f"{key}:gate", soft_time_limit=TIME_LIMIT)
    workshop.entered(f"{key}:gate")
    assert workshop.result(task)["ended"] == "softly"
    workshop.wait_empty(key)


@pytest.mark.shows("guarantees#the-end-of-a-process-frees-its-locks")
def test_hard_time_limit__frees_the_lock(workshop: Any, key: str) -> None:
    """The lock of a task that its hard time limit kills is free when its session ends."""
    task = workshop.send("hold", key, f"{key}:gate", time_limit=TIME_LIMIT)
    workshop.entered(f"{key}:gate")
    assert isinstance(workshop.outcome(task), TimeLimitExceeded)
    workshop.wait_empty(key, SESSION_TIMEOUT + GRACE)
    assert workshop.result(workshop.send("shared_below", key))["key"] == key


@pytest.mark.shows("guarantees#the-end-of-a-process-frees-its-locks")
def test_killed_child__frees_the_lock(workshop: Any, key: str) -> None:
    """The lock of a killed child is free when its session ends, and the next waiter gets it."""
    task = workshop.send("hold", key, f"{key}:gate")
    facts = workshop.entered(f"{key}:gate")
    waiting = workshop.send("shared_below", key)
    workshop.wait_count(key, 2)
    os.kill(facts["pid"], signal.SIGKILL)
    assert isinstance(workshop.outcome(task), WorkerLostError)
    result = workshop.result(waiting)
    assert result["token"] > facts["token"]
    workshop.wait_empty(key)


def test_redelivered__waits_for_its_own_dead_node(workshop: Any, key: str) -> None:
    """A redelivered task waits for the node of its killed delivery and runs, even under `skip`."""
    task = workshop.send("hold_late", key, f"{key}:gate")
    facts = workshop.entered(f"{key}:gate")
    assert facts["id"] == task.id
    os.kill(facts["pid"], signal.SIGKILL)
    result = workshop.result(task)
    assert result.get("zklock") is None
    assert (result["id"], result["key"]) == (task.id, key)
    assert result["token"] > facts["token"]
    assert workshop.board.get(f"{key}:gate:deliveries") == "2"


@pytest.mark.shows("guarantees#the-end-of-a-process-frees-its-locks")
def test_max_tasks_per_child__frees_sessions_at_once(open_workshop: Any, key: str) -> None:
    """A child that has run its maximum of tasks closes its session, long before the session would time out."""
    patient = 30.0
    options = ["--max-tasks-per-child", "1"]
    with open_workshop(concurrency=1, session_timeout=patient, gate=False, options=options) as workshop:
        sessions = []
        for number in range(2):
            sessions.append(workshop.result(workshop.send("leak", f"{key}:{number}")))
            workshop.wait_empty(f"{key}:{number}", patient / 3)
            workshop.wait_session_gone(sessions[-1], patient / 3)
        assert sessions[0] != sessions[1]


@pytest.mark.shows("guarantees#the-end-of-a-process-frees-its-locks")
def test_killed_worker__frees_its_locks(open_workshop: Any, key: str) -> None:
    """The locks of a worker that is killed with all its children are free when their sessions end."""
    with open_workshop(concurrency=1, session_timeout=SESSION_TIMEOUT, gate=False) as workshop:
        workshop.send("hold", key, f"{key}:gate")
        workshop.entered(f"{key}:gate")
        workshop.worker.kill()
        workshop.wait_empty(key, SESSION_TIMEOUT + GRACE)
