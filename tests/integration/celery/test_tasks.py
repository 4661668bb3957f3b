"""Locked tasks of every kind, their retries and their errors, on a worker that was connected before it forked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from django_zklock import LockConflict, LockTimeout
from tests.toolbox.timing import scaled, wait_until

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper, pytest.mark.oldest]

PARENT_KEY = "of-the-main-process"


@pytest.fixture(scope="module", params=[True], ids=["gate"])
def workshop(request: pytest.FixtureRequest, open_workshop: Any) -> Iterator[Any]:
    environment = {"WORKSHOP_PARENT_KEY": PARENT_KEY}
    with open_workshop(concurrency=2, environment=environment, gate=request.param) as workshop:
        yield workshop


# Kinds.


@pytest.mark.parametrize(
    "name",
    [
        "shared_below",
        "shared_above",
        "app_below",
        "app_above",
        "shared_bound_below",
        "shared_bound_above",
        "app_bound_retrying_below",
        "app_bound_retrying_above",
        "another.name",
        "twice_above",
        "class_based",
        "class_based_run",
        "class_based_late",
    ],
)
def test_task__holds(workshop: Any, key: str, name: str) -> None:
    """A task is locked with the decorator above or below, bound or not, with autoretry or not, and as a class."""
    result = workshop.result(workshop.send(name, key))
    assert result["key"] == key
    assert result.get("name", "").endswith(name if "name" in result else "")
    # It has used the hold of its ticket.
    assert f"event=header_refused task={result['id']}" not in workshop.worker.log.read_text()
    workshop.wait_empty(key)


# The main process.


@pytest.mark.shows("guarantees#forked-children-hold-nothing")
@pytest.mark.parametrize("workshop", [True, False], indirect=True, ids=["gate", "slot"])
def test_main_process__connected_before_the_fork(workshop: Any, key: str) -> None:
    """A lock of the main process is not inherited: a child finds it taken, can acquire others, and does not free it."""
    main = workshop.worker.pid
    for _ in range(4):
        result = workshop.result(workshop.send("shared_below", key))
        assert result["pid"] != main
        skipped = workshop.result(workshop.send("skip", PARENT_KEY))
        assert f"(pid {main} on " in skipped["holder"]
    workshop.wait_count(PARENT_KEY, 1)


# Autoretry.


@pytest.mark.parametrize("name", ["refuse_below", "refuse_above"])
def test_autoretry__conflict_is_no_failed_attempt(workshop: Any, key: str, name: str) -> None:
    """`autoretry_for=(Exception,)` does not retry a conflict: the task fails with it, and names the holder."""
    workshop.other_client.take(key)
    error = workshop.outcome(workshop.send(name, key, f"{key}:run"))
    assert isinstance(error, LockConflict)
    assert str(error).startswith(f"lock '{key}' is held by label the other client (pid ")
    workshop.other_client.release(key)
    assert workshop.result(workshop.send(name, key, f"{key}:run"))["retries"] == 0


@pytest.mark.parametrize("name", ["time_out", "time_out_inside"])
def test_autoretry__timeout_is_no_failed_attempt(workshop: Any, key: str, name: str) -> None:
    """It does not retry a timeout either, of the task's lock or of a lock in its body."""
    workshop.other_client.take(key)
    error = workshop.outcome(workshop.send(name, key, f"{key}:run"))
    assert isinstance(error, LockTimeout)
    assert f"lock '{key}' was not granted within {scaled(1):g} s; held by label the other client" in str(error)
    if name == "time_out_inside":
        assert workshop.board.get(f"{key}:run:attempts") == "1"


def test_autoretry__asked_for_by_name(workshop: Any, key: str) -> None:
    """A task whose `autoretry_for` names LockTimeout is retried for it."""
    workshop.other_client.take(key)
    task = workshop.send("time_out_by_name", key, f"{key}:run")
    wait_until(lambda: task.state == "RETRY", 20, "the task is retried")
    workshop.other_client.release(key)
    assert workshop.result(task)["retries"] > 0


@pytest.mark.parametrize("name", ["fail_twice_below", "fail_twice_above", "retry_itself"])
def test_autoretry__real_errors(workshop: Any, key: str, name: str) -> None:
    """Real errors are retried, each with the lock free again, so that the next attempt does not skip."""
    result = workshop.result(workshop.send(name, key))
    assert (result.get("retries"), result["key"]) == (2, key)


def test_autoretry__after_a_handled_conflict(workshop: Any, key: str) -> None:
    """A task that handles a conflict and then fails for another reason is retried."""
    workshop.other_client.take(key)
    assert workshop.result(workshop.send("handle_conflict_and_fail", key))["retries"] == 2


# The budget of on_conflict="retry".


def test_retry__gives_up(workshop: Any, key: str) -> None:
    """After `max_wait` the task fails with LockConflict, with number and time of the retries, and is not retried."""
    workshop.other_client.take(key)
    error = workshop.outcome(workshop.send("come_back_for_a_while", key))
    assert isinstance(error, LockConflict)
    assert str(error).startswith(f"lock '{key}' is held by label the other client")
    assert "come_back_for_a_while gave up after" in str(error)
    assert "max_wait" in str(error)
    workshop.other_client.release(key)
    workshop.wait_empty(key)


def test_retry__new_budget_after_a_failure(workshop: Any, key: str) -> None:
    """A task that has run and failed begins a new budget: old conflicts do not count in its next attempt."""
    workshop.other_client.take(key)
    task = workshop.send("come_back_and_fail_once", key, f"{key}:fail")
    wait_until(lambda: task.state == "RETRY", 20, "the task has met the lock")
    workshop.other_client.release(key)
    assert workshop.board.blpop([f"{key}:fail:in"], timeout=scaled(30)) is not None
    result = workshop.result(task)
    assert (result["retries"], result["key"]) == (1, key)


def test_retry__counts_in_headers_of_its_own(workshop: Any, key: str) -> None:
    """A producer's headers are kept, and conflicts are counted in additional headers."""
    workshop.other_client.take(key)
    task = workshop.send("come_back", key, f"{key}:run", headers={"tenant": "north"})
    wait_until(lambda: task.state == "RETRY", 20, "the task has met the lock")
    workshop.other_client.release(key)
    result = workshop.result(task)
    assert result["conflicts"] >= 1
    assert result["retries"] == 0


# Errors and results.


def test_error__through_the_json_backend(workshop: Any, key: str) -> None:
    """An error arrives through the JSON result backend with its type and its message."""
    workshop.other_client.take(key)
    error = workshop.outcome(workshop.send("refuse", key))
    assert type(error) is LockConflict
    assert "workshop.tasks.refuse did not run; on_conflict=" in str(error)
