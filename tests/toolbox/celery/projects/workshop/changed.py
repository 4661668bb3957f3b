"""Tasks whose class changes the arguments between the message and the body: in the order, `:1` goes from the key."""

from __future__ import annotations

from typing import Any

from celery import Task, shared_task

from django_zklock import zk_locked
from tests.toolbox.celery.projects.workshop.tasks import board, stay


def change(order: dict[str, Any]) -> None:
    order["key"] = order["key"].partition(":")[0]


def bill(gate: str) -> dict[str, Any]:
    """Return the facts of a body that waits for the test, and how many such bodies have run at once."""
    together = board().incr(f"{gate}:together")
    facts = stay(gate)
    board().decr(f"{gate}:together")
    return {**facts, "together": together}


class ChangingAtStart(Task):  # type: ignore[type-arg]
    """A class of tasks that changes the arguments in place, in Celery's hook."""

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        super().before_start(task_id, args, kwargs)
        change(args[0] if args else kwargs["order"])


class ChangingAtCall(Task):  # type: ignore[type-arg]
    """A class of tasks that changes the arguments in place, in its call."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        change(args[0] if args else kwargs["order"])
        return super().__call__(*args, **kwargs)


@shared_task(base=ChangingAtStart)
@zk_locked("{order[key]}")
def at_start(order: dict[str, Any], gate: str) -> dict[str, Any]:
    return bill(gate)


@shared_task(base=ChangingAtCall)
@zk_locked("{order[key]}")
def at_call(order: dict[str, Any], gate: str) -> dict[str, Any]:
    return bill(gate)
