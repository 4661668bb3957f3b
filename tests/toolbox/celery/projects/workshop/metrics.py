"""Metrics in every process of a worker under test; each process leaves a note of them at its end."""

from __future__ import annotations

import json
import os
import threading
from typing import Any

from celery.signals import worker_init, worker_process_init, worker_process_shutdown, worker_shutdown
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import HistogramDataPoint, InMemoryMetricReader

from django_zklock.contrib.opentelemetry import instrument
from tests.toolbox.celery.projects.workshop.tasks import board

# The last one is this process's own; the others were inherited.
readers: list[InMemoryMetricReader] = []


# In the main process it starts before the pool forks, which is not recommended, but shows more.
@worker_init.connect
@worker_process_init.connect
def start(**_: Any) -> None:
    readers.append(InMemoryMetricReader())
    instrument(MeterProvider([readers[-1]], shutdown_on_exit=False))


@worker_process_shutdown.connect
@worker_shutdown.connect
def leave_note(**_: Any) -> None:
    # A task that is interrupted may end before all receivers have run.
    for thread in threading.enumerate():
        if thread.name == "zklock-listeners":
            thread.join(20)
    data = readers[-1].get_metrics_data()
    counts = [
        (metric.name, (point.attributes or {}).get("zklock.template"), count(point))
        for resource in (data.resource_metrics if data is not None else [])
        for scope in resource.scope_metrics
        for metric in scope.metrics
        for point in metric.data.data_points
    ]
    board().rpush(f"{os.environ['TESTPROJECT_QUEUE']}:metrics", json.dumps({"pid": os.getpid(), "counts": counts}))


def count(point: Any) -> float:
    """Return the value of an instrument, or the number of recordings of a histogram."""
    return float(point.count if isinstance(point, HistogramDataPoint) else point.value)
