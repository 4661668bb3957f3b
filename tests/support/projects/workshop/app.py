"""The Celery app, and a main process that may hold a lock of its own before it forks."""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

from celery import Celery
from celery.signals import celeryd_init, worker_init

modules = ["workshop.tasks", "workshop.journal", "workshop.changed"]
if importlib.util.find_spec("pydantic") is not None:
    modules.append("workshop.converted")

app = Celery("workshop", include=modules)
app.config_from_object("django.conf:settings", namespace="CELERY")

kept: list[Any] = []


@celeryd_init.connect
def switch_threads(**_: Any) -> None:
    """Let the threads of the worker take turns as often as a test wants."""
    if "WORKSHOP_SWITCH_INTERVAL" in os.environ:
        sys.setswitchinterval(float(os.environ["WORKSHOP_SWITCH_INTERVAL"]))


@worker_init.connect
def hold_before_fork(**_: Any) -> None:
    """Connect and hold a lock in the main process, before the pool forks."""
    from django_zklock import zk_lock

    if "WORKSHOP_PARENT_KEY" in os.environ:
        kept.append(zk_lock(os.environ["WORKSHOP_PARENT_KEY"]).acquire(20))
