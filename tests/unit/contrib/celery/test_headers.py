"""What travels from one message of a task to the next: durations, whatever the clocks of the hosts say."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest

from django_zklock.contrib.celery import headers
from django_zklock.contrib.celery.headers import CONFLICTS, DEADLINE, OUTAGES, REST, Budget

pytestmark = pytest.mark.celery

# Of hosts whose clocks differ from the one of the test, in seconds.
DIFFERENCES = [-3600.0, -60.0, 0.0, 60.0, 3600.0]
# More than a test takes.
NEARLY = 30.0


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that sets the clock of this host ahead."""
    true_time = time.time

    def set_ahead(seconds: float) -> None:
        monkeypatch.setattr(time, "time", lambda: true_time() + seconds)

    return set_ahead


def sent(message: dict[str, Any]) -> dict[str, Any]:
    """Return the headers as they arrive."""
    arrived: dict[str, Any] = json.loads(json.dumps(message))
    return arrived


def test_own__without_those_of_the_way() -> None:
    """What brokers, kombu and the gate have written about one delivery is left out, and all else is kept."""
    kept = {"id": "4711", "tenant": "north", "x-request-id": "r1", "x-deaths-door": 1, "zklock_conflicts": 2, "cc": 3}
    dropped = dict.fromkeys([
        "x-death", "x-first-death-exchange", "x-first-death-queue", "x-first-death-reason", "x-last-death-exchange",
        "x-last-death-queue", "x-last-death-reason", "x-delivery-count", "x-acquired-count", "x-opt-delivery-time",
        "x-opt-deaths", "x-delay", "x-received-from", "x-shovelled", "x-stream-offset", "CC", "BCC", "redelivered",
        "compression", "zklock_hold", "zklock_deadline", "zklock_rest",
    ], "of the way")  # fmt: skip
    assert headers.own({**dropped, **kept}, "4711") == kept
    assert headers.own(None, "4711") == {}


def test_own__of_another_task() -> None:
    """What a body sends on with another task, its own headers, says nothing about the time of that one."""
    spent = CONFLICTS.write(0, 3, 10.0, 2.5) | OUTAGES.write(0, 1, 2.0, 2.5)
    spent |= {headers.TASK: "4711", "tenant": "north"}
    assert headers.own(spent, "4711") == spent
    assert headers.own(spent, "child") == {"tenant": "north"}
    assert headers.read_rest(headers.with_rest("4711", 0, 3.0), "child", 0) is None


# The rest of a timeout.


@pytest.mark.shows("guarantees#that-clocks-are-right")
@pytest.mark.parametrize("ahead", DIFFERENCES)
def test_rest__whatever_the_clocks(clock: Any, ahead: float) -> None:
    """The next worker reads the seconds that were left, and not those until a moment of another clock."""
    message = sent(headers.with_rest("4711", 2, 24.0))
    clock(ahead)
    assert headers.read_rest(message, "4711", 2) == 24.0


@pytest.mark.parametrize(
    "message",
    [None, {}, {REST: [1.0, 24.0]}, {DEADLINE: 17.0}, {DEADLINE: [0, None]}, {DEADLINE: [0, 17.0], REST: 3}],
)
def test_rest__unknown(message: dict[str, Any] | None) -> None:
    """A message without a rest, or with one that cannot be read, says nothing."""
    assert headers.read_rest(message, "4711", 0) is None


def test_rest__of_another_attempt() -> None:
    """A retry of the task has its whole timeout."""
    assert headers.read_rest(headers.with_rest("4711", 0, 24.0), "4711", 1) is None


@pytest.mark.parametrize("copied", [{}, headers.with_rest("4711", 0, 24.0)], ids=["alone", "with a rest that it found"])
def test_rest__sent_by_an_earlier_version(copied: dict[str, Any]) -> None:
    """The deadline of an earlier version counts, and not the rest of an earlier delivery that it has copied."""
    message = sent({**copied, DEADLINE: [0, time.time() + 500.0]})
    rest = headers.read_rest(message, "4711", 0)
    assert rest is not None
    assert 500.0 - NEARLY < rest <= 500.0
    assert headers.read_rest(sent({**copied, DEADLINE: [0, time.time() - 5.0]}), "4711", 0) == 0.0


@pytest.mark.parametrize("ahead", DIFFERENCES)
def test_rest__read_by_an_earlier_version(clock: Any, ahead: float) -> None:
    """A worker of an earlier version finds number and deadline, by the clock of the sender."""
    clock(ahead)
    number, deadline = sent(headers.with_rest("4711", 2, 500.0))[DEADLINE]
    assert number == 2
    assert 500.0 - NEARLY < deadline - time.time() <= 500.0


# The budgets of `RetryLater`.


@pytest.mark.shows("guarantees#that-clocks-are-right")
@pytest.mark.parametrize("budget", [CONFLICTS, OUTAGES])
@pytest.mark.parametrize("ahead", DIFFERENCES)
def test_budget__whatever_the_clocks(clock: Any, budget: Budget, ahead: float) -> None:
    """The seconds that a task has waited are those before the message was sent, and its delay."""
    message = sent(budget.write(1, 3, 10.0, 2.5))
    clock(ahead)
    assert budget.read(message, 1) == (3, 12.5)


def test_budget__of_another_attempt() -> None:
    """A retry of the task begins anew, as does the first message."""
    assert CONFLICTS.read(CONFLICTS.write(0, 3, 10.0, 2.5), 1) == (0, 0.0)
    assert CONFLICTS.read({}, 0) == (0, 0.0)


@pytest.mark.parametrize("copied", [{}, CONFLICTS.write(0, 3, 10.0, 2.5)], ids=["alone", "with seconds that it found"])
def test_budget__sent_by_an_earlier_version(copied: dict[str, Any]) -> None:
    """A worker of an earlier version counts on and knows when the first conflict was, which counts then."""
    old = {CONFLICTS.tries: 4, CONFLICTS.since: time.time() - 500.0, CONFLICTS.attempt: 0}
    tries, waited = CONFLICTS.read(sent({**copied, **old}), 0)
    assert tries == 4
    assert 500.0 <= waited < 500.0 + NEARLY


@pytest.mark.parametrize("ahead", DIFFERENCES)
def test_budget__read_by_an_earlier_version(clock: Any, ahead: float) -> None:
    """A worker of an earlier version finds the time of the first conflict, by the clock of the sender."""
    clock(ahead)
    message = sent(CONFLICTS.write(1, 3, 500.0, 2.5))
    assert (message[CONFLICTS.tries], message[CONFLICTS.attempt]) == (3, 1)
    assert 500.0 <= time.time() - message[CONFLICTS.since] < 500.0 + NEARLY
