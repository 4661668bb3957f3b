"""The run of a locked task in the pool: the hold that it uses, and the end of both."""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable, MutableMapping
from functools import partial
from typing import Any, Self

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.worker.request import Request

from django_zklock import signals
from django_zklock.contrib.celery.gate import celery_internals, child_note
from django_zklock.contrib.celery.gate import ticket as tickets
from django_zklock.contrib.celery.gate.acquisition import TaskAttempts
from django_zklock.contrib.celery.gate.child_watcher import ended_child_failure
from django_zklock.contrib.celery.gate.scoreboard import HoldState, ParentCell
from django_zklock.contrib.celery.gate.worker import ACQUIRING, AttemptId, GateWorker, Stage
from django_zklock.contrib.celery.retry import CONFLICTS, OUTAGES
from django_zklock.locked_call import LockedCall
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work
from django_zklock.zk.waiting import monotonic

logger = logging.getLogger("django_zklock.celery")

# The methods of a request by which the pool reports to Celery; the gate replaces them.
_CALLBACKS = ("on_accepted", "on_success", "on_failure", "on_timeout")
# Failures that the pool itself reports, before or after the end of the child. All others come from the child.
_POOL_FAILURES = (WorkerLostError, TimeLimitExceeded, Terminated, SystemExit, KeyboardInterrupt)


class TaskRun:
    """A request from the hand-over to the pool until its end; the subclass has all that comes before.

    Celery calls the callbacks from its own threads, and any thread may call :meth:`finish`. ``_changing`` guards
    ``stage`` and the decisions that depend on it. ``requests`` are those at the same gate, by hold_id; the request
    removes itself at its end.
    """

    def __init__(
        self, worker: GateWorker, requests: MutableMapping[int, Self], request: Request, call: LockedCall, lock: Lock
    ) -> None:
        self.worker = worker
        self.request = request
        self.lock = lock
        headers = request.message.headers or {}
        conflicts, outages = (headers.get(budget.tries, 0) for budget in (CONFLICTS, OUTAGES))
        # `RetryLater` changes no other part: each wait has a deadline of its own.
        self.attempt_id: AttemptId = (request.id, request.request_dict.get("retries") or 0, conflicts, outages)
        self.attempts = TaskAttempts(
            lock,
            call.timeout,
            Work(kind="task", name=request.task.name, id=request.id),
            deadline=worker.read_deadline(request, self.attempt_id) if call.timeout else None,
            wake=self._on_change,
        )
        # Names the request, and its hold on the scoreboard and in the ticket.
        self.hold_id = secrets.randbits(63) | 1
        self.stage = Stage.QUEUED
        self.pid: int | None = None
        self._requests = requests
        # Whether the child is killed when the lock is lost.
        self._ends_child = call.on_lost == "terminate"
        self._changing = threading.RLock()
        self._moved = monotonic()
        # When the message was delivered (monotonic clock).
        self._delivered = float(vars(request).get("zklock_delivered", self._moved))
        # The slot of Celery's pool, in which generation of slots; ``None`` once the pool has it.
        self._slot_generation: int | None = None
        # The cell of the scoreboard, and since when the hold is in it (Unix epoch).
        self._cell: ParentCell | None = None
        self._since = 0.0
        # It has left the queue, and the task acquires the lock in its slot.
        self._acquires_in_slot = False
        self._claimed = False  # the task has taken the hold, in this process; or cannot any more
        # The body has released the lock.
        self._released = False
        # Celery has dropped the request while the body runs.
        self._dropped = False
        self._ended_child = False
        # When the lock was granted (Unix epoch).
        self._granted_at = 0.0
        self._child_note = child_note.ChildNote()
        self._callbacks = {name: getattr(request, name) for name in _CALLBACKS}
        for name in _CALLBACKS:
            setattr(request, name, getattr(self, f"_{name}"))

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.stage.value} {self.lock.key!r} task={self.request.id}>"

    def run(self, step: Callable[[], object]) -> None:
        """Call ``step``; after an error the slot and the lock are free, and the broker has the message."""
        try:
            step()
        except Exception:
            self.worker.counts["failed"] += 1
            # First: what has made the step fail may make the log fail too.
            self._on_error()
            logger.exception("event=step_failed task=%s consequence=delivered_again", self.request.id)

    def _on_error(self) -> None:
        """Return the slot, release the lock, and let the broker deliver the message again; not a task of the pool."""
        if self.stage is Stage.OVER or (self.stage is Stage.RUNNING and self._slot_generation is None):
            return
        self.finish()
        self.worker.loop.post(self._give_back)

    def _give_back(self) -> None:
        self.worker.give_back(self.request, self.attempt_id, self.attempts.deadline)

    def _if_followed(self, then: Callable[[], None]) -> None:
        """Call ``then`` in the loop if a contender of another worker, or of a body of this one, waits behind."""
        waiting = [request for request in list(self._requests.values()) if request.stage in ACQUIRING]
        attempts = [attempt for request in waiting if (attempt := request.attempts.current) is not None]
        paths = [list(attempt.contender.node_paths.values()) for attempt in attempts]
        # Behind the node of a request for several keys other contenders may wait for another one of its keys; and one
        # whose session has just ended has no node.
        ours = {each[0] for each in paths if len(each) == 1}
        self.attempts.if_followed(ours, partial(self.worker.loop.post, then))

    def _move(self, stage: Stage) -> None:
        if stage in {Stage.READY, Stage.RUNNING} and self.stage is not Stage.READY:
            self._granted_at = time.time()
        self.stage = stage
        self._moved = monotonic()
        waits = stage in {Stage.PARKED, Stage.READY} or (stage is Stage.QUEUED and self._acquires_in_slot)
        self.worker.set_parked(self.hold_id, parked=waits)

    @property
    def has_slot(self) -> bool:
        """Whether it has a slot of the pool that the pool does not have yet."""
        return self._slot_generation == self.worker.generation

    def _release_slot(self) -> None:
        generation, self._slot_generation = self._slot_generation, None
        if generation is not None and generation == self.worker.generation:
            self.worker.slots.release()

    @property
    def state(self) -> str:
        """The stage in the words of ``manage.py zklock``, which have no name for a task that is not in the queue."""
        if self.stage not in {Stage.READY, Stage.RUNNING}:
            return "waiting" if self.stage is Stage.PARKED else "queued"
        attempt = self.attempts.current
        if attempt is None or self._released:
            # The body acquires the lock itself, or has released it.
            return "running"
        if self.attempts.refusal is not None:
            return "refused"
        return "granted" if self.pid is None else "held"

    def as_dict(self) -> dict[str, Any]:
        """Return the state, for ``celery inspect`` and events."""
        attempt = self.attempts.current
        holder = attempt.contender.holder if attempt is not None and self.stage is Stage.PARKED else None
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
            "seconds": round(monotonic() - self._moved, 3),
        }

    # The hold.

    def take_hold(self, lock: Lock, *, waited: float) -> Held | None:
        """Return the hold for the thread or greenlet of this process that runs the task; ``None`` if there is none."""
        with self._changing:
            attempt = self.attempts.current
            if self.stage is not Stage.RUNNING or self._claimed or attempt is None or self.attempts.refusal is not None:
                return None
            self._claimed = True
            if not attempt.granted:
                # A body never begins with a lock that is lost.
                logger.warning(
                    "event=lost_before_start key=%r task=%s consequence=acquires_again", lock.key, self.request.id
                )
                attempt.end()
                return None
        held = Held(lock, attempt.contender, waited=waited)
        held.since = self._since
        # The lock may have been lost meanwhile.
        attempt.keep(held)
        return held

    def _on_change(self) -> None:
        # Runs on the session's threads too.
        cell = self._cell
        if cell is not None and cell.update() is HoldState.LOST and self._ends_child:
            # Celery's loop does not run while the worker has no connection to the broker.
            self.worker.loop.timers.call_later(0.0, self._end_child)

    # The pool calls these.

    def _on_accepted(self, pid: int, accepted: float) -> None:
        self.pid = pid
        self._moved = monotonic()
        self._watch_child()
        # The lock may be lost already.
        self._on_change()
        self._callbacks["on_accepted"](pid, accepted)

    def _on_success(self, result: Any, **options: Any) -> Any:
        self.finish()
        return self._callbacks["on_success"](result, **options)

    def _on_failure(self, failure: Any, *facts: Any, **options: Any) -> Any:
        if self._ended_child:
            return None
        # Celery may publish the request again, with its headers.
        self.request.request_dict.pop(tickets.HEADER, None)
        error = getattr(failure.exception, "exc", failure.exception)
        if not (isinstance(error, _POOL_FAILURES) and self._is_watched):
            self.finish()
        return self._callbacks["on_failure"](failure, *facts, **options)

    def _on_timeout(self, soft: bool, timeout: float) -> Any:  # noqa: FBT001 - Celery's signature
        # The child is killed after this call; the lock of a watched child is free when it has ended.
        if not soft and not self._is_watched:
            self.finish()
        return self._callbacks["on_timeout"](soft, timeout)

    # The child.

    def _watch_child(self) -> None:
        if self.worker.child_watcher is not None and self.pid is not None:
            self.worker.child_watcher.add(self.pid, self.hold_id, self._on_child_end)

    @property
    def _is_watched(self) -> bool:
        return self.worker.child_watcher is not None and self.pid is not None

    def _end_child(self) -> None:
        with self._changing:
            watcher = self.worker.child_watcher
            if self.stage is not Stage.RUNNING or self.pid is None or watcher is None or self._ended_child:
                return
            if self._released or self._cell is None or self._cell.claimed_by is None:
                # The body does not run under this hold: it has ended, or it acquires the lock itself.
                return
            self._ended_child = True
            # Under the lock: when the result has come, Celery may give the child its next task.
            watcher.kill(self.pid)
        logger.warning("event=child_ended key=%r task=%s pid=%d reason=lost", self.lock.key, self.request.id, self.pid)

    def _on_child_end(self) -> None:
        self.finish()
        if self._ended_child:
            # Celery would notice ten seconds later, and without the reason.
            self.worker.loop.post(lambda: self._callbacks["on_failure"](ended_child_failure(self.lock.key)))

    # The ends.

    def release(self) -> None:
        """Release the lock: the body has ended, and the task has not."""
        if self.stage is Stage.RUNNING and self.attempts.current is not None:
            self._released = True
            self.attempts.end()
            if self._cell is not None and self.attempts.current is not None:
                contender = self.attempts.current.contender
                contender.post(partial(contender.on_deleted, self._cell.set_gone))
            if self._dropped:
                self.finish()

    def finish(self) -> None:
        """Release the lock and all else but a slot of the pool; any thread may call it, more than once."""
        with self._changing:
            if self.stage is Stage.OVER:
                return
            before = self.stage
            self._move(Stage.OVER)
        self.attempts.end()
        if self._cell is not None:
            self._cell.close()
        if self.worker.child_watcher is not None and self.pid is not None:
            self.worker.child_watcher.discard(self.pid, self.hold_id)
        self._requests.pop(self.hold_id, None)
        if before is Stage.RUNNING and self.worker.sends_events:
            self.worker.loop.post(partial(self.worker.send_event, "released", self.as_dict))
        if self._slot_generation is not None:
            self.worker.loop.post(self._release_slot)
        # The request refers to us: without this only the garbage collector frees both.
        for name in _CALLBACKS:
            vars(self.request).pop(name, None)

    # What no callback reports.

    def check_run(self, now: float) -> None:
        """Finish a run that Celery has dropped, and write what has become of a long one into the nodes."""
        self.reconcile()
        self.note(now)

    def note(self, now: float) -> None:
        """Write into the nodes which child runs the task, or that it has no slot, when that is so for a while."""
        attempt, note = self.attempts.current, self._child_note
        if self._released or attempt is None or not attempt.granted:
            return
        # Tasks in threads and greenlets have no process of their own.
        child = 0 if self.pid is None else self.pid if self._is_watched else None
        forgotten = bool(child) and celery_internals.is_forgotten(self.request)
        # A note that is wrong by now is replaced at once.
        if now - self._moved > child_note.DELAY or note.facts or forgotten:
            facts = {"child": child, "granted": self._granted_at, "forgotten": forgotten}
            if child is not None or note.facts:
                note.write(attempt.contender, now=now, **facts)

    def reconcile(self) -> None:
        """Finish a run that Celery has dropped, in a pool that drops jobs."""
        if self.stage is not Stage.RUNNING or self.worker.scoreboard is None or self._dropped:
            return
        if celery_internals.has_job(self.worker.consumer.pool, self.request):
            return
        if self._released:
            # The body has ended. Before Celery 5.7 a pool that has lost the broker does not report it.
            self.finish()
        elif self._slot_generation is None and not celery_internals.is_active(self.request):
            self._drop()

    def _drop(self) -> None:
        """Finish a request that Celery has dropped; a body that runs nevertheless keeps its lock until its end."""
        if not self._give_up_hold():
            # If a child is claiming it at this moment, the next check finds out whether it has.
            self._dropped = self.pid is not None
        else:
            self.worker.counts["reconciled"] += 1
            logger.warning("event=dropped key=%r task=%s consequence=lock_released", self.lock.key, self.request.id)
            signals.send(
                signals.dropped, **signals.common_arguments(self.lock), task=self.request.task.name, id=self.request.id
            )
            self.finish()

    def _withdraw(self) -> None:
        """Release a hold that the task has not taken, so that it acquires the lock itself."""
        if not self._claimed and self._give_up_hold():
            logger.info(
                "event=not_claimed key=%r task=%s consequence=acquires_for_itself", self.lock.key, self.request.id
            )
            self.attempts.end()

    def _give_up_hold(self) -> bool:
        """Let the task not take the hold any more; return whether it has not and cannot."""
        with self._changing:
            if self.stage is not Stage.RUNNING:
                return False
            if self._cell is None or self._cell.withdraw():
                self._claimed, self._cell = True, None
                return True
            if self.pid is None and (claimed_by := self._cell.claimed_by) is not None:
                self.pid = claimed_by
                self._watch_child()
            return False
