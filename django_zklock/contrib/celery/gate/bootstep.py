"""The bootstep that puts the gate into a worker's consumer.

Bootsteps are a documented extension point of Celery ("Extensions and Bootsteps"). The step is added when a worker
starts, before its consumer is made, so that nothing has to be configured.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from celery import bootsteps
from celery.signals import task_received, worker_init

from django_zklock.contrib.celery.gate import celery_internals, handover
from django_zklock.contrib.celery.gate.gate import Gate

logger = logging.getLogger("django_zklock.celery")


class GateStep(bootsteps.StartStopStep):
    """Makes, starts and stops the gate of a consumer."""

    label = "Lock gate"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, consumer: Any, **options: Any) -> None:
        super().__init__(consumer, **options)
        # `celery inspect` finds it there.
        self._gate: Gate | None = None
        consumer.zklock_gate = None
        if not is_wanted(consumer.app):
            return
        if not celery_internals.knows_lock(consumer.pool):
            logger.info("event=no_gate pool=%s consequence=tasks_wait_in_their_slots", type(consumer.pool).__module__)
            return
        # Before the pool forks, and before Celery's strategies copy `on_task_request`.
        self._gate = consumer.zklock_gate = Gate(consumer)
        handover.gates[self._gate.worker.origin] = self._gate
        consumer.on_task_request = self._gate.on_request
        self._leave_before_soft_shutdown(consumer.controller)

    def register_with_event_loop(self, _consumer: Any, hub: Any) -> None:
        """Attach the gate at each connection to the broker: the loop removes its readers when one is lost."""
        if self._gate is not None:
            self._gate.attach(hub)

    def _leave_before_soft_shutdown(self, worker: Any) -> None:
        # Since Celery 5.5 the worker sleeps in a signal handler during a soft shutdown, and its loop does not run.
        sleep = getattr(worker, "wait_for_soft_shutdown", None)
        if sleep is None or self._gate is None:
            return
        leave = self._gate.stop_soon

        def leave_and_sleep() -> None:
            leave()
            sleep()

        worker.wait_for_soft_shutdown = leave_and_sleep

    def start(self, _consumer: Any) -> None:
        """Start the gate at each connection to the broker, after Celery has made its counter of the prefetch window."""
        if self._gate is not None:
            self._gate.start()

    def stop(self, _consumer: Any) -> None:
        """Stop the gate at the end, and when the connection to the broker is lost."""
        if self._gate is not None:
            self._gate.stop()


def is_wanted(app: Any) -> bool:
    """Return whether the project has a gate: the setting ``zklock_gate`` switches it off."""
    return bool(app.conf.get("zklock_gate", True))


def install() -> None:
    """Add the step to every worker of this process; calling it again changes nothing."""
    handover.install()
    worker_init.connect(_add, dispatch_uid="django_zklock.gate", weak=False)
    task_received.connect(_note_delivery, dispatch_uid="django_zklock.gate", weak=False)


def _add(sender: Any, **_facts: Any) -> None:
    sender.app.steps["consumer"].add(GateStep)


def _note_delivery(request: Any, **_facts: Any) -> None:
    # The visibility timeout of the broker begins here, before countdowns and rate limits.
    request.zklock_delivered = time.monotonic()
