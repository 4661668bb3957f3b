"""The callers: what programs do with locks, by each of the ways in: blocking code, coroutines, and the gate."""

from __future__ import annotations

import asyncio
import asyncio.events
import heapq
from asyncio import base_events
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar

from django_zklock.contrib.celery.gate.acquisition import GateAcquisition
from django_zklock.exceptions import LockConflict, LockLost, ZkLockError
from django_zklock.zk import owners
from django_zklock.zk.listener import LockListener, LockValue
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work
from django_zklock.zk.owners import Caller
from django_zklock.zk.queue import EXCLUSIVE, READ, WRITE, Kind, Rule, semaphore
from django_zklock.zk.waiting import Cancellation

if TYPE_CHECKING:
    from django_zklock.zk.acquire import Acquisition
    from django_zklock.zk.held import Held
    from tests.simulation.processes import Process, Strand
    from tests.simulation.world import World

RULES: dict[str, Rule] = {
    "exclusive": EXCLUSIVE,
    "read": READ,
    "write": WRITE,
    **{f"lease of {limit}": semaphore(limit) for limit in (1, 2, 3)},
}
# What they mean, without a word of the package.
_ALONE = frozenset({Kind.EXCLUSIVE, Kind.WRITE})
MEANINGS: dict[str, Rule] = {
    "exclusive": Rule(Kind.EXCLUSIVE, frozenset(Kind)),
    "read": Rule(Kind.READ, _ALONE | {Kind.PERMIT}),
    "write": Rule(Kind.WRITE, frozenset(Kind)),
    **{f"lease of {limit}": Rule(Kind.PERMIT, _ALONE | {Kind.READ}, limit) for limit in (1, 2, 3)},
}


@dataclass(frozen=True, kw_only=True)
class Turn:
    """One acquisition. Times are seconds; ``work`` has those between the looks at the hold.

    ``runs`` names the function, if calls of it may be skipped while another one waits.
    """

    keys: tuple[str, ...] = ("a",)
    rule: str = "exclusive"
    timeout: float | None = None
    pause: float = 0.0
    work: tuple[float, ...] = (0.1,)
    is_nested: bool = False
    # The rule of the nested acquisition, if it is another one.
    inner: str = ""
    is_released_elsewhere: bool = False
    confirms: bool = False
    runs: str | None = None
    gives_up_after: float | None = None


@dataclass(frozen=True, kw_only=True)
class CallerPlan:
    """What one caller does: in which process, by which way in, and one turn after the other."""

    process: int
    way: str = "blocking"
    turns: tuple[Turn, ...] = (Turn(),)


class Signals(LockListener):
    """Notes which signals were sent for each hold."""

    def __init__(self, world: World) -> None:
        self._world = world

    def notify(self, event: str, _lock: LockValue, /, **facts: Any) -> None:
        """Note it."""
        if "held" in facts:
            self._world.judge.told(event, facts["held"])

    async def anotify(self, event: str, lock: LockValue, /, **facts: Any) -> None:
        """Note it."""
        self.notify(event, lock, **facts)


class Client:
    """What all callers have in common."""

    ways: ClassVar[dict[str, type[Client]]] = {}

    def __init__(self, world: World, process: Process, number: int, plan: CallerPlan) -> None:
        self.world = world
        self.process = process
        self.name = f"caller {number}"
        self.plan = plan
        # The number of its turn; and whether all are over.
        self.turn = -1
        self.is_over = False
        # What has ended, or will end, its wait from outside.
        self.cancelling: Cancellation | None = None

    def __init_subclass__(cls) -> None:
        Client.ways[cls.__name__.lower()] = cls

    def start(self) -> None:
        """Begin the first turn."""
        raise NotImplementedError

    def lock(self, turn: Turn) -> Lock:
        """Return the lock of a turn."""
        call_id = f"{self.name} {self.turn}"
        return Lock(
            list(turn.keys) if len(turn.keys) > 1 else turn.keys[0],
            self.process.pool,
            rule=RULES[turn.rule],
            timeout=turn.timeout,
            work=lambda: Work(kind="function", name="f", id=call_id),
            coalesces=turn.runs,
            may_expire=turn.gives_up_after is not None,
            listener=Signals(self.world),
        )

    @property
    def owner(self) -> object:
        """What owns the acquisition under way."""
        raise NotImplementedError

    @property
    def acquisition(self) -> Acquisition | None:
        """The acquisition under way."""
        found = [each for get in owners.owner_of(self.owner).acquisitions if (each := get()) is not None]
        return next((each for each in reversed(found) if each.is_waiting), None)

    def cancellation(self, turn: Turn) -> Cancellation | None:
        """Return what ends the wait from outside, after a while; ``None`` if nothing does."""
        self.cancelling = None
        if turn.gives_up_after is None:
            return None
        self.cancelling = cancellation = Cancellation()
        self.process.own_timers.call_later(turn.gives_up_after, cancellation.cancel)
        return cancellation


class Blocking(Client):
    """A thread."""

    def start(self) -> None:
        self.strand: Strand = self.process.spawn(self.name, self._main)
        self.world.clients_of[self.strand] = self

    @property
    def owner(self) -> Strand:
        return self.strand

    def _main(self) -> None:
        # The strand is the owner, as a thread would be, and blocks no other one.
        caller = Caller(owners.owner_of(self.strand), None)
        for number, turn in enumerate(self.plan.turns):
            self.turn = number
            self.strand.sleep(turn.pause)
            self._take(caller, turn)
        self.is_over = True

    def _take(self, caller: Caller, turn: Turn) -> None:
        lock, judge = self.lock(turn), self.world.judge
        judge.begins(self, turn)
        try:
            held = lock._acquire(caller, turn.timeout, self.cancellation(turn))
        except ZkLockError as error:
            judge.refused(self, turn, error)
            return
        claim = judge.granted(self, turn, held)
        try:
            for seconds in turn.work:
                self.strand.sleep(seconds)
                held.check()
                judge.checked(claim)
            if turn.is_nested:
                self._nest(caller, turn, lock, held)
        except LockLost as error:
            judge.lost(self, turn, error)
        finally:
            judge.releases(claim)
            may_confirm = turn.confirms and judge.may_confirm(claim)
            began = self.process.now()
            held.release(wait=turn.confirms)
            if may_confirm:
                judge.confirmed(claim, self.process.now() - began)
        judge.ends(self, turn)

    def _nest(self, caller: Caller, turn: Turn, lock: Lock, held: Held) -> None:
        """Take the lock again, while another thread of the process may release what is held."""
        if turn.is_released_elsewhere:
            self.process.spawn(f"{self.name} helper {self.turn}", held.release)
        outer = turn.rule
        if turn.inner:
            turn = replace(turn, rule=turn.inner)
            lock = self.lock(turn)
        try:
            inner = lock._acquire(caller, turn.timeout)
        except LockLost:
            raise
        except LockConflict:
            # What is weaker cannot be made stronger; one that excludes all others includes all.
            if outer in {turn.rule, "exclusive", "write"}:
                raise
            return
        except ZkLockError as error:
            self.world.judge.refused(self, turn, error)
            return
        claim = self.world.judge.granted(self, turn, inner)
        try:
            self.strand.sleep(turn.work[-1])
        finally:
            self.world.judge.releases(claim)
            inner.release()
        self.strand.sleep(turn.work[-1])


class Loop(base_events.BaseEventLoop):
    """An event loop whose next callback is a step of the world."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def time(self) -> float:
        """Return the time of the process."""
        return self._process.now()

    def _write_to_self(self) -> None: ...

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Fail: no callback may raise. What is found when the world is over is no news."""
        if self.is_closed():
            return
        raise context.get("exception") or AssertionError(context)

    @property
    def is_ready(self) -> bool:
        """Whether a callback is to be called."""
        scheduled: list[Any] = self._scheduled  # type: ignore[attr-defined]
        while scheduled and scheduled[0]._when <= self.time():
            timer = heapq.heappop(scheduled)
            timer._scheduled = False
            if not timer._cancelled:
                self._ready.append(timer)  # type: ignore[attr-defined]
        ready: Any = self._ready  # type: ignore[attr-defined]
        while ready and ready[0]._cancelled:
            ready.popleft()
        return bool(ready)

    @property
    def due(self) -> float | None:
        """When the next timer is due, on the clock of the process."""
        scheduled: list[Any] = self._scheduled  # type: ignore[attr-defined]
        return min((each._when for each in scheduled if not each._cancelled), default=None)

    def step(self) -> None:
        """Call the next callback."""
        asyncio.events._set_running_loop(self)
        try:
            self._ready.popleft()._run()  # type: ignore[attr-defined]
        finally:
            asyncio.events._set_running_loop(None)

    def abandon(self) -> None:
        """End it with all that it still has to do."""
        for task in asyncio.all_tasks(self):
            # Its destruction is no news.
            task._log_destroy_pending = False  # type: ignore[attr-defined]
            task.get_coro().close()  # type: ignore[union-attr]
        self.close()


class Coroutines(Client):
    """A task of an event loop, which all of its process share."""

    def start(self) -> None:
        self.loop = self.world.loop_of(self.process)
        asyncio.events._set_running_loop(self.loop)
        try:
            self._task: asyncio.Task[None] = asyncio.Task(self._main(), loop=self.loop)
            # What it raises is not to be kept in it.
            self._task.add_done_callback(asyncio.Task.result)
        finally:
            asyncio.events._set_running_loop(None)

    @property
    def owner(self) -> asyncio.Task[Any]:
        # A lock is acquired for the task that makes the call.
        return self._task

    async def _main(self) -> None:
        for number, turn in enumerate(self.plan.turns):
            self.turn = number
            await asyncio.sleep(turn.pause)
            await self._take(turn)
        self.is_over = True

    async def _take(self, turn: Turn) -> None:
        lock, judge = self.lock(turn), self.world.judge
        judge.begins(self, turn)
        try:
            acquiring = asyncio.Task(lock.aacquire(turn.timeout), loop=self.loop)
            if turn.gives_up_after is not None:
                self.loop.call_later(turn.gives_up_after, acquiring.cancel)
            held = await acquiring
        except (ZkLockError, asyncio.CancelledError) as error:
            judge.refused(self, turn, error)
            return
        claim = judge.granted(self, turn, held)
        try:
            for seconds in turn.work:
                await asyncio.sleep(seconds)
                held.check()
                judge.checked(claim)
        except LockLost as error:
            judge.lost(self, turn, error)
        finally:
            judge.releases(claim)
            await held.arelease()
        judge.ends(self, turn)


class Gate(Client):
    """A task at the gate of a worker: its loop polls when something has changed, and waits without a thread."""

    def start(self) -> None:
        self.strand: Strand = self.process.spawn(self.name, self._main)
        self.world.clients_of[self.strand] = self

    @property
    def acquisition(self) -> GateAcquisition | None:
        return self._attempt

    def _main(self) -> None:
        for number, turn in enumerate(self.plan.turns):
            self.turn = number
            self.strand.sleep(turn.pause)
            self._take(turn)
        self.is_over = True

    def _take(self, turn: Turn) -> None:
        changed, judge = self.process.event(), self.world.judge
        self._attempt: GateAcquisition | None = None
        judge.begins(self, turn)
        self._attempt = attempt = GateAcquisition(self.lock(turn), turn.timeout, changed.set, wants_holder=True)
        try:
            attempt.start()
            while not (attempt.granted or attempt.poll()):
                changed.wait(attempt.next_wakeup())
        except ZkLockError as error:
            attempt.end()
            judge.refused(self, turn, error)
            return
        claim = judge.granted(self, turn, attempt)
        for seconds in turn.work:
            self.strand.sleep(seconds)
            if not attempt.granted:
                break
        judge.releases(claim)
        attempt.end()
        judge.ends(self, turn)
