"""``@zk_locked`` above ``@shared_task``: the lock goes into the task that Celery has made or will make."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable
from typing import Any

from celery import Task
from celery._state import _get_active_apps, connect_on_app_finalize  # type: ignore[attr-defined]
from celery.local import PromiseProxy, Proxy, maybe_evaluate

Wrap = Callable[..., Callable[..., Any]]

_MARK = "__zklock__"


def is_task(target: object) -> bool:
    """Whether ``target`` is a Celery task or a promise of one; a promise is not redeemed to find out."""
    # Proxies claim the class of what they stand for, and asking for it evaluates them.
    return issubclass(type(target), (Proxy, Task))


def is_task_class(target: type) -> bool:
    """Whether ``target`` is a class of Celery tasks."""
    return issubclass(target, Task)


def lock_task(target: Any, wrap: Wrap) -> Any:
    """Have the body of ``target`` run under the lock, in every app that has the task; gives ``target`` back."""
    if type(target) is PromiseProxy:
        # Of `@app.task`: evaluated when its app is finalized, or now if it was.
        target.__then__(_lock_body, target, wrap)
    elif issubclass(type(target), Proxy):
        _lock_shared(target, wrap)
    else:
        _lock_body(target, wrap)
    return target


def _lock_shared(proxy: Any, wrap: Wrap) -> None:
    # `@shared_task` makes one task in each app, now for finalized apps and later for the others, and its
    # proxy looks up the current app's. We follow: at the end of each app's finalization the task is there.
    def finalized(app: Any) -> None:
        app.on_after_finalize.connect(lambda **_facts: _lock_body(app.tasks[proxy.name], wrap), weak=False)

    connect_on_app_finalize(finalized)
    for app in _get_active_apps():
        if app.finalized:
            _lock_body(app.tasks[proxy.name], wrap)


def _lock_body(task: Any, wrap: Wrap) -> None:
    task = maybe_evaluate(task)
    if _MARK in vars(task):
        return
    run = task.run
    # Autoretry puts a wrapper before the body; the lock goes before both.
    body = getattr(task, "_orig_run", run)
    if isinstance(body, types.MethodType):
        # `bind=True`: the key may be made from the task too, so the wrapped function takes it as the body does.
        @functools.wraps(body.__func__)
        def unbound(_task: Any, *args: Any, **kwargs: Any) -> Any:
            return run(*args, **kwargs)

        task.run = types.MethodType(wrap(unbound), task)
    else:
        task.run = wrap(run)
    setattr(task, _MARK, True)
