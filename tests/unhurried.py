"""Timeouts that only a wait in line can use up; a test module names this one in `pytest_plugins`."""

from __future__ import annotations

import pytest

from django_zklock.zk import attempt
from django_zklock.zk.deadline import Deadline

# Seconds, for a machine that is busy with other things.
LONG = 30.0


@pytest.fixture
def unhurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have ZooKeeper's answers be waited for: the place in the line, and the name of the holder at the end.

    Else a timeout that is short, so that the test is, can be over before there is a line to wait in, and the call fails
    as it does without ZooKeeper.
    """
    monkeypatch.setattr(attempt, "LAST_LOOK", LONG)
    monkeypatch.setattr(attempt.Attempt, "_answer_deadline", lambda _attempt: Deadline.after(LONG))
