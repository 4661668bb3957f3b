"""The worker of the installed Celery, and its records of requests."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

import pytest
from celery.worker import state
from celery.worker.request import Request

from django_zklock.contrib.celery.internals import worker

pytestmark = [pytest.mark.celery, pytest.mark.oldest]


@pytest.mark.parametrize(
    ("of_message", "of_task", "of_worker", "limit"),
    [
        ((60, 30), 90, 120, 60),
        ((None, 30), 90, 120, 90),
        ((None, None), None, 120, 120),
        ((None, None), None, None, None),
    ],
)
def test_time_limit(
    of_message: tuple[int | None, int | None], of_task: int | None, of_worker: int | None, limit: int | None
) -> None:
    """The time limit of the message is before that of the task, and that before the worker's, as in Celery."""
    assert Request.time_limits == (None, None)
    request = SimpleNamespace(time_limits=of_message, task=SimpleNamespace(time_limit=of_task))
    assert worker.time_limit(cast("Request", request), SimpleNamespace(time_limit=of_worker)) == limit


class Received(Request):
    """A request, of which only the id counts."""

    id = "a"

    def __init__(self) -> None:
        """Read no message."""


def test_ended__next_delivery_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that is forgotten does not take the next delivery of its task with it."""
    old, new = Received(), Received()
    monkeypatch.setitem(state.requests, "a", old)
    worker.count_as_ended(old)
    assert "a" not in state.requests
    monkeypatch.setitem(state.requests, "a", new)
    worker.count_as_ended(old)
    assert state.requests["a"] is new
