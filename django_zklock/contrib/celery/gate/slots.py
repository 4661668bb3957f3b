"""The slots of Celery's pool: which request has its turn to ask for its lock, and which one runs next.

Each request waits for its turn in the same line as Celery's requests without a lock, so neither overtakes the other. A
turn comes with a slot. While the request asks for its lock, the gate keeps the slot, and gives it back when the request
has to wait. A request whose lock is decided takes the next slot, before all others.

A slot that waits for ZooKeeper's answer does nothing, which counts where bodies take no longer. So while slots get free
often, the next requests of the line ask for their locks ahead of their turn, as many as the pool has slots.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

from django_zklock.contrib.celery import internals
from django_zklock.contrib.celery.gate.request import GateRequest, Phase
from django_zklock.zk.waiting import monotonic

if TYPE_CHECKING:
    from django_zklock.contrib.celery.gate.gate import Gate

# Requests ask ahead of their turn if each slot, on average, got free twice in as many seconds.
SHORT = 0.2


class Slots:
    """The slots that the gate has, and the requests that wait for one. Used in the gate's loop.

    ``in_hand`` slots are the gate's, and no request's: at most one for each that is JOINING and has had its turn. The
    first request that is DECIDED gets any of them, and what no request needs goes back to Celery. A request may be in
    the line of the pool when it wants no slot any more.
    """

    def __init__(self, gate: Gate) -> None:
        self.in_hand = 0
        self._gate = gate
        controller = gate.consumer.controller
        self.pool: Any = (
            internals.SemaphoreSlots(controller, lambda: self.in_hand)
            if internals.gives_slots(controller)
            else UncountedSlots(blocks=internals.blocks_when_full(controller))
        )
        # By `hold_id`: those that have asked ahead of their turn, and have not had it yet.
        self._ahead: set[int] = set()
        # When the last turns came that were of use (monotonic clock).
        self._recent: deque[float] = deque()

    def queue(self, request: GateRequest) -> None:
        """Let ``request`` have its turn after all that wait for a slot."""
        self.pool.acquire(partial(self._on_turn, request))
        self._ask_ahead()
        self._gate.start_checks()

    def _on_turn(self, request: GateRequest) -> None:
        self.in_hand += 1
        if request.phase in {Phase.QUEUED, Phase.JOINING, Phase.DECIDED}:
            self._recent.append(monotonic())
        self._ahead.discard(request.hold_id)
        request.guarded(request.on_turn)
        self.settle()

    def seek(self, request: GateRequest) -> None:
        """Let ``request``, which is DECIDED, have the next slot, before all that wait for their turn."""
        self.settle()
        if request.hold_id in self._gate.decided and self._is_next(request):
            self.pool.acquire_next(self.on_slot)

    def _is_next(self, request: GateRequest) -> bool:
        # One that has asked ahead of its turn, and was granted at once, overtakes no other.
        return request.contended or request.hold_id not in self._ahead

    def on_slot(self) -> None:
        """Use a slot that has come, or that the pool did not use after all."""
        self.in_hand += 1
        self.settle()

    def settle(self) -> None:
        """Use the slots that the gate has: first for requests that are decided, and hold their locks without one."""
        while self.in_hand:
            is_kept = self.in_hand <= len(self._gate.joining - self._ahead)
            ready = (each for each in self._gate.decided.values() if not is_kept or self._is_next(each))
            if (decided := next(ready, None)) is not None:
                decided.guarded(decided.submit)
            elif is_kept:
                break
            else:
                self.in_hand -= 1
                self.pool.release()
        self._ask_ahead()

    def _ask_ahead(self) -> None:
        """Let the next requests of the line ask for their locks, if they will have a slot soon."""
        recent = self._recent
        if not (size := self.pool.size) or len(recent) <= 2 * size:
            return
        since = monotonic() - SHORT
        while recent and recent[0] < since:
            recent.popleft()
        if len(recent) <= 2 * size:
            return
        for call in self.pool.first(size):
            # Others are Celery's.
            request = call.args[0] if isinstance(call, partial) and call.func == self._on_turn else None
            if request is not None and request.phase is Phase.QUEUED:
                self._ahead.add(request.hold_id)
                request.guarded(request.on_turn)

    def reset(self) -> None:
        """Forget all slots: Celery counts them anew when it has lost the broker."""
        self.in_hand = 0
        self._ahead.clear()


class UncountedSlots:
    """The slots of a pool that does not report free ones, as if there always were one: it has a queue, or it blocks."""

    # None may ask ahead of its turn.
    size = 0

    def __init__(self, *, blocks: bool) -> None:
        self._blocks = blocks

    def acquire(self, call: Callable[[], object]) -> None:
        """Call ``call``."""
        call()

    acquire_next = acquire

    def release(self) -> None:
        """Do nothing."""

    def submit(self, call: Callable[[], object]) -> None:
        """Call ``call``; in a new thread if that blocks while the pool is full."""
        if self._blocks:
            threading.Thread(target=call, name="zklock-slot", daemon=True).start()
        else:
            call()
