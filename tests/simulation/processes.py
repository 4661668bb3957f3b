"""A process of the world: its clock, its threads, and the pool of the package that runs in it.

Code that blocks runs in a greenlet, a :class:`Strand`: to wait for an event is to let the world go on.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import TYPE_CHECKING, Any

from greenlet import getcurrent, greenlet

from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.system import System
from django_zklock.zk.wire import ConnectionOptions
from tests.simulation.servers import SESSION_TIMEOUT
from tests.simulation.wire import SimulatedWire

if TYPE_CHECKING:
    from tests.simulation.world import World

ROOT = "/r"


class Killed(BaseException):
    """The process was killed, or the world is over."""


class Strand:
    """A thread of a process, as a greenlet that runs until it waits."""

    def __init__(self, process: Process, name: str, main: Callable[[], object]) -> None:
        self.process = process
        self.name = name
        self._greenlet: Any = greenlet(self._run, process.world.hub)
        self._main = main
        self._is_over = False
        # What it waits for, and until when, on the clock of its process; it is ready if it waits for nothing.
        self.event: Event | None = None
        self.wakes_at: float | None = None

    def _run(self) -> None:
        try:
            self._main()
        except Killed:
            pass
        finally:
            self._is_over = True

    @property
    def is_over(self) -> bool:
        """Whether its main function has returned."""
        return self._is_over

    @property
    def is_ready(self) -> bool:
        """Whether it can go on."""
        if self._is_over:
            return False
        event, wakes_at = self.event, self.wakes_at
        if event is None and wakes_at is None:
            return True
        return (event is not None and event.is_set) or (wakes_at is not None and self.process.now() >= wakes_at)

    def go_on(self) -> None:
        """Run until it waits, or is over."""
        self.event = self.wakes_at = None
        running = self.process.world.running
        running.append(self)
        self._greenlet.switch()
        running.pop()

    def kill(self) -> None:
        """End it where it waits."""
        if self._greenlet and not self._is_over:
            running = self.process.world.running
            running.append(self)
            self._greenlet.throw(Killed)
            running.pop()
        self._is_over = True

    def wait(self, event: Event | None, timeout: float | None) -> None:
        """Let the world go on until the event is set, or the time is up; without both, for a moment."""
        if self.process.is_dead:
            raise Killed
        self.event, self.wakes_at = event, None if timeout is None else self.process.now() + timeout
        self._greenlet.parent.switch()

    def sleep(self, seconds: float) -> None:
        """Wait for so long."""
        self.wait(None, max(0.0, seconds))

    @property
    def is_here(self) -> bool:
        """Whether the calling code runs in it."""
        return getcurrent() is self._greenlet


class Event:
    """Stands for an event of threads: the strand that waits for it goes on in a step of the world."""

    def __init__(self, process: Process) -> None:
        self._process = process
        self.is_set = False

    def set(self) -> None:
        """Wake the strand that waits, or the next one."""
        self.is_set = True

    def wait(self, timeout: float | None = None) -> bool:
        """Wait as :class:`~django_zklock.zk.waiting.AutoResetEvent` does."""
        running = self._process.world.running
        if running and running[-1].is_here:
            running[-1].wait(self, timeout)
        was_set, self.is_set = self.is_set, False
        return was_set


@dataclass(eq=False)
class Timer:
    """A call to come."""

    call: Callable[[], None] | None

    def cancel(self) -> None:
        """Make no call."""
        self.call = None


class Timers:
    """The timers of a process; the first that is due is a step of the world."""

    def __init__(self, now: Callable[[], float]) -> None:
        self._now = now
        self._heap: list[tuple[float, int, Timer]] = []
        self._numbers = itertools.count()

    def start(self) -> None:
        """Do nothing: it needs no thread."""

    def call_later(self, delay: float, call: Callable[[], None], /) -> Timer:
        """Call ``call`` in so many seconds."""
        timer = Timer(call)
        heapq.heappush(self._heap, (self._now() + max(0.0, delay), next(self._numbers), timer))
        return timer

    def stop(self) -> None:
        """Drop all timers that are not due."""
        self._heap = [each for each in self._heap if each[0] <= self._now()]

    @property
    def due(self) -> float | None:
        """When the first one is due."""
        while self._heap and self._heap[0][2].call is None:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def run_first(self) -> None:
        """Make the first call."""
        call = heapq.heappop(self._heap)[2].call
        if call is not None:
            call()


@dataclass(eq=False)
class Calls:
    """Calls in the background; each is a step of the world."""

    name: str
    waiting: deque[Callable[[], object]] = field(default_factory=deque)

    def submit(self, call: Callable[[], object], /) -> None:
        """Make ``call`` soon."""
        self.waiting.append(call)


@dataclass(frozen=True, kw_only=True)
class ProcessPlan:
    """What a process is like: how fast its clock goes, and the options of its pool."""

    rate: float = 1.0
    size: int = 1
    strict: bool = False
    budget: int = 500_000
    connect_timeout: float = 5.0


class Process:
    """One process, with one pool."""

    def __init__(self, world: World, name: str, plan: ProcessPlan) -> None:
        self.world = world
        self.name = name
        self.plan = plan
        self.chance = Random(f"{world.setting.seed} {name}")
        self.is_stopped = self.is_dead = False
        # Whether its callers stop at each look at a clock.
        self.is_fine = world.setting.is_fine
        self.wires: list[SimulatedWire] = []
        self._timers: list[Timers] = []
        # Those of the world itself, for this process.
        self.own_timers = self._make_timers()
        self.calls: list[Calls] = []
        self.strands: list[Strand] = []
        self._offset = self.chance.uniform(1000.0, 2000.0)
        self.system = System(
            boottime=self._look,
            monotonic=self._look,
            uniform=self.chance.uniform,
            urandom=self.chance.randbytes,
            event=self.event,
            timers=self._make_timers,
            calls=self._make_calls,
            connect=lambda options, listener, timeout: SimulatedWire(options, listener, timeout, self),
        )
        options = PoolOptions(
            connection=ConnectionOptions(hosts="simulated:1", session_timeout=SESSION_TIMEOUT),
            root=ROOT,
            size=plan.size,
            budget=plan.budget,
            connect_timeout=plan.connect_timeout,
            strict=plan.strict,
        )
        self.pool = Pool(name, options, tree=name, system=self.system)

    def now(self) -> float:
        """Return the time on its clock."""
        return self._offset + self.plan.rate * self.world.now

    def at(self, moment: float) -> float:
        """Return what its clock shows at a moment of the world."""
        return self._offset + self.plan.rate * moment

    def moment(self, now: float) -> float:
        """Return the time of the world when its clock shows ``now``."""
        return (now - self._offset) / self.plan.rate

    def _look(self) -> float:
        # The package looks at the clock between any two things that it decides, so a thread may be stopped there.
        running = self.world.running
        if self.is_fine and running and not self.world.is_judging and running[-1].is_here and not self._is_guarded():
            running[-1].wait(None, None)
        return self.now()

    def _is_guarded(self) -> bool:
        for state in self.pool._states.values():
            guards: list[Any] = [
                state.home_guard,
                state.overflow_guard,
                *(each.monitor for each in state.sessions.values()),
            ]
            if any(guard._is_owned() for guard in guards):
                return True
        return any(wire.listener.monitor._is_owned() for wire in self.wires)  # type: ignore[attr-defined]

    def event(self) -> Event:
        """Return an event that is not set."""
        return Event(self)

    def _make_timers(self) -> Timers:
        timers = Timers(self.now)
        self._timers.append(timers)
        return timers

    @property
    def due(self) -> float | None:
        """When the first timer is due, on its clock."""
        return min((due for timers in self._timers if (due := timers.due) is not None), default=None)

    def run_timer(self) -> None:
        """Make the first call of a timer."""
        min((each for each in self._timers if each.due is not None), key=lambda each: each.due or 0.0).run_first()

    def _make_calls(self, name: str, **_options: Any) -> Calls:
        calls = Calls(name)
        self.calls.append(calls)
        return calls

    def make_call(self, calls: Calls) -> None:
        """Make the first call that waits, in a strand of its own."""
        call = calls.waiting.popleft()
        self.spawn(f"{self.name} {calls.name}", call).go_on()

    def spawn(self, name: str, main: Callable[[], object]) -> Strand:
        """Return a new strand."""
        strand = Strand(self, name, main)
        self.strands.append(strand)
        return strand

    def kill(self) -> None:
        """End it without a word to anyone: the servers may learn of it at once, or when its sessions time out."""
        self.is_dead = True
        for strand in self.strands:
            strand.kill()

    def forget(self) -> None:
        """At the end of the world, leave nothing that the end of Python would wait for."""
        self.kill()
        for wire in self.wires:
            wire.abandon_after_fork()
        for session in self.pool._started().values():
            session.abandon()
        self.pool._states.clear()
