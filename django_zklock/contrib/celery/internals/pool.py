"""The pool of a worker: its kind, its jobs, and where it reports what becomes of them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from celery.concurrency import prefork, thread
from celery.worker.request import Request

_CALLBACKS = ("on_accepted", "on_success", "on_failure", "on_timeout")


def is_prefork(pool: Any) -> bool:
    """Return whether tasks run in child processes of this one."""
    return isinstance(pool, prefork.TaskPool)


def can_have_gate(pool: Any) -> bool:
    """Return whether tasks in ``pool`` can use a lock that this process holds.

    A solo pool has no gate: its only thread runs the tasks. A consumer without a pool runs none.
    """
    if pool is None:
        return False
    if is_prefork(pool):
        # A child that was not forked has no scoreboard.
        return bool(pool.forking_enable)
    return bool(pool.is_green) or isinstance(pool, thread.TaskPool)


def starts_children(pool: Any) -> bool:
    """Return whether a child of the prefork ``pool`` cannot take a task yet; Celery kills one that never starts."""
    return bool(getattr(pool._pool, "_waiting_to_start", None))  # noqa: SLF001 - no other record


def has_lost_job(pool: Any, request: Request) -> bool:
    """Return whether the prefork ``pool`` was given the job of ``request`` and has it no more, begun or not."""
    if "_apply_result" not in vars(request):
        return False
    # A weak reference: only billiard's cache keeps the job alive. There is none if the pool has refused the job.
    reference: Any = vars(request)["_apply_result"]
    job = reference() if reference is not None else None
    # A pool that is stopped has none.
    jobs = getattr(pool._pool, "_cache", ())  # noqa: SLF001 - the pool drops jobs without a callback
    return job is None or job._job not in jobs  # noqa: SLF001


def take_callbacks(request: Request, ours: Any) -> dict[str, Callable[..., Any]]:
    """Let the pool report to ``ours`` instead of ``request``; return what it reported to."""
    theirs = {name: getattr(request, name) for name in _CALLBACKS}
    vars(request).update({name: getattr(ours, name) for name in _CALLBACKS})
    return theirs


def drop_callbacks(request: Request) -> None:
    """Let the pool report to ``request`` again."""
    for name in _CALLBACKS:
        vars(request).pop(name, None)
