"""Turns and slots: who asks for a lock, who runs next, and what becomes of slots that nobody needs."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from django_zklock.contrib.celery.gate.request import Phase, Verdict
from tests.unit.contrib.celery.gate.workplace import Workplace

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
    """A request asks for its lock when it has a slot, which nobody else uses until there is an answer."""
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
        locked.on_turn()
        wait_behind(locked)
    decide(first)
    first.moved -= 2
    decide(second)
    workplace.loop.turn()
    assert (first.verdict, second.verdict) == (Verdict.GRANTED, Verdict.IN_SLOT)
    first.check(first.moved + 2)
    workplace.loop.turn()
    third = workplace.request("third")
    third.on_turn()
    wait_behind(third)
    decide(third)
    workplace.loop.turn()
    assert (first.verdict, third.verdict) == (Verdict.IN_SLOT, Verdict.IN_SLOT)
    for _ in range(3):
        workplace.end_task()
    assert workplace.submitted == ["first", "second", "third"]


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
    workplace.gate.slots.reset()
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
        locked.attempts.start()
        locked._move(Phase.DECIDED, Verdict.GRANTED)
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
    monkeypatch.setattr(locked.attempts, "is_decided", fail)
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
        monkeypatch.setattr(workplace.gate, "scoreboard", None)
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
    workplace.gate.slots._pool.acquire(partial(workplace.submitted.append, "behind"))
    workplace.end_task()
    assert (locked.phase, workplace.submitted) == (Phase.OVER, ["behind"])
