"""The end of a run: its child is killed, or Celery drops it."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from django_zklock import signals
from django_zklock.contrib.celery.gate.scoreboard import ParentSlot, Scoreboard, ScoreboardSlot
from django_zklock.contrib.celery.gate.task_run import TaskRun
from django_zklock.contrib.celery.gate.worker import Stage
from django_zklock.zk.rules import EXCLUSIVE
from tests.unit.contrib.celery.gate.test_scoreboard import Contender

pytestmark = pytest.mark.celery


class Timers:
    """Keeps the calls, which the test makes."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []

    def call_later(self, _delay: float, call: Callable[[], object]) -> None:
        self.calls.append(call)


class Watcher:
    """Records which children are killed, and at which stage of the run."""

    def __init__(self) -> None:
        self.killed: list[tuple[int, Stage]] = []
        self.run: Any = None
        self.finishing: threading.Thread | None = None

    def kill(self, pid: int) -> None:
        # The result comes now: Celery will give the child its next task when this run is finished.
        self.finishing = threading.Thread(target=self.run.finish)
        self.finishing.start()
        self.finishing.join(0.2)
        self.killed.append((pid, self.run.stage))

    def add(self, *_facts: Any) -> None: ...

    def discard(self, *_facts: Any) -> None: ...


def running(pid: int | None) -> tuple[Any, ScoreboardSlot]:
    """Return a run that the pool has, and its slot of the scoreboard as its child sees it."""
    scoreboard = Scoreboard()
    slot = ParentSlot.open(scoreboard, 7, Contender())  # type: ignore[arg-type]
    assert slot is not None
    worker = SimpleNamespace(
        child_watcher=Watcher(),
        scoreboard=scoreboard,
        loop=SimpleNamespace(timers=Timers(), post=lambda call: None),
        counts=Counter(),
        sends_events=False,
        set_parked=lambda *args, **options: None,
    )
    lock = SimpleNamespace(key="k", template="{key}", pool=SimpleNamespace(name="default"), rule=EXCLUSIVE)
    run: Any = TaskRun.__new__(TaskRun)
    vars(run).update(
        worker=worker, stage=Stage.RUNNING, pid=pid, nonce=7, lock=lock, attempts=SimpleNamespace(end=lambda: None),
        request=SimpleNamespace(id="id", task=SimpleNamespace(name="bill")), _changing=threading.RLock(), _requests={},
        _slot=slot, _slot_generation=None, _acquires_in_slot=False, _claimed=False, _withdrawing=False,
        _released=False, _dropped=False, _ended_child=False,
    )  # fmt: skip
    worker.child_watcher.run = run
    return run, ScoreboardSlot(scoreboard, slot.number, 7)


def test_lost__kills_no_later_task() -> None:
    """A child is killed only while the run has not ended, even if its result comes at that moment."""
    run, in_child = running(71)
    assert in_child.claim(71)
    run._end_child()
    assert run.worker.child_watcher.killed == [(71, Stage.RUNNING)]
    run.worker.child_watcher.finishing.join()
    run._end_child()
    assert len(run.worker.child_watcher.killed) == 1


@pytest.mark.parametrize("soft", [True, False])
def test_timeout__child_still_runs(soft: bool) -> None:
    """At a time limit the lock stays held until the child has ended: Celery kills it after this call."""
    run, _in_child = running(71)
    run._callbacks = {"on_timeout": lambda *_facts: None}
    run._on_timeout(soft, 1.0)
    stages = [run.stage]
    run._on_child_end()
    assert [*stages, run.stage] == [Stage.RUNNING, Stage.OVER]


@pytest.mark.parametrize("body_runs", [False, True])
def test_drop__is_reported_if_the_lock_is_released(caplog: pytest.LogCaptureFixture, body_runs: bool) -> None:
    """A task that Celery drops is reported when its lock is released, and not if its body runs under the lock."""
    dropped: list[Any] = []

    def note(**facts: Any) -> None:
        dropped.append(facts["id"])

    run, in_child = running(None)
    signals.dropped.connect(note)
    try:
        with caplog.at_level(logging.WARNING, "django_zklock.celery"):
            if body_runs:
                assert in_child.claim(71)
            run._drop()
            for call in run.worker.loop.timers.calls:
                call()
    finally:
        signals.dropped.disconnect(note)
    reports = [record for record in caplog.messages if record.startswith("event=dropped")]
    assert (len(reports), run.worker.counts["reconciled"], len(dropped)) == ((0,) * 3 if body_runs else (1,) * 3)
    assert run.stage is (Stage.RUNNING if body_runs else Stage.OVER)
