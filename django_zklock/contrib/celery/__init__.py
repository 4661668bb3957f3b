"""Celery: locks on tasks, conflicts that are retried later, sessions that end with their process.

Imported only where Celery is (see :mod:`django_zklock.apps`). Celery's program imports this package at every start, for
:mod:`.command`, so the rest of it is imported at its first use.
"""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING

__all__ = ["RetryLater", "install"]

if TYPE_CHECKING:
    from django_zklock.contrib.celery.retry import RetryLater
else:

    def __getattr__(name):
        if name == "RetryLater":
            from django_zklock.contrib.celery.retry import RetryLater

            return RetryLater
        if name.startswith("_") or find_spec(f"{__name__}.{name}") is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return import_module(f"{__name__}.{name}")


def install() -> None:
    """Connect locks to Celery's tasks and worker processes; calling it again changes nothing."""
    from celery.signals import task_postrun, task_prerun

    from django_zklock import unreleased
    from django_zklock.contrib.celery import gate, shutdown, tasks

    tasks.install()
    shutdown.install()
    gate.install()
    task_prerun.connect(unreleased.begin, dispatch_uid="django_zklock.unreleased")
    task_postrun.connect(unreleased.end, dispatch_uid="django_zklock.unreleased")
