"""The gate of one worker: its locked tasks wait for their locks here, in the main process.

A task that waits takes no thread, no slot of the pool and no place in the prefetch window: it is a request object, a
node in ZooKeeper's queue, and a callback. A bootstep puts the gate into a worker's consumer.
"""

from __future__ import annotations

import logging
import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

from celery import bootsteps
from celery.signals import task_received
from celery.worker.request import Request

from django_zklock import locked_call
from django_zklock.contrib.celery import headers
from django_zklock.contrib.celery.gate import child
from django_zklock.contrib.celery.gate.attempt import CHECK_INTERVAL
from django_zklock.contrib.celery.gate.child_watcher import ChildWatcher
from django_zklock.contrib.celery.gate.loop import Loop
from django_zklock.contrib.celery.gate.run import MAX_READY, GateRequest
from django_zklock.contrib.celery.gate.scoreboard import MAX_CELLS, Scoreboard
from django_zklock.contrib.celery.gate.slots import Slots
from django_zklock.contrib.celery.gate.states import ASKING, BEFORE_DECISION, IN_POOL, Effect, Phase, Verdict
from django_zklock.contrib.celery.gate.ticket import HEADER
from django_zklock.contrib.celery.internals import delivery, messages, pool, sending, worker
from django_zklock.contrib.celery.tasks import message_key, outermost_lock
from django_zklock.zk.node_data import Work
from django_zklock.zk.waiting import monotonic

logger = logging.getLogger("django_zklock.celery")

# Seconds between two attempts to stop while another thread is at work on a request.
STOP_INTERVAL = 0.1
# Requests that may wait in a worker in addition to Celery's own prefetch window, unless a setting limits them.
MAX_PARKED = 300
# Seconds for which messages are rejected after the broker has not taken one.
PUBLISH_PAUSE = 30.0
# Tasks whose timeouts a worker keeps for later deliveries. With more it forgets them.
MAX_KEPT = 10_000


class Gate:
    """The requests of locked tasks, and what they share: the worker's loop, slots, children, window and settings."""

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self.loop = Loop(has_hub=bool(consumer.hub))
        # Whether tasks run in child processes.
        self.forks = pool.is_prefork(consumer.pool)
        self.scoreboard = Scoreboard()
        self.child_watcher = ChildWatcher(self.on_body_ended, self._on_child_exit)
        # Called where the body runs, when it has ended.
        self.release: Callable[[int], None] = self.child_watcher.send_release if self.forks else self.on_body_ended
        self.pid = os.getpid()
        # Names this process in tickets, and is known to no other but its children.
        self.origin = secrets.token_hex(8)
        self.window = delivery.PrefetchWindow(lambda: min(len(self.parked), self.max_parked))
        parked = consumer.app.conf.get("zklock_gate_max_parked")
        self.max_parked = MAX_PARKED if parked is None else max(0, int(parked))
        # Events that should not happen, by name.
        self.counts: Counter[str] = Counter()
        # The seconds that are left of timeouts, of tasks whose messages the broker delivers again unchanged.
        self.rests: dict[tuple[Any, ...], float] = {}
        # By `hold_id`, in the order of their arrival; added and removed by several threads, one operation each.
        self.requests: dict[int, GateRequest] = {}
        # Those of them that are DECIDED, in that order; and that wait in addition to Celery's window.
        self.decided: dict[int, GateRequest] = {}
        self.parked: set[int] = set()
        self.slots = Slots(consumer.controller, self.decided, self.start_checks)
        self._checks = False
        # Where messages that go back are published, and from when on (monotonic clock).
        self._confirming: Any = None
        self._publishes_from = 0.0
        self._handle = consumer.on_task_request
        # The thread, or greenlet, whose loop receives messages.
        self._consumer_thread: int | None = None
        self.partial_results = pool.PartialResults()
        # Names of the tasks whose key could not be made.
        self._without_key: set[str] = set()

    def on_request(self, request: Request) -> None:
        """Let a request of a locked task wait for its lock, and pass on all others."""
        if request.request_dict.pop(HEADER, None) is not None:
            logger.warning("event=header_refused task=%s reason='it is not of this delivery'", request.id)
        locked = self._locked_request(request)
        if locked is None:
            self._handle(request)
            return
        self.requests[locked.hold_id] = locked
        if self.consumer.hub:
            self.slots.queue(locked)
        else:
            # Requests arrive on another thread than the one that makes all steps.
            self.loop.post(partial(self.slots.queue, locked))
            # A countdown ends in the thread of the timer, which has others to end.
            if threading.get_ident() == self._consumer_thread:
                delivery.await_room(self.consumer)

    def start(self) -> None:
        """Use a new connection to the broker, for which Celery has made its counter of the prefetch window."""
        self._consumer_thread = threading.get_ident()
        self.window.attach(self.consumer.qos)
        delivery.restore_in_order(self.consumer)
        if self.forks:
            self.partial_results.watch(self.consumer.pool)

    def stop(self) -> None:
        """End all requests whose tasks do not run, and those that Celery has dropped: they are delivered again."""
        # Celery counts the slots anew.
        self.slots.in_hand = 0
        for request in list(self.requests.values()):
            request.leave()
            request.guarded(request.reconcile)
        if self.consumer.hub:
            # For a shutdown before there is a new connection.
            self.partial_results.read_on(self.consumer.hub)
        if worker.is_ending(self.consumer.controller):
            # The last tasks run, and Celery's loop does not.
            self.loop.detach()

    def close(self) -> None:
        """End the threads, and close the descriptors: the worker's pool has ended."""
        self.loop.close()
        self.child_watcher.close()
        self.scoreboard.close()

    def stop_soon(self) -> None:
        """Stop without waiting, in the timer thread: the signal handler that wants it may have interrupted a step."""
        if self.requests:
            self.loop.timers.call_later(0.0, self._stop_requests)

    def _stop_requests(self) -> None:
        # Tasks that run may still take their locks, and Celery's loop does not run during the handler or after it.
        self.loop.detach()
        if [request for request in list(self.requests.values()) if not request.leave(wait=False)]:
            self.loop.timers.call_later(STOP_INTERVAL, self._stop_requests)

    def _locked_request(self, request: Request) -> GateRequest | None:
        task = request.task
        if not getattr(task, "zklock_gate", True):
            return None
        try:
            call, own = outermost_lock(task)
            if call is None:
                return None
            key, alias = message_key(call, request, own)
            # What the node says: the task, its worker, and that a child will run it.
            work = Work(
                kind="task",
                name=task.name,
                id=request.id,
                worker=self.consumer.hostname,
                child=0 if self.forks else None,
                time_limit=worker.time_limit(request, self.consumer.controller),
            )
            # Celery discards a task that expires at that time, also while it waits here.
            lock = call.lock(key, alias, lambda: work, may_expire=request.expires is not None)
            return GateRequest(self, request, call, lock)
        except Exception as error:  # noqa: BLE001 - the key is the user's
            # The same error will fail the task in its slot.
            level = logging.DEBUG if task.name in self._without_key else logging.WARNING
            self._without_key.add(task.name)
            text = "event=no_key task=%s id=%s error=%r consequence=acquires_in_its_slot"
            logger.log(level, text, task.name, request.id, error)
            return None

    def note_step(self, request: GateRequest) -> None:
        """Keep ``request``, which has made a step, where it belongs; under its lock, in any thread."""
        phase, hold_id = request.phase, request.hold_id
        if phase is Phase.DECIDED:
            self.decided.setdefault(hold_id, request)
        else:
            self.decided.pop(hold_id, None)
        is_parked = phase is Phase.WAITING or (phase is Phase.DECIDED and request.contended)
        if is_parked != (hold_id in self.parked):
            if is_parked:
                self.parked.add(hold_id)
            else:
                self.parked.discard(hold_id)
            self.window.refresh()

    def carry_out(self, request: GateRequest, effects: Iterable[Effect]) -> None:
        """Do what is to be done after a step of ``request``; what needs the loop is posted.

        Any thread ends a request. Only the loop lets one seek a slot, or submits it.
        """
        for effect in effects:
            match effect:
                case Effect.RELEASE:
                    request.release()
                case Effect.FORGET:
                    self.requests.pop(request.hold_id, None)
                    request.forget()
                case Effect.SETTLE:
                    self.loop.post(self.slots.settle)
                case Effect.FAIL:
                    self.loop.post(request.fail)
                case Effect.REPORT:
                    if self.sends_events:
                        self.loop.post(partial(self.send_event, "released", request.as_dict))
                case Effect.GIVE_BACK:
                    self.loop.post(partial(self.give_back, request.request, request.attempt_id, request.rest))
                case Effect.SEEK:
                    self.slots.seek(request)
                    if (request.phase is Phase.DECIDED or not self.forks) and self.is_stuck:
                        request.release_if_followed()
                case Effect.SUBMIT:
                    request.enter_pool()

    def paths_of_asking(self) -> set[str]:
        """Return the paths of the nodes of those that ask for one key.

        Behind the node of a request for several keys other contenders may wait for another one of its keys; and one
        whose session has just ended has no node.
        """
        asking = [request for request in list(self.requests.values()) if request.phase in ASKING]
        paths = [each.attempt.contender.node_paths for each in asking if each.attempt is not None]
        return {path for nodes in paths if len(nodes) == 1 for path in nodes.values()}

    def on_body_ended(self, hold_id: int) -> None:
        if (request := self.requests.get(hold_id)) is not None:
            request.on_body_ended()

    def _on_child_exit(self, pid: int) -> None:
        for request in list(self.requests.values()):
            if request.pid == pid:
                request.on_child_exit()

    @property
    def is_stuck(self) -> bool:
        """Whether a granted request has waited too long: for a slot, or in the queue of a pool in this process."""
        late = monotonic() - MAX_READY
        requests = list((self.decided if self.forks else self.requests).values())
        return any(each.moved < late and (each.phase is Phase.DECIDED or each.is_queued) for each in requests)

    def start_checks(self) -> None:
        """Check all requests again and again, until there is none."""
        if not self._checks:
            self._checks = True
            self.loop.call_later(CHECK_INTERVAL, self._check)

    def _check(self) -> None:
        self._checks, now = False, monotonic()
        self._return_surplus(now)
        for request in list(self.requests.values()):
            try:
                request.check(now)
            except Exception:
                # One request must not keep the others from their checks. It is checked again.
                logger.exception("event=check_failed task=%s", request.request.id)
        if self.requests:
            self.start_checks()

    def _return_surplus(self, now: float) -> None:
        """Return to the broker what has waited for a slot for too long, behind as many as Celery itself would keep.

        Another worker may have a slot. What comes back here does not ask for its lock before there is one, or is among
        those that Celery lets this worker keep, so it does not go back again and again while all workers are full. What
        waits behind it for the same lock follows it, so that it is not overtaken here.
        """
        kept, requests = delivery.own_prefetch_count(self.consumer), list(self.requests.values())
        ready = sorted((each for each in requests if each.waits_for_slot), key=lambda each: each.moved)
        # A refusal is made, whichever worker carries it out.
        spare = (
            [each for each in ready[kept:] if each.contended and each.verdict is not Verdict.REFUSED] if kept else []
        )
        surplus = [each for each in spare if now - each.moved > MAX_READY]
        keys: set[str] = set()
        for request in requests if surplus else ():
            is_behind = request.phase in BEFORE_DECISION and not keys.isdisjoint(request.lock.keys)
            if is_behind or request in surplus:
                keys.update(request.lock.keys)
                request.guarded(partial(request.give_back, "no_slot"))

    def give_back(self, request: Request, attempt: tuple[Any, ...], rest: float | None) -> None:
        """Let the broker deliver ``request`` again, at the end of its queue or where it was; it waits ``rest`` more."""
        self.counts["given_back"] += 1
        more = headers.with_rest(attempt[0], attempt[1], rest) if rest is not None else {}
        is_published = more or messages.is_better_published(self.consumer, request)
        queue = messages.queue_of(self.consumer, request) if is_published else None
        if queue is not None and monotonic() >= self._publishes_from:
            try:
                self._confirming = self._confirming or sending.confirming_connection(self.consumer.connection)
                messages.publish_again(request, queue, more, self._confirming)
                return
            except Exception as error:  # noqa: BLE001 - the broker's, of many kinds
                logger.warning("event=not_published task=%s error=%r consequence=rejected", request.id, error)
                # A broker that does not answer must not keep Celery's loop from its heartbeats, once for each message.
                self._publishes_from = monotonic() + PUBLISH_PAUSE
        self.keep_rest(attempt, rest)
        messages.give_back(request)

    def keep_rest(self, attempt: tuple[Any, ...], rest: float | None) -> None:
        """Keep the ``rest`` of a timeout, in seconds, for the next delivery of the same message."""
        if rest is not None:
            if len(self.rests) >= MAX_KEPT:
                self.rests.clear()
            self.rests[attempt] = rest

    def read_rest(self, request: Request, attempt: tuple[Any, ...]) -> float | None:
        """Return the seconds for which the task may wait yet: what its message says, or less from the last delivery.

        A published message has more deliveries if a connection breaks or the broker refuses to take it once more.
        """
        rests = headers.read_rest(request.message.headers, attempt[0], attempt[1]), self.rests.pop(attempt, None)
        return min((rest for rest in rests if rest is not None), default=None)

    @property
    def max_wait(self) -> float:
        """Seconds after its delivery when a message goes back to the broker, unless its task runs."""
        chosen = self.consumer.app.conf.get("zklock_gate_max_wait")
        # The other half is for the task itself, which may be acknowledged late.
        return float(chosen) if chosen is not None else delivery.visibility_timeout(self.consumer) / 2

    @property
    def sends_events(self) -> bool:
        return bool(getattr(self.consumer.event_dispatcher, "enabled", False))

    def send_event(self, what: str, describe: Callable[[], dict[str, Any]]) -> None:
        """Send a Celery event, ``zklock-waiting``, ``zklock-held`` or ``zklock-released``, if events are enabled."""
        if not self.sends_events:
            return
        facts = describe()
        # Celery has its own names for the facts that every event has.
        facts["uuid"], facts["child"] = facts.pop("id"), facts.pop("pid")
        try:
            worker.send_event(self.consumer.event_dispatcher, f"zklock-{what}", **facts)
        except Exception:
            # The connection for events may be the one that was lost; tasks do not depend on it.
            logger.exception("event=event_not_sent what=%s task=%s", what, facts["uuid"])

    def count_waiting(self) -> int:
        """Return how many tasks wait for their locks: more slots would not help them."""
        return sum(each.phase is Phase.WAITING for each in list(self.requests.values()))

    def count_ready(self) -> int:
        """Return how many tasks that have waited for their locks wait for a slot, here or in another worker."""
        return sum(each.contended and each.waits_for_slot for each in list(self.requests.values()))

    def as_dict(self) -> dict[str, Any]:
        return {
            "waiting": self.count_waiting(),
            "ready": self.count_ready(),
            "running": sum(request.phase in IN_POOL for request in list(self.requests.values())),
            "max_parked": self.max_parked,
            "prefetch": self.window.size,
            "scoreboard": MAX_CELLS - len(self.scoreboard.free),
            **{name: self.counts[name] for name in ("reconciled", "given_back", "failed")},
        }


class GateStep(bootsteps.StartStopStep):
    """Makes the gate of a consumer, starts it at each connection to the broker, and stops it when that is lost."""

    label = "Lock gate"
    requires = ("celery.worker.consumer.tasks:Tasks",)

    def include_if(self, consumer: Any) -> bool:
        if not is_wanted(consumer.app) or pool.can_have_gate(consumer.pool):
            return is_wanted(consumer.app)
        logger.info("event=no_gate pool=%s consequence=tasks_wait_in_their_slots", type(consumer.pool).__module__)
        return False

    def create(self, consumer: Any) -> Any:
        """Return the gate, which Celery starts and stops; before the pool forks."""
        # `celery inspect` finds it there.
        gate = consumer.zklock_gate = Gate(consumer)
        child.gates[gate.origin] = gate
        worker.put_into(consumer, on_request=gate.on_request, stop_soon=gate.stop_soon)
        return gate

    def shutdown(self, _consumer: Any) -> None:
        """Called when the worker's pool has ended."""
        self.obj.close()

    def register_with_event_loop(self, _consumer: Any, hub: Any) -> None:
        """Attach the gate at each connection to the broker: the loop removes its readers when one is lost."""
        self.obj.loop.attach(hub)
        # After those of the pool.
        self.obj.partial_results.read_on(hub)


def is_wanted(app: Any) -> bool:
    """Return whether the project has a gate: the setting ``zklock_gate`` switches it off."""
    return bool(app.conf.get("zklock_gate", True))


def install(app: Any) -> None:
    """Add the step to the workers of ``app``, and read tickets in tasks; calling it again changes nothing."""
    if child.read_ticket not in locked_call.acquire_hooks:
        locked_call.acquire_hooks.append(child.read_ticket)
    task_received.connect(_note_delivery, dispatch_uid="django_zklock.gate", weak=False)
    app.steps["consumer"].add(GateStep)


def _note_delivery(request: Any, **_facts: Any) -> None:
    # The visibility timeout of the broker begins here, before countdowns and rate limits.
    request.zklock_delivered = monotonic()
