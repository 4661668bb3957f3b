"""The admin's change list: the locks in ZooKeeper instead of the result of a query.

One request to each ensemble lists the names of its queues. While the key alone decides which locks are shown, and in
which order, only the queues up to the end of the page are listed. Not every name is a lock in use: the parent node of a
free lock stays for up to a minute and is skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import Any, Literal, TypeVar

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest

from django_zklock.admin.reader import AliasReader, map_parallel, readers
from django_zklock.models import Lock
from django_zklock.zk import paths
from django_zklock.zk.ops.search import COLUMNS, LockFilter, Ordering
from django_zklock.zk.ops.snapshots import LockSnapshot

T = TypeVar("T")

MAX_HOLDERS = 3

Names = Sequence[tuple[AliasReader, str]]
Snapshots = Sequence[tuple[AliasReader, LockSnapshot]]


class LockChangeList(ChangeList):
    """Search, filters, sorting and pages like any other change list, but read from ZooKeeper.

    ``exact`` says whether ``result_count`` is exact; otherwise it is an upper bound.
    """

    readers: list[AliasReader]
    exact: bool

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Lock]:  # noqa: ARG002
        self.filter_specs, self.has_filters, unknown, _, self.has_active_filters = self.get_filters(request)
        if unknown:
            raise IncorrectLookupParameters
        self.clear_all_filters_qs = self.get_query_string(remove=list(self.get_filters_params()))
        return self.root_queryset

    def get_results(self, request: HttpRequest) -> None:  # noqa: ARG002
        chosen: dict[str, Any] = {
            name: value for spec in self.filter_specs for name, value in spec.used_parameters.items()
        }
        self.readers = readers(chosen.pop("alias", ""))
        lock_filter = LockFilter(key=self.query, older=float(chosen.pop("older", 0)), **chosen)
        page = read_page(self.readers, lock_filter, self._ordering(), number=self.page_num, size=self.list_per_page)
        self.page_num = page.number
        # The paginator needs only the count; the locks of other pages were not read.
        self.paginator = Paginator(range(page.count), self.list_per_page)
        self.result_list = page.locks
        self.result_count = page.count
        self.exact = page.exact
        # The search form shows the result count if it differs from this one.
        self.full_result_count = None if self.query and page.exact else page.count
        self.show_full_result_count = False
        self.show_admin_actions = False
        self.can_show_all = False
        self.multi_page = self.paginator.num_pages > 1

    def get_ordering_field_columns(self) -> dict[int, Literal["desc", "asc"]]:
        """Return the one column by which the list is sorted."""
        return dict(islice(super().get_ordering_field_columns().items(), 1))

    @property
    def failed_readers(self) -> list[AliasReader]:
        """The readers of the aliases that could not be read."""
        return [reader for reader in self.readers if reader.error]

    def _ordering(self) -> Ordering:
        for number, direction in self.get_ordering_field_columns().items():
            if 0 <= number < len(self.list_display):
                column = self.get_ordering_field(self.list_display[number])
                if isinstance(column, str) and column in COLUMNS:
                    return Ordering(column=column, reverse=direction == "desc")
        return Ordering()


@dataclass(frozen=True, kw_only=True)
class Page:
    """One page of the ``count`` locks that match; unless ``exact``, ``count`` is an upper bound."""

    number: int
    locks: Sequence[Lock]
    count: int
    exact: bool


def read_page(
    readers: Sequence[AliasReader], lock_filter: LockFilter, ordering: Ordering, *, number: int, size: int
) -> Page:
    """Read page ``number``, counted from 1, with ``size`` locks; the nearest page if there is no such page."""
    names = [(reader, name) for reader, name in _list_names(readers) if lock_filter.matches_name(name)]
    unread = 0
    if lock_filter.needs_queues or ordering.needs_queues:
        matching = _sort(_read_all(names, lock_filter, ordering), lock_filter, ordering)
    else:
        names.sort(key=lambda each: paths.display_key(each[1]), reverse=ordering.reverse)
        number = _nearest_page(number, len(names), size)
        matching, unread = _read_until(number * size, names, lock_filter, ordering)
    if not unread:
        number = _nearest_page(number, len(matching), size)
    shown = _read_entries(matching[(number - 1) * size : number * size], MAX_HOLDERS)
    locks = [Lock.from_snapshot(reader.alias, snapshot) for reader, snapshot in shown]
    return Page(number=number, locks=locks, count=len(matching) + unread, exact=not unread)


def _list_names(readers: Sequence[AliasReader]) -> Names:
    found = map_parallel(AliasReader.list_names, readers)
    return [(reader, name) for reader, names in zip(readers, found, strict=True) for name in names]


def _read_until(wanted: int, names: Names, lock_filter: LockFilter, ordering: Ordering) -> tuple[Snapshots, int]:
    """Return at least ``wanted`` snapshots, or all there are, and the number of names that were not read."""
    found: list[tuple[AliasReader, LockSnapshot]] = []
    end, step = 0, wanted
    while end < len(names) and len(found) < wanted:
        found += _sort(_list_queues(names[end : end + step]), lock_filter, ordering)
        end += step
        # Most names of a long list may be free locks.
        step *= 2
    return found, max(0, len(names) - end)


def _read_all(names: Names, lock_filter: LockFilter, ordering: Ordering) -> Snapshots:
    snapshots = _list_queues(names)
    if lock_filter.needs_data:
        return _read_entries(snapshots)
    return _read_entries(snapshots, 1) if ordering.needs_data else snapshots


def _sort(snapshots: Snapshots, lock_filter: LockFilter, ordering: Ordering) -> Snapshots:
    now = time.time()
    readers = {id(snapshot): reader for reader, snapshot in snapshots}
    matching = ordering.sort(snapshot for _reader, snapshot in snapshots if lock_filter.matches(snapshot, now))
    return [(readers[id(snapshot)], snapshot) for snapshot in matching]


def _nearest_page(number: int, count: int, size: int) -> int:
    return min(max(1, number), max(1, -(-count // size)))


def _list_queues(names: Names) -> Snapshots:
    found = _read_by_alias(names, AliasReader.list_queues)
    return [(reader, snapshot) for reader, snapshots in found.items() for snapshot in snapshots]


def _read_entries(snapshots: Snapshots, limit: int | None = None) -> Snapshots:
    """Return the snapshots with the data of their first entries, in the same order, without queues empty by now."""
    found = _read_by_alias(snapshots, partial(AliasReader.read_entries, limit=limit))
    remaining = {reader: iter(read) for reader, read in found.items()}
    # A reader that has failed returns nothing.
    merged = [(reader, next(remaining[reader], None)) for reader, _snapshot in snapshots]
    return [(reader, read) for reader, read in merged if read and (read.nodes or read.unknown_nodes)]


def _read_by_alias(
    items: Sequence[tuple[AliasReader, T]], read: Callable[[AliasReader, Sequence[T]], list[LockSnapshot]]
) -> dict[AliasReader, list[LockSnapshot]]:
    """Group the items by reader, and return what ``read`` returns for each group."""
    groups: dict[AliasReader, list[T]] = {}
    for reader, item in items:
        groups.setdefault(reader, []).append(item)
    return dict(zip(groups, map_parallel(lambda group: read(*group), list(groups.items())), strict=True))
