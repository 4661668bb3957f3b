"""The slots of Celery's pool, as the gate gives them to its requests."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from django_zklock.contrib.celery.gate.run import GateRequest
from django_zklock.contrib.celery.gate.scoreboard import MAX_CELLS
from django_zklock.contrib.celery.gate.states import Phase
from django_zklock.contrib.celery.internals.slots import slots_of
from django_zklock.zk.waiting import monotonic

# Requests ask ahead of their turn if each slot, on average, got free twice in as many seconds.
SHORT = 0.2


class Slots:
    """The slots of Celery's pool: which request has its turn to ask for its lock, and which one runs next.

    Each request waits for its turn in the same line as Celery's requests without a lock, so neither overtakes the
    other. A turn comes with a slot, which is kept while the request asks for its lock, and goes back to Celery when the
    request has to wait. A request whose lock is decided takes the next slot, before all others.

    A slot that waits for ZooKeeper's answer does nothing, which counts where bodies take no longer. So while slots get
    free often, the next requests of the line ask for their locks ahead of their turn, as many as the pool has slots.

    Used in the gate's loop. ``in_hand`` slots are the gate's, and no request's. A request may be in the line of the
    pool when it wants no slot any more.
    """

    def __init__(self, controller: Any, decided: Mapping[int, GateRequest], start_checks: Callable[[], object]) -> None:
        self.in_hand = 0
        # Those that are DECIDED, by `hold_id`, in that order.
        self._decided = decided
        self._start_checks = start_checks
        self.pool = slots_of(controller, lambda: self.in_hand)
        # Those that have had their turn, and for which a slot is kept while they are JOINING.
        self._asking: list[GateRequest] = []
        # When the last turns came that were of use (monotonic clock).
        self._recent: deque[float] = deque(maxlen=2 * MAX_CELLS + 1)

    def queue(self, request: GateRequest) -> None:
        """Let ``request`` have its turn after all that wait for a slot."""
        self.pool.acquire(partial(self._on_turn, request))
        self._ask_ahead()
        self._start_checks()

    def _on_turn(self, request: GateRequest) -> None:
        self.in_hand += 1
        if request.phase in {Phase.QUEUED, Phase.JOINING, Phase.DECIDED}:
            self._recent.append(monotonic())
        request.is_ahead = False
        request.guarded(request.ask)
        self._asking.append(request)
        self.settle()

    def seek(self, request: GateRequest) -> None:
        """Let ``request``, which is DECIDED, have the next slot, before all that wait for their turn."""
        self.settle()
        # One that was granted at once, ahead of its turn, overtakes no other.
        if request.hold_id in self._decided and not request.is_ahead:
            self.pool.acquire_next(self.on_slot)

    def on_slot(self) -> None:
        """Use a slot that has come, or that the pool did not use after all."""
        self.in_hand += 1
        self.settle()

    def submit(self, call: Callable[[], object]) -> None:
        """Let ``call`` use a slot that the gate has: it hands a request over to the pool."""
        self.in_hand -= 1
        self.pool.submit(call)

    def settle(self) -> None:
        """Use the slots that the gate has: first for requests that are decided, and hold their locks without one."""
        while self.in_hand:
            self._asking = [request for request in self._asking if request.phase is Phase.JOINING]
            all_are_kept = self.in_hand <= len(self._asking)
            ready = (each for each in self._decided.values() if not all_are_kept or not each.is_ahead)
            if (decided := next(ready, None)) is not None:
                decided.guarded(decided.submit)
            elif all_are_kept:
                break
            else:
                self.in_hand -= 1
                self.pool.release()
        self._ask_ahead()

    def _ask_ahead(self) -> None:
        """Let the next requests of the line ask for their locks, if they will have a slot soon."""
        size, recent = self.pool.size, self._recent
        if not size or len(recent) <= 2 * size or recent[-2 * size - 1] < monotonic() - SHORT:
            return
        for call in self.pool.first(size):
            # Others are Celery's.
            request = call.args[0] if isinstance(call, partial) and call.func == self._on_turn else None
            if request is not None and request.phase is Phase.QUEUED:
                request.is_ahead = True
                request.guarded(request.ask)
