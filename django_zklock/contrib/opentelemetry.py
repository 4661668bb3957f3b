"""Metrics of locks by OpenTelemetry, fed by :mod:`django_zklock.signals`.

Attributes describe the kind of lock and never the key: a key for each invoice would create a time series for each, and
a key can contain personal data.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from importlib.metadata import version
from typing import Any

from django.dispatch import Signal
from opentelemetry.metrics import Meter, MeterProvider, get_meter

from django_zklock import signals
from django_zklock.zk.held import Held

# Seconds, from a round trip to ZooKeeper to an hour.
BOUNDARIES = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 300, 900, 3600)

_RECEIVER = "django_zklock.opentelemetry"


class Instruments:
    """The instruments of one meter, with a receiver for each signal. Signals come from any thread."""

    def __init__(self, meter: Meter) -> None:
        self._acquisitions = meter.create_counter(
            "zklock.acquisitions", unit="{acquisition}", description="Locks that were granted."
        )
        self._contentions = meter.create_counter(
            "zklock.contentions", unit="{contention}", description="Acquisitions that had to wait in the queue."
        )
        self._refusals = meter.create_counter(
            "zklock.refusals", unit="{call}", description="Calls of decorated functions that did not get their lock."
        )
        self._losses = meter.create_counter(
            "zklock.losses", unit="{loss}", description="Locks that were lost while they were held."
        )
        self._revocations = meter.create_counter(
            "zklock.revocations", unit="{revocation}", description="Holders that were asked to release."
        )
        self._drops = meter.create_counter(
            "zklock.drops", unit="{task}", description="Locks of tasks that Celery dropped, released by the worker."
        )
        self._active_holds = meter.create_up_down_counter(
            "zklock.active_holds", unit="{hold}", description="Locks that are held now."
        )
        self._wait_duration = meter.create_histogram(
            "zklock.wait.duration",
            unit="s",
            description="Time from the request to the grant of locks that were granted.",
            explicit_bucket_boundaries_advisory=BOUNDARIES,
        )
        self._hold_duration = meter.create_histogram(
            "zklock.hold.duration",
            unit="s",
            description="How long locks were held.",
            explicit_bucket_boundaries_advisory=BOUNDARIES,
        )
        # The ids of the active holds. Removal is atomic, so that a loss and a release at the same time end a hold once,
        # and a hold that was acquired before `instrument` is not counted. The ids keep no hold alive: a forgotten one
        # can be collected, which warns. It stays in the count, like its node at the server.
        self._active: set[int] = set()

    def acquired(self, held: Held, **facts: Any) -> None:
        """Count a grant."""
        attributes = _attributes(facts)
        self._acquisitions.add(1, attributes)
        self._wait_duration.record(held.waited, attributes)
        self._active.add(id(held))
        self._active_holds.add(1, attributes)

    def contended(self, **facts: Any) -> None:
        """Count a wait that begins."""
        self._contentions.add(1, _attributes(facts))

    def released(self, held: Held, duration: float, **facts: Any) -> None:
        """Count the end of a hold."""
        self._hold_duration.record(duration, _attributes(facts))
        self._count_out(held, facts)

    def lost(self, held: Held, **facts: Any) -> None:
        """Count a loss, which ends the hold although its body may still run."""
        self._losses.add(1, _attributes(facts))
        self._count_out(held, facts)

    def revoked(self, **facts: Any) -> None:
        """Count a revocation."""
        self._revocations.add(1, _attributes(facts))

    def refused(self, reason: str, **facts: Any) -> None:
        """Count a call that did not run."""
        self._refusals.add(1, {**_attributes(facts), "zklock.reason": reason})

    def dropped(self, **facts: Any) -> None:
        """Count a task that Celery dropped."""
        self._drops.add(1, _attributes(facts))

    def _count_out(self, held: Held, facts: dict[str, Any]) -> None:
        try:
            self._active.remove(id(held))
        except KeyError:
            return
        self._active_holds.add(-1, _attributes(facts))


_RECEIVERS: dict[Signal, Callable[..., None]] = {
    signals.acquired: Instruments.acquired,
    signals.contended: Instruments.contended,
    signals.released: Instruments.released,
    signals.lost: Instruments.lost,
    signals.revoked: Instruments.revoked,
    signals.refused: Instruments.refused,
    signals.dropped: Instruments.dropped,
}


def instrument(meter_provider: MeterProvider | None = None) -> None:
    """Measure the locks of this process with ``meter_provider``, or with OpenTelemetry's global provider.

    Another call, as after a fork, starts again with the other provider.
    """
    uninstrument()
    instruments = Instruments(get_meter("django_zklock", version("django-zklock"), meter_provider))
    for signal, receive in _RECEIVERS.items():
        # A weak reference would be the only one.
        signal.connect(partial(receive, instruments), weak=False, dispatch_uid=_RECEIVER)


def uninstrument() -> None:
    """Stop measuring; do nothing if nothing is measured."""
    for signal in _RECEIVERS:
        signal.disconnect(dispatch_uid=_RECEIVER)


def _attributes(facts: dict[str, Any]) -> dict[str, str]:
    attributes = {"zklock.alias": facts["alias"], "zklock.kind": facts["kind"]}
    if facts["template"] is not None:
        attributes["zklock.template"] = facts["template"]
    return attributes
