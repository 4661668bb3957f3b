"""Tasks and their apps: which task runs here, and what Celery has put around its body.

A web process imports this too, and so nothing of Celery's worker.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from celery._state import (  # type: ignore[attr-defined]
    _get_active_apps,
    _task_stack,
    connect_on_app_finalize,
    get_current_task,
)
from celery.app.task import Context

if TYPE_CHECKING:
    from celery.worker.request import Request

# Returns the task that runs here, in a worker or not; `None` if there is none. It may be a proxy, see `registered`.
current_task: Callable[[], Any] = get_current_task
# Calls a function with each app when it makes its tasks, also with apps that come later.
on_app_finalize: Callable[[Callable[[Any], object]], object] = connect_on_app_finalize


def registered(task: Any) -> Any:
    """Return the task of this name in its app, where a worker's main process finds it.

    An agent may let a proxy run in its place, with a body of its own.
    """
    return task.app.tasks.get(task.name, task)


def delivered_task() -> tuple[Any, Any] | None:
    """Return the task that a worker runs here and its request, whatever tasks its body has called or applied."""
    for task in reversed(_task_stack.stack):
        # A task that calls itself has several.
        for request in reversed(task.request_stack.stack):
            if request.id and not (request.called_directly or request.is_eager):
                return registered(task), request
    return None


@contextmanager
def current_request(request: Request) -> Iterator[None]:
    """Let the task's own `request` be what it is in a slot: the key may be made from it."""
    stack = request.task.request_stack
    stack.push(Context(request.request_dict, args=request.args, called_directly=False, kwargs=request.kwargs))
    try:
        yield
    finally:
        stack.pop()


def keep_headers(facts: dict[str, Any]) -> None:
    """Make the headers that a retry sends, before something is added that no message can contain.

    ``Context`` makes them of all that it does not know, where there are none.
    """
    if facts.get("headers") is None:
        facts["headers"] = Context(facts).headers or {}


def finalized_apps() -> list[Any]:
    """Return the apps that have made their tasks."""
    return [app for app in _get_active_apps() if app.finalized]


def when_evaluated(proxy: Any, call: Callable[[], object]) -> None:
    """Call ``call`` when the task that ``proxy`` stands for is made, or now if it is."""
    proxy.__then__(call)


def body_attribute(task: Any) -> str:
    """Return the name of the attribute with the body of ``task``: inside of autoretry's wrapper, if it has one."""
    return "_orig_run" if has_autoretry(task) else "run"


def has_autoretry(task: Any) -> bool:
    """Return whether Celery retries the task when it fails with certain errors."""
    return hasattr(task, "_orig_run")


def autoretry_options(wrappers: Iterable[Any]) -> tuple[Any, dict[str, Any]]:
    """Return autoretry's wrapper of a body, and the cells of its options by name: Celery reads them once."""
    run = next((each for each in wrappers if _is_defined_in(each, "celery.app.autoretry")), None)
    return run, dict(zip(run.__code__.co_freevars, run.__closure__, strict=True)) if run is not None else {}


def wraps_for_pydantic(function: Any) -> bool:
    """Return whether Celery has put ``function`` around a body whose arguments it converts (``pydantic=True``)."""
    return _is_defined_in(function, "celery.app.base")


def _is_defined_in(function: Any, module: str) -> bool:
    """Return whether ``module`` contains the code of ``function``; ``functools.wraps`` changes ``__module__``."""
    return bool(getattr(function, "__globals__", {}).get("__name__") == module)
