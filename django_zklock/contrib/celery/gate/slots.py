"""The slots of Celery's pool: which request has its turn to ask for its lock, and which one runs next.

Each request waits for its turn in the same line as Celery's requests without a lock, so neither overtakes the other. A
turn comes with a slot. While the request asks for its lock, the gate keeps the slot, and gives it back when the request
has to wait. A request whose lock is decided takes the next slot, before all others.

A slot that waits for ZooKeeper's answer does nothing meanwhile, which counts where bodies take no longer than that. So
while slots get free often, the next requests of the line ask for their locks ahead of their turn, as many as the pool
has slots. A busy worker holds no lock that an idle one could use for longer than such a body.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from django_zklock.contrib.celery import internals
from django_zklock.contrib.celery.gate.request import MAX_READY, GateRequest, Phase
from django_zklock.contrib.celery.internals import SemaphoreSlots
from django_zklock.zk.waiting import monotonic

if TYPE_CHECKING:
    from django_zklock.contrib.celery.gate.gate import Gate

# Poll interval in seconds where the pool does not report a free slot.
POLL_INTERVAL = 0.05
# Seconds after which a request goes to the pool's own queue, which is fair to requests without a lock.
MAX_POLLING = 1.0
# Requests ask ahead of their turn if each slot, on average, got free twice in as many seconds.
SHORT = 0.2


class Slots:
    """The slots that the gate has, and the requests that wait for one. Used in the gate's loop.

    ``in_hand`` slots are the gate's, and no request's: at most one for each that is JOINING and has had its turn. The
    first request that is DECIDED gets any of them: while tasks of one key arrive, each end of a body grants the lock to
    the next, which would wait for the answers to those that arrive. What no request needs goes back to Celery. A
    request may be in the line of the pool when it wants no slot any more: a slot that comes goes to one that needs it.
    """

    def __init__(self, gate: Gate) -> None:
        self.in_hand = 0
        self._gate = gate
        self._pool: SemaphoreSlots | CountedSlots = (
            SemaphoreSlots(gate.consumer.controller, lambda: self.in_hand)
            if internals.gives_slots(gate.consumer.controller)
            else CountedSlots(gate)
        )
        # By `hold_id`: those that have not had their turn, and those of them that ask ahead of it.
        self._turns: set[int] = set()
        self._ahead: set[int] = set()
        # When the last turns came that were of use (monotonic clock).
        self._recent: deque[float] = deque()

    def queue(self, request: GateRequest) -> None:
        """Let ``request`` have its turn after all that wait for a slot."""
        self._turns.add(request.hold_id)
        self._pool.acquire(partial(self.on_turn, request))
        self._ask_ahead()

    def on_turn(self, request: GateRequest) -> None:
        """Use a slot that has come for ``request``: it is its turn."""
        self.in_hand += 1
        if request.phase in {Phase.QUEUED, Phase.JOINING, Phase.DECIDED}:
            self._recent.append(monotonic())
        self._turns.discard(request.hold_id)
        self._ahead.discard(request.hold_id)
        request.guarded(request.on_turn)
        self.settle()

    def seek(self, request: GateRequest) -> None:
        """Let ``request``, which is DECIDED, have the next slot, before all that wait for their turn."""
        self.settle()
        if request.hold_id in self._gate.decided and self._is_next(request):
            self._pool.acquire_next(self._on_slot)

    def _is_next(self, request: GateRequest) -> bool:
        # One that has asked ahead of its turn, and was granted at once, overtakes no other.
        return request.contended or request.hold_id not in self._turns

    def _on_slot(self) -> None:
        self.in_hand += 1
        self.settle()

    def settle(self) -> None:
        """Use the slots that the gate has: first for requests that are decided, and hold their locks without one."""
        self._ahead &= self._gate.joining
        while self.in_hand:
            is_kept = self.in_hand <= len(self._gate.joining) - len(self._ahead)
            ready = (each for each in self._gate.decided.values() if not is_kept or self._is_next(each))
            if (decided := next(ready, None)) is not None:
                decided.guarded(decided.submit)
            elif is_kept:
                break
            else:
                self.in_hand -= 1
                self._pool.release()
        self._ask_ahead()

    def _ask_ahead(self) -> None:
        """Let the next requests of the line ask for their locks, if they will have a slot soon."""
        recent = self._recent
        if not self._turns or not (size := self._pool.size) or len(recent) <= 2 * size:
            return
        since = monotonic() - SHORT
        while recent and recent[0] < since:
            recent.popleft()
        if len(recent) <= 2 * size:
            return
        for call in self._pool.first(size):
            # Others are Celery's.
            request = call.args[0] if isinstance(call, partial) and call.func == self.on_turn else None
            if request is not None and request.phase is Phase.QUEUED:
                self._ahead.add(request.hold_id)
                request.guarded(request.on_turn)

    def use(self, call: Callable[[], object]) -> None:
        """Use a slot for ``call``, which hands a task to the pool."""
        self.in_hand -= 1
        try:
            self._pool.submit(call)
        except Exception:
            self.in_hand += 1
            raise

    def put_back(self) -> None:
        """Take back a slot that the pool did not use after all."""
        self._gate.loop.post(self._on_slot)

    def reset(self) -> None:
        """Forget all slots: Celery counts them anew when it has lost the broker."""
        self.in_hand = 0
        self._turns.clear()
        self._pool.clear()

    @property
    def has_none(self) -> bool:
        """Whether a request has waited too long for the next free slot."""
        first = next(iter(self._gate.decided.values()), None)
        return first is not None and monotonic() - first.moved > MAX_READY


class CountedSlots:
    """The slots of a pool without a semaphore: it has a queue of its own, or blocks when it is full.

    It has the methods of :class:`~.internals.SemaphoreSlots`.
    """

    # None may ask ahead of its turn: the end of a task is not reported.
    size = 0

    def first(self, _count: int) -> list[Callable[[], object]]:
        """Return nothing."""
        return []

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._waiting: deque[tuple[float, Callable[[], object]]] = deque()
        self._blocks = internals.blocks_when_full(gate.consumer.controller)
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
        self._gate.loop.post(self._fill)

    def submit(self, call: Callable[[], object]) -> None:
        """Call ``call``; in a new thread if the pool is full and blocks then."""
        if self._blocks and self._count_free() < 0:
            threading.Thread(target=call, name="zklock-slot", daemon=True).start()
        else:
            call()

    def clear(self) -> None:
        """Drop all calls that wait for a slot."""
        self._waiting.clear()

    def _count_free(self) -> int:
        return internals.count_free(self._gate.consumer.pool, self._gate.count_without_slot())

    def _fill(self) -> None:
        while self._waiting:
            until, call = self._waiting[0]
            if self._count_free() <= 0 and monotonic() < until:
                break
            self._waiting.popleft()
            call()
        if self._waiting and not self._polls:
            self._polls = True
            self._gate.loop.call_later(POLL_INTERVAL, self._poll)

    def _poll(self) -> None:
        self._polls = False
        self._fill()
