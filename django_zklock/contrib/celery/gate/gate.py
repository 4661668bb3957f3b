"""The gate of one worker: its locked tasks wait for their locks here, in the main process.

No thread, no slot of the pool and no place in the prefetch window for a task that waits: a request object, a node in
ZooKeeper's line, and a callback.
"""

from __future__ import annotations

import logging
import math
import os
import secrets
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from celery.concurrency import prefork, solo, thread
from celery.worker import state
from celery.worker.request import Request
from django.db import connections as databases

from django_zklock.calls import LockedCall
from django_zklock.contrib.celery.gate import header
from django_zklock.contrib.celery.gate.board import Board
from django_zklock.contrib.celery.gate.children import Children
from django_zklock.contrib.celery.gate.loop import HubLoop, Loop, ThreadLoop, WorkerLoop
from django_zklock.contrib.celery.gate.waiter import Waiter
from django_zklock.contrib.celery.task import outermost_lock
from django_zklock.zk.clock import Clock
from django_zklock.zk.identity import Work
from django_zklock.zk.lock import Lock

logger = logging.getLogger("django_zklock.celery")

# How often to look for what nobody tells, such as a revoked task, in seconds.
GLANCE = 1.0
# How often to try again what an interrupted step is in the way of, in seconds.
LOOK_AGAIN = 0.1
# More requests than this do not wait outside of the prefetch window: they would only fill the memory.
MAX_PARKED = 10_000
# Without a visibility timeout of the broker. RabbitMQ's for an acknowledgement is 30 minutes.
VISIBILITY_TIMEOUT = 1800.0


class Gate:
    """Requests come in by :meth:`on_request` and go out through ``handle``, which is what Celery does with them."""

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self.handle = consumer.on_task_request
        self.pid = os.getpid()
        self.loop = self._loop()
        # Only where tasks run in other processes than this.
        self.board = Board() if isinstance(consumer.pool, prefork.TaskPool) else None
        self.children = Children(self._told) if self.board is not None else None
        self.origin = self.board.origin if self.board is not None else secrets.token_hex(8)
        # By number; requests of a worker are added and taken out by different threads, one operation each.
        self.waiters: dict[int, Waiter] = {}
        # The numbers of those who were handed to the pool, and not begun by it yet.
        self.submitted: set[int] = set()
        self._parked = 0
        self._clock = Clock()
        self._due = math.inf

    def _loop(self) -> Loop:
        if self.consumer.hub:
            return HubLoop()
        # Whose tasks run in the worker's own thread, and nowhere else.
        return WorkerLoop(self.consumer) if isinstance(self.consumer.pool, solo.TaskPool) else ThreadLoop()

    @staticmethod
    def fits(pool: Any) -> bool:
        """Whether tasks in ``pool`` can be told of a lock that this process holds."""
        if isinstance(pool, prefork.TaskPool):
            # What a child knows of its parent, it knows from the fork.
            return bool(pool.forking_enable)
        return bool(pool.is_green) or isinstance(pool, (solo.TaskPool, thread.TaskPool))

    # What Celery calls.

    def on_request(self, request: Request) -> None:
        """Let a request of a locked task wait for its lock, and all others pass."""
        if request.request_dict.pop(header.HEADER, None) is not None:
            logger.warning("event=header_refused task=%s reason='it came from outside'", request.id)
        try:
            waiter = self._waiter(request)
        except Exception as error:  # noqa: BLE001 - the key is the user's
            # In the child the same error ends the task as it should.
            logger.debug("event=no_key task=%s error=%r", request.id, error)
            waiter = None
        if waiter is None:
            self.handle(request)
        else:
            self.waiters[waiter.nonce] = waiter
            waiter.enter()

    def attach(self, hub: Any) -> None:
        """Run in ``hub``."""
        if isinstance(self.loop, HubLoop):
            self.loop.attach(hub)

    def stop(self) -> None:
        """Let go of all that does not run: the broker delivers it again, here or elsewhere."""
        for waiter in list(self.waiters.values()):
            waiter.leave()

    def stop_soon(self) -> None:
        """Stop in the clock's thread; safe in a signal handler, which may have interrupted a step."""
        if self.waiters:
            self._clock.call_later(0.0, self._stop_without_waiting)

    def _stop_without_waiting(self) -> None:
        if [waiter for waiter in list(self.waiters.values()) if not waiter.leave(wait=False)]:
            self._clock.call_later(LOOK_AGAIN, self._stop_without_waiting)

    # Which lock.

    def _waiter(self, request: Request) -> Waiter | None:
        task = request.task
        if not getattr(task, "zklock_gate", True):
            return None
        call, own = outermost_lock(task)
        if call is None:
            return None
        return Waiter(self, request, call, self._lock(call, request, own))

    def _lock(self, call: LockedCall, request: Request, own: tuple[Any, ...]) -> Lock:
        work = Work(kind="task", name=request.task.name, id=request.id)
        before = {each.alias for each in databases.all(initialized_only=True) if each.connection is not None}
        try:
            return call.lock((*own, *request.args), dict(request.kwargs), lambda: work)
        finally:
            # A key that asks the database must not leave a connection for the children to inherit.
            for each in databases.all(initialized_only=True):
                if each.alias not in before:
                    each.close()

    # What waiters call.

    def return_slot(self) -> None:
        """Give a slot of the pool to the next who waits for one."""
        if self._gives_slots:
            self.consumer.controller.semaphore.release()

    @property
    def _gives_slots(self) -> bool:
        """Whether who is called by Celery has a slot; other pools have their tasks wait in them, or in their door."""
        controller = self.consumer.controller
        return bool(controller.process_task == controller._process_task_sem)  # noqa: SLF001 - nothing else tells

    @property
    def has_slot(self) -> bool:
        """Whether what is handed to the pool now will be begun now, as far as can be seen."""
        if self._gives_slots:
            return True
        pool = self.consumer.pool
        # Early versions of Celery count the greenlets at work here, and not those that there may be.
        slots = pool.num_processes if self.board is not None else pool.limit
        return bool(len(state.active_requests) + len(self.submitted) < slots)

    def park(self) -> Any:
        """Take a waiting request out of the prefetch window; gives what :meth:`unpark` needs."""
        if self._parked >= MAX_PARKED:
            return None
        self._parked += 1
        qos = self.consumer.qos
        self._in_worker(qos.increment_eventually)
        return qos

    def unpark(self, qos: Any) -> None:
        """Put it back; after a reconnect ``qos`` is of the connection that was lost, and does no harm."""
        self._parked -= 1
        self._in_worker(qos.decrement_eventually)

    def _in_worker(self, call: Any) -> None:
        # Where there is no event loop, the worker's thread counts without a lock.
        if isinstance(self.loop, HubLoop):
            self.loop.post(call)
        else:
            self.consumer.call_soon(call)

    def give_back(self, request: Request) -> None:
        """Have the broker deliver a request again."""
        state.task_ready(request)
        request.reject(requeue=True)

    def forget(self, waiter: Waiter) -> None:
        """Know ``waiter`` no more."""
        self.waiters.pop(waiter.nonce, None)
        self.submitted.discard(waiter.nonce)

    def tell(self, what: str, waiter: Waiter) -> None:
        """Send a Celery event, ``zklock-waiting``, ``zklock-held`` or ``zklock-released``, if events are wanted."""
        events = self.consumer.event_dispatcher
        if events is None or not events.enabled:
            return
        facts = waiter.facts()
        # The names of what every event has are Celery's.
        facts["uuid"], facts["child"] = facts.pop("id"), facts.pop("pid")
        try:
            events.send(f"zklock-{what}", **facts)
        except Exception:
            # Celery's connection for events may be the one that was lost; tasks do not depend on it.
            logger.exception("event=not_told what=%s task=%s", what, waiter.request.id)

    # The time.

    @property
    def max_wait(self) -> float:
        """For how many seconds a request may wait in line before its message goes back to the broker."""
        chosen = self.consumer.app.conf.get("zklock_gate_max_wait")
        if chosen is not None:
            return float(chosen)
        options = self.consumer.app.conf.broker_transport_options or {}
        channel = getattr(self.consumer.task_consumer, "channel", None)
        timeout = options.get("visibility_timeout") or getattr(channel, "visibility_timeout", None)
        # What is left is for the task itself, if it is acknowledged late.
        return float(timeout or VISIBILITY_TIMEOUT) / 2

    def call_later(self, delay: float, call: Callable[[], object]) -> None:
        """Call ``call`` in the loop after ``delay`` seconds."""
        self._clock.call_later(delay, partial(self.loop.post, call))

    def arm(self, delay: float | None) -> None:
        """Look at the waiters in ``delay`` seconds, or after a glance's time."""
        due = time.monotonic() + min(GLANCE if delay is None else delay, GLANCE)
        if due < self._due:
            self._due = due
            self.call_later(due - time.monotonic(), self._sweep)

    def _sweep(self) -> None:
        self._due = math.inf
        now, patience = time.monotonic(), []
        for waiter in list(self.waiters.values()):
            waiter.mind(now)
            if waiter.is_minded:
                patience.append(GLANCE if waiter.patience is None else waiter.patience)
        if patience:
            self.arm(min(patience))

    # What children say.

    def _told(self, nonce: int) -> None:
        waiter = self.waiters.get(nonce)
        if waiter is not None:
            waiter.release()
