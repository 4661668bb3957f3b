"""Rows of text in columns."""

from __future__ import annotations

import unicodedata
from bisect import bisect_right
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

GAP = "  "
# A column that gives way to the width of a terminal keeps at least this much.
LEAST = 12
# Longer texts stand out of their column.
WIDEST = 100


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column: whether it gives way to the width of a terminal, and whether its words may be coloured."""

    name: str
    elastic: bool = False
    coloured: bool = False


def table(
    columns: Sequence[Column],
    rows: Sequence[Sequence[str]],
    *,
    width: int | None,
    emphasis: Mapping[str, Callable[[str], str]],
) -> str:
    """Give one line for each row, below one with the names of the columns.

    With ``width`` long texts are cut so that a row fits into a terminal. ``emphasis`` has what colours a word.
    """
    header = [column.name for column in columns]
    sizes = [max(map(_columns, texts)) for texts in zip(header, *rows, strict=True)]
    if width is None:
        # Nothing is cut for a pipe; one text of a thousand characters must not pad every other row to its length.
        sizes = [min(size, WIDEST) for size in sizes]
    else:
        elastic = [number for number, column in enumerate(columns) if column.elastic]
        _shrink(sizes, elastic, sum(sizes) + len(GAP) * (len(sizes) - 1) - width)
    coloured = [number for number, column in enumerate(columns) if column.coloured] if emphasis else []
    lines = []
    for row in (header, *rows):
        cells = [_fit(cell, size, cut=width is not None) for cell, size in zip(row, sizes, strict=True)]
        for number in coloured:
            if row[number] in emphasis:
                cells[number] = emphasis[row[number]](cells[number])
        lines.append(GAP.join(cells).rstrip())
    return "\n".join(lines) + "\n"


def _shrink(sizes: list[int], elastic: Sequence[int], excess: int) -> None:
    """Take ``excess`` off the elastic columns, always from the widest, and stop where none has more to give."""
    while excess > 0:
        widest = max(elastic, key=lambda number: sizes[number])
        if sizes[widest] <= LEAST:
            return
        sizes[widest] -= 1
        excess -= 1


def _fit(text: str, size: int, *, cut: bool) -> str:
    excess = _columns(text) - size
    if excess > 0 and cut:
        text = _beginning(text, size - 1) + "…"
        excess = _columns(text) - size
    return text + " " * -excess


def _beginning(text: str, size: int) -> str:
    """Give as much of ``text`` as fits into ``size`` columns."""
    ends = list(accumulate(map(_columns, text)))
    return text[: bisect_right(ends, size)]


def _columns(text: str) -> int:
    """Give the columns that ``text`` takes in a terminal."""
    if text.isascii():
        return len(text)
    return sum(
        0 if unicodedata.combining(sign) else 2 if unicodedata.east_asian_width(sign) in "WF" else 1 for sign in text
    )
