"""A worker with one slot, without Celery: its gate is real, and so are the requests, but not their attempts."""

from __future__ import annotations

import math
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

from celery.worker import state as celery_state
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from django_zklock.contrib.celery.gate.gate import Gate
from django_zklock.contrib.celery.gate.loop import Loop
from django_zklock.contrib.celery.gate.run import GateRequest
from django_zklock.contrib.celery.gate.scoreboard import Cell, Scoreboard
from django_zklock.contrib.celery.gate.slots import Slots
from django_zklock.contrib.celery.gate.states import STEPS, Event, Pair, Phase, Verdict
from django_zklock.contrib.celery.internals.pool import PartialResults
from django_zklock.zk.queue import EXCLUSIVE


class TurnedLoop(Loop):
    """A loop that turns when the test says so, and whose timers the test calls."""

    def __init__(self) -> None:
        super().__init__(has_hub=True)
        self.due: list[Callable[[], object]] = []
        timers: Any = SimpleNamespace(call_later=lambda _delay, call: self.due.append(call))
        self.timers = timers

    def _wake(self) -> None: ...

    def turn(self) -> None:
        self._run_all()

    def fire(self) -> None:
        """Make the calls of the timers, and turn."""
        due, self.due = self.due, []
        for call in due:
            call()
        self.turn()


class Session:
    """A session that lives."""

    timeout = 4.0
    lease_end = math.inf
    ended = None
    connected = True
    monitor = threading.RLock()

    listeners: ClassVar[dict[object, None]] = {}

    def add_listener(self, _listener: object) -> None: ...


def a_contender() -> Any:
    """Return a contender that has no answer yet."""
    return SimpleNamespace(
        session=Session(), wait=True, answered=False, holder=None, token=5, node_paths={"/k": "/k/1"},
        lost=None, revoked=None, loss_reason_pending=False,
        post=lambda call: call(), when_deleted=lambda call: call(),
    )  # fmt: skip


class Attempts:
    """The attempts of a request, which the test decides."""

    def __init__(self, locked: Any) -> None:
        self.locked = locked
        self.contender = a_contender()
        self.decided = self.lease_expired = False
        self.starts = self.ends = 0
        self.followers: list[set[str]] = []

    def start(self) -> None:
        self.locked.release()
        self.starts += 1
        self.locked.attempt = Attempt(self)

    def if_followed(self, ours: set[str]) -> None:
        self.followers.append(ours)
        self.locked.gate.loop.post(partial(self.locked.guarded, self.locked._release_unclaimed))


class Attempt:
    """One of them."""

    def __init__(self, attempts: Attempts) -> None:
        self.contender = attempts.contender
        self.is_waiting = True
        self._attempts = attempts

    @property
    def granted(self) -> bool:
        return self._attempts.decided

    @property
    def expired(self) -> bool:
        if self.contender.lost is not None or self._attempts.lease_expired:
            return True
        return self._attempts.locked.phase is Phase.DECIDED and not self.granted

    def poll(self) -> bool:
        return self.granted

    def newly_contended(self) -> bool:
        return False

    def next_wakeup(self) -> float | None:
        return None

    def end(self) -> None:
        self.is_waiting = False
        self._attempts.ends += 1


class Watcher:
    """Records which children are watched and killed; those that are ``gone`` have ended before."""

    def __init__(self) -> None:
        self.watched: set[int] = set()
        self.gone: set[int] = set()
        self.killed: list[int] = []
        self.on_kill: Callable[[], object] = lambda: None

    def add(self, pid: int) -> bool:
        self.watched.add(pid)
        return pid not in self.gone

    def kill(self, pid: int) -> None:
        self.on_kill()
        self.killed.append(pid)


class Workplace:
    """The worker, with a slot that a task uses, and what Celery knows of its pool."""

    def __init__(self, *, forks: bool = True, max_tasks_per_child: int | None = None) -> None:
        self.children = SimpleNamespace(
            _all_inqueues={1}, _busy_workers={1}, outbound_buffer=[], _processes=1, _cache={},
            _fileno_to_inq={1: SimpleNamespace(pid=71)}, _on_ready_counters={},
        )  # fmt: skip
        controller: Any = SimpleNamespace(
            semaphore=LaxBoundedSemaphore(1), hub=SimpleNamespace(on_tick=set(), propagate_errors=()),
            pool=SimpleNamespace(_pool=self.children),
            max_tasks_per_child=max_tasks_per_child, max_memory_per_child=None, time_limit=None,
        )  # fmt: skip
        controller._process_task_sem = controller.process_task = lambda: None
        self.semaphore = controller.semaphore
        self.semaphore.acquire(lambda: None)
        self.loop = TurnedLoop()
        self.watcher = Watcher()
        self.submitted: list[str] = []
        self.failures: list[Any] = []
        consumer = SimpleNamespace(
            controller=controller,
            pool=controller.pool,
            hub=True,
            event_dispatcher=None,
            connection=None,
            hostname="celery@web1",
            app=SimpleNamespace(conf={"zklock_gate_max_wait": 900}),
        )
        self.gate: Any = Gate.__new__(Gate)
        vars(self.gate).update(
            consumer=consumer, loop=self.loop, counts=Counter(), requests={}, decided={}, rests={},
            parked=set(), origin="worker", scoreboard=Scoreboard(), forks=forks, _checks=False,
            partial_results=PartialResults(),
            _publishes_from=0.0, _confirming=None,
            child_watcher=self.watcher, max_parked=300,
            window=SimpleNamespace(refresh=lambda: None),
        )  # fmt: skip
        self.gate.slots = Slots(controller, self.gate.decided, self.gate.start_checks)

    def request(
        self,
        name: str = "id",
        *,
        on_lost: str = "raise",
        timeout: float | None = None,
        headers: dict[str, Any] | None = None,
    ) -> Any:
        """Return a request that has not joined the queue, and that the pool takes when it has a slot."""

        def take(_pool: object) -> None:
            self.children._busy_workers.add(1)
            self.submitted.append(name)

        request: Any = SimpleNamespace(
            id=name, task=SimpleNamespace(name="bill"), request_dict={}, message=SimpleNamespace(headers=headers or {}),
            revoked=lambda: False, execute_using_pool=take, on_accepted=lambda *_facts: None,
            on_success=lambda *_facts: None, on_failure=self.failures.append, on_timeout=lambda *_facts: None,
        )  # fmt: skip
        lock: Any = SimpleNamespace(
            key="k", keys=("k",), template="{key}", pool=SimpleNamespace(name="default"), rule=EXCLUSIVE
        )
        call: Any = SimpleNamespace(timeout=timeout, on_lost=on_lost)
        locked: Any = GateRequest(self.gate, request, call, lock)
        # The real ones need a lock with a session.
        attempts = locked.attempts = Attempts(locked)
        locked._start_attempt, locked._if_followed = attempts.start, attempts.if_followed
        self.gate.requests[locked.hold_id] = locked
        return locked

    def waiting(self, name: str = "id") -> Any:
        """Return a request that waits for its turn."""
        locked = self.request(name)
        self.gate.slots.queue(locked)
        return locked

    def running(self, pid: int | None = 71, **options: Any) -> tuple[Any, Any]:
        """Return a request whose lock was granted and that the pool has, and its cell as its child sees it."""
        locked = self.request(**options)
        put(locked, Phase.DECIDED, Verdict.GRANTED)
        locked.attempts.decided = True
        self.gate.slots.in_hand = 1
        self.gate.slots.settle()
        assert locked.phase is Phase.SUBMITTED
        if pid is not None:
            locked._watch_child(pid)
        return locked, Cell(self.gate.scoreboard, locked.cell.number, locked.hold_id) if locked.cell else None

    def lose(self, locked: Any) -> None:
        """Let the session lose the lock of a request, and what follows from that happen."""
        locked.attempts.contender.lost = "its node was deleted"
        locked._on_change()
        self.loop.fire()

    def end_child(self, pid: int = 71) -> None:
        """Let the watcher notice the end of a child."""
        self.gate._on_child_exit(pid)
        self.loop.turn()

    def end_task(self) -> None:
        """Let the task end that uses the slot."""
        self.children._busy_workers.clear()
        self.semaphore.release()
        self.loop.turn()


def events_between(before: Pair, after: Pair) -> list[Event]:
    """Return the fewest events that bring a request from one pair to the other one."""
    ways: dict[Pair, list[Event]] = {before: []}
    for pair in (found := [before]):
        for event, steps in STEPS.items():
            if pair in steps and steps[pair] not in ways:
                ways[steps[pair]] = [*ways[pair], event]
                found.append(steps[pair])
    return ways[after]


def put(locked: Any, phase: Phase, verdict: Verdict = Verdict.NONE) -> None:
    """Let the request make the steps to this phase and verdict, and do nothing that is to be done then."""
    for event in events_between(locked.pair, Pair(phase, verdict)):
        locked.happen(event)
        if event is Event.TURN:
            locked._start_attempt()


@contextmanager
def known_to_celery(locked: Any) -> Iterator[None]:
    """Let the worker's remote control know the request."""
    celery_state.requests[locked.request.id] = locked.request
    try:
        yield
    finally:
        celery_state.requests.pop(locked.request.id, None)
