"""The Celery app, and a main process that may hold a lock of its own before it forks."""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
import time
from datetime import datetime, timedelta
from typing import Any

from celery import Celery
from celery.result import AsyncResult
from celery.signals import celeryd_init, worker_init, worker_process_init
from kombu.asynchronous import timer

from tests.toolbox.package_limits import LIMITS_OF_WORKERS, scale_limits
from tests.toolbox.timing import scaled

# Seconds by which the clock of this host is ahead of the right one.
AHEAD = float(os.environ.get("WORKSHOP_AHEAD", "0"))
_true_time = time.time
if AHEAD:
    time.time = lambda: _true_time() + AHEAD
    # It has a name of its own, for countdowns.
    vars(timer)["_time"] = time.time


class Shop(Celery):
    """An app on a host whose clock may not be right."""

    def now(self) -> datetime:
        """Return what the clock shows."""
        return super().now() + timedelta(seconds=AHEAD)


app = Shop("workshop", include=["workshop.tasks", "workshop.journal", "workshop.changed"])
app.config_from_object("django.conf:settings", namespace="CELERY")

kept: list[Any] = []

# How often Celery's results were finalized, and how often the garbage collector did it.
finalized = {"all": 0, "in_collector": 0}


@celeryd_init.connect
def switch_threads(**_: Any) -> None:
    """Let the threads of the worker take turns as often as a test wants."""
    if "WORKSHOP_SWITCH_INTERVAL" in os.environ:
        sys.setswitchinterval(float(os.environ["WORKSHOP_SWITCH_INTERVAL"]))


@celeryd_init.connect
def set_limits(**_: Any) -> None:
    """Let the worker wait for answers as long as tests do, and its gate as long as the test wants."""
    from django_zklock.contrib.celery.gate import attempt, gate, run

    scale_limits(LIMITS_OF_WORKERS)
    if "WORKSHOP_MAX_JOINING" in os.environ:
        attempt.MAX_JOINING = float(os.environ["WORKSHOP_MAX_JOINING"])
    if "WORKSHOP_MAX_READY" in os.environ:
        for module in (gate, run):
            vars(module)["MAX_READY"] = float(os.environ["WORKSHOP_MAX_READY"])


@celeryd_init.connect
def watch_results(**_: Any) -> None:
    """Count how results are finalized."""
    if "WORKSHOP_WATCH_RESULTS" not in os.environ:
        return
    # The threads that collect: another one may run while a finalizer does.
    collecting: set[int] = set()
    finalize = AsyncResult.__del__

    def count(result: Any) -> None:
        finalized["all"] += 1
        finalized["in_collector"] += threading.get_ident() in collecting
        finalize(result)

    def note(phase: str, _facts: object) -> None:
        (collecting.add if phase == "start" else collecting.discard)(threading.get_ident())

    gc.callbacks.append(note)
    AsyncResult.__del__ = count  # type: ignore[method-assign]


@worker_process_init.connect
def start_late(**_: Any) -> None:
    """Let each child but the first ones start when the test says so."""
    if "WORKSHOP_START_LATE" in os.environ:
        from tests.toolbox.celery.projects.workshop.tasks import board

        gate = os.environ["WORKSHOP_START_LATE"]
        board().rpush(f"{gate}:in", json.dumps({"pid": os.getpid()}))
        board().blpop([f"{gate}:out"], timeout=scaled(60))


@worker_init.connect
def hold_before_fork(**_: Any) -> None:
    """Connect and hold a lock in the main process, before the pool forks."""
    from django_zklock import zk_lock

    if "WORKSHOP_PARENT_KEY" in os.environ:
        kept.append(zk_lock(os.environ["WORKSHOP_PARENT_KEY"]).acquire(scaled(20)))
