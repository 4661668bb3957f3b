"""Whatever way a task ends, the worker's main process gives its lock back at once, and never before the body is over.

The session times out long after every patience here, so no lock is seen to go because of that.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest
from celery.exceptions import TimeLimitExceeded

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]

SESSION_TIMEOUT = 40.0
# Celery itself takes a child for lost after ten seconds.
SOON = 8.0


@pytest.fixture(scope="module")
def workshop(open_workshop: Any) -> Iterator[Any]:
    with open_workshop(concurrency=4, session_timeout=SESSION_TIMEOUT) as workshop:
        yield workshop


@pytest.mark.parametrize("how", ["succeed", "fail", "retry", "ignore", "reject", "exit", "die"])
def test_end__frees_the_lock(workshop: Any, key: str, how: str) -> None:
    """A task that ends by itself, in any way, frees its lock, and the next in line runs."""
    workshop.send("end", key, f"{key}:gate", how)
    first = workshop.entered(f"{key}:gate")
    waiting = workshop.send("shared_below", key)
    workshop.wait_count(key, 2)
    workshop.let_go(f"{key}:gate")
    assert waiting.outcome(SOON)["token"] > first["token"]
    workshop.wait_empty(key, SOON)


def test_soft_time_limit__frees_the_lock(workshop: Any, key: str) -> None:
    """A soft time limit that strikes the body frees the lock."""
    task = workshop.send("hold", key, f"{key}:gate", soft_time_limit=1)
    workshop.entered(f"{key}:gate")
    assert type(workshop.outcome(task)).__name__ == "SoftTimeLimitExceeded"
    workshop.wait_empty(key, SOON)


def test_hard_time_limit__frees_the_lock_of_the_dead(workshop: Any, key: str) -> None:
    """A hard time limit frees the lock, but not before the child is gone, although it does not heed SIGTERM."""
    task = workshop.send("hold_stubbornly", key, f"{key}:gate", time_limit=1)
    pid = workshop.entered(f"{key}:gate")["pid"]
    waiting = workshop.send("look_for", key, pid)
    assert waiting.outcome(SOON)["other"] in {"gone", "Z", "X"}
    assert isinstance(workshop.outcome(task), TimeLimitExceeded)


def test_killed_child__frees_the_lock(workshop: Any, key: str) -> None:
    """A child that is killed frees its lock at once, before Celery takes it for lost."""
    workshop.send("hold", key, f"{key}:gate")
    pid = workshop.entered(f"{key}:gate")["pid"]
    waiting = workshop.send("look_for", key, pid)
    workshop.wait_count(key, 2)
    os.kill(pid, signal.SIGKILL)
    assert waiting.outcome(SOON)["other"] in {"gone", "Z", "X"}
    workshop.wait_empty(key, SOON)


def test_terminated__frees_the_lock(workshop: Any, key: str) -> None:
    """A task that is revoked while it runs frees its lock when its child is gone."""
    task = workshop.send("hold", key, f"{key}:gate")
    pid = workshop.entered(f"{key}:gate")["pid"]
    waiting = workshop.send("look_for", key, pid)
    workshop.wait_count(key, 2)
    workshop.control.revoke(task.id, terminate=True, signal="SIGKILL")
    assert waiting.outcome(SOON)["other"] in {"gone", "Z", "X"}
    workshop.wait_empty(key, SOON)


def test_release__inside_of_the_body(workshop: Any, key: str) -> None:
    """A task may give its lock back before its end; `wait=True` waits until the node is gone."""
    workshop.send("release_early", key, f"{key}:gate")
    assert workshop.entered(f"{key}:gate")["key"] is None
    assert workshop.nodes(key) == []
    assert workshop.result(workshop.send("shared_below", key))["key"] == key
    workshop.let_go(f"{key}:gate")


@pytest.mark.slow
def test_redelivered__after_its_child_was_killed(workshop: Any, key: str) -> None:
    """A task that is delivered again because its child was killed meets no dead node of its own, and runs."""
    task = workshop.send("hold_late", key, f"{key}:gate")
    facts = workshop.entered(f"{key}:gate")
    os.kill(facts["pid"], signal.SIGKILL)
    workshop.wait_empty(key, SOON)
    result = workshop.result(task)
    assert (result["id"], result["key"]) == (task.id, key)
    assert result["token"] > facts["token"]
    assert workshop.board.get(f"{key}:gate:deliveries") == "2"


@pytest.mark.slow
def test_warm_shutdown__parked_tasks_go_back(workshop: Any, key: str) -> None:
    """A worker that is shut down finishes what holds and lets go of what waits, which runs when it is started again."""
    running = workshop.send("hold", key, f"{key}:gate")
    workshop.entered(f"{key}:gate")
    waiting = [workshop.send("shared_below", key) for _ in range(3)]
    workshop.wait_count(key, 4)
    workshop.worker.signal(signal.SIGTERM)
    workshop.wait_count(key, 1, SOON)
    workshop.let_go(f"{key}:gate")
    assert workshop.worker.wait(SOON) == 0
    assert workshop.result(running)["key"] == key
    workshop.wait_empty(key, SOON)
    workshop.worker.stop()
    workshop.worker.start()
    for task in waiting:
        assert workshop.result(task)["key"] == key


def test_cold_shutdown__frees_everything(workshop: Any, key: str) -> None:
    """A cold shutdown frees what is held and what waits."""
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


def test_lost_broker__waiting_tasks_run_once(workshop: Any, key: str) -> None:
    """When the connection to the broker is lost, what waits leaves the line, is delivered again, and runs once."""
    workshop.send("hold", key, f"{key}:gate")
    workshop.entered(f"{key}:gate")
    waiting = [workshop.send("contend", key, f"{key}:run") for _ in range(3)]
    workshop.wait_count(key, 4)
    workshop.board.client_kill_filter(_type="normal", skipme=True)
    workshop.board.client_kill_filter(_type="pubsub", skipme=True)
    workshop.let_go(f"{key}:gate")
    for task in waiting:
        assert workshop.result(task)["key"] == key
    assert sorted(note["id"] for note in workshop.notes(f"{key}:run")) == sorted(task.id for task in waiting)
    workshop.wait_empty(key, SOON)


@pytest.mark.slow
def test_killed_worker__runs_once_more(open_workshop: Any, key: str) -> None:
    """A task of a worker that dies, delivered to another one, waits there for its own dead node, and runs once."""
    with open_workshop(concurrency=1, session_timeout=4) as workshop:
        task = workshop.send("hold_late", key, f"{key}:gate")
        facts = workshop.entered(f"{key}:gate")
        workshop.worker.kill()
        workshop.start_another(concurrency=1)
        # Redis would do so when the visibility timeout is over, and kombu looks for that every hundred seconds.
        workshop.send("hold_late", key, f"{key}:gate", task_id=task.id)
        result = workshop.result(task)
        assert (result["id"], result["key"]) == (task.id, key)
        assert result["token"] > facts["token"]
        assert workshop.board.get(f"{key}:gate:deliveries") == "2"
        workshop.wait_empty(key)
