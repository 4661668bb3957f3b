"""Locked tasks on workers with every kind of pool."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_zklock.zk.ops import snapshots
from tests.toolbox.timing import wait_until

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]

CONCURRENCY = {"prefork": 4, "threads": 4, "gevent": 20}
# With and without the gate. That of one slot, solo, runs one task at a time in any case.
POOLS = [("prefork", True), ("prefork", False), ("threads", True), ("gevent", True), ("gevent", False)]
# Longer than every timeout here: no session times out.
SESSION_TIMEOUT = 30.0


@pytest.fixture(scope="module", params=POOLS, ids=lambda each: f"{each[0]}-{'gate' if each[1] else 'slot'}")
def workshop(request: pytest.FixtureRequest, open_workshop: Any) -> Iterator[Any]:
    pool, gate = request.param
    concurrency = CONCURRENCY[pool]
    with open_workshop(pool=pool, concurrency=concurrency, session_timeout=SESSION_TIMEOUT, gate=gate) as workshop:
        yield workshop


def test_contention__one_at_a_time(workshop: Any, key: str) -> None:
    """40 tasks for one key all run, no two of them at once, with growing tokens."""
    sent = [workshop.send("contend", key, f"{key}:run") for _ in range(40)]
    for task in sent:
        assert workshop.result(task)["key"] == key
    notes = workshop.notes(f"{key}:run")
    assert {note["id"] for note in notes} == {task.id for task in sent}
    assert len(notes) == 40
    assert {note["together"] for note in notes} == {1}
    tokens = [note["token"] for note in notes]
    assert tokens == sorted(set(tokens))
    workshop.wait_empty(key)


def test_retry__comes_back(workshop: Any, key: str) -> None:
    """Tasks that go back to the broker on a conflict all run in the end, with unchanged retries."""
    workshop.other_client.take(key)
    sent = [workshop.send("come_back", key, f"{key}:run") for _ in range(6)]
    wait_until(lambda: all(task.state == "RETRY" for task in sent), 30, "every task has gone back once")
    workshop.other_client.release(key)
    # Not their states: Celery stores RETRY when the message was sent, perhaps over the SUCCESS of the next delivery.
    notes = wait_until(lambda: found if len(found := workshop.notes(f"{key}:run")) == 6 else None, 60, "6 bodies ran")
    assert {note["id"] for note in notes} == {task.id for task in sent}
    assert {note["retries"] for note in notes} == {0}
    assert min(note["conflicts"] for note in notes) >= 1
    assert {note["together"] for note in notes} == {1}


def test_holder__is_the_task(workshop: Any, key: str) -> None:
    """The identity of the holder has the name and the id of the task, and its process."""
    task = workshop.send("hold", key, f"{key}:gate")
    facts = workshop.entered(f"{key}:gate")
    (place,) = snapshots.one_lock(workshop.pool, key, timeout=10).entries
    assert place.held
    assert place.identity is not None
    assert place.identity.work is not None
    assert str(place.identity.work) == f"task workshop.tasks.hold [{task.id}]"
    # Its own process, or the main process that waits for it.
    assert place.identity.pid in {facts["pid"], workshop.worker.pid}
    assert place.token == facts["token"]
    workshop.let_go(f"{key}:gate")
    workshop.result(task)


@pytest.mark.shows("guarantees#the-end-of-a-process-frees-its-locks")
def test_warm_shutdown__frees_sessions_at_once(workshop: Any, key: str) -> None:
    """A worker that is shut down closes its sessions and frees their locks, long before they would time out."""
    session = workshop.result(workshop.send("leak", key))
    workshop.wait_count(key, 1)
    workshop.worker.stop(30)
    try:
        workshop.wait_empty(key, SESSION_TIMEOUT / 3)
        workshop.wait_session_gone(session, SESSION_TIMEOUT / 3)
    finally:
        workshop.worker.start()
