"""The gate without an event loop of the broker: it has a thread of its own."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

from tests.integration.celery import broker_audit
from tests.toolbox.timing import wait_until

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]

SESSION_TIMEOUT = 40.0
# Long before a session ends.
SOON = 25.0
# For some hundred tasks, which take two seconds.
BURST = 60.0
# While two threads filled the slots, six of eight bursts left a task at the gate.
BURSTS = int(os.environ.get("ZKLOCK_BURSTS", "3"))


@pytest.fixture(scope="module", params=["prefork", "threads"])
def workshop(
    request: pytest.FixtureRequest, open_workshop: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("broker")
    # Celery's own check for dead children comes later than every timeout here.
    environment = {"WORKSHOP_LOST_WAIT": "100"}
    with open_workshop(
        pool=request.param, concurrency=2, session_timeout=SESSION_TIMEOUT, folder=folder, environment=environment
    ) as workshop:
        yield workshop


def test_contention__one_at_a_time(workshop: Any, key: str) -> None:
    """Tasks for one key run one after the other, in the order of their tokens, and unrelated tasks run meanwhile."""
    workshop.other_client.take(key)
    sent = [workshop.send("contend", key, f"{key}:run") for _ in range(10)]
    workshop.wait_count(key, 11)
    assert workshop.result(workshop.send("idle"))["key"] is None
    workshop.other_client.release(key)
    for task in sent:
        assert workshop.result(task)["key"] == key
    notes = workshop.notes(f"{key}:run")
    assert {note["together"] for note in notes} == {1}
    assert [note["token"] for note in notes] == sorted(note["token"] for note in notes)
    workshop.wait_empty(key)


def test_ends__free_the_lock(workshop: Any, key: str) -> None:
    """However a task ends, the next waiter runs."""
    for how in ("succeed", "fail", "retry", "ignore"):
        workshop.let_go(f"{key}:{how}")
        workshop.send("end", key, f"{key}:{how}", how)
        assert workshop.result(workshop.send("shared_below", key))["key"] == key
    workshop.wait_empty(key, SOON)


# The other pools have no children.
@pytest.mark.parametrize("workshop", ["prefork"], indirect=True)
def test_killed_child__frees_the_lock(workshop: Any, key: str) -> None:
    """The lock of a child that is killed is free long before the session ends, and not before the child has ended."""
    workshop.send("hold", key, f"{key}:gate")
    pid = workshop.entered(f"{key}:gate")["pid"]
    assert pid != workshop.worker.pid
    waiting = workshop.send("look_for", key, pid)
    workshop.wait_count(key, 2)
    os.kill(pid, signal.SIGKILL)
    assert waiting.outcome(SOON)["other"] in {"gone", "Z", "X"}
    workshop.wait_empty(key, SOON)


@pytest.mark.slow
@pytest.mark.timeout(60 + BURSTS * BURST)
@pytest.mark.parametrize(("pool", "concurrency"), [("prefork", 4), ("threads", 20)])
def test_bursts__no_task_is_left(
    open_workshop: Any, tmp_path_factory: pytest.TempPathFactory, pool: str, concurrency: int, key: str
) -> None:
    """Tasks that arrive while others get slots all run once, although the threads switch at every opportunity."""
    count, keys = 300, 3
    environment = {"WORKSHOP_SWITCH_INTERVAL": "1e-6", "WORKSHOP_PREFETCH": str(count)}
    with open_workshop(
        pool=pool,
        concurrency=concurrency,
        session_timeout=SESSION_TIMEOUT,
        folder=tmp_path_factory.mktemp("broker"),
        environment=environment,
    ) as workshop:
        for burst in range(BURSTS):
            journal = f"{key}:journal:{burst}"
            workshop.worker.pause()
            for number in range(count):
                workshop.send("workshop.journal.locked", f"{key}:{number % keys}", journal, number)
            workshop.worker.resume()
            assert set(broker_audit.wait_runs(workshop, journal, count, BURST).values()) == {1}
        wait_until(lambda: broker_audit.ask(workshop, "zklocks") == [], SOON, "no task is left at the gate")


def test_shutdown__leaves_nothing(workshop: Any, key: str) -> None:
    """A worker that is shut down removes its waiters from the queue."""
    workshop.other_client.take(key)
    workshop.send("shared_below", key)
    workshop.wait_count(key, 2)
    workshop.worker.stop(30)
    try:
        workshop.wait_count(key, 1, SOON)
    finally:
        workshop.other_client.release(key)
        workshop.worker.start()
