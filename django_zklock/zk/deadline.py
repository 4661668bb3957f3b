"""One deadline for a whole operation, made once at the public door and handed down."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from datetime import timedelta

Timeout = float | timedelta | None
"""Seconds, a ``timedelta``, or ``None`` for ever."""


def seconds(timeout: Timeout, name: str = "timeout") -> float | None:
    """Give ``timeout`` as plain seconds.

    Raises ``TypeError`` for anything but a real number, a ``timedelta`` or ``None``, and ``ValueError`` for a
    negative one or NaN. Infinity is the same as ``None``.
    """
    if timeout is None:
        return None
    if isinstance(timeout, timedelta):
        timeout = timeout.total_seconds()
    # bool is an int in Python, but `timeout=True` is a slip, not one second.
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"{name} must be seconds, a timedelta or None, got {timeout!r}")
    if math.isnan(timeout) or timeout < 0:
        raise ValueError(f"{name} must not be negative, got {timeout!r}; None waits for ever, 0 tries once")
    # Longer than the platform can wait is for ever too.
    return None if timeout > threading.TIMEOUT_MAX else float(timeout)


@dataclass(frozen=True, slots=True)
class Deadline:
    """A moment on the monotonic clock; ``None`` is never."""

    at: float | None

    @classmethod
    def after(cls, timeout: float | None) -> Deadline:
        """Give the deadline ``timeout`` seconds from now."""
        return cls(None if timeout is None else time.monotonic() + timeout)

    def remaining(self) -> float | None:
        """Give the seconds left, never below zero; ``None`` when there is no end."""
        return None if self.at is None else max(0.0, self.at - time.monotonic())

    @property
    def passed(self) -> bool:
        """Whether the moment has come."""
        return self.at is not None and time.monotonic() >= self.at

    def capped(self, limit: float) -> Deadline:
        """Give the earlier of this deadline and ``limit`` seconds from now."""
        other = time.monotonic() + limit
        return Deadline(other if self.at is None else min(self.at, other))
