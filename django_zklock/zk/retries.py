"""Requests that a server has refused for now, and that are sent again after a pause."""

from __future__ import annotations

import logging
import random
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from django_zklock.zk.background import DeferredLogger
from django_zklock.zk.waiting import monotonic

if TYPE_CHECKING:
    from django_zklock.zk.background import TimerHandle
    from django_zklock.zk.wire import KazooException

logger = DeferredLogger("django_zklock.retries")

# Seconds. The pause doubles from the first to the last while refusals continue. Half of it is random, so that the
# clients of an overloaded server do not all come back at once.
FIRST_PAUSE = 0.05
LAST_PAUSE = 0.5


class Retries:
    """The calls of one session that wait for the end of its pause. Methods are called under the session's monitor.

    All calls share one pause, so an overloaded server is not asked more often because there are more of them. They are
    dropped with the connection, because everything is requested again on the next one.
    """

    def __init__(
        self,
        name: str,
        *,
        post: Callable[[Callable[[], object]], None],
        call_later: Callable[[float, Callable[[], None]], TimerHandle],
    ) -> None:
        self._name = name
        self._post = post
        self._call_later = call_later
        # A dict keeps the order, and the same call of the same object once.
        self._calls: dict[Callable[[], object], None] = {}
        self._pause = 0.0
        self._timer: TimerHandle | None = None
        # When the last pause ended.
        self._ended_at = float("-inf")

    def add(self, call: Callable[[], object], error: KazooException) -> None:
        """Make ``call`` after a pause, because a server has answered ``error``."""
        self._calls[call] = None
        if self._timer is not None:
            return
        now = monotonic()
        continues = now < self._ended_at + 2 * LAST_PAUSE
        self._pause = min(2 * self._pause, LAST_PAUSE) if continues else FIRST_PAUSE
        level = logging.DEBUG if continues else logging.WARNING
        logger.log(level, "event=refused_for_now session=%s error=%r", self._name, error)
        pause = self._pause * random.uniform(0.5, 1.0)  # noqa: S311
        self._timer = self._call_later(pause, partial(self._post, self._end_pause))

    def clear(self) -> None:
        """Drop all calls, because the connection is lost."""
        self._calls.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _end_pause(self) -> None:
        self._timer = None
        self._ended_at = monotonic()
        calls, self._calls = self._calls, {}
        for call in calls:
            self._post(call)
