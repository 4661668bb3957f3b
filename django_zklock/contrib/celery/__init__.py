"""Celery: locks on tasks, conflicts that are retried later, sessions that end with their process.

Imported only where Celery is (see :mod:`django_zklock.apps`).
"""

from __future__ import annotations

from celery.signals import task_postrun, task_prerun

from django_zklock import unreleased
from django_zklock.contrib.celery import gate, shutdown, tasks
from django_zklock.contrib.celery.retry import RetryLater

__all__ = ["RetryLater", "install"]


def install() -> None:
    """Connect locks to Celery's tasks and worker processes; calling it again changes nothing."""
    tasks.install()
    shutdown.install()
    gate.install()
    task_prerun.connect(unreleased.begin, dispatch_uid="django_zklock.unreleased")
    task_postrun.connect(unreleased.end, dispatch_uid="django_zklock.unreleased")
