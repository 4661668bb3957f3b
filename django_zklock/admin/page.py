"""One page of the list: which locks are on it, read within the time of a page.

One request to each ensemble lists the names of its queues. While the key alone decides which locks are shown, and in
which order, only the queues up to the end of the page are listed. To find the most urgent locks all queues are listed.
Of all these only the names of those that may be shown are kept, and the locks of the page are read once more.

There may be more locks than can be read in that time, and more than are sorted for a page: :data:`MAX_SORTED`. Then the
page shows what it has, or the order of keys, and says so.

Not every name is a lock in use: the parent node of a free lock stays for up to a minute and is skipped.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from django.utils.formats import number_format
from django.utils.translation import gettext as _

from django_zklock.admin.reader import AliasReader
from django_zklock.models import Lock
from django_zklock.zk import paths
from django_zklock.zk.ops import snapshots
from django_zklock.zk.ops.search import BATCH_SIZE, BY_KEY, LockFilter, Ordering, Ranking, map_parallel
from django_zklock.zk.ops.snapshots import LockSnapshot
from django_zklock.zk.waiting import monotonic

T = TypeVar("T")
Name = tuple[AliasReader, str]

MAX_HOLDERS = 3
# More locks are not sorted for a page: about as many as can be read within some seconds.
MAX_SORTED = 20_000
# Seconds for which a page that was read is good enough for a live update of the same page.
MAX_AGE = 2.0


@dataclass(frozen=True, kw_only=True)
class Page:
    """The locks of one page, in the order that was asked or else in that of keys.

    ``number`` is the nearest one if there is no page with the number that was asked.

    ``count`` is the number of all locks that match if ``is_exact``, and an upper bound of it otherwise. ``kinds`` has
    the kinds of locks that were seen; it is empty if no queue was read. ``notices`` say what the list has not.
    """

    locks: list[Lock]
    ordering: Ordering
    number: int
    count: int
    is_exact: bool
    kinds: frozenset[str]
    notices: list[str]
    readers: list[AliasReader]
    read_at: float


def read_page(
    readers: list[AliasReader], lock_filter: LockFilter, ordering: Ordering, *, number: int, size: int
) -> Page:
    """Read the page with that number, from 1, of ``size`` locks."""
    number = max(1, number)
    read_at = time.time()
    listed = dict(zip(readers, map_parallel(lambda reader: reader.list_names(lock_filter), readers), strict=True))
    names = [(reader, name) for reader, several in listed.items() for name in several]
    notices = []
    if ordering.needs_queues and not lock_filter.needs_queues and len(names) > MAX_SORTED:
        ordering = BY_KEY
        notices.append(_too_many(len(names)))
    if lock_filter.needs_queues or ordering.needs_queues:
        found = _read_sorted(listed, lock_filter, ordering, number=number, size=size)
    else:
        found = _read_by_key(names, lock_filter, ordering, number=number, size=size)
    return Page(
        locks=[Lock.from_snapshot(reader.alias, lock) for reader, lock in _read_shown(found.names)],
        ordering=ordering,
        number=found.number,
        count=found.count,
        is_exact=found.is_exact,
        kinds=frozenset(found.kinds - {""}),
        notices=[*notices, *found.notices],
        readers=readers,
        read_at=read_at,
    )


@dataclass(kw_only=True)
class _Found:
    """The names of the locks on a page, and what :class:`Page` has of the others."""

    names: Sequence[Name]
    number: int
    count: int
    is_exact: bool
    kinds: set[str] = field(default_factory=set)
    notices: list[str] = field(default_factory=list)


# In the order of keys.


def _read_by_key(names: list[Name], lock_filter: LockFilter, ordering: Ordering, *, number: int, size: int) -> _Found:
    names.sort(key=lambda each: paths.display_key(each[1]), reverse=ordering.reverse)
    number = _nearest_page(number, len(names), size)
    # A later page begins behind the locks of those before it. Of very many names these are not read to count them: it
    # begins as if each were a lock in use, so that pages overlap where many are not.
    start = (number - 1) * size if len(names) > MAX_SORTED else 0
    wanted = number * size - start
    found: list[Name] = []
    end, step, readers = start, wanted, {reader for reader, _name in names}
    while end < len(names) and len(found) < wanted and not any(reader.is_late for reader in readers):
        step = min(step, BATCH_SIZE)
        found += _in_use(names[end : end + step], lock_filter)
        end += step
        # Most names of a long list may be free locks.
        step *= 2
    unread = max(0, len(names) - end)
    # At the end of a long list there may be free locks alone; then the last page has the last ones in use.
    while start and not (found or unread or any(reader.is_late for reader in readers)):
        end, step = start, min(2 * step, BATCH_SIZE)
        start = max(0, end - step)
        found += _in_use(names[start:end], lock_filter)
    is_cut = unread > 0 or (start > 0 and not found)
    notices = [_unread(reader) for reader in readers if is_cut and len(found) < wanted and not reader.error]
    if not unread:
        number = _nearest_page(number, start + len(found), size)
    return _Found(
        names=found[max(0, (number - 1) * size - start) : number * size - start],
        number=number,
        count=start + len(found) + unread,
        is_exact=not unread and not start,
        notices=notices,
    )


def _in_use(names: Sequence[Name], lock_filter: LockFilter) -> Iterator[Name]:
    """Return those of ``names``, in their order, that are locks in use and match."""
    found = {
        (reader, lock.name): lock
        for reader, batch in _by_reader(names, partial(_scan_all, lock_filter)).items()
        for lock in batch
    }
    return (name for name in names if name in found)


def _scan_all(lock_filter: LockFilter, reader: AliasReader, names: Sequence[str]) -> list[LockSnapshot]:
    return [lock for batch in reader.scan(names, lock_filter) for lock in batch]


# In another order.


def _read_sorted(
    listed: Mapping[AliasReader, list[str]], lock_filter: LockFilter, ordering: Ordering, *, number: int, size: int
) -> _Found:
    rankings = [_ReaderRanking(reader, lock_filter, ordering, number * size) for reader in listed]
    map_parallel(lambda each: each.read(listed[each.reader]), rankings)
    ranking = Ranking[Name](ordering, number * size)
    for each in rankings:
        ranking += each.ranking
    count = sum(each.count for each in rankings)
    unread = 0
    notices = []
    for each in rankings:
        reader, progress = each.reader, each.reader.progress
        if not reader.error and progress.read < progress.total:
            unread += progress.total - progress.read
            notices.append(_full(reader, each.count) if each.is_full else _unread(reader))
        elif each.unsorted:
            notices.append(_unsorted(reader, each.unsorted))
    number = _nearest_page(number, count, size)
    return _Found(
        names=ranking.names()[(number - 1) * size : number * size],
        number=number,
        count=count + unread,
        is_exact=not unread,
        kinds={kind for each in rankings for kind in each.kinds},
        notices=notices,
    )


class _ReaderRanking:
    """The first ``wanted`` locks of one alias that match, and the number and the kinds of all that do.

    Locks with waiters are the most urgent ones, and the names of the nodes tell which these are. If there are enough of
    them, the data of the others is not read. If there is no time to read it, ``unsorted`` of them come last, by key.
    """

    def __init__(self, reader: AliasReader, lock_filter: LockFilter, ordering: Ordering, wanted: int) -> None:
        self.reader = reader
        self.count = self.unsorted = 0
        # Whether there were more locks than are sorted, and the others were not read.
        self.is_full = False
        self.kinds: set[str] = set()
        self.ranking = Ranking[Name](ordering, wanted)
        self._filter = lock_filter
        self._wanted = wanted
        self._needs_data = ordering.needs_data
        is_urgency = ordering == Ordering(column="urgency")
        self._contended_first = is_urgency and not lock_filter.needs_data

    def read(self, names: Sequence[str]) -> None:
        """Read the locks of these names, as many as there is time for."""
        later: list[LockSnapshot] = []
        contended = 0
        read_data = self._needs_data and not self._contended_first
        for batch in self.reader.scan(names, self._filter, read_data=read_data):
            self.count += len(batch)
            self.kinds.update(lock.kind for lock in batch)
            now = batch
            if self._contended_first:
                now = [lock for lock in batch if lock.waiter_count]
                contended += len(now)
                later = [] if contended >= self._wanted else later + [lock for lock in batch if not lock.waiter_count]
                now = self._with_holders(now)
            self._add(now)
            if self.count > MAX_SORTED:
                self.is_full = True
                break
        for start in range(0, len(later), BATCH_SIZE):
            batch = later[start : start + BATCH_SIZE]
            if self.reader.is_late:
                self.unsorted += len(batch)
                self._add(batch)
            else:
                self._add(self._with_holders(batch))

    def _with_holders(self, locks: Sequence[LockSnapshot]) -> list[LockSnapshot]:
        return self.reader.read(partial(snapshots.read_entries, limit=1), locks) or [] if locks else []

    def _add(self, locks: Sequence[LockSnapshot]) -> None:
        for lock in locks:
            if lock.nodes or lock.unknown_nodes:
                self.ranking.add(lock, (self.reader, lock.name))


# What both have.


def _read_shown(names: Sequence[Name]) -> Iterator[tuple[AliasReader, LockSnapshot]]:
    """Read the locks of a page with their first holders; those that are free by now are left out."""

    def read(reader: AliasReader, names: Sequence[str]) -> list[LockSnapshot]:
        listed = reader.read(snapshots.list_queues, names) or []
        return reader.read(partial(snapshots.read_entries, limit=MAX_HOLDERS), listed) or []

    found = {(reader, lock.name): lock for reader, locks in _by_reader(names, read).items() for lock in locks}
    # Nodes may have been deleted since the queues were listed.
    return ((name[0], lock) for name in names if (lock := found.get(name)) and (lock.nodes or lock.unknown_nodes))


def _by_reader(
    names: Sequence[Name], read: Callable[[AliasReader, Sequence[str]], list[LockSnapshot]]
) -> dict[AliasReader, list[LockSnapshot]]:
    """Group the names by reader, and return what ``read`` returns for each group, all at the same time."""
    groups: dict[AliasReader, list[str]] = {}
    for reader, name in names:
        groups.setdefault(reader, []).append(name)
    found = map_parallel(lambda reader: read(reader, groups[reader]), list(groups))
    return dict(zip(groups, found, strict=True))


def _nearest_page(number: int, count: int, size: int) -> int:
    return min(max(1, number), max(1, -(-count // size)))


def _too_many(count: int) -> str:
    return _(
        "There are %(count)s queues, too many to sort them for a page: the list is in the order of keys. "
        "Search for a part of a key, or choose a filter."
    ) % {"count": _number(count)}


def _unread(reader: AliasReader) -> str:
    return _(
        "%(read)s of %(total)s queues of “%(alias)s” were read in %(seconds)s s: the locks of the others are missing "
        "here, and the order may not be right. Search for a part of a key."
    ) % {
        "read": _number(reader.progress.read),
        "total": _number(reader.progress.total),
        "alias": reader.alias,
        "seconds": _number(round(reader.elapsed)),
    }


def _full(reader: AliasReader, count: int) -> str:
    return _(
        "Too many locks of “%(alias)s” match to sort all for a page: the list has only the first %(count)s of them by "
        "key. Search for a part of a key."
    ) % {"alias": reader.alias, "count": _number(count)}


def _unsorted(reader: AliasReader, count: int) -> str:
    return _(
        "The time of %(seconds)s s was too short to sort all locks of “%(alias)s”: %(count)s of them come last, in the "
        "order of keys. Search for a part of a key, or choose a filter."
    ) % {"seconds": _number(round(reader.elapsed)), "alias": reader.alias, "count": _number(count)}


def _number(number: int) -> str:
    return number_format(number, force_grouping=True)


class SharedPages:
    """The pages that were read last, for live updates: one reading is for all tabs that show the same list.

    Two threads that ask for the same page read it once; one of them waits for the other. A tab that has seen a reading
    already gets another one.
    """

    def __init__(self) -> None:
        self._pages: dict[Any, _SharedPage] = {}

    def get(self, key: Any, seen: float, read: Callable[[], Page]) -> Page:
        """Return the page of that key, or what ``read`` returns.

        The page must not be older than :data:`MAX_AGE`, and must have been read after ``seen``, the Unix time of the
        reading that the tab has.
        """
        now = monotonic()
        for other, page in list(self._pages.items()):
            if page.is_old(now) and other != key and not page.reading.locked():
                self._pages.pop(other, None)
        shared = self._pages.setdefault(key, _SharedPage())
        with shared.reading:
            if shared.page is None or shared.is_old(monotonic()) or shared.page.read_at <= seen:
                shared.page = read()
                shared.done = monotonic()
            return shared.page


class _SharedPage:
    def __init__(self) -> None:
        self.reading = threading.Lock()
        self.page: Page | None = None
        self.done = 0.0

    def is_old(self, now: float) -> bool:
        """Whether it was read longer ago than :data:`MAX_AGE`."""
        return now - self.done > MAX_AGE
