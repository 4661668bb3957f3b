"""The gate where the broker has no event loop: a thread of its own takes the loop's place."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from typing import Any

import pytest

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]

SOON = 8.0


@pytest.fixture(scope="module", params=["prefork", "threads", "solo"])
def workshop(
    request: pytest.FixtureRequest, open_workshop: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("broker")
    with open_workshop(pool=request.param, concurrency=2, session_timeout=30, folder=folder) as workshop:
        yield workshop


def test_contention__one_at_a_time(workshop: Any, key: str) -> None:
    """Tasks for one key run one after the other, in the order of their tokens, and unrelated ones past them."""
    workshop.stranger.take(key)
    sent = [workshop.send("contend", key, f"{key}:run") for _ in range(10)]
    workshop.wait_count(key, 11)
    assert workshop.result(workshop.send("idle"))["key"] is None
    workshop.stranger.release(key)
    for task in sent:
        assert workshop.result(task)["key"] == key
    notes = workshop.notes(f"{key}:run")
    assert {note["together"] for note in notes} == {1}
    assert [note["token"] for note in notes] == sorted(note["token"] for note in notes)
    workshop.wait_empty(key)


def test_ends__free_the_lock(workshop: Any, key: str) -> None:
    """However a task ends, the next in line runs."""
    for how in ("succeed", "fail", "retry", "ignore"):
        workshop.let_go(f"{key}:{how}")
        workshop.send("end", key, f"{key}:{how}", how)
        assert workshop.result(workshop.send("shared_below", key))["key"] == key
    workshop.wait_empty(key, SOON)


def test_killed_child__frees_the_lock(workshop: Any, key: str) -> None:
    """A child that is killed frees its lock at once; where there are no children, tasks end when told."""
    workshop.send("hold", key, f"{key}:gate")
    pid = workshop.entered(f"{key}:gate")["pid"]
    if pid == workshop.worker.pid:
        workshop.let_go(f"{key}:gate")
    else:
        os.kill(pid, signal.SIGKILL)
    workshop.wait_empty(key, SOON)


def test_shutdown__leaves_nothing(workshop: Any, key: str) -> None:
    """A worker that is shut down takes what waits out of the line."""
    workshop.stranger.take(key)
    workshop.send("shared_below", key)
    workshop.wait_count(key, 2)
    workshop.worker.stop(30)
    try:
        workshop.wait_count(key, 1, SOON)
    finally:
        workshop.stranger.release(key)
        workshop.worker.start()
