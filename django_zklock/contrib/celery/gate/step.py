"""The bootstep that puts the gate into a worker's consumer.

A documented extension point of Celery ("Extensions and Bootsteps"). It is added when a worker begins, before the
consumer is made: no configuration.
"""

from __future__ import annotations

import logging
import os
from typing import Any

from celery import bootsteps
from celery.signals import worker_init

from django_zklock.contrib.celery.gate import takeover
from django_zklock.contrib.celery.gate.gate import Gate

logger = logging.getLogger("django_zklock.celery")

VARIABLE = "ZKLOCK_GATE"
_OFF = {"0", "off", "no", "false"}


class GateStep(bootsteps.StartStopStep):
    """The gate of a consumer, from its making to its end."""

    label = "Lock gate"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        self._gate: Gate | None = None
        if not is_wanted(consumer.app):
            return
        if not Gate.fits(consumer.pool):
            logger.warning("event=no_gate pool=%s consequence=tasks_wait_in_their_slots", type(consumer.pool).__name__)
            return
        # Before the pool forks, and before Celery's strategies take hold of what they call.
        self._gate = takeover.gate = Gate(consumer)
        consumer.on_task_request = self._gate.on_request
        self._leave_before_soft_shutdown(consumer.controller)

    def register_with_event_loop(self, _consumer: Any, hub: Any) -> None:
        """Called at each connection to the broker: the loop forgets its readers when one is lost."""
        if self._gate is not None:
            self._gate.attach(hub)

    def _leave_before_soft_shutdown(self, worker: Any) -> None:
        # Celery 5.5. The worker sleeps in a signal handler then, without its loop, and tells nobody before.
        sleep = getattr(worker, "wait_for_soft_shutdown", None)
        if sleep is None or self._gate is None:
            return
        leave = self._gate.stop_soon

        def leave_and_sleep() -> None:
            leave()
            sleep()

        worker.wait_for_soft_shutdown = leave_and_sleep

    def stop(self, _consumer: Any) -> None:
        """Called at the end, and when the connection to the broker is lost."""
        if self._gate is not None:
            self._gate.stop()


def is_wanted(app: Any) -> bool:
    """Whether the gate is not switched off for this worker or its project."""
    return os.environ.get(VARIABLE, "1").lower() not in _OFF and bool(app.conf.get("zklock_gate", True))


def install() -> None:
    """Add the step to every worker of this process; calling it again changes nothing."""
    takeover.install()
    worker_init.connect(_add, dispatch_uid="django_zklock.gate", weak=False)


def _add(sender: Any, **_facts: Any) -> None:
    sender.app.steps["consumer"].add(GateStep)
