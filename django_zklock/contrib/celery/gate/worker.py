"""The worker of a gate: what all of its locked requests share."""

from __future__ import annotations

import enum
import logging
import math
import secrets
import threading
from abc import ABC, abstractmethod
from collections import Counter, deque
from collections.abc import Callable
from functools import cached_property, partial
from typing import Any, NamedTuple

from celery.worker.request import Request

from django_zklock.contrib.celery.gate import celery_internals
from django_zklock.contrib.celery.gate.child_watcher import ChildWatcher
from django_zklock.contrib.celery.gate.loop import HubLoop, Loop, ThreadLoop
from django_zklock.contrib.celery.gate.scoreboard import Scoreboard
from django_zklock.contrib.celery.gate.ticket import DEADLINE_HEADER
from django_zklock.zk.node_data import Work
from django_zklock.zk.waiting import monotonic

logger = logging.getLogger("django_zklock.celery")

# Interval in seconds of the check for what no callback reports, such as a revoked task.
CHECK_INTERVAL = 1.0
# Seconds for which a granted lock waits for a slot, if a contender of another worker or of a body waits behind it.
MAX_READY = 1.0
# Poll interval in seconds where the pool does not report a free slot.
POLL_INTERVAL = 0.05
# Seconds after which a request goes to the pool's own queue, which is fair to requests without a lock.
MAX_POLLING = 1.0
# Requests that may wait in a worker in addition to Celery's own prefetch window, unless a setting limits them.
MAX_PARKED = 300
# Deadlines that a worker keeps for later deliveries; it forgets the oldest, whose tasks then have their whole timeout.
MAX_DEADLINES = 10_000

AttemptId = tuple[str, int, int, int]
"""The id of a task, the number of its retries, and how often `RetryLater` has sent it: conflicts and outages."""


class Stage(enum.Enum):
    """The stage of a request; see the picture in :mod:`~django_zklock.contrib.celery.gate.request`."""

    QUEUED = "queued"
    JOINING = "joining"
    PARKED = "parked"
    READY = "ready"
    RUNNING = "running"
    OVER = "over"


# The stages with an attempt to step.
ACQUIRING = frozenset({Stage.JOINING, Stage.PARKED, Stage.READY})


class _NextSlot(NamedTuple):
    since: float
    on_slot: Callable[[], object]
    is_over: Callable[[], bool]


class GateWorker(ABC):
    """A Celery worker with a gate: its loop, slots, children, events, prefetch window and settings.

    The subclass has the requests, which share all this.
    """

    def __init__(self, consumer: Any) -> None:
        self.consumer = consumer
        self.loop: Loop = HubLoop() if consumer.hub else ThreadLoop()
        # Only where tasks run in child processes.
        self.scoreboard = Scoreboard() if celery_internals.is_prefork(consumer.pool) else None
        self.child_watcher = ChildWatcher(self.release) if self.scoreboard is not None else None
        self.slots = (
            celery_internals.SemaphoreSlots(consumer.controller, self.count_in_hand)
            if celery_internals.gives_slots(consumer.controller)
            else CountedSlots(self)
        )
        # Names this process in tickets.
        self.origin = secrets.token_hex(8)
        self.window = celery_internals.PrefetchWindow()
        # Of tasks whose messages the broker delivers again unchanged, in seconds since the Unix epoch.
        self.deadlines: dict[AttemptId, float] = {}
        # The requests that wait in addition to Celery's own window, by hold_id.
        self.parked: set[int] = set()
        # Grows when Celery counts its slots anew.
        self.generation = 0
        # Events that should not happen, by name.
        self.counts: Counter[str] = Counter()
        # By hold_id, in the order in which they get a slot. Used in the loop.
        self._next: dict[int, _NextSlot] = {}
        # Reentrant, because a signal handler that ends the worker may interrupt the owner.
        self._counting = threading.RLock()
        self._check_due = math.inf

    # The requests.

    @abstractmethod
    def release(self, hold_id: int) -> None:
        """Release the lock of the request ``hold_id``: its body has ended. Called on the child watcher's thread."""

    @abstractmethod
    def count_waiting(self) -> int:
        """Return how many requests have no slot."""

    @abstractmethod
    def count_in_hand(self) -> int:
        """Return how many requests have a slot and are not in the pool yet."""

    @property
    @abstractmethod
    def is_stuck(self) -> bool:
        """Whether a request has waited too long in the pool's own queue."""

    @abstractmethod
    def _check(self, due: float) -> None:
        """Check all requests, in the loop, and schedule the next check."""

    def work_of(self, request: Request) -> Work:
        """Return what the node of ``request`` says: the task, its worker, and that a child will run it."""
        return Work(
            kind="task",
            name=request.task.name,
            id=request.id,
            worker=self.consumer.hostname,
            child=0 if self.scoreboard is not None else None,
            time_limit=celery_internals.time_limit(request, self.consumer.controller),
        )

    # Slots.

    def acquire_next(self, hold_id: int, on_slot: Callable[[], object], is_over: Callable[[], bool]) -> None:
        """Call ``on_slot`` with the next free slot, in the order of these calls, unless ``is_over`` is true by then."""
        self._next[hold_id] = _NextSlot(monotonic(), on_slot, is_over)
        self.slots.acquire_next(self._on_next_slot)

    def leave_next(self, hold_id: int) -> None:
        """Take back the call of :meth:`acquire_next` for ``hold_id``."""
        self._next.pop(hold_id, None)

    def _on_next_slot(self) -> None:
        while self._next:
            first = self._next.pop(next(iter(self._next)))
            if not first.is_over():
                first.on_slot()
                return
        self.slots.release()

    @property
    def has_no_slot(self) -> bool:
        """Whether a request has waited too long for the next free slot."""
        since = next((each.since for each in self._next.values() if not each.is_over()), math.inf)
        return monotonic() - since > MAX_READY

    def reset_slots(self) -> None:
        """Drop all calls that wait for a slot, as Celery does when it loses the broker."""
        self.generation += 1
        self._next.clear()
        if isinstance(self.slots, CountedSlots):
            self.slots.clear()

    # The prefetch window.

    def set_parked(self, hold_id: int, *, parked: bool) -> None:
        """Count the request ``hold_id`` as one that waits in addition to Celery's own window, or no longer."""
        if parked == (hold_id in self.parked):
            return
        with self._counting:
            if parked:
                self.parked.add(hold_id)
            else:
                self.parked.discard(hold_id)
            self.window.widen(min(len(self.parked), self.max_parked))

    @cached_property
    def max_parked(self) -> int:
        """How many requests may wait in addition to Celery's own window."""
        chosen = self.consumer.app.conf.get("zklock_gate_max_parked")
        return MAX_PARKED if chosen is None else max(0, int(chosen))

    def give_back(self, request: Request, attempt: AttemptId, deadline: float | None) -> None:
        """Let the broker deliver ``request`` again: at the end of its queue, or where it was."""
        self.counts["given_back"] += 1
        headers = {DEADLINE_HEADER: [attempt[1], deadline]} if deadline is not None else {}
        queue = celery_internals.queue_of(self.consumer, request)
        if queue is not None and (headers or celery_internals.is_better_published(self.consumer, request)):
            celery_internals.publish_again(request, queue, headers)
        else:
            self.keep_deadline(attempt, deadline)
            celery_internals.give_back(request)

    def keep_deadline(self, attempt: AttemptId, deadline: float | None) -> None:
        """Keep ``deadline`` for the next delivery of the same message."""
        if len(self.deadlines) >= MAX_DEADLINES:
            # Some at once: this looks at all of them.
            for oldest in list(self.deadlines)[: MAX_DEADLINES // 10]:
                self.deadlines.pop(oldest, None)
        if deadline is not None:
            self.deadlines[attempt] = deadline

    def read_deadline(self, request: Request, attempt: AttemptId) -> float | None:
        """Return until when the task waits, from its message or from the last delivery."""
        try:
            number, deadline = (request.message.headers or {})[DEADLINE_HEADER]
            return float(deadline) if number == attempt[1] else None
        except (KeyError, TypeError, ValueError):
            return self.deadlines.pop(attempt, None)

    # Time.

    @property
    def max_wait(self) -> float:
        """Seconds after its delivery when a message goes back to the broker, unless its task runs."""
        chosen = self.consumer.app.conf.get("zklock_gate_max_wait")
        # The other half is for the task itself, which may be acknowledged late.
        return float(chosen) if chosen is not None else celery_internals.visibility_timeout(self.consumer) / 2

    def schedule_check(self, delay: float | None = None) -> None:
        """Check the requests in ``delay`` seconds, and in ``CHECK_INTERVAL`` at the latest."""
        due = monotonic() + min(CHECK_INTERVAL if delay is None else delay, CHECK_INTERVAL)
        if due < self._check_due:
            self._check_due = due
            self.loop.call_later(due - monotonic(), partial(self._check, due))

    # Events.

    @property
    def sends_events(self) -> bool:
        """Whether Celery's events are enabled."""
        events = self.consumer.event_dispatcher
        return events is not None and events.enabled

    def send_event(self, what: str, describe: Callable[[], dict[str, Any]]) -> None:
        """Send a Celery event, ``zklock-waiting``, ``zklock-held`` or ``zklock-released``, if events are enabled."""
        if not self.sends_events:
            return
        events, facts = self.consumer.event_dispatcher, describe()
        if events.groups:
            # Remote control enables the groups that Celery knows.
            (events.groups.add if "task" in events.groups else events.groups.discard)("zklock")
        # Celery has its own names for the facts that every event has.
        renamed = {"id": "uuid", "pid": "child"}
        try:
            events.send(f"zklock-{what}", **{renamed.get(name, name): value for name, value in facts.items()})
        except Exception:
            # The connection for events may be the one that was lost; tasks do not depend on it.
            logger.exception("event=event_not_sent what=%s task=%s", what, facts["id"])


class CountedSlots:
    """The slots of a pool without a semaphore: it has a queue of its own, or blocks when it is full.

    It has the methods of :class:`~.celery_internals.SemaphoreSlots`.
    """

    def __init__(self, worker: GateWorker) -> None:
        self._worker = worker
        self._waiting: deque[tuple[float, Callable[[], object]]] = deque()
        self._blocks = celery_internals.blocks_when_full(worker.consumer.controller)
        self._polls = False

    def acquire(self, call: Callable[[], object]) -> None:
        """Call ``call`` when a task could begin, or after ``MAX_POLLING`` seconds."""
        self._waiting.append((monotonic() + MAX_POLLING, call))
        self._fill()

    def acquire_next(self, call: Callable[[], object]) -> None:
        """Call ``call`` now, for the pool's queue; if the pool blocks, when a task could begin."""
        if self._blocks:
            self._waiting.appendleft((monotonic() + MAX_POLLING, call))
            self._fill()
        else:
            call()

    def release(self) -> None:
        """Return a slot that was not used."""
        self._worker.loop.post(self._fill)

    def submit(self, call: Callable[[], object]) -> None:
        """Call ``call``; in a new thread if the pool is full and blocks then."""
        if self._blocks and self._count_free() < 0:
            threading.Thread(target=call, name="zklock-slot", daemon=True).start()
        else:
            call()

    def _count_free(self) -> int:
        return celery_internals.count_free(self._worker.consumer.pool, self._worker.count_waiting())

    def clear(self) -> None:
        """Drop all calls that wait for a slot."""
        self._waiting.clear()

    def _fill(self) -> None:
        while self._waiting:
            until, call = self._waiting[0]
            if self._count_free() <= 0 and monotonic() < until:
                break
            self._waiting.popleft()
            call()
        if self._waiting and not self._polls:
            self._polls = True
            self._worker.loop.call_later(POLL_INTERVAL, self._poll)

    def _poll(self) -> None:
        self._polls = False
        self._fill()
