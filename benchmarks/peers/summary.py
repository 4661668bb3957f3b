"""Medians with their spread, and how they are written."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

MISSING = "-"


@dataclass(frozen=True)
class Summary:
    """The median, and the quartiles on both sides of it."""

    median: float
    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Summary:
        """Return the summary of at least one value."""
        if len(values) == 1:
            return cls(values[0], values[0], values[0])
        low, median, high = statistics.quantiles(values, n=4, method="inclusive")
        return cls(median, low, high)


def number(value: float) -> str:
    """Return a number with three digits that count, and commas: 12,300, 45.6, 0.789."""
    if value == 0:
        return "0"
    digits = 2 - math.floor(math.log10(abs(value)))
    return f"{round(value, digits):,.{max(digits, 0)}f}"


def amount(values: Sequence[float], unit: float = 1.0) -> str:
    """Return the median and the quartiles in a unit: ``230 (221 to 246)``."""
    if not values:
        return MISSING
    found = Summary.of([value / unit for value in values])
    median, low, high = map(number, (found.median, found.low, found.high))
    return median if low == high else f"{median} ({low} to {high})"


def middle(values: Sequence[float], unit: float = 1.0) -> str:
    """Return the median alone."""
    return number(statistics.median(values) / unit) if values else MISSING


def ratio(values: Sequence[float], others: Sequence[float]) -> float | None:
    """Return the ratio of two medians, ``None`` if one is missing."""
    if not values or not others:
        return None
    return statistics.median(values) / statistics.median(others)


def markdown(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Return a table; all columns but the first are numbers."""
    lines = [head, ["---", *["---:"] * (len(head) - 1)], *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)
