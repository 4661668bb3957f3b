"""``on_conflict="retry"``: a task that meets a taken lock goes back to the queue."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from celery.exceptions import Retry

from django_zklock.calls import Conflict
from django_zklock.contrib.celery.task import in_worker
from django_zklock.exceptions import LockConflict
from django_zklock.zk.deadline import seconds

logger = logging.getLogger("django_zklock.celery")

COUNT_HEADER = "zklock_conflicts"
SINCE_HEADER = "zklock_conflict_since"
ATTEMPT_HEADER = "zklock_conflict_attempt"


@dataclass(frozen=True)
class RetryLater:
    """Send the task to the queue again, with a delay that grows and is spread out.

    ``max_wait`` (seconds or ``timedelta``) bounds the whole time since the first conflict; after it the task
    fails with ``LockConflict``. The delay is ``delay`` seconds, doubled with each conflict up to ``max_delay``,
    times a random factor between one half and one, so that those who met do not meet again.

    The budget is the task's own: it travels in headers, begins anew when the task itself is retried, and
    ``request.retries`` stays as it was. Where no worker runs the task (a direct call, eager mode) there is no queue
    to go back to: the call fails with ``LockConflict``.
    """

    max_wait: float | timedelta = 3600.0
    delay: float = 1.0
    max_delay: float = 60.0

    def __post_init__(self) -> None:
        if not seconds(self.max_wait, "max_wait") or self.delay <= 0 or self.max_delay < self.delay:
            raise ValueError("RetryLater needs max_wait > 0 and 0 < delay <= max_delay, in seconds")

    def __call__(self, conflict: Conflict) -> Any:
        task = in_worker()
        if task is None:
            raise conflict.error()
        request = task.request
        headers = dict(request.headers or {})
        # A retry of the task itself, after it ran and failed, is a new attempt with a budget of its own.
        mine = int(headers.get(ATTEMPT_HEADER, -1)) == request.retries
        count = int(headers.get(COUNT_HEADER, 0)) if mine else 0
        since = float(headers.get(SINCE_HEADER, time.time())) if mine else time.time()
        waited = max(0.0, time.time() - since)
        limit = seconds(self.max_wait)
        countdown = min(self.max_delay, self.delay * 2.0 ** min(count, 30)) * random.uniform(0.5, 1.0)  # noqa: S311
        if limit is not None:
            if waited >= limit:
                raise self._over(conflict, count, waited, limit)
            countdown = min(countdown, limit - waited)
        headers |= {COUNT_HEADER: count + 1, SINCE_HEADER: since, ATTEMPT_HEADER: request.retries}
        again = task.signature_from_request(request, countdown=countdown, retries=request.retries, headers=headers)
        again.apply_async()
        logger.info(
            "event=retry_later key=%r task=%s id=%s conflicts=%d countdown=%.1f holder=%s",
            conflict.key, task.name, request.id, count + 1, countdown, conflict.holder,
        )  # fmt: skip
        raise Retry(exc=conflict.error(), when=countdown, sig=again)  # type: ignore[arg-type]  # "Real" in the stubs

    def _over(self, conflict: Conflict, count: int, waited: float, limit: float) -> LockConflict:
        by = f"held by {conflict.holder}" if conflict.holder else "taken"
        return LockConflict(
            f"lock {conflict.key!r} is {by}; {conflict.function} gave up after {count} conflicts in {waited:.0f} s, "
            f"and did not run; RetryLater(max_wait=...) says for how long it comes back",
            key=conflict.key,
            timeout=limit,
            holder=conflict.holder,
        )
