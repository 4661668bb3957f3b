"""The locks that somebody wants to see, found with no more requests than that takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TypeVar

from django_zklock.zk.inspection import survey
from django_zklock.zk.inspection.selection import Ordering, Selection
from django_zklock.zk.inspection.survey import Line
from django_zklock.zk.pool import Pool

T = TypeVar("T")

# So many lines have to be read within the timeout; how long a whole tree takes depends on how large it is.
PORTION = 10_000


def find(pool: Pool, selection: Selection, ordering: Ordering, *, limit: int | None, timeout: float) -> list[Line]:
    """Read the locks of ``selection`` that are in use, in that order, at most ``limit`` of them, each as a whole.

    ZooKeeper has ``timeout`` seconds to tell the names of all lines, and again for what is in each ten thousand of
    them. Raises as :func:`django_zklock.zk.inspection.survey.lines`.
    """
    names = list(filter(selection.has_name, survey.names(pool, timeout=timeout)))
    lines = _in_portions(partial(survey.outlines, pool, timeout=timeout), names)
    complete = selection.asks_for_data or ordering.asks_for_data
    read = partial(survey.read, pool, timeout=timeout)
    if complete:
        lines = _in_portions(read, lines)
    now = time.time()
    chosen = ordering.sort(line for line in lines if selection.has(line, now))[:limit]
    if not complete:
        chosen = _in_portions(read, chosen)
    # Who was there when the names were read may have left.
    return [line for line in chosen if line.nodes or line.foreign]


def _in_portions(read: Callable[[Sequence[T]], list[Line]], items: Sequence[T]) -> list[Line]:
    portions = [items[start : start + PORTION] for start in range(0, len(items), PORTION)]
    return [line for portion in portions for line in read(portion)]
