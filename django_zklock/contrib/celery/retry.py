"""``"retry"``: a task that finds its lock taken, or ZooKeeper unavailable, goes back to the broker."""

from __future__ import annotations

import logging
import random
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, ClassVar

from celery.exceptions import Retry

from django_zklock.conflict import Conflict
from django_zklock.contrib.celery import headers
from django_zklock.contrib.celery.headers import CONFLICTS, OUTAGES
from django_zklock.contrib.celery.internals import sending
from django_zklock.contrib.celery.tasks import running_task
from django_zklock.exceptions import LockConflict, ZkLockError, ZooKeeperUnavailable
from django_zklock.zk.waiting import seconds

logger = logging.getLogger("django_zklock.celery")


# Seconds. Less is no time at all, but what rounding leaves of a budget.
MIN_REST = 0.001


@dataclass(frozen=True)
class RetryLater:
    """Send the task to the broker again, with a growing random delay.

    ``max_wait`` (seconds or ``timedelta``) bounds the delays and the waits since the first conflict; after it the
    task fails with ``LockConflict``. The delay is ``delay`` seconds, doubled with each conflict up to ``max_delay``,
    times a random factor between one half and one, which keeps tasks that conflicted from conflicting again. Where
    RabbitMQ delays messages itself, in whole seconds, it is not shorter than one.

    As ``on_unavailable`` it does the same while ZooKeeper cannot be reached, and the task finally fails with
    ``ZooKeeperUnavailable``. Conflicts and outages have one budget each; a conflict ends an outage.

    The budgets travel in headers of the message and begin anew when the task itself is retried;
    ``request.retries`` does not change. Without a worker (in a direct call, in eager mode) there is no message to
    send: the call raises ``LockConflict`` or ``ZooKeeperUnavailable``.
    """

    max_wait: float | timedelta = 3600.0
    delay: float = 1.0
    max_delay: float = 60.0

    # The message waits for its run as before, and keeps its mark (``unique_until``).
    sends_again: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not seconds(self.max_wait, "max_wait") or self.delay <= 0 or self.max_delay < self.delay:
            raise ValueError("RetryLater needs max_wait > 0 and 0 < delay <= max_delay, in seconds")

    def __call__(self, conflict: Conflict) -> Any:
        task = running_task()
        if task is None:
            raise conflict.error()
        request = task.request
        carried = headers.own(request.headers, request.id)
        budget = CONFLICTS if conflict.unavailable is None else OUTAGES
        count, waited = budget.read(carried, request.retries)
        if count:
            waited += conflict.elapsed
        shortest = sending.shortest_delay(task.app)
        # Twice the shortest one at least: half of it may be left, and two tasks must not come back together.
        longest = max(min(self.max_delay, self.delay * 2.0 ** min(count, 30)), 2 * shortest)
        countdown = longest * random.uniform(0.5, 1.0)  # noqa: S311
        limit = seconds(self.max_wait)
        if limit is not None:
            if (rest := limit - waited) < MIN_REST:
                raise self._final_error(conflict, count, waited, limit)
            countdown = max(min(countdown, rest), shortest)
        if budget is CONFLICTS:
            # ZooKeeper has answered, so the outage is over.
            carried = {name: value for name, value in carried.items() if name not in OUTAGES}
        carried |= {headers.TASK: request.id, **budget.write(request.retries, count + 1, waited, countdown)}
        again = sending.signature_again(task, request, countdown=countdown, headers=carried)
        # No child of this request. With the result of a child the request would be garbage in a cycle, and Celery's
        # result uses the network when it is finalized: in the garbage collector, at any line of any greenlet.
        # The message of this delivery may be acknowledged, so a broker that refuses the next one fails the task.
        with sending.confirming_producer(task.app) as producer:
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
