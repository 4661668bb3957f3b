"""One request of a locked task, from its delivery to the end of its task.

::

    QUEUED --slot--> JOINING --granted or refused--------------> RUNNING --end of the task--> OVER
      ^                '--another contender is first--> PARKED      ^
      |                                                   |         |
      |                                          granted, refused   |
      |                                                   v         |
      '--no slot, and another worker waits behind------ READY --slot'

A request asks for its lock when its worker has a slot for it, so that a busy worker does not hold a lock that an idle
worker could use. The slot is returned while the request waits for its lock. Before RUNNING the request belongs to the
gate, from then on to Celery.

A request that cannot be served here goes to its slot without the lock, and the task acquires the lock there, as
without the gate: when ZooKeeper does not answer, and when a granted lock was released because no slot was free.
"""

from __future__ import annotations

import logging
import time
from functools import partial
from typing import Any

from celery.exceptions import TaskRevokedError

from django_zklock.contrib.celery.gate import celery_internals
from django_zklock.contrib.celery.gate import ticket as tickets
from django_zklock.contrib.celery.gate.scoreboard import ParentCell
from django_zklock.contrib.celery.gate.task_run import TaskRun
from django_zklock.contrib.celery.gate.worker import ACQUIRING, MAX_READY, Stage
from django_zklock.zk.waiting import monotonic

logger = logging.getLogger("django_zklock.celery")

# Seconds for which a slot waits for ZooKeeper's first answer. Then the task waits for it, as without the gate.
MAX_JOINING = 1.0


class LockedRequest(TaskRun):
    """A request of a locked task: it waits for a slot, for its lock, and for the next slot.

    ``step`` and ``check`` run in the gate's loop.
    """

    contended = False
    _awaits_slot = False

    # Slots.

    def enter(self) -> None:
        """Wait for a slot like every request."""
        self._awaits_slot = True
        self.worker.slots.acquire(partial(self.run, self._on_slot))

    def _enter_next(self) -> None:
        """Wait for the next slot, before all requests that have no lock."""
        if not self._awaits_slot:
            self._awaits_slot = True
            self.worker.acquire_next(self.hold_id, partial(self.run, self._on_slot), lambda: self.stage is Stage.OVER)

    def _on_slot(self) -> None:
        self._slot_generation = self.worker.generation
        with self._changing:
            self._awaits_slot = False
            if self.stage is Stage.QUEUED and not self._acquires_in_slot:
                if self.request.revoked():
                    # Celery has announced and acknowledged it.
                    self.finish()
                else:
                    # First: a grant that comes at once is to be noticed.
                    self._begin_joining()
                    self.attempts.start()
                return
            if self.stage is Stage.READY and not self.attempts.is_decided():
                # The lock was lost while the request waited for the slot, and the new attempt has begun.
                self._begin_joining()
                self._on_change()
                return
            submits = self.stage in {Stage.QUEUED, Stage.READY}
            if submits:
                self._move(Stage.RUNNING)
        if submits:
            self._submit()
        else:
            self._release_slot()

    def _begin_joining(self) -> None:
        self._move(Stage.JOINING)
        self.worker.schedule_check(MAX_JOINING)

    # Acquiring.

    def _on_change(self) -> None:
        if self.stage in ACQUIRING:
            self.worker.loop.post(partial(self.run, self.step))
        super()._on_change()

    def step(self) -> None:
        """Move on if the attempt has come further."""
        with self._changing:
            if self.stage not in ACQUIRING or self.attempts.current is None:
                return
            before, decided = self.stage, self.attempts.is_decided()
            # A short wait may be over before the holder is known.
            is_contended = self.attempts.current.newly_contended() or (decided and before is Stage.PARKED)
            if is_contended and not self.contended:
                self.contended = True
                self.worker.send_event("waiting", self.as_dict)
            if before is Stage.JOINING:
                self._step_joining(decided=decided)
            elif decided and before is Stage.PARKED:
                self._move(Stage.READY)
            elif not decided and before is Stage.READY:
                # The lock was lost. The wait for a slot begins anew with the next grant.
                self._move(Stage.PARKED)
                self._awaits_slot = False
                self.worker.leave_next(self.hold_id)
            now = self.stage
        if now is not before:
            if now is Stage.RUNNING:
                self._submit()
            elif before is Stage.JOINING:
                self._release_slot()
            elif now is Stage.READY:
                self._enter_next()
                if self.worker.has_no_slot or self.worker.is_stuck:
                    self._if_followed(self._release_ready)
        self.worker.schedule_check(self.next_check)

    def _step_joining(self, *, decided: bool) -> None:
        attempt = self.attempts.current
        assert attempt is not None
        if decided:
            self._move(Stage.RUNNING)
        elif attempt.contender.wait and attempt.contender.answered and attempt.contender.session.connected:
            self._move(Stage.PARKED)
        elif monotonic() - self._moved >= MAX_JOINING:
            # In an outage of ZooKeeper the slots pace the requests, as without the gate.
            logger.warning(
                "event=zookeeper_silent key=%r task=%s consequence=the_task_acquires_in_its_slot",
                self.lock.key, self.request.id,
            )  # fmt: skip
            self._acquire_in_slot()
            self._move(Stage.RUNNING)

    def _acquire_in_slot(self) -> None:
        self.attempts.end()
        self.attempts.current = None
        self._acquires_in_slot = True

    def _release_ready(self) -> None:
        with self._changing:
            if self.stage is not Stage.READY or self.attempts.refusal is not None:
                return
            logger.info("event=no_slot key=%r task=%s consequence=acquires_in_its_slot", self.lock.key, self.request.id)
            self._acquire_in_slot()
            self._move(Stage.QUEUED)

    # The hand-over to the pool.

    def _submit(self) -> None:
        self._since = time.time()
        if (ticket := self._make_ticket()) is not None:
            self.request.request_dict[tickets.HEADER] = ticket
        self.worker.slots.submit(partial(self.run, self._hand_over))

    def _hand_over(self) -> None:
        """Hand the request to the pool, which has the slot from then on."""
        try:
            self.request.execute_using_pool(self.worker.consumer.pool)
        except TaskRevokedError:
            # Celery has announced and acknowledged it.
            self.finish()
        else:
            self._slot_generation = None
            if self.worker.is_stuck:
                self._withdraw_if_followed()

    @property
    def is_stuck(self) -> bool:
        """Whether it is in the queue of a pool in this process for too long: its threads or greenlets are busy."""
        is_queued = self.stage is Stage.RUNNING and self.pid is None and self.worker.scoreboard is None
        return is_queued and monotonic() - self._moved > MAX_READY

    def _withdraw_if_followed(self) -> None:
        """Withdraw a hold that the task has not taken, if others wait for it."""
        holds = self.attempts.current is not None and self.attempts.refusal is None
        is_claimed = self._claimed or (self._cell is not None and self._cell.claimed_by is not None)
        if holds and not is_claimed:
            self._if_followed(self._withdraw)

    def _make_ticket(self) -> tickets.Ticket | None:
        """Return the ticket for the task; ``None`` if the task acquires its lock as without the gate."""
        attempt, scoreboard = self.attempts.current, self.worker.scoreboard
        if attempt is None:
            return self._ticket(acquires=True) if self.attempts.deadline else None
        if self.attempts.refusal is not None:
            return self._ticket(refusal=self.attempts.refusal)
        if scoreboard is not None:
            self._cell = ParentCell.open(scoreboard, self.hold_id, attempt.contender)
            if self._cell is None:
                logger.error("event=scoreboard_full key=%r consequence=the_task_locks_for_itself", self.lock.key)
                self._acquire_in_slot()
                return None
            self._on_change()
        self.worker.send_event("held", self.as_dict)
        return self._ticket(nodes=attempt.contender.node_paths, token=attempt.contender.token or 0)

    def _ticket(self, **facts: Any) -> tickets.Ticket:
        contender = self.attempts.current.contender if self.attempts.current is not None else None
        holder = contender.holder if contender is not None and self.contended else None
        return tickets.Ticket(
            origin=self.worker.origin,
            cell=self._cell.number if self._cell is not None else 0,
            hold_id=self.hold_id,
            keys=list(self.lock.keys),
            since=self._since,
            waited=monotonic() - self.attempts.began,
            contended=self.contended,
            session_timeout=contender.session.timeout if contender is not None else 0.0,
            holder=holder,
            deadline=self.attempts.deadline,
            **facts,
        )

    # The ends without a run.

    def leave(self, *, wait: bool = True) -> bool:
        """Finish the request unless its task runs.

        Return ``False`` if ``wait`` is false and another thread is at work on the request.
        """
        if not self._changing.acquire(blocking=wait):
            return False
        try:
            if self.stage is not Stage.RUNNING:
                self.worker.keep_deadline(self.attempt_id, self.attempts.deadline)
                self.finish()
        finally:
            self._changing.release()
        return True

    # What no callback reports.

    @property
    def next_check(self) -> float | None:
        """The seconds after which there is something to check, if nothing happens."""
        attempt, joining = self.attempts.current, self.stage is Stage.JOINING
        if attempt is None or not (joining or self.stage is Stage.PARKED):
            return None
        wakeup = attempt.next_wakeup()
        if not joining:
            return wakeup
        rest = max(0.0, self._moved + MAX_JOINING - monotonic())
        return rest if wakeup is None else min(rest, wakeup)

    def check(self, now: float) -> None:
        """Check for revocation, expiry, age, and for a run that Celery has dropped."""
        if self.stage is Stage.RUNNING:
            self.check_run(now)
            if self.pid is None and celery_internals.starts_children(self.worker.consumer.pool):
                # The child that will run the task has yet to start.
                self._moved = now
            if now - self._moved > MAX_READY:
                self._withdraw_if_followed()
        elif self.stage is Stage.OVER:
            return
        elif self.request.revoked():
            # Celery has announced and acknowledged it.
            self.finish()
        elif (age := now - self._delivered) > self.worker.max_wait and self.stage is not Stage.JOINING:
            logger.info("event=given_back key=%r task=%s age=%.0f", self.lock.key, self.request.id, age)
            self.finish()
            self._give_back()
        elif self.stage is Stage.READY and now - self._moved > MAX_READY and self.attempts.refusal is None:
            self._if_followed(self._release_ready)
            self.note(now)
        elif self.stage is Stage.JOINING or self.next_check == 0:
            self.step()
