"""Traces in the processes of a worker under test, which leave a note of each span that has ended."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from typing import Any

from celery.signals import task_postrun, task_prerun
from opentelemetry.context import attach, detach
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import set_span_in_context

from django_zklock.contrib.opentelemetry import instrument_traces
from tests.toolbox.celery.projects.workshop.tasks import board

provider = TracerProvider(shutdown_on_exit=False)
# The spans of the tasks that run, with what detaches them, by the ids of the tasks.
running: dict[str, tuple[Any, Any]] = {}


class Notes(SpanExporter):
    """Writes spans to the board."""

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        for span in spans:
            assert span.context is not None
            note = {
                "name": span.name,
                "id": span.context.span_id,
                "parent": span.parent.span_id if span.parent is not None else None,
                "begin": span.start_time,
                "end": span.end_time,
                "attributes": dict(span.attributes or {}),
            }
            board().rpush(f"{os.environ['TESTPROJECT_QUEUE']}:spans", json.dumps(note))
        return SpanExportResult.SUCCESS


# Before the pool forks, as in the `ready` of a project's app.
provider.add_span_processor(SimpleSpanProcessor(Notes()))
instrument_traces(provider)


# As an instrumentation of Celery does it.


@task_prerun.connect
def begin(task_id: str, task: Any, **_: Any) -> None:
    span = provider.get_tracer("celery").start_span(f"run {task.name}")
    running[task_id] = span, attach(set_span_in_context(span))


@task_postrun.connect
def end(task_id: str, **_: Any) -> None:
    span, token = running.pop(task_id)
    detach(token)
    span.end()
