"""``"retry"``: a task that finds its lock taken, or ZooKeeper unavailable, goes back to the broker."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, NamedTuple

from celery.exceptions import Retry

from django_zklock.conflict import Conflict
from django_zklock.contrib.celery import internals
from django_zklock.contrib.celery.tasks import running_task
from django_zklock.exceptions import LockConflict, ZkLockError, ZooKeeperUnavailable
from django_zklock.zk.waiting import seconds

logger = logging.getLogger("django_zklock.celery")


class Budget(NamedTuple):
    """The names of the headers that a message carries to its next delivery: tries, time of the first, attempt."""

    tries: str
    since: str
    attempt: str


CONFLICTS = Budget("zklock_conflicts", "zklock_conflict_since", "zklock_conflict_attempt")
OUTAGES = Budget("zklock_outages", "zklock_outage_since", "zklock_outage_attempt")


@dataclass(frozen=True)
class RetryLater:
    """Send the task to the broker again, with a growing random delay.

    ``max_wait`` (seconds or ``timedelta``) bounds the whole time since the first conflict; after it the task
    fails with ``LockConflict``. The delay is ``delay`` seconds, doubled with each conflict up to ``max_delay``,
    times a random factor between one half and one, which keeps tasks that conflicted from conflicting again.

    As ``on_unavailable`` it does the same while ZooKeeper cannot be reached, and the task finally fails with
    ``ZooKeeperUnavailable``. Conflicts and outages have one budget each; a conflict ends an outage.

    The budgets travel in headers of the message and begin anew when the task itself is retried;
    ``request.retries`` does not change. Without a worker (in a direct call, in eager mode) there is no message to
    send: the call raises ``LockConflict`` or ``ZooKeeperUnavailable``.
    """

    max_wait: float | timedelta = 3600.0
    delay: float = 1.0
    max_delay: float = 60.0

    def __post_init__(self) -> None:
        if not seconds(self.max_wait, "max_wait") or self.delay <= 0 or self.max_delay < self.delay:
            raise ValueError("RetryLater needs max_wait > 0 and 0 < delay <= max_delay, in seconds")

    def __call__(self, conflict: Conflict) -> Any:
        task = running_task()
        if task is None:
            raise conflict.error()
        request = task.request
        headers = dict(request.headers or {})
        budget = CONFLICTS if conflict.unavailable is None else OUTAGES
        count, since = 0, time.time()
        # In another attempt the task itself has failed and was retried.
        if int(headers.get(budget.attempt, -1)) == request.retries:
            count, since = int(headers.get(budget.tries, 0)), float(headers.get(budget.since, since))
        waited = max(0.0, time.time() - since)
        limit = seconds(self.max_wait)
        countdown = min(self.max_delay, self.delay * 2.0 ** min(count, 30)) * random.uniform(0.5, 1.0)  # noqa: S311
        if limit is not None:
            if waited >= limit:
                raise self._final_error(conflict, count, waited, limit)
            countdown = min(countdown, limit - waited)
        if budget is CONFLICTS:
            # ZooKeeper has answered, so the outage is over.
            headers = {name: value for name, value in headers.items() if name not in OUTAGES}
        headers |= {budget.tries: count + 1, budget.since: since, budget.attempt: request.retries}
        again = task.signature_from_request(request, countdown=countdown, retries=request.retries, headers=headers)
        # No child of this request. With the result of a child the request would be garbage in a cycle, and Celery's
        # result uses the network when it is finalized: in the garbage collector, at any line of any greenlet.
        # The message of this delivery may be acknowledged, so a broker that refuses the next one fails the task.
        with internals.confirming_producer(task.app) as producer:
            again.apply_async(add_to_parent=False, producer=producer)
        logger.info(
            "event=retry_later key=%r task=%s id=%s reason=%s count=%d countdown=%.1f holder=%s",
            conflict.key, task.name, request.id, "conflict" if budget is CONFLICTS else "unavailable", count + 1,
            countdown, conflict.holder,
        )  # fmt: skip
        raise Retry(exc=conflict.error(), when=countdown, sig=again)  # type: ignore[arg-type]  # "Real" in the stubs

    def _final_error(self, conflict: Conflict, count: int, waited: float, limit: float) -> ZkLockError:
        what = "conflicts" if conflict.unavailable is None else "retries"
        end = (
            f"{conflict.function} gave up after {count} {what} in {waited:.0f} s, and did not run; "
            f"RetryLater(max_wait=...) bounds the time of its retries"
        )
        if conflict.unavailable is not None:
            return ZooKeeperUnavailable(f"{conflict.unavailable}; {end}", key=conflict.key, timeout=limit)
        by = f"held by {conflict.holder}" if conflict.holder else "taken"
        text = f"lock {conflict.key!r} is {by}; {end}"
        return LockConflict(text, key=conflict.key, timeout=limit, holder=conflict.holder)
