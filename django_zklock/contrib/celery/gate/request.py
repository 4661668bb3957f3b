"""A request of a locked task, from its delivery to the end of its task: the record, its steps, and how it ends.

:mod:`.attempt` has what happens until the lock is decided, and :mod:`.run` what happens from there on.
"""

from __future__ import annotations

import logging
import math
import secrets
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any, Protocol

from celery.worker.request import Request

from django_zklock.contrib.celery.gate.acquisition import GateAcquisition
from django_zklock.contrib.celery.gate.child_watcher import ChildWatcher
from django_zklock.contrib.celery.gate.loop import Loop
from django_zklock.contrib.celery.gate.scoreboard import ParentCell, Scoreboard
from django_zklock.contrib.celery.gate.states import (
    IN_POOL,
    STATES,
    STEPS,
    Effect,
    Event,
    Pair,
    Phase,
    Verdict,
    effects_of,
    meant,
)
from django_zklock.contrib.celery.headers import CONFLICTS, OUTAGES
from django_zklock.contrib.celery.internals import pool
from django_zklock.exceptions import ZkLockError
from django_zklock.locked_call import LockedCall
from django_zklock.zk.lock import Lock
from django_zklock.zk.waiting import monotonic

logger = logging.getLogger("django_zklock.celery")


class SlotUser(Protocol):
    """The slots of the gate, as a request uses them, in the gate's loop."""

    def settle(self) -> None:
        """Use the slots that the gate has."""

    def submit(self, call: Callable[[], object]) -> None:
        """Let ``call`` use one of them: it hands a request over to the pool."""

    def on_slot(self) -> None:
        """Use a slot that the pool did not use after all."""


class Workplace(Protocol):
    """What a request needs of its gate."""

    consumer: Any
    loop: Loop
    forks: bool
    scoreboard: Scoreboard
    child_watcher: ChildWatcher
    origin: str
    counts: Counter[str]

    @property
    def slots(self) -> SlotUser: ...

    @property
    def max_wait(self) -> float:
        """Seconds after its delivery when a message goes back to the broker, unless its task runs."""

    def note_step(self, request: Any, /) -> None:
        """Keep a request that has made a step where it belongs; under its lock, in any thread."""

    def carry_out(self, request: Any, effects: Iterable[Effect], /) -> None:
        """Do what is to be done after a step."""

    def paths_of_asking(self) -> set[str]:
        """Return the paths of the nodes of those that ask for one key."""

    def keep_rest(self, attempt: tuple[Any, ...], rest: float | None) -> None:
        """Keep the rest of a timeout for the next delivery of the same message."""

    def read_rest(self, request: Request, attempt: tuple[Any, ...]) -> float | None:
        """Return what earlier deliveries have left of a timeout."""

    def send_event(self, what: str, describe: Callable[[], dict[str, Any]]) -> None:
        """Send a Celery event, if events are enabled."""


class RequestRecord:
    """What is known of a request, and its steps.

    Any thread may end it. ``_changing`` guards ``phase``, ``verdict`` and ``attempt``, and the decisions that depend on
    them.
    """

    def __init__(self, gate: Workplace, request: Request, call: LockedCall, lock: Lock) -> None:
        self.gate = gate
        self.request = request
        self.lock = lock
        self.phase, self.verdict = Phase.QUEUED, Verdict.NONE
        # Names the request, its cell and its ticket.
        self.hold_id = secrets.randbits(63) | 1
        headers = request.message.headers or {}
        # The task, the number of its retries, and how often `RetryLater` has sent it: each wait has its own deadline.
        tries = (headers.get(budget.tries, 0) for budget in (CONFLICTS, OUTAGES))
        self.attempt_id: tuple[Any, ...] = (request.id, request.request_dict.get("retries") or 0, *tries)
        # ``None`` before the first attempt; why there is no lock; and when the first attempt began (monotonic clock).
        self.attempt: GateAcquisition | None = None
        self.refusal: ZkLockError | None = None
        self.began = math.inf
        # What earlier deliveries have left of the timeout, in seconds; and until when the task waits in this delivery
        # (monotonic clock), which is not known before it asks.
        self._rest = gate.read_rest(request, self.attempt_id) if call.timeout else None
        self.deadline: float | None = None
        # Another contender was in the way. And this one asks ahead of its turn, which it waits for if no other one is.
        self.contended = self.is_ahead = False
        # The child that runs the task, or a number for the thread; and the cell of the hold.
        self.pid: int | None = None
        self.cell: ParentCell | None = None
        # When the phase has changed or a child has accepted the task, and when the message came (monotonic clock).
        self.moved = monotonic()
        self._delivered = float(vars(request).get("zklock_delivered", self.moved))
        # When the lock was decided (Unix epoch), and after how many seconds: what follows is no wait for the lock.
        self._granted_at = self._waited = 0.0
        self._changing = threading.RLock()

    @property
    def pair(self) -> Pair:
        return Pair(self.phase, self.verdict)

    def happen(self, event: Event) -> tuple[Effect, ...]:
        """Make the step of ``event``, and return what is to be done then; nothing if the request is over."""
        with self._changing:
            before = self.pair
            if before.phase is Phase.OVER and event in {Event.ENDED, Event.GIVEN_BACK}:
                # It ends once, whatever ends it; whose step that was does what is to be done.
                return ()
            after = STEPS[event].get(before)
            if after is None:
                text = "event=unexpected_step task=%s what=%s phase=%s verdict=%s"
                logger.error(text, self.request.id, event.name, before.phase.name, before.verdict.name)
                if before.phase is Phase.OVER:
                    return ()
                after = meant(event, before)
            if after.phase is not before.phase:
                self.moved = monotonic()
                if after.phase is Phase.DECIDED:
                    self._granted_at, self._waited = time.time(), max(0.0, monotonic() - self.began)
            self.phase, self.verdict = after
            self.gate.note_step(self)
            return effects_of(event, before, after)

    def guarded(self, step: Callable[[], object]) -> None:
        """Call ``step``; after an error the lock is free, and the broker has the message if the pool has not."""
        try:
            step()
        except Exception:
            self.gate.counts["failed"] += 1
            # First: what has made the step fail may make the log fail too.
            if self.phase not in IN_POOL:
                self._go_back()
            logger.exception("event=step_failed task=%s consequence=delivered_again", self.request.id)

    # The ends.

    def over(self) -> None:
        """End the request, whatever ended it: release the lock and all that belongs to it; any thread, any time."""
        self.gate.carry_out(self, self.happen(Event.ENDED))

    def release(self) -> None:
        """Leave the queue, or release the lock; any thread, more than once."""
        if self.attempt is not None and self.attempt.is_waiting:
            self.attempt.end()

    def forget(self) -> None:
        """Close the cell; and let the pool report to Celery's request again, which refers to this one otherwise."""
        if self.cell is not None:
            self.cell.close()
        # Without this only the garbage collector frees both.
        pool.drop_callbacks(self.request)

    def leave(self, *, wait: bool = True) -> bool:
        """End the request unless the pool has it; ``False`` if another thread is at work on it, without ``wait``."""
        if not self._changing.acquire(blocking=wait):
            return False
        try:
            # What waits in the queue of threads or greenlets is ended when one of them takes it.
            if self.phase not in IN_POOL or self.is_queued:
                self.gate.keep_rest(self.attempt_id, self.rest)
                self.over()
        finally:
            self._changing.release()
        return True

    def give_back(self, reason: str) -> None:
        """Let the broker deliver the message again, unless the pool has it and cannot wait any more."""
        with self._changing:
            if self.phase is Phase.OVER or (self.phase in IN_POOL and not self.is_queued):
                return
            age, text = monotonic() - self._delivered, "event=given_back key=%r task=%s age=%.0f reason=%s"
            logger.info(text, self.lock.key, self.request.id, age, reason)
            self._go_back()

    def _go_back(self) -> None:
        self.gate.carry_out(self, self.happen(Event.GIVEN_BACK))

    # What it is, in the words of others.

    @property
    def rest(self) -> float | None:
        """The seconds that are left of the timeout; ``None`` without one, and before any delivery has asked."""
        return self._rest if self.deadline is None else max(0.0, self.deadline - monotonic())

    @property
    def waits_for_slot(self) -> bool:
        """Whether all that it waits for is a slot, thread or greenlet."""
        return self.phase is Phase.DECIDED or self.is_queued

    @property
    def is_queued(self) -> bool:
        """Whether it waits in the queue of a pool whose threads or greenlets are busy."""
        return self.phase is Phase.SUBMITTED and self.pid is None and not self.gate.forks

    @property
    def state(self) -> str:
        """Phase and verdict in the words of ``manage.py zklock``."""
        attempt = self.attempt
        if self.phase in {Phase.SUBMITTED, Phase.CLAIMED} and self.verdict is Verdict.GRANTED and attempt is not None:
            return "lost" if attempt.contender.lost is not None else "granted" if self.pid is None else "held"
        return STATES.get(self.pair, self.phase.name.lower())

    def as_dict(self) -> dict[str, Any]:
        attempt = self.attempt
        holder = attempt.contender.holder if attempt is not None and self.phase is Phase.WAITING else None
        return {
            "id": self.request.id,
            "name": self.request.task.name,
            "key": self.lock.key,
            "alias": self.lock.pool.name,
            "kind": self.lock.rule.kind.value,
            "state": self.state,
            "holder": str(holder) if holder is not None else None,
            "token": attempt.contender.token if attempt is not None and attempt.granted else None,
            "pid": self.pid,
            "seconds": round(monotonic() - self.moved, 3),
        }
