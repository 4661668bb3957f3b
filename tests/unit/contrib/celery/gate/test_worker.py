"""What requests leave behind that end while they wait: their slots, and their deadlines."""

from __future__ import annotations

import threading
from collections import Counter
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest
from kombu.asynchronous.semaphore import LaxBoundedSemaphore

from django_zklock.contrib.celery.gate.celery_internals import SemaphoreSlots
from django_zklock.contrib.celery.gate.gate import Gate
from django_zklock.contrib.celery.gate.loop import Loop
from django_zklock.contrib.celery.gate.request import LockedRequest
from django_zklock.contrib.celery.gate.worker import Stage

pytestmark = pytest.mark.celery

# More than Python can nest.
MANY = 3000


class TurnedLoop(Loop):
    """A loop that turns when the test says so."""

    def _wake(self) -> None: ...

    def turn(self) -> None:
        self._run_all()


class Workplace:
    """A worker with one slot, which a task uses; its gate, and what Celery knows of its pool."""

    def __init__(self, max_tasks_per_child: int | None) -> None:
        self.children = SimpleNamespace(
            _all_inqueues={1}, _busy_workers={1}, outbound_buffer=[], _processes=1,
            _fileno_to_inq={1: SimpleNamespace(pid=71)}, _on_ready_counters={},
        )  # fmt: skip
        controller = SimpleNamespace(
            semaphore=LaxBoundedSemaphore(1), hub=SimpleNamespace(on_tick=set()),
            pool=SimpleNamespace(_pool=self.children),
            max_tasks_per_child=max_tasks_per_child, max_memory_per_child=None,
        )  # fmt: skip
        self.semaphore = controller.semaphore
        self.semaphore.acquire(lambda: None)
        self.loop = TurnedLoop()
        self.gate: Any = Gate.__new__(Gate)
        vars(self.gate).update(loop=self.loop, generation=0, requests={}, _next={}, counts=Counter())
        self.gate.slots = SemaphoreSlots(controller, self.gate.count_in_hand)
        self.taken: list[str] = []

    def take(self, name: str) -> None:
        self.children._busy_workers.add(1)
        self.taken.append(name)

    def end_task(self) -> None:
        """Let the task end that uses the slot."""
        self.children._busy_workers.clear()
        self.semaphore.release()
        self.loop.turn()


@pytest.fixture(params=[None, 50], ids=["children_stay", "children_are_replaced"])
def workplace(request: pytest.FixtureRequest) -> Workplace:
    return Workplace(request.param)


def waiting(workplace: Workplace, stage: Stage) -> Any:
    """Return a request that waits for a slot."""
    locked: Any = LockedRequest.__new__(LockedRequest)
    vars(locked).update(
        worker=workplace.gate, stage=stage, request=SimpleNamespace(id="id"), _changing=threading.RLock(),
        _awaits_slot=False, _acquires_in_slot=False, _slot_generation=None,
    )  # fmt: skip
    locked.enter()
    return locked


def test_slot__of_many_that_have_ended(workplace: Workplace) -> None:
    """Thousands of tasks that were revoked while they waited hand the slot on to the one behind them."""
    for _ in range(MANY):
        waiting(workplace, Stage.OVER)
    workplace.gate.slots.acquire(partial(workplace.take, "behind"))
    workplace.end_task()
    assert (workplace.taken, workplace.gate.counts["failed"]) == (["behind"], 0)
    workplace.end_task()
    assert workplace.semaphore.value == 1


def test_slot__of_many_whose_locks_were_lost(workplace: Workplace) -> None:
    """Thousands that had their locks, waited for a slot and lost their session hand it on as well."""
    for hold_id in range(MANY):
        workplace.gate.acquire_next(hold_id, lambda: None, lambda: False)
    for hold_id in range(MANY):
        workplace.gate.leave_next(hold_id)
    workplace.gate.slots.acquire(partial(workplace.take, "behind"))
    workplace.end_task()
    assert workplace.taken == ["behind"]
    workplace.end_task()
    assert workplace.semaphore.value == 1


def test_slot__of_a_step_that_fails_when_the_log_fails(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot and the lock of a request are free after an error in its step, even if the error cannot be logged."""
    locked, given_back = waiting(workplace, Stage.QUEUED), []
    monkeypatch.setattr(locked, "finish", lambda: vars(locked).update(stage=Stage.OVER))
    monkeypatch.setattr(locked, "_give_back", lambda: given_back.append(locked))

    def fail(*_words: object, **_options: object) -> None:
        raise RecursionError

    monkeypatch.setattr("django_zklock.contrib.celery.gate.task_run.logger.exception", fail)
    with pytest.raises(RecursionError):
        locked.run(fail)
    workplace.loop.turn()
    assert (locked.stage, given_back) == (Stage.OVER, [locked])


def test_deadline__of_a_message_that_comes_back(workplace: Workplace) -> None:
    """A task that the broker delivers again after a cut waits until the deadline of its first delivery."""
    message: Any = SimpleNamespace(id="id", message=SimpleNamespace(headers={}))
    workplace.gate.deadlines = {}
    locked = waiting(workplace, Stage.PARKED)
    vars(locked).update(attempt_id=("id", 0), attempts=SimpleNamespace(deadline=1234.5))
    locked.finish = lambda: vars(locked).update(stage=Stage.OVER)
    assert locked.leave()
    read = [workplace.gate.read_deadline(message, ("id", 0)) for _ in range(2)]
    assert (locked.stage, read) == (Stage.OVER, [1234.5, None])


def test_deadline__of_a_task_that_runs(workplace: Workplace) -> None:
    """A task that runs when the broker is cut keeps its lock."""
    workplace.gate.deadlines = {}
    locked = waiting(workplace, Stage.RUNNING)
    vars(locked).update(attempt_id=("id", 0), attempts=SimpleNamespace(deadline=1234.5))
    assert locked.leave()
    assert (locked.stage, workplace.gate.deadlines) == (Stage.RUNNING, {})


def test_followed__beside_requests_without_a_node(workplace: Workplace) -> None:
    """Requests whose session has just ended do not matter to who waits behind a request; nor do those for several."""
    asked: list[set[str]] = []
    for hold_id, nodes in enumerate([{}, {"/k": "/k/1"}, {"/k": "/k/2", "/l": "/l/1"}]):
        other = waiting(workplace, Stage.PARKED)
        contender = SimpleNamespace(node_paths=nodes)
        vars(other).update(attempts=SimpleNamespace(current=SimpleNamespace(contender=contender)))
        workplace.gate.requests[hold_id] = other
    locked = waiting(workplace, Stage.READY)
    vars(locked).update(
        attempts=SimpleNamespace(if_followed=lambda ours, _call: asked.append(ours)),
        _requests=workplace.gate.requests,
    )
    locked._if_followed(lambda: None)
    assert asked == [{"/k/1"}]
