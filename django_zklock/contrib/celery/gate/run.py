"""The run of a task: from the decision about its lock over the pool and the child to the end of its body."""

from __future__ import annotations

import logging
import os
from collections.abc import Container
from functools import partial
from typing import Any

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import Retry, TaskRevokedError
from celery.worker.request import Request

from django_zklock import signals
from django_zklock.contrib.celery import unique
from django_zklock.contrib.celery.gate.acquisition import GateAcquisition
from django_zklock.contrib.celery.gate.attempt import AskingRequest
from django_zklock.contrib.celery.gate.child_note import DELAY, ChildNote, ended_child_failure
from django_zklock.contrib.celery.gate.request import Workplace
from django_zklock.contrib.celery.gate.scoreboard import HoldState, ParentCell
from django_zklock.contrib.celery.gate.states import IN_POOL, RUN_GRANTED, UNCLAIMED, Effect, Event, Phase, Verdict
from django_zklock.contrib.celery.gate.ticket import HEADER, Ticket
from django_zklock.contrib.celery.internals import pool, worker
from django_zklock.contrib.celery.internals.tasks import keep_headers
from django_zklock.locked_call import LockedCall
from django_zklock.zk.contender import Contender
from django_zklock.zk.lock import Lock
from django_zklock.zk.waiting import monotonic

logger = logging.getLogger("django_zklock.celery")

# Seconds for which a granted lock waits for a slot, or there for the body, if another contender waits behind it, or if
# the worker has more such requests than slots for them.
MAX_READY = 1.0
# Failures that the pool itself reports, before or after the end of the child. All others come from the child.
_POOL_FAILURES = (WorkerLostError, TimeLimitExceeded, Terminated, SystemExit, KeyboardInterrupt)


class GateRequest(AskingRequest):
    """A request of a locked task, to its end.

    ``submit`` and ``check`` run in the gate's loop; Celery calls the callbacks from its own threads.
    """

    def __init__(self, gate: Workplace, request: Request, call: LockedCall, lock: Lock) -> None:
        super().__init__(gate, request, call, lock)
        self._kills_child = call.on_lost == "terminate"
        self._note: ChildNote | None = None
        self._callbacks = pool.take_callbacks(request, self)

    def _on_change(self) -> None:
        super()._on_change()
        self._update_cell()

    def submit(self) -> None:
        """Use the slot that is there, unless the lock was lost meanwhile: then a new attempt has begun."""
        with self._changing:
            if self.phase is not Phase.DECIDED or (self.verdict is not Verdict.IN_SLOT and not self._is_decided()):
                return
            assert self.attempt is not None
            effects: tuple[Effect, ...] = ()
            if self.verdict is Verdict.GRANTED:
                try:
                    self.cell = ParentCell(self.gate.scoreboard, self.hold_id, self.attempt.contender)
                except IndexError:
                    effects = self._fall_back(Event.UNSERVED, logger.error, "event=scoreboard_full")
            if self._mark is None:
                self.request.request_dict.pop(unique.HEADER, None)
            if self.verdict is not Verdict.IN_SLOT or self.deadline is not None:
                keep_headers(self.request.request_dict)
                self.request.request_dict[HEADER] = self._ticket(self.attempt.contender)
            effects += self.happen(Event.SUBMITTED)
        try:
            self.gate.carry_out(self, effects)
        except Exception:
            self._go_back()
            raise

    def enter_pool(self) -> None:
        """Use a slot that the gate has."""
        # Since the last look the lock may have been lost.
        self._update_cell()
        if self.verdict is Verdict.GRANTED:
            self.gate.send_event("held", self.as_dict)
        self.gate.slots.submit(partial(self.guarded, self._hand_over))

    def _hand_over(self) -> None:
        try:
            self.request.execute_using_pool(self.gate.consumer.pool)
        except Exception as error:
            self.gate.loop.post(self.gate.slots.on_slot)
            if isinstance(error, TaskRevokedError):
                # Celery has announced and acknowledged it.
                self.over()
                return
            self._go_back()
            raise

    def _ticket(self, contender: Contender) -> Ticket:
        is_granted = self.verdict is Verdict.GRANTED
        return Ticket(
            origin=self.gate.origin,
            cell=self.cell.number if self.cell is not None else 0,
            hold_id=self.hold_id,
            keys=list(self.lock.keys),
            alias=self.lock.pool.name,
            since=self._granted_at,
            waited=self._waited,
            contended=self.contended,
            holder=contender.holder if self.contended else None,
            session_timeout=contender.session.timeout,
            nodes=contender.node_paths if is_granted else {},
            token=(contender.token or 0) if is_granted else 0,
            refusal=self.refusal,
            deadline=self.deadline,
        )

    # The hold, until a body has it.

    def release_if_followed(self) -> None:
        """Release a lock that no body has if a contender of another worker, or of a body of this one, waits behind."""
        if self.pair in UNCLAIMED and not self._is_claimed():
            self._if_followed(self.gate.paths_of_asking())

    def _if_followed(self, ours: Container[str]) -> None:
        """Release the lock if a contender waits behind this one that is not one of ``ours``, paths of nodes."""
        attempt = self.attempt
        if attempt is None or not attempt.contender.session.connected:
            return
        contender = attempt.contender
        contender.post(partial(contender.when_followed, ours, partial(self._followed, attempt)))

    def _followed(self, attempt: GateAcquisition) -> None:
        # On the connection's thread.
        if self.attempt is attempt:
            self.gate.loop.post(partial(self.guarded, self._release_unclaimed))

    def _release_unclaimed(self) -> None:
        with self._changing:
            if self.pair not in UNCLAIMED or not self._withdraw():
                return
            if self.phase is Phase.DECIDED:
                effects = self._fall_back(Event.UNSERVED, logger.info, "event=no_slot")
            else:
                effects = self._fall_back(Event.NOT_CLAIMED, logger.info, "event=not_claimed")
        self.gate.carry_out(self, effects)

    def _withdraw(self) -> bool:
        """Let no body take the hold any more; return whether none has taken it."""
        if self._is_claimed() or self.pair not in UNCLAIMED or (self.cell is not None and not self.cell.withdraw()):
            # The body has it, or has had it. If a child is claiming it at this moment, the next check sees it.
            return False
        self.cell = None
        return True

    def _is_claimed(self) -> bool:
        """Return whether the body has the hold; read from the cell whether it has claimed it, and has ended."""
        with self._changing:
            claimed_by = self.cell.claimed_by if self.cell is not None else None
            if claimed_by is not None and self.pair == RUN_GRANTED:
                self.happen(Event.CLAIMED)
                if self.pid is None:
                    # Celery has dropped the task, or reports it later.
                    self._watch_child(claimed_by)
            if self.phase is Phase.CLAIMED and self.cell is not None and self.cell.has_ended:
                # What the child has sent is still in the pipe.
                self.on_body_ended()
            return self.phase is Phase.CLAIMED

    # Celery's pool reports.

    def on_accepted(self, pid: int, accepted: float) -> None:
        self.moved = monotonic()
        try:
            if self.gate.forks:
                # A child may claim the hold and die before Celery reads its word: then Celery gives the task to another
                # child, which acquires the lock itself, or if it was revoked acknowledges it here.
                claimed_by = self.cell.claimed_by if self.cell is not None else None
                if claimed_by is not None or pid != os.getpid():
                    self._watch_child(claimed_by or pid)
                # The lock may have been lost before it was known which child is to be killed.
                self._update_cell()
            else:
                with self._changing:
                    if self.phase is Phase.OVER or self.request.revoked():
                        # It has waited in the queue of the pool. It is delivered again, was revoked or has expired.
                        raise TaskRevokedError("the task is not to run")  # noqa: TRY301 - one end for all errors
                    # From here on it is not given back.
                    self.pid = pid
            self._callbacks["on_accepted"](pid, accepted)
        except BaseException:
            # Or a receiver has failed, or the task is revoked with `terminate`. A child runs its body nevertheless; a
            # thread or greenlet does not, and the pool reports no end.
            if not self.gate.forks:
                # Celery would count its slot as one that is used.
                worker.count_as_ended(self.request)
                self.over()
            raise

    def on_success(self, result: Any, **options: Any) -> Any:
        if not self._takes_report():
            return None
        if self._mark is not None:
            is_failed, outcome, _runtime = result
            self._end_mark(outcome.exception if is_failed else None)
        self.over()
        return self._callbacks["on_success"](result, **options)

    def on_failure(self, failure: Any, *facts: Any, **options: Any) -> Any:
        if not self._takes_report():
            return None
        # Celery may publish the request again, with its headers.
        self.request.request_dict.pop(HEADER, None)
        self._end_mark(failure.exception)
        error = getattr(failure.exception, "exc", failure.exception)
        if not (isinstance(error, _POOL_FAILURES) and self._is_watched):
            self.over()
        return self._callbacks["on_failure"](failure, *facts, **options)

    def on_timeout(self, soft: bool, timeout: float) -> Any:  # noqa: FBT001 - Celery's signature
        if not soft and not self._takes_report():
            return None
        # The child is killed after this call; the lock of a watched child is free when it has ended.
        if not soft and not self._is_watched:
            self.over()
        return self._callbacks["on_timeout"](soft, timeout)

    def _end_mark(self, error: BaseException | None) -> None:
        """Remove the mark of a message that has ended without a body, unless it comes back: its child could not."""
        # In threads and greenlets billiard has wrapped it.
        comes_back = isinstance(error, Retry) or isinstance(getattr(error, "exc", None), Retry)
        if self._mark is not None and not comes_back:
            unique.remove_soon(self.lock.pool, self._mark)

    def _takes_report(self) -> bool:
        """Let the pool report how the task has ended, unless it has failed for its lost lock: it ends once."""
        with self._changing:
            # From here on a loss is no reason any more to kill the child, or to fail.
            self._kills_child = False
            return self.verdict is not Verdict.KILLED

    # The child, and the end of the body.

    @property
    def _is_watched(self) -> bool:
        return self.gate.forks and self.pid is not None

    def _watch_child(self, pid: int) -> None:
        self.pid = pid
        if self.gate.forks and not self.gate.child_watcher.add(pid):
            self.on_child_exit()

    def _update_cell(self) -> None:
        """Write into the cell that the lock is lost or revoked, and kill the child if that is wanted."""
        cell = self.cell
        if cell is not None and cell.update() is HoldState.LOST and self._kills_child:
            # Celery's loop does not run while the worker has no connection to the broker.
            self.gate.loop.timers.call_later(0.0, self._kill_child)

    def _kill_child(self) -> None:
        with self._changing:
            # A body that does not run under this hold has ended, or acquires the lock itself.
            if not self.gate.forks or not self._is_claimed() or self.verdict is Verdict.KILLED or self.pid is None:
                return
            # Under the lock: when the result has come, Celery may give the child its next task.
            if self.cell is None or not self.cell.kill(partial(self.gate.child_watcher.kill, self.pid)):
                return
            self.happen(Event.KILLED)
        logger.warning("event=child_ended key=%r task=%s pid=%d reason=lost", self.lock.key, self.request.id, self.pid)

    def on_child_exit(self) -> None:
        with self._changing:
            # The child may find the loss first, also before the session's thread does, and end itself.
            is_lost = self.attempt is not None and self.attempt.expired
            if self._kills_child and is_lost and self.verdict is Verdict.GRANTED and self._is_claimed():
                self.happen(Event.KILLED)
        self.over()

    def fail(self) -> None:
        """Let the task fail with the loss of its lock."""
        # Celery would notice ten seconds later, and without the reason.
        self._callbacks["on_failure"](ended_child_failure(self.lock.key))

    def on_body_ended(self) -> None:
        """Release the lock: the body has ended or released it, and the task has not ended."""
        with self._changing:
            if self.phase not in {Phase.SUBMITTED, Phase.CLAIMED} or self.verdict is not Verdict.GRANTED:
                return
            effects = self.happen(Event.BODY_ENDED)
        self.gate.carry_out(self, effects)
        if self.attempt is not None and self.cell is not None:
            # The child may wait until the node is deleted.
            contender = self.attempt.contender
            contender.post(partial(contender.when_deleted, self.cell.close))

    # What no callback reports.

    def check(self, now: float) -> None:
        """Check for revocation, expiry, age, and for a run that Celery has dropped."""
        if self.phase in IN_POOL:
            self.reconcile()
            if self.pid is None and pool.starts_children(self.gate.consumer.pool):
                # The child that will run the task has yet to start.
                self.moved = now
        elif self.phase is not Phase.OVER and self.request.revoked():
            # Celery has announced and acknowledged it.
            self.over()
        elif self.phase is Phase.JOINING:
            self.step()
        elif self.phase is not Phase.OVER and now - self._delivered > self.gate.max_wait:
            self.give_back("age")
        elif self.phase is not Phase.DECIDED:
            self._step_in_time()
        if self.phase in IN_POOL or self.phase is Phase.DECIDED:
            self.note(now)
            if now - self.moved > MAX_READY:
                self.release_if_followed()

    def reconcile(self) -> None:
        """End a run that Celery has dropped, unless a body runs under the hold: then the body's end ends it."""
        if self.phase not in IN_POOL or not self.gate.forks:
            return
        if not pool.has_lost_job(self.gate.consumer.pool, self.request):
            return
        if self.phase is Phase.RELEASED:
            # The body has ended. Before Celery 5.7 a pool that has lost the broker does not report it.
            self.over()
        elif not worker.is_active(self.request):
            with self._changing:
                if self.phase is not Phase.SUBMITTED or (self.verdict is Verdict.GRANTED and not self._withdraw()):
                    return
                self.over()
            self.gate.counts["reconciled"] += 1
            logger.warning("event=dropped key=%r task=%s consequence=lock_released", self.lock.key, self.request.id)
            signals.send(
                signals.dropped, **signals.common_arguments(self.lock), task=self.request.task.name, id=self.request.id
            )

    def note(self, now: float) -> None:
        """Write into the nodes which child runs the task, or that it has no slot, when that is so for a while."""
        attempt, note = self.attempt, self._note
        if self.phase is Phase.RELEASED or attempt is None or not attempt.granted:
            return
        # Tasks in threads and greenlets have no process of their own.
        child = 0 if self.pid is None else self.pid if self._is_watched else None
        forgotten = bool(child) and worker.is_forgotten(self.request)
        # A note that is wrong by now is replaced at once.
        if now - self.moved <= DELAY and note is None and not forgotten:
            return
        facts = {"child": child, "granted": self._granted_at, "forgotten": forgotten}
        if note is not None and note.facts != facts:
            note.is_cancelled = True
        elif note is not None or child is None:
            return
        self._note = ChildNote(attempt.contender, facts)
