"""The bootstep that puts the gate into a worker's consumer.

Bootsteps are a documented extension point of Celery ("Extensions and Bootsteps"). The step is added when a worker
starts, before its consumer is made, so that nothing has to be configured.
"""

from __future__ import annotations

import logging
from typing import Any

from celery import bootsteps
from celery.signals import task_received

from django_zklock import locked_call
from django_zklock.contrib.celery.gate import celery_internals, handover
from django_zklock.contrib.celery.gate.gate import Gate
from django_zklock.zk.waiting import monotonic

logger = logging.getLogger("django_zklock.celery")


class GateStep(bootsteps.StartStopStep):
    """Makes the gate of a consumer, starts it at each connection to the broker, and stops it when that is lost."""

    label = "Lock gate"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def include_if(self, consumer: Any) -> bool:
        """Return whether the consumer has a gate."""
        if not is_wanted(consumer.app):
            return False
        knows_lock = celery_internals.knows_lock(consumer.pool)
        if not knows_lock:
            logger.info("event=no_gate pool=%s consequence=tasks_wait_in_their_slots", type(consumer.pool).__module__)
        return knows_lock

    def create(self, consumer: Any) -> Any:
        """Return the gate, which Celery starts and stops; before the pool forks."""
        # `celery inspect` finds it there.
        gate = consumer.zklock_gate = Gate(consumer)
        handover.gates[gate.origin] = gate
        # Before Celery's strategies copy it.
        consumer.on_task_request = gate.on_request
        # Since Celery 5.5 the worker sleeps in a signal handler during a soft shutdown, and its loop does not run.
        if (sleep := getattr(consumer.controller, "wait_for_soft_shutdown", None)) is not None:

            def leave_and_sleep() -> None:
                gate.stop_soon()
                sleep()

            consumer.controller.wait_for_soft_shutdown = leave_and_sleep
        return gate

    def register_with_event_loop(self, _consumer: Any, hub: Any) -> None:
        """Attach the gate at each connection to the broker: the loop removes its readers when one is lost."""
        self.obj.loop.attach(hub)


def is_wanted(app: Any) -> bool:
    """Return whether the project has a gate: the setting ``zklock_gate`` switches it off."""
    return bool(app.conf.get("zklock_gate", True))


def install(app: Any) -> None:
    """Add the step to the workers of ``app``, and read tickets in tasks; calling it again changes nothing."""
    if handover.read_ticket not in locked_call.acquire_hooks:
        locked_call.acquire_hooks.append(handover.read_ticket)
    task_received.connect(_note_delivery, dispatch_uid="django_zklock.gate", weak=False)
    app.steps["consumer"].add(GateStep)


def _note_delivery(request: Any, **_facts: Any) -> None:
    # The visibility timeout of the broker begins here, before countdowns and rate limits.
    request.zklock_delivered = monotonic()
