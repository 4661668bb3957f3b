"""The worker: its consumer, its end, its events, and its records of requests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.bootsteps import CLOSE, TERMINATE  # type: ignore[attr-defined]
from celery.worker import state
from celery.worker.request import Request


def put_into(consumer: Any, *, on_request: Callable[[Request], None], stop_soon: Callable[[], object]) -> None:
    """Let ``consumer`` call the two, before Celery's strategies copy the first."""
    consumer.on_task_request = on_request
    # Since Celery 5.5 the worker sleeps in a signal handler during a soft shutdown, and its loop does not run.
    if (sleep := getattr(consumer.controller, "wait_for_soft_shutdown", None)) is not None:

        def leave_and_sleep() -> None:
            stop_soon()
            sleep()

        consumer.controller.wait_for_soft_shutdown = leave_and_sleep


def is_ending(controller: Any) -> bool:
    """Return whether the worker ends, and does not only connect to its broker again."""
    return controller.blueprint.state in {CLOSE, TERMINATE}


def send_event(events: Any, kind: str, /, **facts: Any) -> None:
    """Send an event of a group that remote control does not know: it is sent if those of tasks are."""
    if events.groups:
        # Remote control enables the groups that Celery knows.
        (events.groups.add if "task" in events.groups else events.groups.discard)("zklock")
    events.send(kind, **facts)


def count_as_ended(request: Request) -> None:
    """Let Celery count ``request`` as one that has ended; the next delivery of its task may be here already."""
    known = state.requests.get(request.id)
    state.task_ready(request)
    if known is not None and known is not request:
        state.requests[request.id] = known


def is_active(request: Request) -> bool:
    """Return whether the task runs, according to Celery."""
    return request in state.active_requests


def is_forgotten(request: Request) -> bool:
    """Return whether the worker's remote control does not know the task any more, which may run nevertheless.

    Celery forgets it with the first ``terminate``, and when the broker was lost before the task began.
    """
    return state.requests.get(request.id) is not request


def time_limit(request: Request, controller: Any) -> float | None:
    """Return the seconds after which the pool kills the child that runs ``request``; ``None`` without a limit."""
    limit, _soft = request.time_limits
    return limit or request.task.time_limit or controller.time_limit or None
