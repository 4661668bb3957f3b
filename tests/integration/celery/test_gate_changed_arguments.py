"""Arguments that change between the message and the body: the task runs under the lock of the body's arguments."""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import pytest
from celery import Celery

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]

# Longer than every timeout here: no lock is freed by a session timeout.
SESSION_TIMEOUT = 60.0


@pytest.fixture(scope="module", params=["prefork", "threads"])
def workshop(request: pytest.FixtureRequest, open_workshop: Any) -> Iterator[Any]:
    options = ("--include", "tests.toolbox.celery.readiness,workshop.converted")
    with open_workshop(pool=request.param, concurrency=4, session_timeout=SESSION_TIMEOUT, options=options) as workshop:
        yield workshop


@pytest.mark.parametrize(
    ("name", "by_name"), [("changed.at_start", False), ("changed.at_call", True), ("converted.convert_changed", False)]
)
def test_changed_in_place__one_body_at_a_time(workshop: Any, key: str, name: str, by_name: bool) -> None:
    """Two messages with different keys, whose changed arguments have the same key: one body at a time."""
    if name.startswith("converted") and "pydantic" not in inspect.signature(Celery._task_from_fun).parameters:
        pytest.skip("Celery 5.4 does not know pydantic")
    gate = f"{key}:gate"

    def send(order: dict[str, str]) -> Any:
        if by_name:
            return workshop.send(f"workshop.{name}", kwargs={"order": order, "gate": gate})
        return workshop.send(f"workshop.{name}", order, gate)

    first = send({"key": f"{key}:1"})
    assert workshop.entered(gate)["key"] == key
    second = send({"key": f"{key}:2"})
    # The body that runs, and the task that waits.
    workshop.wait_count(key, 2)
    assert workshop.board.llen(f"{gate}:in") == 0
    workshop.let_go(gate)
    workshop.let_go(gate)
    for task in (first, second):
        result = workshop.result(task)
        assert (result["key"], result["together"]) == (key, 1)
    for each in (key, f"{key}:1", f"{key}:2"):
        workshop.wait_empty(each)
