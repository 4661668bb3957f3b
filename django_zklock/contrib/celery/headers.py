"""The headers of a task's message: which of them must not travel to the next message, and what ours carry there.

A wait may go on in another delivery, on a host whose clock differs. So what travels is a duration: the seconds that a
task may wait yet, or has waited. The time that a message lies in its broker belongs to neither, before the first
delivery or between two: no two hosts can tell it without their clocks.

Beside each duration there is a moment by the sender's clock (Unix epoch), for workers of earlier versions, which read
nothing else. They copy a duration that they do not know, so each one names what it belongs to. And all of them name
their task: a body may send its own headers with another task, and that one begins anew.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any, NamedTuple

# Of the gate, and of one delivery of a task: the ticket, see `gate.child`. And in a message that the gate has published
# again: the number of the task's retries with the deadline of the wait in that attempt; and that deadline again with
# the seconds of the timeout that are left.
HOLD, DEADLINE, REST = "zklock_hold", "zklock_deadline", "zklock_rest"
OF_ONE_DELIVERY = frozenset({HOLD, DEADLINE, REST})
# The id of the task whose durations these are. Earlier versions do not write it.
TASK = "zklock_task"

# What brokers and kombu write about the way of one message. RabbitMQ drops a message that seems to go round in a circle
# (`x-death`), federation does not pass on one that has been there (`x-received-from`), and a message with `CC` goes to
# further queues, which have had their copy.
_OF_A_BROKER = frozenset({
    "compression", "redelivered", "x-death", "x-delivery-count", "x-acquired-count", "x-delay", "x-received-from",
    "x-shovelled", "x-stream-offset", "CC", "BCC",
})  # fmt: skip
_OF_A_BROKER_PREFIXES = ("x-first-death-", "x-last-death-", "x-opt-")


def own(headers: Mapping[str, Any] | None, task: str) -> dict[str, Any]:
    """Return the headers of a message of ``task`` for one that follows it: without those of its delivery.

    And without the budgets of another task, from whose body they come.
    """
    dropped = OF_ONE_DELIVERY if _is_of(headers, task) else OF_ONE_DELIVERY.union([TASK], CONFLICTS, OUTAGES)
    return {
        name: value
        for name, value in (headers or {}).items()
        if name not in dropped and name not in _OF_A_BROKER and not name.startswith(_OF_A_BROKER_PREFIXES)
    }


def _is_of(headers: Mapping[str, Any] | None, task: str) -> bool:
    return bool((headers or {}).get(TASK, task) == task)


# The rest of a timeout.


def with_rest(task: str, attempt: int, rest: float) -> dict[str, Any]:
    """Return the headers that say that ``task``, in its ``attempt``, may wait for ``rest`` seconds yet."""
    deadline = time.time() + rest
    return {TASK: task, DEADLINE: [attempt, deadline], REST: [deadline, rest]}


def read_rest(headers: Mapping[str, Any] | None, task: str, attempt: int) -> float | None:
    """Return for how many seconds ``task`` may wait yet, ``None`` if the message does not say it of this attempt.

    A worker of an earlier version has sent the deadline alone, or with the rest that it had found.
    """
    if not _is_of(headers, task):
        return None
    try:
        number, deadline = (headers or {})[DEADLINE]
        if number != attempt:
            return None
        by_clock = float(deadline) - time.time()
        of, rest = (headers or {}).get(REST) or (None, 0.0)
        return max(0.0, float(rest) if of == deadline else by_clock)
    except (KeyError, TypeError, ValueError):
        return None


# The budgets of `RetryLater`.


class Budget(NamedTuple):
    """The names of the headers of one budget.

    How often the task was sent again, in which attempt, and when that began; that number again with the seconds that
    the task has waited since, the delay of this message included.
    """

    tries: str
    since: str
    attempt: str
    waited: str

    def write(self, attempt: int, tries: int, waited: float, delay: float) -> dict[str, Any]:
        """Return the headers of the next message of a task that has waited ``waited`` seconds: it has a ``delay``."""
        return {
            self.tries: tries,
            self.since: time.time() - waited,
            self.attempt: attempt,
            self.waited: [tries, waited + delay],
        }

    def read(self, headers: Mapping[str, Any], attempt: int) -> tuple[int, float]:
        """Return how often the task was sent again in this attempt, and how long it has waited for this delivery."""
        # In another attempt the task itself has failed and was retried.
        if int(headers.get(self.attempt, -1)) != attempt:
            return 0, 0.0
        tries, (of, waited) = int(headers.get(self.tries, 0)), headers.get(self.waited) or (None, 0.0)
        if of != tries:
            # Sent by a worker of an earlier version, with the headers that it had found.
            now = time.time()
            return tries, max(0.0, now - float(headers.get(self.since, now)))
        return tries, float(waited)


CONFLICTS = Budget("zklock_conflicts", "zklock_conflict_since", "zklock_conflict_attempt", "zklock_conflict_waited")
OUTAGES = Budget("zklock_outages", "zklock_outage_since", "zklock_outage_attempt", "zklock_outage_waited")
