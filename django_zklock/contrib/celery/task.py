"""The running Celery task as surroundings of a lock."""

from __future__ import annotations

from typing import Any

from celery._state import get_current_task

from django_zklock import surroundings
from django_zklock.exceptions import ZkLockError
from django_zklock.zk.identity import Work


def in_worker() -> Any:
    """Give the task that a worker runs here, or ``None``: in a direct call, and in eager mode."""
    task: Any = get_current_task()
    if task is None or task.request.called_directly or task.request.is_eager:
        return None
    return task


class CeleryTask:
    """Names the task as holder, and keeps conflicts out of its retries."""

    def work(self) -> Work | None:
        task: Any = get_current_task()
        if task is None or not task.request.id:
            return None
        return Work(kind="task", name=task.name, id=task.request.id)

    def raising(self, _error: ZkLockError) -> None:
        # `autoretry_for=(Exception,)` calls Task.retry for what we raise. A conflict is no failed attempt, and
        # must not use up the task's retries. Task.retry raises the original error where the task was "called
        # directly" (celery.app.task.Task.retry), which ends here in a failure, as it should.
        task: Any = get_current_task()
        if task is not None:
            task.request.called_directly = True


def install() -> None:
    """Register the surroundings, once."""
    if not any(isinstance(known, CeleryTask) for known in surroundings.known):
        surroundings.known.append(CeleryTask())
