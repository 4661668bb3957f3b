"""One page of the list of locks, at the cost of what it shows.

The names of all lines are one request to an ensemble. As long as the key alone decides which locks are wanted, and in
what order, no lines are looked into but those up to the end of the page. Not every name is a lock in use: the parent of
one that is free stays for up to a minute, and is passed over.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

from django_zklock.admin.source import Source
from django_zklock.models import Lock
from django_zklock.together import at_once
from django_zklock.zk import keys
from django_zklock.zk.inspection.selection import Ordering, Selection
from django_zklock.zk.inspection.survey import Line

T = TypeVar("T")

# So many holders of a lock are named in the list.
HOLDERS_SHOWN = 3

Names = Sequence[tuple[Source, str]]
Lines = Sequence[tuple[Source, Line]]


@dataclass(frozen=True, kw_only=True)
class Page:
    """Some of the ``count`` locks that were asked for; unless ``exact``, there are at most so many."""

    number: int
    locks: Sequence[Lock]
    count: int
    exact: bool


def page(sources: Sequence[Source], selection: Selection, ordering: Ordering, *, number: int, size: int) -> Page:
    """Read the page of that number, counted from 1, with ``size`` locks; the nearest if it is not there."""
    names = [(source, name) for source, name in _names(sources) if selection.has_name(name)]
    if selection.asks_for_lines or ordering.asks_for_lines:
        chosen = _sorted(_read_all(names, selection, ordering), selection, ordering)
        number = _within(number, len(chosen), size)
        locks = _locks(chosen[(number - 1) * size : number * size])
        return Page(number=number, locks=locks, count=len(chosen), exact=True)
    names.sort(key=lambda each: keys.readable(each[1]), reverse=ordering.reverse)
    number = _within(number, len(names), size)
    chosen, unseen = _walk(names, number * size, selection, ordering)
    if not unseen:
        number = _within(number, len(chosen), size)
    locks = _locks(chosen[(number - 1) * size : number * size])
    return Page(number=number, locks=locks, count=len(chosen) + unseen, exact=not unseen)


def _names(sources: Sequence[Source]) -> list[tuple[Source, str]]:
    found = at_once([source.names for source in sources])
    return [(source, name) for source, names in zip(sources, found, strict=True) for name in names]


def _walk(names: Names, wanted: int, selection: Selection, ordering: Ordering) -> tuple[Lines, int]:
    """Give as many lines as ``wanted``, or some more, or all there are; and how many names were not looked into."""
    found: list[tuple[Source, Line]] = []
    end, step = 0, wanted
    while end < len(names) and len(found) < wanted:
        found += _sorted(_outlines(names[end : end + step]), selection, ordering)
        end += step
        # Most of a long list may be free.
        step *= 2
    return found, max(0, len(names) - end)


def _read_all(names: Names, selection: Selection, ordering: Ordering) -> Lines:
    lines = _outlines(names)
    if selection.asks_for_data:
        return _read(lines)
    return _read(lines, 1) if ordering.asks_for_data else lines


def _sorted(lines: Lines, selection: Selection, ordering: Ordering) -> Lines:
    now = time.time()
    sources = {id(line): source for source, line in lines}
    chosen = ordering.sort(line for _source, line in lines if selection.has(line, now))
    return [(sources[id(line)], line) for line in chosen]


def _within(number: int, count: int, size: int) -> int:
    return min(max(1, number), max(1, -(-count // size)))


def _locks(lines: Lines) -> list[Lock]:
    return [Lock.from_line(source.alias, line) for source, line in _read(lines, HOLDERS_SHOWN)]


# Asking several sources at once for what is mixed.


def _outlines(names: Names) -> list[tuple[Source, Line]]:
    answers = _ask(names, Source.outlines)
    return [(source, line) for source, lines in answers.items() for line in lines]


def _read(lines: Lines, depth: int | None = None) -> list[tuple[Source, Line]]:
    """Give the lines with their first data, in the same order, and without those that nobody stands in by now."""
    answers = {source: iter(read) for source, read in _ask(lines, partial(Source.read, depth=depth)).items()}
    return [(source, line) for source, line in _in_turn(lines, answers) if line.nodes or line.foreign]


def _in_turn(lines: Lines, answers: dict[Source, Iterator[Line]]) -> Iterator[tuple[Source, Line]]:
    for source, _line in lines:
        # There is none from a source that has failed.
        line = next(answers[source], None)
        if line is not None:
            yield source, line


def _ask(
    mixed: Sequence[tuple[Source, T]], question: Callable[[Source, Sequence[T]], list[Line]]
) -> dict[Source, list[Line]]:
    sorted_out: dict[Source, list[T]] = {}
    for source, thing in mixed:
        sorted_out.setdefault(source, []).append(thing)
    answers = at_once([partial(question, source, things) for source, things in sorted_out.items()])
    return dict(zip(sorted_out, answers, strict=True))
