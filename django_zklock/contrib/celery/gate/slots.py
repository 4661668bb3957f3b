"""The slots of Celery's pool: whose turn it is to ask for a lock, and who runs next.

Each request waits for its turn in the same line as Celery's requests without a lock, so neither overtakes the other. A
turn comes with a slot. While the request asks for its lock, the gate keeps the slot, and gives it back when the request
has to wait. A request whose lock is decided takes the next slot, before all others.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from django_zklock.contrib.celery.gate import celery_internals
from django_zklock.contrib.celery.gate.celery_internals import SemaphoreSlots
from django_zklock.contrib.celery.gate.request import MAX_READY, GateRequest
from django_zklock.zk.waiting import monotonic

if TYPE_CHECKING:
    from django_zklock.contrib.celery.gate.gate import Gate

# Poll interval in seconds where the pool does not report a free slot.
POLL_INTERVAL = 0.05
# Seconds after which a request goes to the pool's own queue, which is fair to requests without a lock.
MAX_POLLING = 1.0


class Slots:
    """The slots that the gate has, and the requests that wait for one. Used in the gate's loop.

    ``in_hand`` slots are the gate's, and no request's: one for each that is JOINING. What is more than that goes to the
    first request that is DECIDED, or back to Celery. A request may be in the line of the pool more than once, or when
    it wants no slot any more: a slot that comes goes to whoever needs it.
    """

    def __init__(self, gate: Gate) -> None:
        self.in_hand = 0
        self._gate = gate
        self._pool: SemaphoreSlots | CountedSlots = (
            SemaphoreSlots(gate.consumer.controller, lambda: self.in_hand)
            if celery_internals.gives_slots(gate.consumer.controller)
            else CountedSlots(gate)
        )

    def queue(self, request: GateRequest) -> None:
        """Let ``request`` have its turn after all that wait for a slot."""

        def on_turn() -> None:
            self.in_hand += 1
            request.guarded(request.on_turn)
            self.settle()

        self._pool.acquire(on_turn)

    def seek(self, request: GateRequest) -> None:
        """Let ``request``, which is DECIDED, have the next slot, before all that wait for their turn."""
        self.settle()
        if request.hold_id in self._gate.decided:
            self._pool.acquire_next(self._on_slot)

    def _on_slot(self) -> None:
        self.in_hand += 1
        self.settle()

    def settle(self) -> None:
        """Use the slots that no request needs while it asks for its lock."""
        while self.in_hand > len(self._gate.joining):
            decided = next(iter(self._gate.decided.values()), None)
            if decided is not None:
                decided.guarded(decided.submit)
            else:
                self.in_hand -= 1
                self._pool.release()

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
        """Have no slot any more: Celery counts them anew when it has lost the broker."""
        self.in_hand = 0
        self._pool.clear()

    @property
    def has_none(self) -> bool:
        """Whether a request has waited too long for the next free slot."""
        first = next(iter(self._gate.decided.values()), None)
        return first is not None and monotonic() - first.moved > MAX_READY


class CountedSlots:
    """The slots of a pool without a semaphore: it has a queue of its own, or blocks when it is full.

    It has the methods of :class:`~.celery_internals.SemaphoreSlots`.
    """

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self._waiting: deque[tuple[float, Callable[[], object]]] = deque()
        self._blocks = celery_internals.blocks_when_full(gate.consumer.controller)
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
        return celery_internals.count_free(self._gate.consumer.pool, self._gate.count_without_slot())

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
