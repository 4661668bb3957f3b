"""One request of a locked task, from its delivery to the end of its task: the record, and all that may happen to it.

The phase says where the request is, and the verdict what became of its lock. Up to DECIDED the request belongs to the
gate, and only the gate's loop moves it on. From SUBMITTED on it belongs to Celery's pool. CLAIMED is what the main
process knows: a child claims the hold in its cell of the scoreboard, where the main process reads it when it has to.

A request that cannot be served here goes to its slot without the lock, and the task acquires the lock there, as
without the gate (IN_SLOT): when ZooKeeper does not answer, and when a granted lock was released because others wait for
it and there was no slot, or no body that has taken it.
"""

from __future__ import annotations

import enum
import logging
import secrets
import threading
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import TaskRevokedError
from celery.worker.request import Request

from django_zklock import signals
from django_zklock.contrib.celery import internals
from django_zklock.contrib.celery.gate.acquisition import DELAY, ChildNote, TaskAttempts
from django_zklock.contrib.celery.gate.child import HEADER, Ticket, ended_child_failure
from django_zklock.contrib.celery.gate.scoreboard import HoldState, ParentCell
from django_zklock.contrib.celery.retry import CONFLICTS, OUTAGES
from django_zklock.locked_call import LockedCall
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work
from django_zklock.zk.waiting import monotonic

if TYPE_CHECKING:
    from django_zklock.contrib.celery.gate.gate import Gate

logger = logging.getLogger("django_zklock.celery")

# Seconds for which a request waits for ZooKeeper's first answer. Then the task waits for it, as without the gate.
MAX_JOINING = 1.0
# Seconds between two checks for what no callback reports, such as a revoked task.
CHECK_INTERVAL = 1.0
# Seconds for which a granted lock waits for a slot, or there for the body, if another contender waits behind it.
MAX_READY = 1.0
# Failures that the pool itself reports, before or after the end of the child. All others come from the child.
_POOL_FAILURES = (WorkerLostError, TimeLimitExceeded, Terminated, SystemExit, KeyboardInterrupt)

AttemptId = tuple[str, int, int, int]
"""The id of a task, the number of its retries, and how often `RetryLater` has sent it: conflicts and outages."""


class Phase(enum.Enum):
    """Where a request is; docs/explanation/architecture.md says what comes after what."""

    QUEUED = "it waits for its turn, and has not asked for its lock"
    JOINING = "it has asked, and there is no answer"
    WAITING = "another contender is first"
    DECIDED = "it waits for the next slot"
    SUBMITTED = "Celery's pool has it"
    CLAIMED = "the body has the hold"
    RELEASED = "the body has released the lock, and the task has not ended"
    OVER = "over"


class Verdict(enum.Enum):
    """What became of the lock of a request."""

    NONE = "none"
    GRANTED = "granted"
    REFUSED = "refused"
    IN_SLOT = "the task acquires it itself"
    KILLED = "it was lost under the body, whose child was killed for that"


# The pairs that exist, and what they are for `manage.py zklock`, which has no word for a task that is in no queue.
STATES = {
    (Phase.QUEUED, Verdict.NONE): "queued",
    (Phase.JOINING, Verdict.NONE): "queued",
    (Phase.WAITING, Verdict.NONE): "waiting",
    (Phase.DECIDED, Verdict.GRANTED): "granted",
    (Phase.DECIDED, Verdict.REFUSED): "refused",
    (Phase.DECIDED, Verdict.IN_SLOT): "queued",
    (Phase.SUBMITTED, Verdict.GRANTED): "granted",
    (Phase.SUBMITTED, Verdict.REFUSED): "refused",
    # The body acquires the lock itself, or has released it.
    (Phase.SUBMITTED, Verdict.IN_SLOT): "running",
    (Phase.CLAIMED, Verdict.GRANTED): "held",
    (Phase.CLAIMED, Verdict.KILLED): "lost",
    (Phase.RELEASED, Verdict.GRANTED): "running",
    # Celery may report the end of a killed child after that of its request.
    **{(Phase.OVER, verdict): "over" for verdict in Verdict},
}

# An attempt may change them.
ASKING = frozenset({Phase.JOINING, Phase.WAITING, Phase.DECIDED})
IN_POOL = frozenset({Phase.SUBMITTED, Phase.CLAIMED, Phase.RELEASED})
UNCLAIMED = {(Phase.DECIDED, Verdict.GRANTED), (Phase.SUBMITTED, Verdict.GRANTED)}


class GateRequest:
    """A request of a locked task.

    ``on_turn``, ``step``, ``submit`` and ``check`` run in the gate's loop. Celery calls the callbacks from its own
    threads, the session calls ``_on_change`` from its own, and any thread may call :meth:`over`. ``_changing`` guards
    ``phase`` and ``verdict`` and the decisions that depend on them.
    """

    def __init__(self, gate: Gate, request: Request, call: LockedCall, lock: Lock) -> None:
        self.gate = gate
        self.request = request
        self.lock = lock
        self.phase, self.verdict = Phase.QUEUED, Verdict.NONE
        # Names the request, its cell and its ticket.
        self.hold_id = secrets.randbits(63) | 1
        headers = request.message.headers or {}
        # `RetryLater` changes no other part: each wait has a deadline of its own.
        self.attempt_id: AttemptId = (
            request.id,
            request.request_dict.get("retries") or 0,
            headers.get(CONFLICTS.tries, 0),
            headers.get(OUTAGES.tries, 0),
        )
        self.attempts = TaskAttempts(
            lock,
            call.timeout,
            Work(kind="task", name=request.task.name, id=request.id),
            deadline=gate.read_deadline(request, self.attempt_id) if call.timeout else None,
            wake=self._on_change,
        )
        # Another contender was in the way.
        self.contended = False
        self.pid: int | None = None
        self.cell: ParentCell | None = None
        # When the phase has changed or a child has accepted the task, and when the message came (monotonic clock).
        self.moved = monotonic()
        self._delivered = float(vars(request).get("zklock_delivered", self.moved))
        # When the lock was decided (Unix epoch), and after how many seconds: what follows is no wait for the lock.
        self._granted_at = self._waited = 0.0
        self._kills_child = call.on_lost == "terminate"
        self._note: ChildNote | None = None
        self._changing = threading.RLock()
        self._callbacks = internals.take_callbacks(
            request,
            on_accepted=self._on_accepted,
            on_success=self._on_success,
            on_failure=self._on_failure,
            on_timeout=self._on_timeout,
        )

    def _move(self, phase: Phase, verdict: Verdict) -> None:
        assert (phase, verdict) in STATES, (phase, verdict)
        if phase is not self.phase:
            self.moved = monotonic()
            if phase is Phase.DECIDED:
                self._granted_at, self._waited = time.time(), max(0.0, monotonic() - self.attempts.began)
        self.phase, self.verdict = phase, verdict
        gate, hold_id = self.gate, self.hold_id
        (gate.joining.add if phase is Phase.JOINING else gate.joining.discard)(hold_id)
        if phase is Phase.DECIDED:
            gate.decided.setdefault(hold_id, self)
        else:
            gate.decided.pop(hold_id, None)
        is_outside = phase is Phase.WAITING or (phase is Phase.DECIDED and self.contended)
        if is_outside != (hold_id in gate.outside_window):
            (gate.outside_window.add if is_outside else gate.outside_window.discard)(hold_id)
            gate.window.refresh()

    def guarded(self, step: Callable[[], object]) -> None:
        """Call ``step``; after an error the lock is free, and the broker has the message if the pool has not."""
        try:
            step()
        except Exception:
            self.gate.counts["failed"] += 1
            # First: what has made the step fail may make the log fail too.
            if self.phase not in IN_POOL and self.phase is not Phase.OVER:
                self._go_back()
            logger.exception("event=step_failed task=%s consequence=delivered_again", self.request.id)

    def on_turn(self) -> None:
        """Ask for the lock: it is the turn of this request among all that wait for a slot."""
        with self._changing:
            if self.phase is not Phase.QUEUED:
                return
            if self.request.revoked():
                # Celery has announced and acknowledged it.
                self.over()
                return
            # First: a grant that comes at once is to be noticed.
            self._move(Phase.JOINING, Verdict.NONE)
            self.attempts.start()
        self._step_in_time()

    def _on_change(self) -> None:
        # On the session's threads.
        if self.phase in ASKING:
            self.gate.loop.post(partial(self.guarded, self.step))
        self._update_cell()

    def step(self) -> None:
        """Move on if the attempt has come further."""
        with self._changing:
            if self.phase not in ASKING or self.verdict is Verdict.IN_SLOT:
                return
            before, decided = self.phase, self.attempts.is_decided()
            attempt = self.attempts.current
            assert attempt is not None
            contender = attempt.contender
            # A short wait may be over before the holder is known.
            if not self.contended and (attempt.newly_contended() or (decided and before is Phase.WAITING)):
                self.contended = True
                self.gate.send_event("waiting", self.as_dict)
            if before is Phase.DECIDED:
                if not decided:
                    # The lock was lost, and the new attempt has begun.
                    self._move(Phase.WAITING, Verdict.NONE)
            elif decided:
                self._move(Phase.DECIDED, Verdict.GRANTED if self.attempts.refusal is None else Verdict.REFUSED)
            elif before is Phase.JOINING:
                if contender.wait and contender.answered and contender.session.connected:
                    self._move(Phase.WAITING, Verdict.NONE)
                elif monotonic() - self.moved >= MAX_JOINING:
                    # In an outage of ZooKeeper the slots pace the requests, as without the gate.
                    text = "event=zookeeper_silent key=%r task=%s consequence=acquires_in_its_slot"
                    logger.warning(text, self.lock.key, self.request.id)
                    self._fall_back()
            is_decided = self.phase is Phase.DECIDED and before is not Phase.DECIDED
        if is_decided:
            self.gate.slots.seek(self)
            if (self.phase is Phase.DECIDED or not self.gate.forks) and self.gate.is_stuck:
                self._release_if_followed()
        else:
            self.gate.slots.settle()
            if self.phase in {Phase.JOINING, Phase.WAITING}:
                self._step_in_time()

    def _fall_back(self) -> None:
        """Let the task acquire the lock in its slot."""
        self.attempts.end()
        self._move(Phase.SUBMITTED if self.phase is Phase.SUBMITTED else Phase.DECIDED, Verdict.IN_SLOT)

    def _release_if_followed(self) -> None:
        """Release a lock that no body has if a contender of another worker, or of a body of this one, waits behind."""
        if (self.phase, self.verdict) not in UNCLAIMED or self._is_claimed():
            return
        waiting = [request for request in list(self.gate.requests.values()) if request.phase in ASKING]
        attempts = [attempt for request in waiting if (attempt := request.attempts.current) is not None]
        paths = [list(attempt.contender.node_paths.values()) for attempt in attempts]
        # Behind the node of a request for several keys other contenders may wait for another one of its keys; and one
        # whose session has just ended has no node.
        ours = {each[0] for each in paths if len(each) == 1}
        self.attempts.if_followed(ours, partial(self.gate.loop.post, partial(self.guarded, self._release_unclaimed)))

    def _release_unclaimed(self) -> None:
        with self._changing:
            if (self.phase, self.verdict) in UNCLAIMED and self._withdraw():
                event = "event=no_slot" if self.phase is Phase.DECIDED else "event=not_claimed"
                logger.info("%s key=%r task=%s consequence=acquires_in_its_slot", event, self.lock.key, self.request.id)
                self._fall_back()

    def submit(self) -> None:
        """Use the slot that is there, unless the lock was lost meanwhile: then a new attempt has begun."""
        with self._changing:
            if self.verdict is not Verdict.IN_SLOT and not self.attempts.is_decided():
                self._move(Phase.WAITING, Verdict.NONE)
                return
            attempt = self.attempts.current
            if self.verdict is Verdict.GRANTED and attempt is not None:
                self.cell = ParentCell.open(self.gate.scoreboard, self.hold_id, attempt.contender)
                if self.cell is None:
                    text = "event=scoreboard_full key=%r task=%s consequence=acquires_in_its_slot"
                    logger.error(text, self.lock.key, self.request.id)
                    self._fall_back()
            if self.verdict is not Verdict.IN_SLOT or self.attempts.deadline is not None:
                internals.keep_headers(self.request.request_dict)
                self.request.request_dict[HEADER] = self._ticket()
            self._move(Phase.SUBMITTED, self.verdict)
        try:
            # Since the last look it may have been lost.
            self._update_cell()
            if self.verdict is Verdict.GRANTED:
                self.gate.send_event("held", self.as_dict)
            self.gate.slots.in_hand -= 1
            self.gate.slots.pool.submit(partial(self.guarded, self._hand_over))
        except Exception:
            self._go_back()
            raise

    def _hand_over(self) -> None:
        try:
            self.request.execute_using_pool(self.gate.consumer.pool)
        except TaskRevokedError:
            # Celery has announced and acknowledged it.
            self.gate.loop.post(self.gate.slots.on_slot)
            self.over()
        except Exception:
            self.gate.loop.post(self.gate.slots.on_slot)
            self._go_back()
            raise

    def _ticket(self) -> Ticket:
        attempt = self.attempts.current
        contender = attempt.contender if attempt is not None else None
        granted = contender if self.verdict is Verdict.GRANTED else None
        return Ticket(
            origin=self.gate.origin,
            cell=self.cell.number if self.cell is not None else 0,
            hold_id=self.hold_id,
            keys=list(self.lock.keys),
            since=self._granted_at,
            waited=self._waited,
            contended=self.contended,
            holder=contender.holder if contender is not None and self.contended else None,
            session_timeout=contender.session.timeout if contender is not None else 0.0,
            nodes=granted.node_paths if granted is not None else {},
            token=(granted.token or 0) if granted is not None else 0,
            refusal=self.attempts.refusal,
            acquires=self.verdict is Verdict.IN_SLOT,
            deadline=self.attempts.deadline,
        )

    def _withdraw(self) -> bool:
        """Let no body take the hold any more; return whether none has taken it."""
        if self._is_claimed() or (self.cell is not None and not self.cell.withdraw()):
            # If a child is claiming it at this moment, the next check sees it.
            return False
        self.cell = None
        return True

    def _is_claimed(self) -> bool:
        """Return whether the body has the hold; read it from the cell if that is not known."""
        with self._changing:
            claimed_by = self.cell.claimed_by if self.cell is not None else None
            if claimed_by is not None and (self.phase, self.verdict) == (Phase.SUBMITTED, Verdict.GRANTED):
                if self.pid is None:
                    # Celery has dropped the task, or reports it later.
                    self._watch_child(claimed_by)
                self._move(Phase.CLAIMED, Verdict.GRANTED)
            return self.phase is Phase.CLAIMED

    def _on_accepted(self, pid: int, accepted: float) -> None:
        self.moved = monotonic()
        try:
            if not self.gate.forks and (self.phase is Phase.OVER or self.request.revoked()):
                # It has waited in the queue of the pool. It is delivered again, or was revoked or has expired.
                raise TaskRevokedError("the task is not to run")  # noqa: TRY301 - the end is the same for all errors
            self._watch_child(pid)
            # The lock may be lost already.
            self._update_cell()
            self._callbacks["on_accepted"](pid, accepted)
        except BaseException:
            # Or a receiver has failed, or the task is revoked with `terminate`. A child runs its body nevertheless; a
            # thread or greenlet does not, and the pool reports no end.
            if not self.gate.forks:
                # Celery would count its slot as one that is used.
                internals.forget(self.request)
                self.over()
            raise

    def _on_success(self, result: Any, **options: Any) -> Any:
        self.over()
        return self._callbacks["on_success"](result, **options)

    def _on_failure(self, failure: Any, *facts: Any, **options: Any) -> Any:
        if self.verdict is Verdict.KILLED:
            return None
        # Celery may publish the request again, with its headers.
        self.request.request_dict.pop(HEADER, None)
        error = getattr(failure.exception, "exc", failure.exception)
        if not (isinstance(error, _POOL_FAILURES) and self._is_watched):
            self.over()
        return self._callbacks["on_failure"](failure, *facts, **options)

    def _on_timeout(self, soft: bool, timeout: float) -> Any:  # noqa: FBT001 - Celery's signature
        # The child is killed after this call; the lock of a watched child is free when it has ended.
        if not soft and not self._is_watched:
            self.over()
        return self._callbacks["on_timeout"](soft, timeout)

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
            self._move(Phase.CLAIMED, Verdict.KILLED)
            # Under the lock: when the result has come, Celery may give the child its next task.
            self.gate.child_watcher.kill(self.pid)
        logger.warning("event=child_ended key=%r task=%s pid=%d reason=lost", self.lock.key, self.request.id, self.pid)

    def on_child_exit(self) -> None:
        """End the request: its child has ended."""
        self.over()
        if self.verdict is Verdict.KILLED:
            # Celery would notice ten seconds later, and without the reason.
            self.gate.loop.post(lambda: self._callbacks["on_failure"](ended_child_failure(self.lock.key)))

    def on_body_ended(self) -> None:
        """Release the lock: the body has ended or released it, and the task has not ended."""
        with self._changing:
            if self.phase not in {Phase.SUBMITTED, Phase.CLAIMED} or self.verdict is not Verdict.GRANTED:
                return
            self._move(Phase.RELEASED, Verdict.GRANTED)
        # The child may wait until the node is deleted.
        self.attempts.end(self.cell.close if self.cell is not None else None)

    def over(self) -> None:
        """End the request, whatever ended it: release the lock and all that belongs to it; any thread, any time."""
        with self._changing:
            if self.phase is Phase.OVER:
                return
            before = self.phase
            self._move(Phase.OVER, self.verdict)
        self.attempts.end()
        if self.cell is not None:
            self.cell.close()
        self.gate.requests.pop(self.hold_id, None)
        if before is Phase.JOINING:
            # The slot that was kept for it.
            self.gate.loop.post(self.gate.slots.settle)
        if before in IN_POOL and self.gate.sends_events:
            self.gate.loop.post(partial(self.gate.send_event, "released", self.as_dict))
        # The request refers to us: without this only the garbage collector frees both.
        internals.drop_callbacks(self.request)

    def leave(self, *, wait: bool = True) -> bool:
        """End the request unless the pool has it; ``False`` if another thread is at work on it, without ``wait``."""
        if not self._changing.acquire(blocking=wait):
            return False
        try:
            # What waits in the queue of threads or greenlets is ended when one of them takes it.
            is_queued = self.phase is Phase.SUBMITTED and self.pid is None and not self.gate.forks
            if self.phase not in IN_POOL or is_queued:
                self.gate.keep_deadline(self.attempt_id, self.attempts.deadline)
                self.over()
        finally:
            self._changing.release()
        return True

    def _go_back(self) -> None:
        """End the request, and let the broker deliver its message again."""
        self.over()
        self.gate.loop.post(partial(self.gate.give_back, self.request, self.attempt_id, self.attempts.deadline))

    def _step_in_time(self) -> None:
        """Look at the attempt when its timeout is over, if that comes before the next check."""
        attempt = self.attempts.current
        wakeup = attempt.next_wakeup() if attempt is not None else None
        if wakeup is not None and wakeup < CHECK_INTERVAL:
            self.gate.loop.call_later(wakeup, partial(self.guarded, self.step))

    def check(self, now: float) -> None:
        """Check for revocation, expiry, age, and for a run that Celery has dropped."""
        if self.phase in IN_POOL:
            self.reconcile()
            self.note(now)
            if self.pid is None and internals.starts_children(self.gate.consumer.pool):
                # The child that will run the task has yet to start.
                self.moved = now
            if now - self.moved > MAX_READY:
                self._release_if_followed()
        elif self.phase is Phase.OVER:
            return
        elif self.request.revoked():
            # Celery has announced and acknowledged it.
            self.over()
        elif (age := now - self._delivered) > self.gate.max_wait and self.phase is not Phase.JOINING:
            logger.info("event=given_back key=%r task=%s age=%.0f", self.lock.key, self.request.id, age)
            self._go_back()
        elif self.phase is Phase.DECIDED:
            if now - self.moved > MAX_READY:
                self._release_if_followed()
                self.note(now)
        elif self.phase is Phase.JOINING:
            self.step()
        else:
            self._step_in_time()

    def reconcile(self) -> None:
        """End a run that Celery has dropped, unless a body runs under the hold: then the body's end ends it."""
        if self.phase not in IN_POOL or not self.gate.forks:
            return
        if not internals.has_lost_job(self.gate.consumer.pool, self.request):
            return
        if self.phase is Phase.RELEASED:
            # The body has ended. Before Celery 5.7 a pool that has lost the broker does not report it.
            self.over()
        elif not internals.is_active(self.request):
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
        attempt, note = self.attempts.current, self._note
        if self.phase is Phase.RELEASED or attempt is None or not attempt.granted:
            return
        # Tasks in threads and greenlets have no process of their own.
        child = 0 if self.pid is None else self.pid if self._is_watched else None
        forgotten = bool(child) and internals.is_forgotten(self.request)
        # A note that is wrong by now is replaced at once.
        if now - self.moved <= DELAY and note is None and not forgotten:
            return
        facts = {"child": child, "granted": self._granted_at, "forgotten": forgotten}
        if note is not None and note.facts != facts:
            note.cancel()
        elif note is not None or child is None:
            return
        self._note = ChildNote(attempt.contender, facts)
        self._note.start()

    @property
    def is_stuck(self) -> bool:
        """Whether it waits too long: for a slot, or in the queue of a pool whose threads or greenlets are busy."""
        is_queued = self.phase is Phase.SUBMITTED and self.pid is None and not self.gate.forks
        return (is_queued or self.phase is Phase.DECIDED) and monotonic() - self.moved > MAX_READY

    @property
    def state(self) -> str:
        """Phase and verdict in the words of ``manage.py zklock``."""
        attempt = self.attempts.current
        state = STATES[self.phase, self.verdict]
        if self.phase in {Phase.SUBMITTED, Phase.CLAIMED} and self.verdict is Verdict.GRANTED and attempt is not None:
            state = "lost" if attempt.contender.lost is not None else "granted" if self.pid is None else "held"
        return state

    def as_dict(self) -> dict[str, Any]:
        """Return the state, for ``celery inspect`` and events."""
        attempt = self.attempts.current
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
