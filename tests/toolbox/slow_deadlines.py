"""Timeouts that bound only the wait in the queue; a test module names this module in `pytest_plugins`."""

from __future__ import annotations

import pytest

from django_zklock.zk import acquire
from django_zklock.zk.contender import Contender
from django_zklock.zk.waiting import monotonic
from tests.toolbox.timing import scaled

# Seconds.
LONG = scaled(30)


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Wait as long as needed for ZooKeeper's answers about the queue and the holder.

    Otherwise the short timeout of a test can end before the queue is known, and the call fails as without ZooKeeper.
    """
    next_wakeup = acquire.Acquisition.next_wakeup

    def soon(attempt: acquire.Acquisition) -> float | None:
        # An answer that comes before the deadline wakes no waiter, and this one would sleep for the long one then.
        wakeup = next_wakeup(attempt)
        return wakeup if wakeup is None else min(wakeup, 0.05)

    original = acquire.Acquisition._new_contender

    def new_contender(attempt: acquire.Acquisition) -> Contender:
        contender = original(attempt)
        attempt._response_deadline = monotonic() + LONG
        return contender

    monkeypatch.setattr(acquire.Acquisition, "next_wakeup", soon)
    monkeypatch.setattr(acquire, "HOLDER_READ_GRACE", LONG)
    monkeypatch.setattr(acquire.Acquisition, "_new_contender", new_contender)
