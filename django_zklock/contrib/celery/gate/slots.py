"""The slots of a worker's pool: a request may use one to acquire its lock, and needs one to run its task."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from django_zklock.contrib.celery.gate import celery_internals
from django_zklock.contrib.celery.gate.loop import Loop

# Poll interval in seconds where the pool does not report a free slot.
POLL_INTERVAL = 0.05
# Seconds after which a request goes to the pool's own queue, which is fair to requests without a lock.
MAX_POLLING = 1.0


class CountedSlots:
    """The slots of a pool without a semaphore: it has a queue of its own, or blocks when it is full.

    It has the methods of :class:`~.celery_internals.SemaphoreSlots`.
    """

    def __init__(self, controller: Any, loop: Loop, count_waiting: Callable[[], int]) -> None:
        self._controller = controller
        self._loop = loop
        # Reserved requests that wait at the gate without a slot.
        self._count_waiting = count_waiting
        self._waiting: deque[tuple[float, Callable[[], object]]] = deque()
        self._blocks = celery_internals.blocks_when_full(controller)
        self._polls = False

    def acquire(self, call: Callable[[], object]) -> None:
        """Call ``call`` when a task could begin, or after ``MAX_POLLING`` seconds."""
        self._waiting.append((time.monotonic() + MAX_POLLING, call))
        self._fill()

    def acquire_next(self, call: Callable[[], object]) -> None:
        """Call ``call`` now, for the pool's queue; if the pool blocks, when a task could begin."""
        if self._blocks:
            self._waiting.appendleft((time.monotonic() + MAX_POLLING, call))
            self._fill()
        else:
            call()

    def release(self) -> None:
        """Return a slot that was not used."""
        self._loop.post(self._fill)

    def submit(self, call: Callable[[], object]) -> None:
        """Call ``call``; in a new thread if the pool is full and blocks then."""
        if self._blocks and self._count_free() < 0:
            threading.Thread(target=call, name="zklock-slot", daemon=True).start()
        else:
            call()

    def _count_free(self) -> int:
        return celery_internals.count_free(self._controller.pool, self._count_waiting())

    def clear(self) -> None:
        """Drop all calls that wait for a slot."""
        self._waiting.clear()

    def _fill(self) -> None:
        while self._waiting:
            until, call = self._waiting[0]
            if self._count_free() <= 0 and time.monotonic() < until:
                break
            self._waiting.popleft()
            call()
        if self._waiting and not self._polls:
            self._polls = True
            self._loop.call_later(POLL_INTERVAL, self._poll)

    def _poll(self) -> None:
        self._polls = False
        self._fill()
