"""The slots of the installed Celery's semaphore, and of a pool that replaces its children.

The records of the pool are checked with real workers, in ``test_gate_broker_cuts.py``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from django_zklock.contrib.celery.internals.slots import SemaphoreSlots

pytestmark = [pytest.mark.celery, pytest.mark.oldest]


class Controller:
    """A worker of two slots."""

    def __init__(self) -> None:
        self.semaphore = LaxBoundedSemaphore(2)
        self.max_tasks_per_child = self.max_memory_per_child = None
        self.soon: list[Callable[[], object]] = []
        self.hub = SimpleNamespace(propagate_errors=(ConnectionError,), call_soon=self.soon.append, on_tick=set())


def test_slots__next_is_before_all_that_wait() -> None:
    """A request with a granted lock gets the next slot, before earlier requests without a lock."""
    controller = Controller()
    used: list[str] = []
    slots = SemaphoreSlots(controller, lambda: 0)
    for name in ("first", "second", "third", "fourth"):
        slots.acquire(partial(used.append, name))
    slots.acquire_next(lambda: used.append("granted"))
    for _ in range(3):
        slots.release()
    assert used == ["first", "second", "granted", "third", "fourth"]
    assert controller.semaphore.value == 0


def test_slots__thousands_that_are_not_used() -> None:
    """Requests that have ended while they waited return their slots one after the other, not one inside the other."""
    controller = Controller()
    slots = SemaphoreSlots(controller, lambda: 0)
    used: list[str] = []
    for _ in range(2):
        slots.acquire(lambda: None)
    for _ in range(3 * sys.getrecursionlimit()):
        slots.acquire(slots.release)
    slots.acquire(partial(used.append, "last"))
    controller.semaphore.release()
    assert used == ["last"]
    controller.semaphore.release()
    assert controller.semaphore.value == 1


def test_slots__next_takes_a_free_one() -> None:
    """A free slot is used at once, and counted."""
    controller = Controller()
    used: list[str] = []
    SemaphoreSlots(controller, lambda: 0).acquire_next(lambda: used.append("granted"))
    assert used == ["granted"]
    assert controller.semaphore.value == 1


def test_slots__pool_without_records_of_its_children() -> None:
    """With a Celery that keeps other records, a pool that replaces its children gives its slots as without the gate."""
    controller: Any = Controller()
    controller.max_tasks_per_child = 1
    controller.pool = SimpleNamespace(_pool=object())
    used: list[str] = []
    slots = SemaphoreSlots(controller, lambda: 0)
    for name in ("first", "second", "third"):
        slots.acquire(partial(used.append, name))
    for call in controller.hub.on_tick:
        call()
    assert used == ["first", "second"]
    controller.semaphore.release()
    assert used == ["first", "second", "third"]


def test_submit__is_written_at_once() -> None:
    """A task that the gate hands to the pool is written to an idle child in the same turn of the loop."""
    controller: Any = Controller()
    written: list[list[int]] = []
    pool = SimpleNamespace(_all_inqueues={1, 2, 3}, _busy_workers={1}, _active_writes={2}, outbound_buffer=[])
    controller.pool, controller.hub.consolidate_callback = SimpleNamespace(_pool=pool), written.append
    slots = SemaphoreSlots(controller, lambda: 0)
    slots.submit(lambda: pool.outbound_buffer.append("job"))
    assert written == [[3]]
    # The loop gets the error of a child that has died, as if it had written itself.
    controller.hub.consolidate_callback = lambda _to: next(iter([]))
    slots.submit(lambda: None)
    (tell,) = controller.soon
    with pytest.raises(StopIteration):
        tell()


@pytest.mark.parametrize("tasks_per_child", [None, 50])
def test_slots__next_one_fails(tasks_per_child: int | None, caplog: pytest.LogCaptureFixture) -> None:
    """An error of the request that gets a slot is none of the task that had it, whose result is not stored yet."""
    controller: Any = Controller()
    controller.max_tasks_per_child, controller.pool = tasks_per_child, SimpleNamespace(_pool=object())
    slots = SemaphoreSlots(controller, lambda: 0)
    errors = [BrokenPipeError("the broker is gone"), KeyError("job")]

    def fail() -> None:
        raise errors.pop(0)

    for _ in range(2):
        slots.acquire(lambda: None)
    for _ in range(2):
        slots.acquire(fail)
    # As the pool does with a result.
    controller.semaphore.release()
    assert "event=not_begun" not in caplog.text
    controller.semaphore.release()
    assert "event=not_begun" in caplog.text
    # Celery's loop is told of the lost connection afterwards.
    (tell,) = controller.soon
    with pytest.raises(BrokenPipeError):
        tell()
