"""The pools of the installed Celery, their jobs, and where they report."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery import Celery
from celery.worker.request import Request, create_request_cls  # type: ignore[attr-defined]

from django_zklock.contrib.celery.internals import pool

pytestmark = [pytest.mark.celery, pytest.mark.oldest]


class Reports:
    """Receives what a pool reports of a request."""

    def __init__(self) -> None:
        self.received: list[str] = []

    def note(self, name: str) -> Callable[..., None]:
        return lambda *_facts, **_options: self.received.append(name)

    def __getattr__(self, name: str) -> Callable[..., None]:
        return self.note(name)


class RequestOfApplication(Request):
    """A class that a task names, which does more than Celery's, without a message."""

    id = "4711"

    def __init__(self) -> None:
        self.received: list[str] = []

    def on_accepted(self, *_facts: Any) -> None:
        self.received.append("on_accepted")

    def on_success(self, *_facts: Any, **_options: Any) -> None:
        self.received.append("on_success")

    def on_failure(self, *_facts: Any, **_options: Any) -> None:
        self.received.append("on_failure")

    def on_timeout(self, *_facts: Any) -> None:
        self.received.append("on_timeout")


@pytest.fixture
def request_of_application() -> Any:
    """Return a request of the class that Celery derives from the one that a task names."""
    app = Celery("pools", broker="memory://")

    # Not in every other application too.
    @app.task(name="report", shared=False)
    def task() -> None: ...

    worker_pool = SimpleNamespace(apply_async=None)
    derived = create_request_cls(
        RequestOfApplication, task, worker_pool, "host", None, app=app, task_ready=lambda *_facts, **_options: None
    )
    return derived()


def report(request: Any) -> None:
    """Report all that a pool reports."""
    request.on_accepted(71, 0.0)
    request.on_timeout(True, 1.0)
    request.on_success((False, None, 0.1))
    request.on_failure(SimpleNamespace(exception=ZeroDivisionError()))


def test_request_class__success_is_not_reported(request_of_application: Any) -> None:
    """A class of requests is no way to all reports: Celery's own ``on_success`` does not call that of the class."""
    report(request_of_application)
    assert request_of_application.received == ["on_accepted", "on_timeout", "on_failure"]


def test_callbacks__are_taken_and_dropped(request_of_application: Any) -> None:
    """The pool reports to what has taken the callbacks, which has those of the application's class to call."""
    ours = Reports()
    theirs = pool.take_callbacks(request_of_application, ours)
    report(request_of_application)
    assert ours.received == ["on_accepted", "on_timeout", "on_success", "on_failure"]
    assert request_of_application.received == []
    theirs["on_accepted"](71, 0.0)
    assert request_of_application.received == ["on_accepted"]
    pool.drop_callbacks(request_of_application)
    request_of_application.on_accepted(71, 0.0)
    assert request_of_application.received == ["on_accepted"] * 2
    # Nothing refers to the other any more.
    assert list(vars(request_of_application)) == ["received"]


@pytest.mark.parametrize(("waiting", "starts"), [({71}, True), (set(), False)])
def test_starts_children(waiting: set[int], starts: bool) -> None:
    """A pool says which children have yet to start; one that is stopped has none."""
    assert pool.starts_children(SimpleNamespace(_pool=SimpleNamespace(_waiting_to_start=waiting))) is starts
    assert not pool.starts_children(SimpleNamespace(_pool=None))


def test_has_lost_job__pool_stopped() -> None:
    """A pool that is stopped has no jobs, also while the one of a request is still referred to."""
    request: Any = SimpleNamespace(_apply_result=lambda: SimpleNamespace(_job=1))
    assert not pool.has_lost_job(SimpleNamespace(_pool=SimpleNamespace(_cache={1: None})), request)
    assert pool.has_lost_job(SimpleNamespace(_pool=None), request)
