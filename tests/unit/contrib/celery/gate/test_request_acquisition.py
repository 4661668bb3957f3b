"""The attempts of a task at the gate."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import pytest

from django_zklock.contrib.celery.gate.request import GateAcquisition
from django_zklock.zk.contender import State
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from tests.support.tree_reader import wait_until

pytestmark = pytest.mark.celery


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
