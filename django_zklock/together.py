"""Asking several ensembles at the same time, so that the slowest of them decides how long it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

T = TypeVar("T")


def at_once(calls: Sequence[Callable[[], T]]) -> list[T]:
    """Make the calls, each in a thread of its own, and give what they give; raises what the first of them raises.

    None of them may use Django's database: its connections would stay open with threads that are gone.
    """
    if len(calls) <= 1:
        return [call() for call in calls]
    with ThreadPoolExecutor(len(calls), "zklock-together") as threads:
        return list(threads.map(lambda call: call(), calls))
