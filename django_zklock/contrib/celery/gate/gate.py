"""The gate of one worker: its locked tasks wait for their locks here, in the main process.

A task that waits takes no thread, no slot of the pool and no place in the prefetch window: it is a request object, a
node in ZooKeeper's queue, and a callback.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from typing import Any

from celery.app.task import Context
from celery.bootsteps import CLOSE, TERMINATE  # type: ignore[attr-defined]
from celery.worker.request import Request
from django.db import connections as databases

from django_zklock.contrib.celery.gate import celery_internals
from django_zklock.contrib.celery.gate import ticket as tickets
from django_zklock.contrib.celery.gate.request import LockedRequest
from django_zklock.contrib.celery.gate.worker import CHECK_INTERVAL, GateWorker, Stage
from django_zklock.contrib.celery.tasks import outermost_lock
from django_zklock.locked_call import LockedCall
from django_zklock.zk.lock import Lock
from django_zklock.zk.waiting import monotonic

logger = logging.getLogger("django_zklock.celery")

# Retry interval in seconds at a shutdown while another thread is at work on a request.
STOP_INTERVAL = 0.1


class Gate(GateWorker):
    """Receives requests by :meth:`on_request`; those without a lock go on as without the gate."""

    def __init__(self, consumer: Any) -> None:
        super().__init__(consumer)
        self._handle = consumer.on_task_request
        # By hold_id, in the order of their arrival; added and removed by several threads, one operation each.
        self.requests: dict[int, LockedRequest] = {}
        # Names of the tasks whose key could not be made.
        self._without_key: set[str] = set()

    # Celery calls these.

    def on_request(self, request: Request) -> None:
        """Let a request of a locked task wait for its lock, and pass on all others."""
        if _take_out(request, tickets.HEADER) is not None:
            logger.warning("event=header_refused task=%s reason='it is not of this delivery'", request.id)
        _take_out(request, tickets.DEADLINE_HEADER)
        locked = self._locked_request(request)
        if locked is None:
            self._handle(request)
            return
        self.requests[locked.hold_id] = locked
        if self.consumer.hub:
            self._enter(locked)
        else:
            # Requests arrive on another thread than the one that makes all steps.
            self.loop.post(partial(self._enter, locked))

    def _enter(self, locked: LockedRequest) -> None:
        locked.run(locked.enter)
        self.schedule_check()

    def start(self) -> None:
        """Use a new connection to the broker, for which Celery has made its counter of the prefetch window."""
        self.window.attach(self.consumer.qos)
        celery_internals.restore_in_order(self.consumer)

    def stop(self) -> None:
        """Finish all requests whose tasks do not run, and those that Celery has dropped: they are delivered again."""
        self.reset_slots()
        for request in list(self.requests.values()):
            request.leave()
            request.run(request.reconcile)
        if self.consumer.controller.blueprint.state in {CLOSE, TERMINATE}:
            # The last tasks run, and Celery's loop does not.
            self.loop.detach()

    def stop_soon(self) -> None:
        """Stop in the timer thread; safe in a signal handler, which may have interrupted a step."""
        if self.requests:
            self.loop.timers.call_later(0.0, self._stop_without_waiting)
        # Tasks that run may still take their locks, and Celery's loop does not run during the handler or after it.
        self.loop.detach()

    def _stop_without_waiting(self) -> None:
        if [request for request in list(self.requests.values()) if not request.leave(wait=False)]:
            self.loop.timers.call_later(STOP_INTERVAL, self._stop_without_waiting)

    # The lock of a request.

    def _locked_request(self, request: Request) -> LockedRequest | None:
        task = request.task
        try:
            if not getattr(task, "zklock_gate", True):
                return None
            call, own = outermost_lock(task)
            if call is None:
                return None
            return LockedRequest(self, self.requests, request, call, self._lock(call, request, own))
        except Exception as error:  # noqa: BLE001 - the key is the user's
            # The same error will fail the task in its slot.
            level = logging.DEBUG if task.name in self._without_key else logging.WARNING
            self._without_key.add(task.name)
            logger.log(
                level, "event=no_key task=%s id=%s error=%r consequence=waits_in_its_slot", task.name, request.id, error
            )
            return None

    def _lock(self, call: LockedCall, request: Request, own: tuple[Any, ...]) -> Lock:
        work = self.work_of(request)
        before = {each.alias for each in databases.all(initialized_only=True) if each.connection is not None}
        try:
            with _request_of(request) if own else nullcontext():
                key = call.key((*own, *request.args), dict(request.kwargs))
            # Celery discards it at that time, also while it waits here.
            return call.lock(key, lambda: work, may_expire=request.expires is not None)
        finally:
            # If the key callable has queried the database, the children must not inherit the connection.
            for each in databases.all(initialized_only=True):
                if each.alias not in before:
                    each.close()

    # The requests.

    def _check(self, due: float) -> None:
        if due != self._check_due:
            # An earlier one was scheduled after this.
            return
        self._check_due = math.inf
        now, delays = monotonic(), [CHECK_INTERVAL]
        for request in list(self.requests.values()):
            try:
                request.check(now)
            except Exception:
                # One request must not keep the others from their checks. It is checked again.
                logger.exception("event=check_failed task=%s", request.request.id)
            if request.next_check is not None:
                delays.append(request.next_check)
        if self.requests:
            self.schedule_check(min(delays))

    def release(self, hold_id: int) -> None:
        if (request := self.requests.get(hold_id)) is not None:
            request.release()

    def count_waiting(self) -> int:
        stages = {Stage.QUEUED, Stage.PARKED, Stage.READY}
        return sum(request.stage in stages for request in list(self.requests.values()))

    def count_in_hand(self) -> int:
        return sum(request.has_slot for request in list(self.requests.values()))

    @property
    def is_stuck(self) -> bool:
        # A pool of processes has no queue of its own.
        return self.scoreboard is None and any(request.is_stuck for request in list(self.requests.values()))

    def as_dict(self) -> dict[str, Any]:
        """Return the state of the gate, for ``celery inspect``."""
        return {
            "waiting": len(self.parked),
            "running": sum(request.stage is Stage.RUNNING for request in list(self.requests.values())),
            "max_parked": self.max_parked,
            "prefetch": self.window.size,
            "scoreboard": self.scoreboard.used if self.scoreboard is not None else 0,
            **{name: self.counts[name] for name in ("reconciled", "given_back", "failed")},
        }


@contextmanager
def _request_of(request: Request) -> Iterator[None]:
    """Let the task's own `request` be what it is in a slot: the key may be made from it."""
    stack = request.task.request_stack
    stack.push(Context(request.request_dict, args=request.args, called_directly=False, kwargs=request.kwargs))
    try:
        yield
    finally:
        stack.pop()


def _take_out(request: Request, header: str) -> Any:
    facts = request.request_dict
    if isinstance(facts.get("headers"), dict):
        # A copy: they may be the message's own.
        facts["headers"] = {name: value for name, value in facts["headers"].items() if name != header}
    return facts.pop(header, None)
