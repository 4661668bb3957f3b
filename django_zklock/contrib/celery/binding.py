"""``@zk_locked`` above ``@shared_task``: the lock goes into the task that Celery has made or will make."""

from __future__ import annotations

import inspect
import types
from collections.abc import Callable
from typing import Any

from celery import Task
from celery._state import _get_active_apps, connect_on_app_finalize  # type: ignore[attr-defined]
from celery.local import PromiseProxy, Proxy, maybe_evaluate

Wrap = Callable[..., Callable[..., Any]]

_MARKS = "__zklock__"


def is_task(target: object) -> bool:
    """Whether ``target`` is a Celery task or a promise of one; a promise is not redeemed to find out."""
    # Proxies claim the class of what they stand for, and asking for it evaluates them.
    return issubclass(type(target), (Proxy, Task))


def is_task_class(target: type) -> bool:
    """Whether ``target`` is a class of Celery tasks."""
    return issubclass(target, Task)


def body_of(target: type[Task[..., Any]]) -> Callable[..., Any]:
    """Give what a class of tasks runs; ``TypeError`` if it leaves that to its subclasses."""
    if target.run is Task.run:
        raise TypeError(f"{target.__qualname__} has no run() to lock: decorate the class that has it")
    return target.run


def lock_task(target: Any, wrap: Wrap) -> Any:
    """Have the body of ``target`` run under the lock, in every app that has the task; gives ``target`` back."""
    lock = _once_a_task(wrap)
    if type(target) is PromiseProxy:
        # Of `@app.task`: evaluated when its app is finalized, or now if it was.
        target.__then__(lambda: lock(maybe_evaluate(target)))
    elif not issubclass(type(target), Proxy):
        lock(target)
    _lock_everywhere(target, lock)
    return target


def _lock_everywhere(target: Any, lock: Callable[[Any], None]) -> None:
    # Celery's decorators make one task in each app, now for finalized apps and later for the others, and the
    # proxy of `@shared_task` looks up the current app's. We follow: at the end of each app's finalization the
    # task is there.
    def lock_in(app: Any) -> None:
        task = app.tasks.get(target.name)
        if task is not None and _function_of(task) is _function_of(target):
            lock(task)

    if not _everywhere:
        connect_on_app_finalize(_follow)
    _everywhere.append(lock_in)
    if type(target) is Proxy:
        # Of `@shared_task`, the only one that finalized apps take too.
        for app in _get_active_apps():
            if app.finalized:
                lock_in(app)


# In the order of decoration, which is that of the locks on one task. Celery keeps its own callbacks in a set: two
# processes would take the same two locks in different orders, and wait for each other.
_everywhere: list[Callable[[Any], None]] = []


def _follow(app: Any) -> None:
    def lock_all(**_facts: Any) -> None:
        for lock_in in _everywhere:
            lock_in(app)

    app.on_after_finalize.connect(lock_all, weak=False)


def _function_of(task: Any) -> Any:
    """Give the function that the user wrote, below everything that was put before it."""
    body = getattr(task, "_orig_run", task.run)
    return inspect.unwrap(getattr(body, "__func__", body))


def _once_a_task(wrap: Wrap) -> Callable[[Any], None]:
    """Give what puts the lock into a task, and into no task twice."""
    mark = object()

    def lock(task: Any) -> None:
        marks = vars(task).setdefault(_MARKS, [])
        if mark in marks:
            return
        marks.append(mark)
        # Inside of what autoretry has put before the body: the lock must be free before the task is sent again.
        place = "_orig_run" if hasattr(task, "_orig_run") else "run"
        body = getattr(task, place)
        if isinstance(body, types.MethodType):
            # `bind=True`: the key may be made from the task too.
            setattr(task, place, types.MethodType(wrap(body.__func__), task))
        else:
            setattr(task, place, wrap(body))

    return lock
