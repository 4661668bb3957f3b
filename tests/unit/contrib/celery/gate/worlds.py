"""Small worlds of the gate: two tasks with one key, and each fault once, explored whole.

The gate, its requests, slots and cells are real. The queue of the lock, Celery's pool, the children and the clock are
models here, of which each step is an action. From each state every possible action is taken; a state that was seen
before is not explored again.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from functools import partial
from types import SimpleNamespace
from typing import Any

from billiard.exceptions import WorkerLostError
from celery.exceptions import TaskRevokedError

from django_zklock.contrib.celery.gate import attempt, gate, request, run, slots
from django_zklock.contrib.celery.gate.scoreboard import MAX_CELLS, Cell, Scoreboard
from django_zklock.contrib.celery.gate.states import STEPS, Effect, Event, Pair, Phase
from django_zklock.contrib.celery.gate.ticket import HEADER
from django_zklock.contrib.celery.internals import messages
from django_zklock.exceptions import LockConflict
from tests.unit.contrib.celery.gate.workplace import Workplace, a_contender

# What may go wrong in a world, or end a wait: each once. "other" is a contender of another worker, and "full" has no
# cells. With "taken" there is one task, another worker has the lock at the beginning, and a task without a lock comes.
FAULTS = (
    (), ("lose",), ("refuse",), ("revoke",), ("fail",), ("fail pool",), ("cut",), ("drop",), ("kill",), ("other",),
    ("age",), ("full",), ("refuse", "fail pool"), ("taken", "lose"), ("taken", "refuse", "revoke"),
    ("taken", "refuse", "age"), ("taken", "other", "revoke"), ("taken", "other", "age"),
    ("taken", "other", "fail pool"), ("taken", "cut"), ("taken", "fail"),
)  # fmt: skip
# Seconds by which the clock goes on at once: more than any limit of the gate.
STRIDE = 1.5
TIMES = 1
# A lock is released for want of a slot, and then the message is too old.
MORE_TIMES: dict[tuple[str, ...], int] = {("taken", "other", "age"): 2}

Step = tuple[Event, Pair, Pair]


class Asked:
    """An acquisition: a place in the queue of the lock."""

    def __init__(self, world: World, on_change: Callable[[], None]) -> None:
        self.world = world
        self.on_change = on_change
        self.is_waiting = self.is_notified = self.was_contended = False
        self.error: Exception | None = None
        self.contender = a_contender()

    def start(self) -> None:
        self.is_waiting = True
        self.world.queue.append(self)

    def end(self) -> None:
        self.is_waiting = False
        if self in self.world.queue:
            self.world.queue.remove(self)

    @property
    def is_first(self) -> bool:
        return self.world.queue[:1] == [self]

    @property
    def expired(self) -> bool:
        return self.contender.lost is not None

    @property
    def granted(self) -> bool:
        return self.is_notified and self.is_waiting and not self.expired

    def poll(self) -> bool:
        if self.error is not None:
            error, self.error = self.error, None
            raise error
        return self.granted

    def newly_contended(self) -> bool:
        return self.contender.answered and not self.is_notified and not self.was_contended

    def next_wakeup(self) -> None: ...


class Request:
    """Celery's request of a task, which knows what becomes of the message."""

    def __init__(self, task: Delivered) -> None:
        self._task = task
        self.id = task.name
        self.task: Any = SimpleNamespace(name="bill")
        self.request_dict: dict[str, Any] = {}
        self.message: Any = SimpleNamespace(headers={})

    def revoked(self) -> bool:
        """Return whether it is revoked; then Celery has acknowledged the message."""
        if self._task.is_revoked and "revoked" not in self._task.fates:
            self._task.fates.append("revoked")
        return self._task.is_revoked

    def execute_using_pool(self, _pool: object) -> None:
        task, world = self._task, self._task.world
        if self.revoked():
            raise TaskRevokedError
        if world.fails_pool:
            world.fails_pool = False
            raise OSError("the pipe is full")
        task.has_slot = True
        # The pool keeps the callbacks that it is given.
        names = ("on_accepted", "on_success", "on_failure")
        task.callbacks = {name: getattr(self, name) for name in names}
        vars(self)["_apply_result"] = lambda: SimpleNamespace(_job=task.name)
        world.jobs[task.name] = task

    def on_accepted(self, _pid: int, _when: float) -> None: ...

    def on_timeout(self, _soft: bool, _limit: float) -> None: ...

    def on_success(self, _result: object) -> None:
        self.note("success")

    def on_failure(self, _failure: object) -> None:
        self.note("failure")

    def note(self, fate: str) -> None:
        """Keep what becomes of the message."""
        self._task.fates.append(fate)


class Delivered:
    """A message of a task, Celery's request for it, and the child that has it."""

    def __init__(self, world: World, number: int) -> None:
        self.world, self.name, self.pid = world, f"task {number}", 71 + number
        self.locked: Any = None
        self.is_revoked = False
        # What has become of the message; and whether Celery's pool has the task.
        self.fates: list[str] = []
        self.callbacks: dict[str, Any] = {}
        self.has_slot = self.is_accepted = self.has_begun = False
        # Of the child: "" before it has the task, then "held" or "own", "ended" and "dead".
        self.child = ""
        self.writes_release = self.end_is_seen = self.is_known_dead = False
        self.cell: Cell | None = None
        request: Any = Request(self)
        self.request = request
        lock: Any = SimpleNamespace(key="k", keys=("k",), pool=SimpleNamespace(name="default"), template="k")
        call: Any = SimpleNamespace(timeout=None, on_lost="terminate")
        self.locked = run.GateRequest(world.gate, request, call, lock)
        self.locked._if_followed = self.if_followed

    def if_followed(self, _ours: object) -> None:
        place = self.locked.attempt
        if place in self.world.queue and "other" in self.world.queue[self.world.queue.index(place) + 1 :]:
            self.locked.gate.loop.post(partial(self.locked.guarded, self.locked._release_unclaimed))

    # What the child does.

    def take(self) -> None:
        """Read the ticket, and begin the body: under the hold of the ticket, or without it."""
        ticket = self.request.request_dict.get(HEADER)
        self.child, self.has_begun = "own", True
        if ticket is not None and ticket.nodes:
            cell = Cell(self.world.scoreboard, ticket.cell, ticket.hold_id)
            if cell.claim(self.pid):
                self.child, self.cell = "held", cell
                place = self.locked.attempt
                assert place.is_first, "a body has begun without its lock"
                assert place.is_notified
                assert not place.expired
            elif cell.claimed_by is None:
                self.writes_release = True

    def finish(self) -> None:
        """End the body."""
        if self.cell is not None:
            self.cell.end()
            self.writes_release = True
        self.child = "ended"

    def revoke(self) -> None:
        self.is_revoked = True

    def grow_old(self) -> None:
        """Let the message have been here for longer than the gate keeps one."""
        self.locked._delivered -= 10_000.0

    def die(self) -> None:
        self.child = "dead"
        self.world.alive.discard(self.pid)


class World:
    """One worker with so many slots, and what is around it."""

    now = 0.0

    def __init__(self, faults: tuple[str, ...], size: int, scoreboard: Scoreboard) -> None:
        World.now = 1000.0
        self.workplace = Workplace()
        self.gate = self.workplace.gate
        self.scoreboard = self.gate.scoreboard = scoreboard
        self.loop = self.workplace.loop
        self.semaphore = self.workplace.semaphore
        self.semaphore.initial_value = self.semaphore.value = self.size = size
        self.children = self.workplace.children
        # By the names of their tasks.
        self.jobs: dict[str, Delivered] = {}
        self.children._cache = self.jobs
        self.gate.consumer.controller.blueprint = SimpleNamespace(state=None)
        self.workplace.watcher.add = self.watch  # type: ignore[method-assign]
        self.workplace.watcher.kill = self.kill  # type: ignore[method-assign]
        self.queue: list[Any] = ["other"] if "taken" in faults else []
        self.unexpected: list[Step] = []
        self.alive = {71, 72}
        self.left, self.times, self.fails_pool, self.was_cut = faults, MORE_TIMES.get(faults, TIMES), False, False
        # All cells are in use.
        self.cells = scoreboard.free
        if "full" in faults:
            scoreboard.free = deque()
        is_alone = "taken" in faults
        self.tasks = [Delivered(self, number) for number in range(1 if is_alone else 2)]
        # The task without a lock: "", "waits", "runs" or "over".
        self.other = "" if is_alone else "over"
        self.arrived: list[Delivered] = []

    def watch(self, pid: int) -> bool:
        self.workplace.watcher.watched.add(pid)
        return pid in self.alive

    def kill(self, pid: int) -> None:
        (task,) = (task for task in self.tasks if task.pid == pid)
        assert task.child == "held", "a child is killed that does not run the body"
        task.die()

    # The actions.

    def actions(self) -> Iterator[tuple[str, Callable[[], object]]]:
        """Yield what is possible now, by name."""
        if len(self.arrived) < len(self.tasks):
            yield "arrive", self.arrive
        if self.loop._calls:
            yield "loop", self.turn
        for place in self.queue:
            if place != "other" and not place.is_notified and (place.is_first or not place.contender.answered):
                yield f"answer {self.name_of(place)}", partial(self.answer, place)
        for task in self.arrived:
            yield from self.of_child(task)
        if self.times and self.loop.due:
            yield "time", self.pass_time
        if not self.other:
            yield "other", self.send_other
        if self.other == "runs":
            yield "other ends", self.end_other
        yield from self.faults()
        if self.queue[:1] == ["other"]:
            yield "other leaves", partial(self.queue.remove, "other")

    def name_of(self, place: Asked) -> str:
        return next(task.name for task in self.arrived if task.locked.attempt is place)

    def of_child(self, task: Delivered) -> Iterator[tuple[str, Callable[[], object]]]:
        if task.name in self.jobs:
            if not task.child:
                yield f"take {task.name}", task.take
            elif not task.is_accepted:
                yield f"accept {task.name}", partial(self.accept, task)
            elif task.child == "ended":
                yield f"result {task.name}", partial(self.result, task)
            elif task.child == "dead" and not task.is_known_dead:
                yield f"pool sees the end of {task.name}", partial(self.lost, task)
        if task.child in {"held", "own"}:
            yield f"finish {task.name}", task.finish
        if task.writes_release:
            yield f"pipe {task.name}", partial(self.read_pipe, task)
        if task.child == "dead" and not task.end_is_seen and task.pid in self.workplace.watcher.watched:
            yield f"end of {task.name}", partial(self.see_end, task)

    def faults(self) -> Iterator[tuple[str, Callable[[], object]]]:
        for task in self.arrived:
            place = task.locked.attempt
            is_queued = place in self.queue
            possible: dict[str, tuple[bool, Callable[[], object]]] = {
                "lose": (is_queued, partial(self.lose, place)),
                "refuse": (is_queued and not place.is_notified, partial(self.break_off, place, LockConflict("taken"))),
                "fail": (is_queued, partial(self.break_off, place, OSError("no memory"))),
                "revoke": (not task.child, task.revoke),
                "drop": (task.name in self.jobs and not task.is_accepted, partial(self.drop, task)),
                "kill": (task.child in {"held", "own", "ended"} and task.name in self.jobs, task.die),
                "age": (not task.fates, task.grow_old),
            }
            for name in self.left:
                is_possible, call = possible.get(name, (False, self.cut))
                if is_possible:
                    yield f"{name} {task.name}", partial(self.strike, name, call)
        every: dict[str, Callable[[], object]] = {
            "fail pool": self.fail_pool,
            "cut": self.cut,
            "other": partial(self.queue.append, "other"),
        }
        for name in self.left:
            if name in every:
                yield name, partial(self.strike, name, every[name])

    def strike(self, name: str, call: Callable[[], object]) -> None:
        self.left = tuple(each for each in self.left if each != name)
        call()

    def arrive(self) -> None:
        task = self.tasks[len(self.arrived)]
        self.arrived.append(task)
        self.gate.requests[task.locked.hold_id] = task.locked
        self.gate.slots.queue(task.locked)

    def send_other(self) -> None:
        self.other = "waits"
        self.semaphore.acquire(self.begin_other)

    def begin_other(self) -> None:
        self.other = "runs"

    def end_other(self) -> None:
        self.other = "over"
        self.semaphore.release()

    def turn(self) -> None:
        self.loop._calls.popleft()()

    def answer(self, place: Asked) -> None:
        place.contender.answered = True
        place.is_notified = place.is_first
        place.on_change()

    def lose(self, place: Asked) -> None:
        place.contender.lost = "its session has ended"
        self.queue.remove(place)
        place.on_change()

    def break_off(self, place: Asked, error: Exception) -> None:
        place.error = error
        place.on_change()

    def drop(self, task: Delivered) -> None:
        """Let Celery drop a job that it has not seen begin; a child that has it goes on."""
        del self.jobs[task.name]
        task.request._apply_result = lambda: None
        task.fates.append("dropped")
        self.free_slot(task)

    def fail_pool(self) -> None:
        self.fails_pool = True

    def cut(self) -> None:
        self.was_cut = True
        self.semaphore.clear()
        waiting = [task for task in self.arrived if task.locked.phase is not Phase.OVER]
        self.gate.stop()
        for task in waiting:
            if task.locked.phase is Phase.OVER:
                task.fates.append("left")

    def pass_time(self) -> None:
        self.times -= 1
        World.now += STRIDE
        due, self.loop.due = self.loop.due, []
        for call in due:
            call()

    def accept(self, task: Delivered) -> None:
        task.is_accepted = True
        task.callbacks["on_accepted"](task.pid, self.now)

    def result(self, task: Delivered) -> None:
        del self.jobs[task.name]
        task.callbacks["on_success"]("result")
        self.free_slot(task)

    def lost(self, task: Delivered) -> None:
        task.is_known_dead = True
        del self.jobs[task.name]
        task.callbacks["on_failure"](SimpleNamespace(exception=WorkerLostError("signal 9")))
        self.free_slot(task)

    def see_end(self, task: Delivered) -> None:
        task.end_is_seen = True
        self.gate._on_child_exit(task.pid)

    def read_pipe(self, task: Delivered) -> None:
        task.writes_release = False
        self.gate.on_body_ended(task.locked.hold_id)

    def free_slot(self, task: Delivered) -> None:
        task.has_slot = False
        self.semaphore.release()

    # What holds.

    def check(self) -> None:
        """Raise ``AssertionError`` if a slot, a message or the lock is lost or doubled."""
        assert not self.unexpected, f"the table has no such step: {self.unexpected}"
        bodies = [task.name for task in self.tasks if task.child == "held" and not task.locked.attempt.expired]
        assert len(bodies) <= 1, f"bodies under one lock: {bodies}"
        for task in self.tasks:
            assert len(task.fates) <= 1, f"{task.name} has ended as {task.fates}"
            assert not (task.has_begun and {"returned", "left"} & set(task.fates)), f"{task.name} runs, and comes again"
        used = sum(task.has_slot for task in self.tasks) + (self.other == "runs")
        # Those that the pool has not used after all.
        returned = sum(getattr(call, "__func__", None) is slots.Slots.on_slot for call in self.loop._calls)
        if not self.was_cut:
            found = self.semaphore.value + self.gate.slots.in_hand + used + returned
            assert found == self.size, "a slot is lost or doubled"

    def come_to_end(self) -> None:
        """Let all that is under way arrive, and check that nothing is left."""
        self.left, self.times = (), 8
        while (action := next(self.actions(), None)) is not None and self.times:
            action[1]()
            self.check()
        fates = [task.fates for task in self.tasks]
        assert all(len(each) == 1 for each in fates), f"messages are lost: {fates}"
        assert not self.gate.requests, "a request is left"
        assert not self.gate.decided
        assert not self.gate.parked
        assert not self.queue, "the lock is not released"
        assert (self.semaphore.value, self.gate.slots.in_hand) == (self.size, 0), "a slot is lost"
        self.scoreboard.free = self.cells
        assert len(self.scoreboard.free) == MAX_CELLS, "a cell is lost"

    def close(self) -> None:
        """Free what the world has used."""
        self.scoreboard.free = self.cells
        for task in self.tasks:
            task.locked.over()
        self.loop._close()

    # What a state is.

    def key(self) -> object:
        """Return what tells this state from others."""
        return (
            tuple(self.of_task(task) for task in self.tasks),
            tuple("other" if place == "other" else self.name_of(place) for place in self.queue),
            tuple(self.describe(call) for call in self.loop._calls),
            tuple(sorted(self.describe(call) for call in self.loop.due)),
            tuple(self.describe(call) for call, *_ in self.semaphore._waiting),
            tuple(each.request.id for each in self.gate.slots._asking),
            tuple(each.request.id for each in self.gate.decided.values()),
            (
                len(self.arrived),
                self.semaphore.value,
                self.gate.slots.in_hand,
                self.left,
                self.times,
                self.fails_pool,
                self.other,
            ),
            (self.was_cut, self.gate._checks, len(self.gate.slots._recent)),
        )

    def of_task(self, task: Delivered) -> object:
        locked, place = task.locked, task.locked.attempt
        waits_long = locked.phase is not Phase.OVER and self.now - locked.moved > 1.0
        return (
            locked.pair, locked.contended, locked.is_ahead, locked.pid, locked.cell is not None, locked._kills_child,
            waits_long, self.now - locked._delivered > 900.0, locked.refusal is not None,
            place and (place.is_waiting, place.is_notified, place.contender.answered, place.expired, str(place.error)),
            task.cell is not None and task.cell.state, tuple(task.fates), task.is_revoked,
            (task.has_slot, task.is_accepted, task.child, task.writes_release, task.end_is_seen, task.is_known_dead),
            task.pid in self.workplace.watcher.watched, task.name in self.jobs,
        )  # fmt: skip

    def describe(self, call: Any) -> str:
        """Return what a call is, in words that are the same in each world."""
        if isinstance(call, partial):
            return " ".join([self.describe(call.func), *map(self.describe, call.args)])
        if isinstance(call, run.GateRequest):
            return str(call.request.id)
        owner = getattr(call, "__self__", None)
        whose = owner.request.id if isinstance(owner, run.GateRequest) else ""
        return f"{getattr(call, '__qualname__', call if isinstance(call, str) else type(call).__name__)} {whose}"


def explore(faults: tuple[str, ...], size: int, patch: Callable[[object, str, object], None]) -> tuple[int, set[Step]]:
    """Take every action in every state; return how many states there are, and the steps of requests in them.

    Raises ``AssertionError`` with the actions that have led to what is wrong.
    """
    scoreboard, steps, seen = Scoreboard(), set[Step](), set[object]()
    world: World
    for module in (attempt, gate, request, run, slots):
        patch(module, "monotonic", lambda: World.now)
    patch(attempt, "GateAcquisition", lambda _lock, _timeout, on_change, **_facts: Asked(world, on_change))
    patch(run, "ChildNote", lambda _contender, facts: SimpleNamespace(facts=facts, is_cancelled=False))
    patch(run.logger, "disabled", True)
    patch(messages, "give_back", lambda made: made.note("returned"))
    patch(messages, "is_better_published", lambda *_: False)
    happen = request.RequestRecord.happen

    def note(locked: Any, event: Event) -> tuple[Effect, ...]:
        before: Pair = locked.pair
        effects = happen(locked, event)
        if before.phase is not Phase.OVER:
            steps.add((event, before, locked.pair))
            if before not in STEPS[event]:
                world.unexpected.append((event, before, locked.pair))
        return effects

    patch(request.RequestRecord, "happen", note)
    waiting: list[tuple[str, ...]] = [()]
    while waiting:
        taken = list(waiting.pop())
        world = World(faults, size, scoreboard)
        try:
            for name in taken:
                next(take for each, take in world.actions() if each == name)()
            world.check()
            # The first action goes on in this world, the others begin again in one of their own.
            while (key := world.key()) not in seen:
                seen.add(key)
                possible = list(world.actions())
                if not possible:
                    taken.append("to the end")
                    world.come_to_end()
                    break
                (first, take), *others = possible
                waiting += [(*taken, name) for name, _ in others]
                taken.append(first)
                take()
                world.check()
        except Exception as error:
            raise AssertionError(f"{error!r} in the world {faults} of {size} after {taken}") from error
        finally:
            world.close()
    scoreboard.close()
    return len(seen), steps
