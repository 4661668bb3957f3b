"""The app of the worker of Celery's integration tests; with the gate each of their tasks has a lock of its own."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from importlib import import_module
from typing import Any, Literal

from celery import Celery

from tests.celery_suite import project

GATE = os.environ["CELERY_SUITE_GATE"] == "1"

project.set_up(with_package=GATE)
app = Celery("integration", broker=os.environ["TEST_BROKER"], backend=os.environ["TEST_BACKEND"])
app.conf.update(result_extended=True, broker_connection_retry_on_startup=True)
app.set_default()

tasks: Any = import_module("t.integration.tasks")


def key_of(name: str) -> Callable[..., str]:
    """Return the callable that makes the key of a task of this name: one for each set of arguments."""

    def key(*args: Any, **kwargs: Any) -> str:
        # A bound task has itself as its first argument, which is another object in each process.
        plain = [each for each in args if not hasattr(each, "request")]
        facts = repr((plain, sorted(kwargs.items())))
        return f"{name}:{hashlib.sha256(facts.encode()).hexdigest()[:16]}"

    return key


def lock_all() -> int:
    """Put a lock on each task of the module, and return how many there are."""
    from django_zklock import zk_locked
    from django_zklock.contrib.celery.tasks import is_task

    locked: dict[int, Any] = {}
    for name, found in list(vars(tasks).items()):
        is_class = isinstance(found, type) and found.__module__ == tasks.__name__ and "run" in vars(found)
        if (is_task(found) or is_class) and id(found) not in locked:
            # Tests fill all slots with tasks that sleep for the same time.
            mode: Literal["read", "exclusive"] = "read" if name == "sleeping" else "exclusive"
            locked[id(found)] = zk_locked(key_of(name), template=name, mode=mode)(found)
    return len(locked)


if GATE and not lock_all():
    raise RuntimeError("no task has a lock")
app.register_task(tasks.ClassBasedAutoRetryTask())
