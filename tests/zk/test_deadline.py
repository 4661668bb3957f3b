"""Timeouts as users write them, and the deadline that is made of one."""

from __future__ import annotations

import math
from datetime import timedelta

import pytest

from django_zklock.zk.deadline import Deadline, seconds


@pytest.mark.parametrize(
    ("timeout", "expected"),
    [
        (None, None),
        (0, 0.0),
        (0.25, 0.25),
        (3, 3.0),
        (timedelta(milliseconds=1500), 1.5),
        (math.inf, None),
    ],
)
def test_seconds__accepted(timeout: float | timedelta | None, expected: float | None) -> None:
    """Numbers, timedeltas, None and infinity have a meaning."""
    assert seconds(timeout) == expected


@pytest.mark.parametrize("timeout", ["1", True, False, b"1", [1], 1j])
def test_seconds__not_a_number(timeout: object) -> None:
    """What is no number is refused, and so is a bool, which is a slip."""
    with pytest.raises(TypeError, match="wait must be seconds"):
        seconds(timeout, "wait")  # type: ignore[arg-type]


@pytest.mark.parametrize("timeout", [-1, -0.001, math.nan, -math.inf, timedelta(seconds=-1)])
def test_seconds__negative(timeout: float | timedelta) -> None:
    """A negative time and NaN are refused, with the two values that the caller may have meant."""
    with pytest.raises(ValueError, match=r"must not be negative.*None waits for ever, 0 tries once"):
        seconds(timeout)


def test_deadline__never() -> None:
    """A deadline without an end has no remaining time and never passes, but can be capped."""
    never = Deadline.after(None)
    assert never.remaining() is None
    assert not never.passed
    assert 0 < (never.capped(5.0).remaining() or 0) <= 5.0


def test_deadline__now() -> None:
    """A deadline of nought has passed, and its remaining time is nought and not below."""
    now = Deadline.after(0)
    assert now.passed
    assert now.remaining() == 0.0


def test_deadline__capped() -> None:
    """The earlier one counts."""
    assert (Deadline.after(100).capped(1.0).remaining() or 0) <= 1.0
    assert (Deadline.after(1).capped(100.0).remaining() or 0) <= 1.0
