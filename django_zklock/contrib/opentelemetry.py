"""Metrics and traces of locks by OpenTelemetry, from :mod:`django_zklock.signals` and the sessions of this process.

Attributes of metrics describe the kind of lock and never the key: a key for each invoice would create a time series for
each. Spans are about one lock each, and have its key.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.metadata import version
from os import getpid
from threading import get_ident
from time import time_ns
from typing import Any

from django.dispatch import Signal
from opentelemetry.metrics import CallbackOptions, Histogram, Meter, MeterProvider, Observation, get_meter
from opentelemetry.trace import Span, StatusCode, Tracer, TracerProvider, get_tracer

from django_zklock import signals
from django_zklock.connections import connections
from django_zklock.zk.held import Held
from django_zklock.zk.waiting import monotonic

# Seconds, from a round trip to ZooKeeper to an hour.
BOUNDARIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)

_RECEIVER = "django_zklock.opentelemetry"

# Name, unit and description of the counter of each signal.
_COUNTERS = {
    signals.acquired: ("zklock.acquisitions", "{acquisition}", "Locks that were granted."),
    signals.contended: ("zklock.contentions", "{contention}", "Acquisitions that had to wait in the queue."),
    signals.refused: ("zklock.refusals", "{call}", "Calls of decorated functions that did not get their lock."),
    signals.lost: ("zklock.losses", "{loss}", "Locks that were lost while they were held."),
    signals.revoked: ("zklock.revocations", "{revocation}", "Holders that were asked to release."),
    signals.not_sent: ("zklock.not_sent", "{call}", "Calls of tasks that were not sent, because one waits already."),
    signals.dropped: ("zklock.drops", "{task}", "Locks of tasks that Celery dropped, released by the worker."),
}
_SIGNALS = (*_COUNTERS, signals.released)
# The instruments of the last call of `instrument`.
_used: list[Instruments] = []


class Instruments:
    """The instruments of one meter. Signals come from any thread."""

    def __init__(self, meter: Meter) -> None:
        self._counters = {
            signal: meter.create_counter(name, unit=unit, description=description)
            for signal, (name, unit, description) in _COUNTERS.items()
        }
        self._active_holds = meter.create_up_down_counter(
            "zklock.active_holds", unit="{hold}", description="Locks that are held now."
        )
        self._wait_duration = _histogram(
            meter, "zklock.wait.duration", "Time from the request to the grant of locks that were granted."
        )
        self._hold_duration = _histogram(meter, "zklock.hold.duration", "How long locks were held.")
        # An observed instrument stays with its meter.
        self.is_used = True
        meter.create_observable_up_down_counter(
            "zklock.nodes.size",
            [self._observe_nodes],
            unit="By",
            description="What the nodes of holders and waiters take of the budgets of their sessions.",
        )
        meter.create_observable_up_down_counter(
            "zklock.gate.tasks",
            [self._observe_gates],
            unit="{task}",
            description="Tasks in a Celery worker's main process that wait for their locks, or then for a slot.",
        )
        # The ids of the active holds. Removal is atomic, so that a loss and a release at the same time end a hold once,
        # and a hold that was acquired before `instrument` is not counted. The ids keep no hold alive: a forgotten one
        # can be collected, which warns. It stays in the count, like its node at the server.
        self._active: set[int] = set()

    def _observe_nodes(self, _options: CallbackOptions) -> Iterator[Observation]:
        if self.is_used:
            for pool in connections.pools():
                yield Observation(sum(each.used for each in pool.sessions()), {"zklock.alias": pool.name})

    def _observe_gates(self, _options: CallbackOptions) -> Iterator[Observation]:
        # Only a worker has imported it.
        child = sys.modules.get("django_zklock.contrib.celery.gate.child") if self.is_used else None
        # A child of a worker has inherited the gate of its parent.
        gates = [gate for gate in list(child.gates.values()) if gate.pid == getpid()] if child is not None else []
        if gates:
            yield Observation(sum(gate.count_waiting() for gate in gates), {"zklock.state": "waiting"})
            yield Observation(sum(gate.count_ready() for gate in gates), {"zklock.state": "ready"})

    def measure(self, signal: Signal, **facts: Any) -> None:
        """Measure what ``signal`` says. A loss ends the hold, although its body may still run."""
        attributes = {"zklock.alias": facts["alias"], "zklock.kind": facts["kind"]}
        if facts["template"] is not None:
            attributes["zklock.template"] = facts["template"]
        if signal in self._counters:
            reason = {"zklock.reason": facts["reason"]} if signal is signals.refused else {}
            self._counters[signal].add(1, attributes | reason)
        if signal is signals.acquired:
            held: Held = facts["held"]
            self._wait_duration.record(held.waited, attributes)
            self._active.add(id(held))
            self._active_holds.add(1, attributes)
        if signal is signals.released:
            self._hold_duration.record(facts["duration"], attributes)
        if signal in {signals.released, signals.lost}:
            try:
                self._active.remove(id(facts["held"]))
            except KeyError:
                return
            self._active_holds.add(-1, attributes)


def _histogram(meter: Meter, name: str, description: str) -> Histogram:
    return meter.create_histogram(
        name, unit="s", description=description, explicit_bucket_boundaries_advisory=BOUNDARIES
    )


def instrument(meter_provider: MeterProvider | None = None) -> None:
    """Measure the locks of this process with ``meter_provider``, or with OpenTelemetry's global provider.

    Another call, as after a fork, starts again with the other provider.
    """
    uninstrument()
    instruments = Instruments(get_meter("django_zklock", version("django-zklock"), meter_provider))
    _used.append(instruments)
    for signal in _SIGNALS:
        # A weak reference would be the only one.
        signal.connect(instruments.measure, weak=False, dispatch_uid=_RECEIVER)


def uninstrument() -> None:
    """Stop measuring; do nothing if nothing is measured."""
    while _used:
        _used.pop().is_used = False
    for signal in _SIGNALS:
        signal.disconnect(dispatch_uid=_RECEIVER)


# Traces.

_TRACE_RECEIVER = "django_zklock.opentelemetry.traces"
_TRACED = (signals.contended, signals.acquired, signals.refused, signals.lost, signals.released)
# How many callers that wait at the same time are remembered with the holder that they have met.
_MAX_MET = 1000
_NANOSECONDS = 1_000_000_000


class Spans:
    """The spans of one tracer: one for the wait for a lock, and one for the hold. Signals come from any thread.

    A wait is known when it ends, and its span is made then, below the span that the caller is in. The wait of a Celery
    task at the gate is a part of it, so that it may begin before the span of the task.
    """

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        # By the id of a hold. Each change is one operation, so that a loss and a release end a span once.
        self._holds: dict[int, Span] = {}
        # The holder that a caller has met, and when, by alias, key and thread.
        self._met: dict[tuple[str, str, int], tuple[float, str]] = {}

    def trace(self, signal: Signal, **facts: Any) -> None:
        """Begin or end a span by what ``signal`` says."""
        attributes = {"zklock.key": facts["key"], "zklock.alias": facts["alias"], "zklock.kind": facts["kind"]}
        if facts["template"] is not None:
            attributes["zklock.template"] = facts["template"]
        if signal is signals.contended:
            if len(self._met) >= _MAX_MET:
                self._met.clear()
            caller = facts["alias"], facts["key"], get_ident()
            # Of two tasks of one event loop it is not known which one has met that holder.
            is_known = facts["holder"] is not None and caller not in self._met
            self._met[caller] = monotonic(), str(facts["holder"]) if is_known else ""
        elif signal is signals.acquired:
            held: Held = facts["held"]
            self._end_wait(attributes, held.waited, "granted", self._holder_met(facts, held.waited))
            # A hold that was forgotten, without a release, may have had the same id.
            _end(self._holds.pop(id(held), None))
            span = self._tracer.start_span("zklock hold", attributes=attributes | {"zklock.token": held.token})
            self._holds[id(held)] = span
        elif signal is signals.refused:
            met = str(facts["holder"]) if facts["holder"] is not None else self._holder_met(facts, facts["waited"])
            self._end_wait(attributes, facts["waited"], facts["reason"], met)
        else:
            ended = self._holds.pop(id(facts["held"]), None)
            if ended is not None and signal is signals.lost:
                ended.set_status(StatusCode.ERROR, f"the lock was lost: {facts['reason']}")
            _end(ended)

    def _end_wait(self, attributes: dict[str, Any], waited: float, outcome: str, holder: str) -> None:
        """Make the span of a wait that ends now. A conflict is no error: what it means, the policy decides."""
        end = time_ns()
        attributes = attributes | {"zklock.outcome": outcome} | ({"zklock.holder": holder} if holder else {})
        begin = end - int(waited * _NANOSECONDS)
        span = self._tracer.start_span("zklock wait", attributes=attributes, start_time=begin)
        if outcome == "unavailable":
            span.set_status(StatusCode.ERROR, "ZooKeeper could not be reached")
        span.end(end)

    def _holder_met(self, facts: dict[str, Any], waited: float) -> str:
        """Return the holder that this caller has met when it began to wait; nothing if it has met none."""
        met, holder = self._met.pop((facts["alias"], facts["key"], get_ident()), (0.0, ""))
        # An earlier wait of the same thread may have ended with an error, of which there is no signal.
        return holder if met >= monotonic() - waited - 1.0 else ""


def _end(span: Span | None) -> None:
    if span is not None:
        span.end()


def instrument_traces(tracer_provider: TracerProvider | None = None) -> None:
    """Trace the locks of this process with ``tracer_provider``, or with OpenTelemetry's global provider.

    Another call starts again with the other provider.
    """
    uninstrument_traces()
    spans = Spans(get_tracer("django_zklock", version("django-zklock"), tracer_provider))
    for signal in _TRACED:
        # A weak reference would be the only one.
        signal.connect(spans.trace, weak=False, dispatch_uid=_TRACE_RECEIVER)


def uninstrument_traces() -> None:
    """Stop tracing; do nothing if nothing is traced."""
    for signal in _TRACED:
        signal.disconnect(dispatch_uid=_TRACE_RECEIVER)
