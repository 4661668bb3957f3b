"""Celery: locks on tasks, conflicts that come back later, sessions that end with their process.

Imported only where Celery is (see :mod:`django_zklock.apps`).
"""

from __future__ import annotations

from django_zklock.contrib.celery import gate, process, task
from django_zklock.contrib.celery.policy import RetryLater

__all__ = ["RetryLater", "install"]


def install() -> None:
    """Make locks know about Celery tasks and worker processes; calling it again changes nothing."""
    task.install()
    process.install()
    gate.install()
