"""The end of a run: its child is killed, or Celery drops it."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
from celery.worker import state as celery_state

from django_zklock import signals
from django_zklock.contrib.celery.gate.child_note import DELAY
from django_zklock.contrib.celery.gate.scoreboard import Cell, ParentCell, Scoreboard
from django_zklock.contrib.celery.gate.task_run import TaskRun
from django_zklock.contrib.celery.gate.worker import Stage
from django_zklock.exceptions import LockTimeout
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


def running(pid: int | None) -> tuple[Any, Cell]:
    """Return a run that the pool has, and its cell of the scoreboard as its child sees it."""
    scoreboard = Scoreboard()
    contender: Any = Contender()
    cell = ParentCell.open(scoreboard, 7, contender)
    assert cell is not None
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
        worker=worker, stage=Stage.RUNNING, pid=pid, hold_id=7, lock=lock, attempts=SimpleNamespace(end=lambda: None),
        request=SimpleNamespace(id="id", task=SimpleNamespace(name="bill")), _changing=threading.RLock(), _requests={},
        _cell=cell, _slot_generation=None, _acquires_in_slot=False, _claimed=False,
        _released=False, _dropped=False, _ended_child=False,
    )  # fmt: skip
    worker.child_watcher.run = run
    return run, Cell(scoreboard, cell.number, 7)


def test_lost__kills_no_later_task() -> None:
    """A child is killed only while the run has not ended, even if its result comes at that moment."""
    run, in_child = running(71)
    assert in_child.claim(71)
    run._end_child()
    assert run.worker.child_watcher.killed == [(71, Stage.RUNNING)]
    run.worker.child_watcher.finishing.join()
    run._end_child()
    assert len(run.worker.child_watcher.killed) == 1


def noted(
    pid: int | None, *, ran: float, is_known: bool = True, forks: bool = True
) -> tuple[Any, list[dict[str, Any]]]:
    """Return a run whose lock was granted, and what is written about it ``ran`` seconds after its last step."""
    run, _in_child = running(pid)
    written: list[dict[str, Any]] = []

    def write(_contender: Any, *, now: float, **facts: Any) -> None:
        run._child_note.facts = facts
        written.append(facts)

    if not forks:
        run.worker.child_watcher = None
    request = run.request
    celery_state.requests.pop("id", None)
    if is_known:
        celery_state.requests["id"] = request
    run.attempts.current = SimpleNamespace(granted=True, contender=None)
    run.attempts.refusal = None
    run._child_note = SimpleNamespace(facts={}, write=write)
    run._granted_at, run._moved = 1234.5, 0.0
    try:
        run.note(ran)
    finally:
        celery_state.requests.pop("id", None)
    return run, written


@pytest.mark.parametrize(("pid", "child"), [(71, 71), (None, 0)])
def test_note__after_a_while(pid: int | None, child: int) -> None:
    """The nodes name the child of a task that has run for a while, and say so if it has waited for a slot as long."""
    assert noted(pid, ran=DELAY - 1)[1] == []
    assert noted(pid, ran=DELAY + 1)[1] == [{"child": child, "granted": 1234.5, "forgotten": False}]


def test_note__forgotten() -> None:
    """A task that Celery has forgotten is written at once, for its worker cannot end it any more."""
    _run, written = noted(71, ran=0.1, is_known=False)
    assert written == [{"child": 71, "granted": 1234.5, "forgotten": True}]


@pytest.mark.parametrize("forks", [True, False])
def test_note__slot_after_a_wait(forks: bool) -> None:
    """When a task whose nodes say that it has no slot has got one, the nodes say so at once, without a child too."""
    run, written = noted(None, ran=DELAY + 1, forks=forks)
    run.pid, run._moved = 71, DELAY + 1
    celery_state.requests["id"] = run.request
    try:
        run.note(DELAY + 1.1)
    finally:
        celery_state.requests.pop("id", None)
    assert written[-1]["child"] == (71 if forks else None)


def test_note__threads() -> None:
    """Nothing is written about a task in a thread, which has no process of its own."""
    assert noted(71, ran=DELAY + 1, forks=False)[1] == []


def test_state() -> None:
    """A request is shown in the words of the command."""
    run, _in_child = running(None)
    run.attempts.current, run.attempts.refusal = SimpleNamespace(), None
    found = [run.state]
    run.pid = 71
    found.append(run.state)
    run.attempts.refusal = LockTimeout("taken")
    found.append(run.state)
    run._released = True
    found.append(run.state)
    for stage in (Stage.PARKED, Stage.QUEUED, Stage.JOINING):
        run.stage = stage
        found.append(run.state)
    assert found == ["granted", "held", "refused", "running", "waiting", "queued", "queued"]


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
