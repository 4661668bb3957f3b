"""One request of a locked task, from its delivery to the end of its task: the record, and all that may happen to it."""

from __future__ import annotations

import logging
import math
import os
import secrets
import threading
import time
from collections.abc import Callable, Container
from functools import partial
from typing import TYPE_CHECKING, Any

from billiard.exceptions import Terminated, TimeLimitExceeded, WorkerLostError
from celery.exceptions import TaskRevokedError
from celery.worker.request import Request

from django_zklock import signals
from django_zklock.conflict import AcquireRetries
from django_zklock.contrib.celery import internals
from django_zklock.contrib.celery.gate.child import DELAY, HEADER, ChildNote, Ticket, ended_child_failure
from django_zklock.contrib.celery.gate.scoreboard import HoldState, ParentCell
from django_zklock.contrib.celery.gate.states import (
    ASKING,
    IN_POOL,
    STATES,
    STEPS,
    UNCLAIMED,
    Effect,
    Event,
    Pair,
    Phase,
    Verdict,
    effects_of,
    meant,
)
from django_zklock.contrib.celery.headers import CONFLICTS, OUTAGES
from django_zklock.exceptions import ZkLockError
from django_zklock.locked_call import LockedCall
from django_zklock.zk.acquire import Acquisition
from django_zklock.zk.contender import Contender, State
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work
from django_zklock.zk.place import Place
from django_zklock.zk.queue import RULES, Node, Queue
from django_zklock.zk.waiting import monotonic

if TYPE_CHECKING:
    from django_zklock.contrib.celery.gate.gate import Gate

logger = logging.getLogger("django_zklock.celery")

# Seconds for which a request waits for ZooKeeper's first answer. Then the task waits for it, as without the gate.
MAX_JOINING = 1.0
# Seconds between two checks for what no callback reports, such as a revoked task.
CHECK_INTERVAL = 1.0
# Seconds for which a granted lock waits for a slot, or there for the body, if another contender waits behind it, or if
# the worker has more such requests than slots for them.
MAX_READY = 1.0
# Failures that the pool itself reports, before or after the end of the child. All others come from the child.
_POOL_FAILURES = (WorkerLostError, TimeLimitExceeded, Terminated, SystemExit, KeyboardInterrupt)


class GateAcquisition(Acquisition):
    """An acquisition whose hold is for another thread or process; ``timeout`` ends it, and no outage of ZooKeeper."""

    __slots__ = ()

    @property
    def granted(self) -> bool:
        return self.contender.state is State.HELD and not self.expired

    def poll(self) -> bool:
        """Poll like every acquisition, but leave a grant with the contender."""
        # Under the monitor: a grant between the two looks would be one to the thread that polls.
        with self.contender.session.monitor:
            return self.granted or super().poll()

    def _new_contender(self) -> Contender:
        contender = super()._new_contender()
        # The request decides how long a slot waits for ZooKeeper's first answer.
        self._response_deadline = self._deadline if self.timeout else math.inf
        # The gate, and not an outage, decides how long a message waits.
        contender.has_deadline = True
        return contender


class GateRequest:
    """A request of a locked task, and its attempts to acquire the lock: with one deadline, and a locked call's retries.

    ``ask``, ``step``, ``submit`` and ``check`` run in the gate's loop. Celery calls the callbacks from its own threads,
    the session calls ``_on_change`` from its own, under its monitor, and any thread may call :meth:`over`.
    ``_changing`` guards ``phase``, ``verdict`` and ``attempt``, and the decisions that depend on them.
    """

    def __init__(self, gate: Gate, request: Request, call: LockedCall, lock: Lock) -> None:
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
        self._retries = AcquireRetries(lock, call.timeout, Work(kind="task", name=request.task.name, id=request.id))
        # What earlier deliveries have left of the timeout, in seconds; and until when the task waits in this delivery
        # (monotonic clock), which is not known before it asks.
        self._rest = gate.read_rest(request, self.attempt_id) if call.timeout else None
        self.deadline: float | None = None
        self._is_retry = False
        # Another contender was in the way. And this one asks ahead of its turn, which it waits for if no other one is.
        self.contended = self.is_ahead = False
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
        self._callbacks = internals.take_callbacks(request, self)

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

    @property
    def rest(self) -> float | None:
        """The seconds that are left of the timeout; ``None`` without one, and before any delivery has asked."""
        return self._rest if self.deadline is None else max(0.0, self.deadline - monotonic())

    def release(self) -> None:
        """Leave the queue, or release the lock; any thread, more than once."""
        if self.attempt is not None and self.attempt.is_waiting:
            self.attempt.end()

    def _is_decided(self) -> bool:
        """Return whether the lock is granted or refused; one that was lost is acquired again."""
        attempt = self.attempt
        assert attempt is not None, "the request has asked"
        if self.refusal is not None or attempt.granted:
            return True
        if attempt.expired:
            self._start_attempt()
        else:
            try:
                if attempt.poll():
                    return True
            except ZkLockError as error:
                if not self._retries.should_retry(error):
                    self.refusal = error.with_traceback(None)
                    return True
                self._is_retry = True
                self._start_attempt()
        if self.phase is Phase.DECIDED:
            self.happen(Event.LOST)
        return False

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
                if contender.wait and contender.answered and contender.session.connected:
                    effects = self.happen(Event.BLOCKED)
                elif monotonic() - self.moved >= MAX_JOINING:
                    # In an outage of ZooKeeper the slots pace the requests, as without the gate.
                    effects = self._fall_back(Event.UNSERVED, logger.warning, "event=zookeeper_silent")
        self.gate.carry_out(self, effects)
        if Effect.SEEK in effects:
            if (self.phase is Phase.DECIDED or not self.gate.forks) and self.gate.is_stuck:
                self._release_if_followed()
        else:
            self.gate.slots.settle()
            if self.phase in {Phase.JOINING, Phase.WAITING}:
                self._step_in_time()

    def _fall_back(self, event: Event, log: Callable[..., None], name: str) -> tuple[Effect, ...]:
        """Let the task acquire the lock in its slot."""
        log("%s key=%r task=%s consequence=acquires_in_its_slot", name, self.lock.key, self.request.id)
        return self.happen(event)

    def _release_if_followed(self) -> None:
        """Release a lock that no body has if a contender of another worker, or of a body of this one, waits behind."""
        if self.pair in UNCLAIMED and not self._is_claimed():
            asking = [request for request in list(self.gate.requests.values()) if request.phase in ASKING]
            paths = [each.attempt.contender.node_paths for each in asking if each.attempt is not None]
            # Behind the node of a request for several keys other contenders may wait for another one of its keys; and
            # one whose session has just ended has no node.
            self._if_followed({path for nodes in paths if len(nodes) == 1 for path in nodes.values()})

    def _if_followed(self, ours: Container[str]) -> None:
        """Release the lock if a contender waits behind this one that is not one of ``ours``, paths of nodes."""
        attempt = self.attempt
        if attempt is None or not attempt.contender.session.connected:
            return
        contender = attempt.contender

        def on_queue(place: Place, queue: Queue | None, _error: Exception | None) -> None:
            # On the connection's thread; not at all if the connection is lost before the answer.
            own = place.node or ""
            waiting = waiting_behind(own, queue) if queue is not None and own in queue else []
            if self.attempt is attempt and any(f"{place.path}/{each.name}" not in ours for each in waiting):
                self.gate.loop.post(partial(self.guarded, self._release_unclaimed))

        for place in contender.places:
            contender.session.post(partial(place.listing.list_queue, partial(on_queue, place)))

    def _release_unclaimed(self) -> None:
        with self._changing:
            if self.pair not in UNCLAIMED or not self._withdraw():
                return
            if self.phase is Phase.DECIDED:
                effects = self._fall_back(Event.UNSERVED, logger.info, "event=no_slot")
            else:
                effects = self._fall_back(Event.NOT_CLAIMED, logger.info, "event=not_claimed")
        self.gate.carry_out(self, effects)

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
            if self.verdict is not Verdict.IN_SLOT or self.deadline is not None:
                internals.keep_headers(self.request.request_dict)
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
        self.gate.slots.in_hand -= 1
        self.gate.slots.pool.submit(partial(self.guarded, self._hand_over))

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

    def _withdraw(self) -> bool:
        """Let no body take the hold any more; return whether none has taken it."""
        if self._is_claimed() or (self.cell is not None and not self.cell.withdraw()):
            # If a child is claiming it at this moment, the next check sees it.
            return False
        self.cell = None
        return True

    def _is_claimed(self) -> bool:
        """Return whether the body has the hold; read from the cell whether it has claimed it, and has ended."""
        with self._changing:
            claimed_by = self.cell.claimed_by if self.cell is not None else None
            if claimed_by is not None and (self.phase, self.verdict) == (Phase.SUBMITTED, Verdict.GRANTED):
                self.happen(Event.CLAIMED)
                if self.pid is None:
                    # Celery has dropped the task, or reports it later.
                    self._watch_child(claimed_by)
            if self.phase is Phase.CLAIMED and self.cell is not None and self.cell.has_ended:
                # What the child has sent is still in the pipe.
                self.on_body_ended()
            return self.phase is Phase.CLAIMED

    def on_accepted(self, pid: int, accepted: float) -> None:
        self.moved = monotonic()
        try:
            if not self.gate.forks:
                with self._changing:
                    if self.phase is Phase.OVER or self.request.revoked():
                        # It has waited in the queue of the pool. It is delivered again, was revoked or has expired.
                        raise TaskRevokedError("the task is not to run")  # noqa: TRY301 - one end for all errors
                    # From here on it is not given back.
                    self.pid = pid
            # A child may claim the hold and die before Celery reads its word: then Celery gives the task to another
            # child, which acquires the lock itself, or if it was revoked acknowledges it here.
            claimed_by = self.cell.claimed_by if self.cell is not None else None
            if claimed_by is not None or not self.gate.forks or pid != os.getpid():
                self._watch_child(claimed_by or pid)
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

    def on_success(self, result: Any, **options: Any) -> Any:
        if not self._takes_report():
            return None
        self.over()
        return self._callbacks["on_success"](result, **options)

    def on_failure(self, failure: Any, *facts: Any, **options: Any) -> Any:
        if not self._takes_report():
            return None
        # Celery may publish the request again, with its headers.
        self.request.request_dict.pop(HEADER, None)
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

    def _takes_report(self) -> bool:
        """Let the pool report how the task has ended, unless it has failed for its lost lock: it ends once."""
        with self._changing:
            # From here on a loss is no reason any more to kill the child, or to fail.
            self._kills_child = False
            return self.verdict is not Verdict.KILLED

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
        if self.verdict is Verdict.KILLED:
            # Celery would notice ten seconds later, and without the reason.
            self.gate.loop.post(lambda: self._callbacks["on_failure"](ended_child_failure(self.lock.key)))

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
            contender.post(partial(contender.on_deleted, self.cell.close))

    def over(self) -> None:
        """End the request, whatever ended it: release the lock and all that belongs to it; any thread, any time."""
        self.gate.carry_out(self, self.happen(Event.ENDED))

    def forget(self) -> None:
        """Close the cell; and let the pool report to Celery's request again, which refers to this one otherwise."""
        if self.cell is not None:
            self.cell.close()
        # Without this only the garbage collector frees both.
        internals.drop_callbacks(self.request)

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

    def _step_in_time(self) -> None:
        """Look at the attempt when its timeout is over, if that comes before the next check."""
        wakeup = self.attempt.next_wakeup() if self.attempt is not None else None
        if wakeup is not None and wakeup < CHECK_INTERVAL:
            self.gate.loop.call_later(wakeup, partial(self.guarded, self.step))

    def check(self, now: float) -> None:
        """Check for revocation, expiry, age, and for a run that Celery has dropped."""
        if self.phase in IN_POOL:
            self.reconcile()
            if self.pid is None and internals.starts_children(self.gate.consumer.pool):
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
                self._release_if_followed()

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
        attempt, note = self.attempt, self._note
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
            note.is_cancelled = True
        elif note is not None or child is None:
            return
        self._note = ChildNote(attempt.contender, facts)

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


def waiting_behind(own: str, queue: Queue) -> list[Node]:
    """Return the nodes behind the ``own`` one that wait for it or for another one."""
    nodes = list(queue)
    position = [node.name for node in nodes].index(own)
    return [node for node in nodes[position + 1 :] if not RULES[node.kind].holds(node.name, queue)]
