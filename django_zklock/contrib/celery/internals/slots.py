"""The slots of a worker's pool: how the gate takes them and gives them back."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from functools import partial
from itertools import islice
from typing import Any

from django_zklock.contrib.celery.internals.pool import is_prefork

logger = logging.getLogger("django_zklock.celery")

# Of the pool: what its children do.
_OF_CHILDREN = (
    "_all_inqueues", "_busy_workers", "outbound_buffer", "_processes", "_fileno_to_inq", "_on_ready_counters",
)  # fmt: skip


def slots_of(controller: Any, count_in_hand: Callable[[], int]) -> SemaphoreSlots | UncountedSlots:
    """Return the slots of the pool: those that Celery's semaphore counts, if it does."""
    counts = getattr(controller, "_process_task_sem", None)
    if counts is not None and controller.process_task == counts:
        return SemaphoreSlots(controller, count_in_hand)
    if is_prefork(controller.pool):
        return UncountedSlots(blocks=not controller.use_eventloop and bool(controller.pool_putlocks))
    return UncountedSlots(blocks=bool(controller.pool.is_green))


class SemaphoreSlots:
    """The slots of a prefork pool in a worker with an event loop, which Celery's semaphore counts.

    A pool that replaces its children after some tasks returns a slot twice: with the last result of a child, and when
    the child has ended. Celery would hand over more tasks than there are children, and the lock of such a task would be
    held while the task waits for the body of another one. So the semaphore counts the children there. One that has yet
    to start counts too: meanwhile the task asks for its lock. One that has done the last task of its limit does not
    count, and gets no other one.

    The pool returns a slot before it stores the result of the task that had it, and the request that gets the slot goes
    into the pool meanwhile. An error of that request would lose the result, its slot and all later results of the
    child: without a trace if it is an ``OSError`` or a ``KeyError``, which the pool takes for its own.

    Used in the gate's loop. ``count_in_hand`` returns how many slots the gate has.
    """

    def __init__(self, controller: Any, count_in_hand: Callable[[], int]) -> None:
        self._controller = controller
        self._count_in_hand = count_in_hand
        # Slots that were returned while one is being returned.
        self._unused = 0
        self._returns = False
        self._replaces_children = bool(controller.max_tasks_per_child or controller.max_memory_per_child)
        self._release = controller.semaphore.release
        controller.semaphore.release = self._hand_on
        if self._replaces_children:
            # A slot is not always returned when a child has no task any more, but the loop turns.
            controller.hub.on_tick.add(self._on_tick)

    @property
    def size(self) -> int:
        """How many requests may ask ahead of their turn: one for each slot, unless a slot may have to start a child."""
        return 0 if self._replaces_children else int(self._controller.semaphore.initial_value)

    def first(self, count: int) -> list[Callable[[], object]]:
        """Return the next calls that wait for a slot, at most ``count``."""
        return [call for call, *_arguments in islice(getattr(self._controller.semaphore, "_waiting", ()), count)]

    def acquire(self, call: Callable[[], object]) -> None:
        """Call ``call`` when a slot is free, after all requests that wait for one."""
        self._controller.semaphore.acquire(call)

    def acquire_next(self, call: Callable[[], object]) -> None:
        """Call ``call`` when a slot is free, before all other requests that wait for one."""
        semaphore = self._controller.semaphore
        waiting = getattr(semaphore, "_waiting", None)
        if semaphore.value > 0 or waiting is None:
            semaphore.acquire(call)
        else:
            waiting.appendleft((call, (), {}))

    def release(self) -> None:
        """Return a slot that was not used.

        The semaphore calls the next one that waits for it, which returns it in this call if its request has ended. Of
        many that were revoked together each call would be inside the one before, so a loop returns such slots.
        """
        self._unused += 1
        if self._returns:
            return
        self._returns = True
        try:
            while self._unused:
                self._unused -= 1
                self._controller.semaphore.release()
        finally:
            self._returns = False

    def submit(self, call: Callable[[], object]) -> None:
        """Call ``call``, which hands a task to the pool, and let a child have the task at once.

        The pool itself would write it at the next turn of the loop, and a turn costs as much as the gate's part in a
        task. Only where the loop runs: in the main thread.
        """
        call()
        hub, pool = self._controller.hub, self._controller.pool._pool  # noqa: SLF001
        try:
            write = hub.consolidate_callback
            idle = list(pool._all_inqueues - pool._busy_workers - pool._active_writes)  # noqa: SLF001
            to = idle[: len(pool.outbound_buffer)]
        except AttributeError:
            return
        if to and threading.current_thread() is threading.main_thread():
            try:
                write(to)
            except Exception as error:  # noqa: BLE001 - the loop's, which would have called it
                hub.call_soon(partial(_raise, error))

    @property
    def _knows_children(self) -> bool:
        pool = self._controller.pool._pool  # noqa: SLF001 - no other record of what a child does
        return pool is None or all(hasattr(pool, name) for name in _OF_CHILDREN)

    def _on_tick(self) -> None:
        if self._controller.semaphore._waiting and self._knows_children:  # noqa: SLF001
            self._adjust()

    def _hand_on(self) -> None:
        """Hand a slot that was returned on to the next request, whose errors are not those of the task before."""
        hub = self._controller.hub
        try:
            if self._replaces_children:
                self._adjust()
            else:
                self._release()
        except hub.propagate_errors as error:
            # The loop connects to the broker again when the result is stored.
            hub.call_soon(partial(_raise, error))
        except Exception:
            logger.exception("event=not_begun consequence=slot_lost")

    def _adjust(self) -> None:
        """Let the semaphore have a slot for each child without a task."""
        semaphore = self._controller.semaphore
        if not self._knows_children:
            self._release()
            return
        self._mark_ending()
        while semaphore._waiting and self._count_children() > 0:  # noqa: SLF001
            self._release()
        semaphore.value = self._count_children()

    def _mark_ending(self) -> None:
        """Let Celery write no task to a child that has done its last one and has not ended yet.

        A child that has used too much memory looks at that after its result; the worker cannot know it before.
        """
        pool, limit = self._controller.pool._pool, self._controller.max_tasks_per_child  # noqa: SLF001
        if pool is None or not limit:
            return
        for fd in pool._all_inqueues - pool._busy_workers:  # noqa: SLF001
            process = pool._fileno_to_inq.get(fd)  # noqa: SLF001
            counter = pool._on_ready_counters.get(process.pid) if process is not None else None  # noqa: SLF001
            if counter is not None and counter.value >= limit:
                pool._busy_workers.add(fd)  # noqa: SLF001

    def _count_children(self) -> int:
        """Return how many children have no task, or will have none when they have started."""
        pool = self._controller.pool._pool  # noqa: SLF001
        if pool is None:  # it has stopped
            return 0
        free = pool._processes - len(pool._busy_workers) - len(pool.outbound_buffer)  # noqa: SLF001
        return max(0, free - self._count_in_hand()) if free > 0 else 0


class UncountedSlots:
    """The slots of a pool that does not report free ones, as if there always were one: it has a queue, or it blocks."""

    # No request may ask ahead of its turn.
    size = 0

    def __init__(self, *, blocks: bool) -> None:
        self._blocks = blocks

    def first(self, _count: int) -> list[Callable[[], object]]:
        return []

    def acquire(self, call: Callable[[], object]) -> None:
        call()

    acquire_next = acquire

    def release(self) -> None: ...

    def submit(self, call: Callable[[], object]) -> None:
        """Call ``call``; in a new thread if that blocks while the pool is full."""
        if self._blocks:
            threading.Thread(target=call, name="zklock-slot", daemon=True).start()
        else:
            call()


def _raise(error: Exception) -> None:
    raise error
