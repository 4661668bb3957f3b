"""Turns and slots: which request asks for a lock, which runs next, and what becomes of slots that no request needs."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from django_zklock.contrib.celery.gate.slots import SHORT
from django_zklock.contrib.celery.gate.states import Phase, Verdict
from django_zklock.zk.waiting import monotonic
from tests.unit.contrib.celery.gate.workplace import Workplace, put

pytestmark = pytest.mark.celery

# More than Python can nest.
MANY = 3000


@pytest.fixture(params=[None, 50], ids=["children_stay", "children_are_replaced"])
def workplace(request: pytest.FixtureRequest) -> Workplace:
    return Workplace(max_tasks_per_child=request.param)


def unlocked(workplace: Workplace, name: str) -> None:
    """Let a request without a lock wait for a slot."""

    def take() -> None:
        workplace.children._busy_workers.add(1)
        workplace.submitted.append(name)

    workplace.semaphore.acquire(take)


def decide(locked: Any) -> None:
    """Let ZooKeeper grant the lock."""
    locked.attempts.decided = True
    locked.step()


def wait_behind(locked: Any) -> None:
    """Let ZooKeeper answer that another contender is first."""
    locked.attempts.contender.answered = True
    locked.step()


def test_turn__keeps_the_slot_while_it_asks(workplace: Workplace) -> None:
    """A request asks for its lock when it has a slot, which no other request uses until there is an answer."""
    locked = workplace.waiting()
    unlocked(workplace, "behind")
    assert (locked.phase, locked.attempts.starts) == (Phase.QUEUED, 0)
    workplace.end_task()
    assert (locked.phase, locked.attempts.starts, workplace.submitted) == (Phase.JOINING, 1, [])
    decide(locked)
    assert (locked.phase, workplace.submitted, workplace.gate.slots.in_hand) == (Phase.SUBMITTED, ["id"], 0)
    workplace.end_task()
    assert workplace.submitted == ["id", "behind"]


def test_wait__has_no_slot(workplace: Workplace) -> None:
    """A request that has to wait leaves the slot to the next one, and takes the next slot when it is granted."""
    locked = workplace.waiting()
    for name in ("behind", "last"):
        unlocked(workplace, name)
    workplace.end_task()
    wait_behind(locked)
    assert (locked.phase, workplace.submitted) == (Phase.WAITING, ["behind"])
    decide(locked)
    assert (locked.phase, workplace.submitted) == (Phase.DECIDED, ["behind"])
    workplace.end_task()
    assert workplace.submitted == ["behind", "id"]
    workplace.end_task()
    workplace.end_task()
    assert workplace.submitted == ["behind", "id", "last"]
    assert (workplace.semaphore.value, workplace.gate.slots.in_hand) == (1, 0)


def test_granted__while_another_asks(workplace: Workplace) -> None:
    """A granted request does not wait for the answer to another one that keeps a slot while it asks for its lock."""
    locked = workplace.waiting()
    workplace.end_task()
    wait_behind(locked)
    asking = workplace.waiting("asking")
    assert (asking.phase, workplace.gate.slots.in_hand) == (Phase.JOINING, 1)
    decide(locked)
    assert (locked.phase, workplace.submitted, workplace.gate.slots.in_hand) == (Phase.SUBMITTED, ["id"], 0)
    # It is before all others nevertheless.
    unlocked(workplace, "behind")
    decide(asking)
    workplace.end_task()
    workplace.end_task()
    assert workplace.submitted == ["id", "asking", "behind"]
    assert (workplace.semaphore.value, workplace.gate.slots.in_hand) == (0, 0)


def test_granted__and_lost_before_its_slot(workplace: Workplace) -> None:
    """A lock that is lost while its request waits for a slot is acquired again, and the slot goes to the next one."""
    locked = workplace.waiting()
    workplace.end_task()
    wait_behind(locked)
    unlocked(workplace, "first")
    decide(locked)
    unlocked(workplace, "behind")
    locked.attempts.decided = False
    workplace.end_task()
    assert (locked.phase, locked.verdict, workplace.submitted) == (Phase.WAITING, Verdict.NONE, ["first", "behind"])
    decide(locked)
    workplace.end_task()
    assert workplace.submitted == ["first", "behind", "id"]


def test_granted__without_a_slot(workplace: Workplace) -> None:
    """When a granted lock was released because no slot was free, those that are granted after that are too, at once."""
    first, second = (workplace.request(name) for name in ("first", "second"))
    for locked in (first, second):
        locked.ask()
        wait_behind(locked)
    decide(first)
    first.moved -= 2
    decide(second)
    workplace.loop.turn()
    assert (first.verdict, second.verdict) == (Verdict.GRANTED, Verdict.IN_SLOT)
    first.check(first.moved + 2)
    workplace.loop.turn()
    third = workplace.request("third")
    third.ask()
    wait_behind(third)
    decide(third)
    workplace.loop.turn()
    assert (first.verdict, third.verdict) == (Verdict.IN_SLOT, Verdict.IN_SLOT)
    for _ in range(3):
        workplace.end_task()
    assert workplace.submitted == ["first", "second", "third"]


@pytest.fixture
def still(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no time pass: a busy machine takes long from one turn to the next."""
    now = monotonic()
    monkeypatch.setattr("django_zklock.contrib.celery.gate.slots.monotonic", lambda: now)


def run_short_ones(workplace: Workplace, tasks: list[Any]) -> None:
    """Let the first three have their turns one after the other: with one slot, that is often."""
    for number in range(3):
        workplace.end_task()
        decide(tasks[number])
    assert len(workplace.submitted) == 3


CHILDREN_STAY = pytest.mark.parametrize("workplace", [None], indirect=True)


@CHILDREN_STAY
@pytest.mark.usefixtures("still")
def test_ahead__while_slots_get_free_often(workplace: Workplace) -> None:
    """While bodies are short, the next requests ask for their locks before they have a slot, as many as there are."""
    tasks = [workplace.waiting(str(number)) for number in range(7)]
    run_short_ones(workplace, tasks)
    assert [task.phase for task in tasks[2:5]] == [Phase.SUBMITTED, Phase.JOINING, Phase.QUEUED]
    decide(tasks[3])
    # It holds its lock, and there is one slot: no other asks for one.
    assert [task.phase for task in tasks[3:5]] == [Phase.DECIDED, Phase.QUEUED]
    workplace.end_task()
    assert [task.phase for task in tasks[3:6]] == [Phase.SUBMITTED, Phase.JOINING, Phase.QUEUED]
    # Its turn comes before the answer, and the slot is kept for it.
    workplace.end_task()
    assert (tasks[4].phase, workplace.gate.slots.in_hand, workplace.submitted[3:]) == (Phase.JOINING, 1, ["3"])
    decide(tasks[4])
    assert workplace.submitted[3:] == ["3", "4"]


@pytest.mark.parametrize("workplace", [50], indirect=True)
@pytest.mark.usefixtures("still")
def test_ahead__not_before_a_child_has_started(workplace: Workplace) -> None:
    """In a pool that replaces its children no request asks for its lock before there is a slot for it."""
    tasks = [workplace.waiting(str(number)) for number in range(5)]
    run_short_ones(workplace, tasks)
    assert tasks[3].phase is Phase.QUEUED


@CHILDREN_STAY
def test_ahead__not_of_long_bodies(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """While bodies are long, a request does not ask for its lock before there is a slot for it."""
    tasks = [workplace.waiting(str(number)) for number in range(6)]
    now = monotonic()
    for number in range(4):
        now += SHORT
        monkeypatch.setattr("django_zklock.contrib.celery.gate.slots.monotonic", lambda now=now: now)
        workplace.end_task()
        decide(tasks[number])
    assert [task.phase for task in tasks] == [Phase.SUBMITTED] * 4 + [Phase.QUEUED] * 2


@CHILDREN_STAY
@pytest.mark.usefixtures("still")
def test_ahead__overtakes_nobody(workplace: Workplace) -> None:
    """A request that was granted ahead of its turn has the slot of its turn, after those before it."""
    tasks = [workplace.waiting(str(number)) for number in range(3)]
    unlocked(workplace, "before")
    locked = workplace.waiting("locked")
    workplace.semaphore.initial_value = 2
    run_short_ones(workplace, tasks)
    for _ in range(2):
        workplace.gate.slots._recent.append(monotonic())
    workplace.gate.slots.settle()
    assert locked.phase is Phase.JOINING
    decide(locked)
    assert (locked.phase, workplace.submitted[3:]) == (Phase.DECIDED, [])
    workplace.end_task()
    workplace.end_task()
    assert workplace.submitted[3:] == ["before", "locked"]


@CHILDREN_STAY
@pytest.mark.usefixtures("still")
def test_ahead__has_to_wait(workplace: Workplace) -> None:
    """A request that asks ahead of its turn and has to wait leaves its turn to the one behind it."""
    tasks = [workplace.waiting(str(number)) for number in range(5)]
    run_short_ones(workplace, tasks)
    wait_behind(tasks[3])
    assert tasks[3].phase is Phase.WAITING
    workplace.end_task()
    decide(tasks[4])
    assert workplace.submitted[3:] == ["4"]
    decide(tasks[3])
    workplace.end_task()
    assert workplace.submitted[3:] == ["4", "3"]


def test_joining__ends_meanwhile(workplace: Workplace) -> None:
    """The slot that was kept for a request which ends while it asks goes to the next one."""
    locked = workplace.waiting()
    unlocked(workplace, "behind")
    workplace.end_task()
    locked.over()
    workplace.loop.turn()
    assert (workplace.submitted, workplace.gate.slots.in_hand) == (["behind"], 0)


def test_silence__goes_to_its_slot(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A request that ZooKeeper does not answer for a while uses its slot without the lock."""
    locked = workplace.waiting()
    workplace.end_task()
    locked.step()
    assert locked.phase is Phase.JOINING
    locked.moved -= 2
    locked.step()
    assert (locked.phase, locked.verdict, workplace.submitted) == (Phase.SUBMITTED, Verdict.IN_SLOT, ["id"])
    assert locked.attempts.ends == 1


def test_reset__with_a_slot_in_hand(workplace: Workplace) -> None:
    """When Celery counts its slots anew, the gate gives none back that it had before."""
    locked = workplace.waiting()
    workplace.end_task()
    workplace.semaphore.clear()
    workplace.gate.slots.in_hand = 0
    assert locked.leave()
    workplace.loop.turn()
    assert (workplace.semaphore.value, workplace.gate.slots.in_hand) == (1, 0)


def test_slot__of_many_that_have_ended(workplace: Workplace) -> None:
    """Thousands of tasks that were revoked while they waited hand the slot on to the one behind them."""
    for _ in range(MANY):
        workplace.waiting().over()
    unlocked(workplace, "behind")
    workplace.end_task()
    assert (workplace.submitted, workplace.gate.counts["failed"]) == (["behind"], 0)
    workplace.end_task()
    assert workplace.semaphore.value == 1


def test_slot__of_many_whose_locks_were_lost(workplace: Workplace) -> None:
    """Thousands that had their locks, waited for a slot and lost their session hand it on as well."""
    for _ in range(MANY):
        locked = workplace.request()
        put(locked, Phase.DECIDED, Verdict.GRANTED)
        workplace.gate.slots.seek(locked)
        locked.step()
        assert locked.phase is Phase.WAITING
    unlocked(workplace, "behind")
    workplace.end_task()
    assert workplace.submitted == ["behind"]
    workplace.end_task()
    assert workplace.semaphore.value == 1


def fail(*_words: object, **_options: object) -> None:
    raise RecursionError


def test_slot__of_a_step_that_fails_when_the_log_fails(workplace: Workplace, monkeypatch: pytest.MonkeyPatch) -> None:
    """The slot and the lock of a request are free after an error in its step, even if the error cannot be logged."""
    locked, given_back = workplace.waiting(), []
    monkeypatch.setattr(type(workplace.gate), "give_back", lambda _gate, request, *_facts: given_back.append(request))
    monkeypatch.setattr("django_zklock.contrib.celery.gate.request.logger.exception", fail)
    workplace.end_task()
    monkeypatch.setattr(locked, "_is_decided", fail)
    with pytest.raises(RecursionError):
        locked.guarded(locked.step)
    workplace.loop.turn()
    assert (locked.phase, given_back, workplace.gate.slots.in_hand) == (Phase.OVER, [locked.request], 0)
    assert workplace.semaphore.value == 1


@pytest.mark.parametrize("where", ["the cell", "the pool"])
def test_slot__of_a_hand_over_that_fails(workplace: Workplace, monkeypatch: pytest.MonkeyPatch, where: str) -> None:
    """An error on the way into the pool costs no slot and no lock, and the broker has the message again."""
    locked, given_back = workplace.waiting(), []
    monkeypatch.setattr(type(workplace.gate), "give_back", lambda _gate, request, *_facts: given_back.append(request))
    unlocked(workplace, "behind")
    workplace.end_task()
    if where == "the cell":
        monkeypatch.setattr(locked, "_ticket", fail)
    else:
        monkeypatch.setattr(locked.request, "execute_using_pool", fail)
    decide(locked)
    workplace.loop.turn()
    assert (locked.phase, given_back, workplace.submitted) == (Phase.OVER, [locked.request], ["behind"])
    assert (workplace.gate.counts["failed"], workplace.gate.slots.in_hand) == (1, 0)


def test_slot__of_a_task_that_was_revoked(workplace: Workplace) -> None:
    """A task that turns out to be revoked on its turn leaves the slot to the next one."""
    locked = workplace.waiting()
    locked.request.revoked = lambda: True
    workplace.gate.slots.pool.acquire(partial(workplace.submitted.append, "behind"))
    workplace.end_task()
    assert (locked.phase, workplace.submitted) == (Phase.OVER, ["behind"])
