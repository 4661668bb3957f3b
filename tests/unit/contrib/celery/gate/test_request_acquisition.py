"""The attempts of a task at the gate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from django_zklock.contrib.celery import headers
from django_zklock.contrib.celery.gate import attempt as attempt_module
from django_zklock.contrib.celery.gate.acquisition import GateAcquisition
from django_zklock.contrib.celery.gate.run import GateRequest
from django_zklock.zk.contender import State
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.waiting import RETRY_INTERVAL, monotonic
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.timing import GRACE, wait_until
from tests.unit.session_shortage import ERRORS, Shortage

from .workplace import Workplace

pytestmark = pytest.mark.celery

# Seconds by which a busy machine may be late.
LATE = GRACE


def test_grant__while_the_gate_looks(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A grant that comes while the gate looks is found, at this look or at the next one."""
    held = Lock("k", pool).acquire()
    changed = threading.Event()
    attempt = GateAcquisition(Lock("k", pool), None, changed.set, wants_holder=True)
    attempt.start()
    contender = attempt.contender
    wait_until(lambda: contender.state is State.WAITING)
    look: Callable[[GateAcquisition], bool] = vars(GateAcquisition)["granted"].fget

    def look_and_wait(acquisition: GateAcquisition) -> bool:
        found = look(acquisition)
        if not found and not held.released:
            held.release()
            until = time.monotonic() + 0.5
            while contender.state is not State.HELD and time.monotonic() < until:
                changed.wait(0.01)
        return found

    monkeypatch.setattr(GateAcquisition, "granted", property(look_and_wait))
    # The first look of a step, and the second one.
    if not attempt.granted:
        attempt.poll()
    wait_until(attempt.poll)
    # The grant is for a child, and not for this thread.
    assert attempt.held() is None
    attempt.end()


@pytest.mark.parametrize("timeout", [None, 0])
def test_unanswered__without_a_deadline(pool: Pool, timeout: float | None) -> None:
    """An attempt that waits for ever, or tries once, leaves it to its request how long ZooKeeper may not answer."""
    acquisition = GateAcquisition(Lock("k", pool), timeout, lambda: None, wants_holder=True)
    assert acquisition.next_wakeup() is None


@pytest.mark.parametrize("error", ERRORS)
def test_shortage(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    """Without what a session needs an attempt is one without an answer; it looks again soon, and gets its lock."""
    shortage = Shortage(error, monkeypatch)
    attempt = GateAcquisition(Lock("k", make_pool()), None, lambda: None, wants_holder=True)
    attempt.start()
    assert not attempt.poll()
    wakeup = attempt.next_wakeup()
    assert wakeup is not None
    assert wakeup <= RETRY_INTERVAL
    shortage.over = True
    wait_until(attempt.poll)
    attempt.end()


# The timeout of a task, over several deliveries.


class Attempt:
    """An attempt that is asked for, with its timeout."""

    is_waiting = False

    def __init__(self, _lock: object, timeout: float | None, *_more: object, **_facts: object) -> None:
        self.timeout = timeout

    def start(self) -> None: ...


def ask(monkeypatch: pytest.MonkeyPatch, *, left: float | None, timeout: float | None = 30.0) -> Any:
    """Return a request whose message says what is left of its timeout, and that has asked for its lock."""
    monkeypatch.setattr(attempt_module, "GateAcquisition", Attempt)
    locked = Workplace().request(
        timeout=timeout, headers=headers.with_rest("id", 0, left) if left is not None else None
    )
    GateRequest._start_attempt(locked)
    return locked


@pytest.mark.parametrize("ahead", [-3600.0, 0.0, 3600.0])
def test_timeout__what_is_left(monkeypatch: pytest.MonkeyPatch, ahead: float) -> None:
    """A task waits for the rest of its timeout, whatever the clock says, and what it has waited is known."""
    true_time = time.time
    monkeypatch.setattr(headers, "time", SimpleNamespace(time=lambda: true_time() + ahead))
    before = monotonic()
    locked = ask(monkeypatch, left=24.0)
    monkeypatch.setattr(headers, "time", time)
    assert 24.0 - LATE < locked.attempt.timeout <= 24.0
    assert before - 6.0 <= locked.began <= monotonic() - 6.0
    assert 24.0 - LATE < locked.rest <= 24.0


def test_timeout__never_more_than_that_of_the_task(monkeypatch: pytest.MonkeyPatch) -> None:
    """A message cannot lengthen the wait: its sender may have had a clock far ahead."""
    assert ask(monkeypatch, left=3600.0).attempt.timeout <= 30.0


def test_timeout__nothing_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A task whose timeout is used up looks once whether the lock is free."""
    assert ask(monkeypatch, left=0.0).attempt.timeout == 0.0


def test_rest__before_it_has_asked() -> None:
    """A task that goes back before it has asked keeps what its message says."""
    assert Workplace().request(timeout=30.0).rest is None
    assert Workplace().request(timeout=30.0, headers=headers.with_rest("id", 0, 24.0)).rest == 24.0
    assert Workplace().request(headers=headers.with_rest("id", 0, 24.0)).rest is None
