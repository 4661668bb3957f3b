"""The way of a request to a decision about its lock: when it asks, its attempts, and their deadline."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from celery.worker.request import Request

from django_zklock.conflict import AcquireRetries
from django_zklock.contrib.celery import unique
from django_zklock.contrib.celery.gate.acquisition import GateAcquisition
from django_zklock.contrib.celery.gate.request import RequestRecord, Workplace
from django_zklock.contrib.celery.gate.states import ASKING, Effect, Event, Phase, Verdict
from django_zklock.exceptions import ZkLockError
from django_zklock.locked_call import LockedCall
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work
from django_zklock.zk.ops.sent import Mark, Removal
from django_zklock.zk.waiting import monotonic

logger = logging.getLogger("django_zklock.celery")

# Seconds for which a request waits for ZooKeeper's first answer. Then the task waits for it, as without the gate.
MAX_JOINING = 1.0
# Seconds between two checks for what no callback reports, such as a revoked task.
CHECK_INTERVAL = 1.0


class AskingRequest(RequestRecord):
    """A request that asks for its lock: with one deadline for all attempts, and a locked call's retries.

    ``ask`` and ``step`` run in the gate's loop, and the session calls ``_on_change`` from its own threads, under its
    monitor.
    """

    def __init__(self, gate: Workplace, request: Request, call: LockedCall, lock: Lock) -> None:
        super().__init__(gate, request, call, lock)
        self._retries = AcquireRetries(lock, call.timeout, Work(kind="task", name=request.task.name, id=request.id))
        self._is_retry = False
        self._call = call
        # The mark of the message, until it is removed (`unique_until`); what removes it now; whether to ask again then.
        self._mark: Mark | None = None
        headers = request.message.headers or {}
        if unique.HEADER in headers and (found := unique.mark_in(headers, request.id)) is not None:
            self._mark = found[1]
        self._removal: Removal | None = None
        self._asks_again = False

    def ask(self) -> None:
        """Ask for the lock: it is the turn of this request among all that wait for a slot, or will be soon."""
        with self._changing:
            if self.phase is not Phase.QUEUED:
                return
            if self.request.revoked():
                # Celery has announced and acknowledged it.
                self.over()
                return
            # First: a grant that comes at once is to be noticed.
            self.happen(Event.TURN)
            self._start_attempt()
        self._step_in_time()

    def _start_attempt(self) -> None:
        self.release()
        timeout, now = self._retries.timeout, monotonic()
        if timeout and not self._is_retry:
            if self.deadline is None:
                rest = timeout if self._rest is None else min(timeout, self._rest)
                # With what earlier deliveries have waited.
                self.began, self.deadline = now - (timeout - rest), now + rest
            timeout = max(0.0, self.deadline - now)
        # `celery inspect zklocks` names the holder.
        self.attempt = GateAcquisition(self.lock, timeout, self._on_change, wants_holder=True)
        self.attempt.start()
        self.began = min(self.began, now)

    def _is_decided(self) -> bool:
        """Return whether the lock is granted or refused; one that was lost is acquired again."""
        attempt = self.attempt
        assert attempt is not None, "the request has asked"
        if self.refusal is not None:
            return True
        if self._asks_again and self._mark is not None:
            return self._remove_mark()
        if attempt.expired or self._asks_again:
            self._asks_again = False
            self._start_attempt()
        else:
            try:
                if attempt.granted or attempt.poll():
                    return self._mark is None or self._remove_mark()
            except ZkLockError as error:
                if self._retries.should_retry(error):
                    self._is_retry = True
                    self._start_attempt()
                elif self._mark is not None and not self._call.keeps_mark(error):
                    # The refusal may be older than the last call that was not sent for this one.
                    self._asks_again = True
                    return self._remove_mark()
                else:
                    self.refusal = error.with_traceback(None)
                    return True
        if self.phase is Phase.DECIDED:
            self.happen(Event.LOST)
        return False

    def _remove_mark(self) -> bool:
        """Remove the mark, and return ``False``: this request is looked at when other calls are sent again.

        No body begins before, and no refusal counts.
        """
        if self._removal is None and self.attempt is not None and self._mark is not None:
            self._removal = Removal(self.attempt.contender.session, self._mark, self._on_removed)
            self._removal.start()
        return False

    def _on_removed(self, error: Exception | None) -> None:
        # On the session's threads.
        if error is None:
            self._mark = None
        elif not isinstance(error, ConnectionError):
            self.refusal = ZkLockError(f"the mark of task {self.request.id} cannot be removed: {error!r}")
        # Where the session was closed, the attempt has ended with it, and the next one removes the mark.
        self._removal = None
        self._on_change()

    def _on_change(self) -> None:
        # On the session's threads.
        if self.phase in ASKING:
            self.gate.loop.post(partial(self.guarded, self.step))

    def step(self) -> None:
        """Move on if the attempt has come further."""
        with self._changing:
            if self.phase not in ASKING or self.verdict is Verdict.IN_SLOT:
                return
            before, decided, attempt = self.phase, self._is_decided(), self.attempt
            assert attempt is not None
            contender = attempt.contender
            # A short wait may be over before the holder is known.
            if not self.contended and (attempt.newly_contended() or (decided and before is Phase.WAITING)):
                self.contended, self.is_ahead = True, False
                self.gate.send_event("waiting", self.as_dict)
            effects: tuple[Effect, ...] = ()
            if decided and before is not Phase.DECIDED:
                effects = self.happen(Event.GRANTED if self.refusal is None else Event.REFUSED)
            elif before is Phase.JOINING:
                if self._removal is None and contender.wait and contender.answered and contender.session.connected:
                    effects = self.happen(Event.BLOCKED)
                elif monotonic() - self.moved >= MAX_JOINING:
                    # In an outage of ZooKeeper the slots pace the requests, as without the gate.
                    effects = self._fall_back(Event.UNSERVED, logger.warning, "event=zookeeper_silent")
        self.gate.carry_out(self, effects)
        if Effect.SEEK not in effects:
            self.gate.slots.settle()
            if self.phase in {Phase.JOINING, Phase.WAITING}:
                self._step_in_time()

    def _fall_back(self, event: Event, log: Callable[..., None], name: str) -> tuple[Effect, ...]:
        """Let the task acquire the lock in its slot."""
        log("%s key=%r task=%s consequence=acquires_in_its_slot", name, self.lock.key, self.request.id)
        return self.happen(event)

    def _step_in_time(self) -> None:
        """Look at the attempt when its timeout is over, if that comes before the next check."""
        wakeup = self.attempt.next_wakeup() if self.attempt is not None else None
        if wakeup is not None and wakeup < CHECK_INTERVAL:
            self.gate.loop.call_later(wakeup, partial(self.guarded, self.step))
