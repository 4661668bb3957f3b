"""The running Celery task as surroundings of a lock."""

from __future__ import annotations

import functools
import types
from typing import Any

from celery._state import get_current_task
from celery.signals import task_prerun

from django_zklock import surroundings
from django_zklock.calls import LockedCall, locked_call
from django_zklock.exceptions import LockConflict, LockTimeout, ZkLockError
from django_zklock.zk.identity import Work

GUARDED = "__zklock_guarded__"


def in_worker() -> Any:
    """Give the task that a worker runs here, or ``None``: in a direct call, and in eager mode."""
    task: Any = get_current_task()
    if task is None or task.request.called_directly or task.request.is_eager:
        return None
    return task


def outermost_lock(task: Any) -> tuple[LockedCall | None, tuple[Any, ...]]:
    """Give how the body of ``task`` takes its lock, if that is the first thing it does, and what it is bound to."""
    body: Any = getattr(task, "_orig_run", task.run)
    while hasattr(body, GUARDED):
        body = body.__wrapped__
    if isinstance(body, types.MethodType):
        return locked_call(body.__func__), (body.__self__,)
    return locked_call(body), ()


class CeleryTask:
    """Names the task as holder."""

    def work(self) -> Work | None:
        task: Any = get_current_task()
        if task is None or not task.request.id:
            return None
        return Work(kind="task", name=task.name, id=task.request.id)


def install() -> None:
    """Register the surroundings, once, and keep conflicts out of the retries of tasks."""
    if not any(isinstance(known, CeleryTask) for known in surroundings.known):
        surroundings.known.append(CeleryTask())
    task_prerun.connect(_guard, dispatch_uid="django_zklock.task", weak=False)


def _guard(sender: Any, **_facts: Any) -> None:
    """Keep a task's conflicts from its autoretry, unless ``autoretry_for`` asks for them by name.

    ``autoretry_for=(Exception,)`` means failed attempts. A conflict is none, and must not use up the retries.
    """
    if not hasattr(sender, "_orig_run") or hasattr(sender._orig_run, GUARDED):  # noqa: SLF001 - see below
        return
    # Autoretry's wrapper got a copy of it from the body, `self` included, which Task.retry would take at its word.
    vars(sender.run).pop("__signature__", None)
    if any(issubclass(kind, ZkLockError) for kind in sender.autoretry_for):
        return
    # celery.app.autoretry keeps the body in `_orig_run`, and looks it up there in each call.
    body = sender._orig_run  # noqa: SLF001

    @functools.wraps(body)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        try:
            return body(*args, **kwargs)
        except (LockConflict, LockTimeout):
            # Task.retry raises the original error where the task was "called directly", which ends here in a
            # failure, as it should. Nobody but autoretry can still catch the error.
            sender.request.called_directly = True
            raise

    setattr(guarded, GUARDED, True)
    sender._orig_run = guarded  # noqa: SLF001
