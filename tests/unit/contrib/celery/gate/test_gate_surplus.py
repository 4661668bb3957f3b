"""Tasks that wait for a slot while their worker has none: which of them go back to the broker, and when."""

from __future__ import annotations

import math
from typing import Any

import pytest

from django_zklock.contrib.celery.gate.run import MAX_READY
from django_zklock.contrib.celery.gate.states import Phase, Verdict
from django_zklock.contrib.celery.internals import messages
from django_zklock.contrib.celery.internals import worker as celery_worker
from django_zklock.zk.waiting import monotonic
from tests.unit.contrib.celery.gate.workplace import Workplace, put

# Of Celery's own window.
KEPT = 2


class Full(Workplace):
    """A worker whose slots are all in use, and what it gives back."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, kept: int = KEPT, forks: bool = True) -> None:
        super().__init__(forks=forks)
        self.gate.consumer.initial_prefetch_count = kept
        self.given_back: list[str] = []
        monkeypatch.setattr(messages, "is_better_published", lambda *_: False)
        monkeypatch.setattr(messages, "give_back", lambda request: self.given_back.append(request.id))

    def put(self, name: str, phase: Phase, verdict: Verdict, *, key: str | None = None, **facts: Any) -> Any:
        """Add a request with a key of its own that has come to ``phase`` a while ago, after another contender."""
        locked = self.request(name)
        locked.lock.keys = (key or name,)
        locked.contended = True
        put(locked, phase, verdict)
        locked.attempts.decided = verdict is not Verdict.NONE
        locked.moved = monotonic() - MAX_READY - 1.0 + len(self.gate.requests) / 1000
        vars(locked).update(facts)
        return locked

    def check(self) -> list[str]:
        """Check once, and return what has gone back so far."""
        self.gate._check()
        self.loop.turn()
        return self.given_back


@pytest.mark.shows("faults#one-worker-has-the-locks-of-many-tasks-and-no-slots-for-them")
def test_surplus__goes_back_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind as many as Celery would keep, what was granted is released, and goes back in the order of its arrival."""
    worker = Full(monkeypatch)
    requests = [worker.put(f"r{number}", Phase.DECIDED, Verdict.GRANTED, key="site") for number in range(5)]
    assert worker.check() == ["r2", "r3", "r4"]
    assert [each.phase for each in requests] == [Phase.DECIDED] * 2 + [Phase.OVER] * 3
    assert [each.attempts.ends for each in requests[KEPT:]] == [1, 1, 1]
    assert worker.check() == ["r2", "r3", "r4"]


def test_surplus__first_granted_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """Those that were granted first stay, whatever the order of their arrival."""
    worker = Full(monkeypatch)
    for number in range(4):
        worker.put(f"r{number}", Phase.DECIDED, Verdict.GRANTED, key="site", moved=monotonic() - 10.0 - number)
    assert worker.check() == ["r0", "r1"]


@pytest.mark.parametrize(
    "facts",
    [{"moved": math.inf}, {"contended": False}, {"verdict": Verdict.REFUSED}],
    ids=["not for long", "has not waited", "refused"],
)
def test_surplus__stays(monkeypatch: pytest.MonkeyPatch, facts: dict[str, Any]) -> None:
    """A task that has just been granted stays, one that is in Celery's own window, and one that was refused."""
    worker = Full(monkeypatch)
    for number in range(KEPT):
        worker.put(f"r{number}", Phase.DECIDED, Verdict.GRANTED)
    worker.put("last", Phase.DECIDED, facts.pop("verdict", Verdict.GRANTED), **facts)
    assert worker.check() == []


def test_surplus__lock_was_released(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task whose lock was released for want of a slot goes back too: another worker may have a slot for it."""
    worker = Full(monkeypatch)
    for number in range(3):
        worker.put(f"r{number}", Phase.DECIDED, Verdict.IN_SLOT)
    assert worker.check() == ["r2"]


@pytest.mark.shows("faults#one-worker-has-the-locks-of-many-tasks-and-no-slots-for-them")
def test_surplus__followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits behind a task that goes back, for the same lock, goes back after it; other locks do not matter."""
    worker = Full(monkeypatch)
    for number in range(KEPT):
        worker.put(f"r{number}", Phase.DECIDED, Verdict.GRANTED)
    worker.put("before", Phase.WAITING, Verdict.NONE, key="k")
    worker.put("granted", Phase.DECIDED, Verdict.GRANTED, key="k")
    worker.put("waiting", Phase.WAITING, Verdict.NONE, key="k")
    worker.put("other", Phase.WAITING, Verdict.NONE)
    worker.put("queued", Phase.QUEUED, Verdict.NONE, key="k")
    assert worker.check() == ["granted", "waiting", "queued"]


def test_surplus__no_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A worker that may keep any number of messages keeps them all."""
    worker = Full(monkeypatch, kept=0)
    for number in range(5):
        worker.put(f"r{number}", Phase.DECIDED, Verdict.GRANTED)
    assert worker.check() == []


def test_surplus__in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """What waits in the queue of a pool of threads goes back; a thread that comes to it later does not run it."""
    worker = Full(monkeypatch, forks=False)
    begun: list[str] = []
    forgotten: list[str] = []
    monkeypatch.setattr(celery_worker, "count_as_ended", lambda request: forgotten.append(request.id))
    requests = [worker.put(f"r{number}", Phase.SUBMITTED, Verdict.GRANTED) for number in range(4)]
    for each in requests:
        each._callbacks["on_accepted"] = lambda _pid, _when, each=each: begun.append(each.request.id)
    accepts = [each.request.on_accepted for each in requests]
    # A thread has it already, and it is not yet at its body.
    accepts[3](1, monotonic())
    assert worker.check() == ["r2"]
    with pytest.raises(BaseException, match="not to run"):
        accepts[2](1, monotonic())
    assert begun == ["r3"]
