"""The admin's change list: the locks in ZooKeeper instead of the result of a query.

One request to each ensemble lists the names of its queues. To find the most urgent locks all queues are listed. While
the key alone decides which locks are shown, and in which order, only the queues up to the end of the page are listed.
Not every name is a lock in use: the parent node of a free lock stays for up to a minute and is skipped.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ORDER_VAR, PAGE_VAR, ChangeList
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest
from django.utils.safestring import SafeString
from django.utils.translation import gettext as _
from django.utils.translation import ngettext

from django_zklock.admin.filters import KindFilter, TextFilter
from django_zklock.admin.format import (
    KINDS,
    OLD_AFTER,
    badges_html,
    clip,
    held_html,
    is_old,
    key_group,
    process_text,
    waiters_html,
    work_html,
)
from django_zklock.admin.reader import AliasReader, readers
from django_zklock.conf import DEFAULT_ALIAS
from django_zklock.models import Lock
from django_zklock.zk import paths
from django_zklock.zk.ops import snapshots
from django_zklock.zk.ops.search import LockFilter, Ordering, map_parallel
from django_zklock.zk.ops.snapshots import LockSnapshot

T = TypeVar("T")

MAX_HOLDERS = 3
# What the list can be sorted by, by the number in its address.
ORDERS = ("key", "urgency", "holder", "age", "waiters", "kind", "token")
# The columns of the page. The long waits come first where one looks for them.
DESCENDING_FIRST = frozenset({"age", "waiters"})

Names = Sequence[tuple[AliasReader, str]]
Snapshots = Sequence[tuple[AliasReader, LockSnapshot]]


@dataclass(frozen=True, kw_only=True)
class ListRow:
    """One lock of the list, in two lines: what holds it, and below it the process; the key, and below it what else."""

    lock: Lock
    key: SafeString
    badges: SafeString
    facts: str
    work: SafeString
    where: SafeString
    held: SafeString
    waiters: SafeString
    group: str
    holding: int
    waiting: int


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
        self._read_page(lock_filter, self._ordering())
        # The paginator needs only the count; the locks of other pages were not read.
        self.paginator = Paginator(range(self.result_count), self.list_per_page)
        # The search form shows the result count if it differs from this one.
        self.full_result_count = None if self.query and self.exact else self.result_count
        self.show_full_result_count = False
        self.show_admin_actions = False
        self.can_show_all = False
        self.multi_page = self.paginator.num_pages > 1
        if len(self._kinds) == 1 and "kind" not in self.params:
            # To choose by kind would change nothing.
            self.filter_specs = [spec for spec in self.filter_specs if not isinstance(spec, KindFilter)]

    @property
    def columns(self) -> Iterator[dict[str, str]]:
        """The columns of the page, each with the parameters that sort by it."""
        current = self._ordering()
        titles = {"key": _("key"), "holder": _("holder"), "age": _("held for"), "waiters": _("waiting")}
        for name, text in titles.items():
            is_sorted = current.column == name
            reverse = not current.reverse if is_sorted else name in DESCENDING_FIRST
            order = f"{'-' if reverse else ''}{ORDERS.index(name)}"
            direction = ("descending" if current.reverse else "ascending") if is_sorted else ""
            yield {"name": name, "text": text, "sorted": direction, "query": self._filtered({ORDER_VAR: order})}

    @property
    def rows(self) -> list[ListRow]:
        """The rows of the page."""
        return [_row(lock) for lock in self.result_list]

    @property
    def text_filters(self) -> list[TextFilter]:
        """The filters with a text field."""
        return [spec for spec in self.filter_specs if isinstance(spec, TextFilter)]

    @property
    def is_outage(self) -> bool:
        """Whether nothing could be read."""
        return bool(self.readers) and len(self.failed_readers) == len(self.readers)

    @property
    def failed_readers(self) -> list[AliasReader]:
        """The readers of the aliases that could not be read."""
        return [reader for reader in self.readers if reader.error]

    @property
    def attention(self) -> list[dict[str, str]]:
        """What needs attention on this page: a name, a text, and the parameters that list all such locks."""
        locks = [lock.snapshot for lock in self.result_list]
        waiting = sum(lock.waiter_count for lock in locks)
        contended = sum(1 for lock in locks if lock.waiter_count)
        revoked = sum(1 for lock in locks if any(entry.revoked for entry in lock.holders))
        old = sum(1 for lock in locks if any(map(is_old, lock.holders[:1])))
        found = []
        if contended:
            text = ngettext("%(waiting)s waiting for %(n)s lock", "%(waiting)s waiting for %(n)s locks", contended)
            found.append(("contended", text % {"waiting": waiting, "n": contended}, {"state": "contended"}))
        if revoked:
            text = ngettext("release of %(n)s lock requested", "release of %(n)s locks requested", revoked)
            found.append(("revoked", text % {"n": revoked}, {"state": "revoked"}))
        if old:
            text = ngettext("%(n)s held for over an hour", "%(n)s held for over an hour", old)
            found.append(("old", text % {"n": old}, {"older": str(OLD_AFTER)}))
        return [{"name": name, "text": text, "query": self._filtered(parameters)} for name, text, parameters in found]

    @property
    def urgent_first(self) -> str:
        """The parameters of the same list with the most urgent locks first; empty if it is sorted so."""
        if self._ordering() == Ordering(column="urgency"):
            return ""
        return self._filtered({ORDER_VAR: ""})

    def _filtered(self, parameters: dict[str, str]) -> str:
        return self.get_query_string(parameters, remove=[PAGE_VAR])

    def _ordering(self) -> Ordering:
        # Like Django's own list this one takes "3.1", of which the first counts.
        chosen = self.params.get(ORDER_VAR, "").partition(".")[0]
        number = chosen.removeprefix("-")
        if number.isascii() and number.isdigit() and int(number) < len(ORDERS):
            return Ordering(column=ORDERS[int(number)], reverse=chosen.startswith("-"))
        return Ordering(column="urgency")

    def _read_page(self, lock_filter: LockFilter, ordering: Ordering) -> None:
        """Set the locks of the page, the nearest one if there is no such page, and the number of all that match."""
        size = self.list_per_page
        listed = map_parallel(lambda reader: reader.read(snapshots.list_names) or [], self.readers)
        pairs = [(reader, name) for reader, names in zip(self.readers, listed, strict=True) for name in names]
        names = [(reader, name) for reader, name in pairs if lock_filter.matches_name(name)]
        unread = 0
        if lock_filter.needs_queues or ordering.needs_queues:
            locks = _list_queues(names)
            matching: Snapshots
            if lock_filter.needs_data:
                matching = _sort(_read_entries(locks, None), lock_filter, ordering)
            elif ordering.column == "urgency":
                matching = _sort_by_urgency(locks, lock_filter, self.page_num * size)
            else:
                matching = _sort(_read_entries(locks, 1) if ordering.needs_data else locks, lock_filter, ordering)
            self._kinds = {snapshot.kind for _reader, snapshot in matching} - {""}
        else:
            names.sort(key=lambda each: paths.display_key(each[1]), reverse=ordering.reverse)
            self.page_num = _nearest_page(self.page_num, len(names), size)
            self._kinds = set()
            matching, unread = _read_until(self.page_num * size, names, lock_filter, ordering)
        if not unread:
            self.page_num = _nearest_page(self.page_num, len(matching), size)
        shown = _read_entries(matching[(self.page_num - 1) * size : self.page_num * size], MAX_HOLDERS)
        self.result_list = [Lock.from_snapshot(reader.alias, snapshot) for reader, snapshot in shown]
        self.result_count = len(matching) + unread
        self.exact = not unread


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


def _sort(locks: Snapshots, lock_filter: LockFilter, ordering: Ordering) -> Snapshots:
    now = time.time()
    readers = {id(snapshot): reader for reader, snapshot in locks}
    matching = ordering.sort(snapshot for _reader, snapshot in locks if lock_filter.matches(snapshot, now))
    return [(readers[id(snapshot)], snapshot) for snapshot in matching]


def _sort_by_urgency(locks: Snapshots, lock_filter: LockFilter, wanted: int) -> Snapshots:
    """Return the locks that match, at least the first ``wanted`` of them by urgency.

    Locks with waiters are the most urgent ones, and the names of the nodes tell which these are. If there are enough of
    them, the data of the others is not read.
    """
    contended = [(reader, snapshot) for reader, snapshot in locks if snapshot.waiter_count]
    if len(contended) < wanted:
        return _sort(_read_entries(locks, 1), lock_filter, Ordering(column="urgency"))
    others = [(reader, snapshot) for reader, snapshot in locks if not snapshot.waiter_count]
    by_urgency = _sort(_read_entries(contended, 1), lock_filter, Ordering(column="urgency"))
    return [*by_urgency, *_sort(others, lock_filter, Ordering())]


def _row(lock: Lock) -> ListRow:
    snapshot = lock.snapshot
    holder = next(iter(snapshot.holders), None)
    token = _("token %(token)s") % {"token": holder.token} if holder else ""
    others = snapshot.holder_count - 1
    more = ngettext("and %(count)s more", "and %(count)s more", others) % {"count": others} if others > 0 else ""
    where = process_text(holder) if holder else ""
    alias = lock.alias if lock.alias != DEFAULT_ALIAS else ""
    return ListRow(
        lock=lock,
        key=clip(lock.key),
        badges=badges_html(snapshot),
        facts=" \u00b7 ".join(filter(None, [str(KINDS[snapshot.kind]), token, alias])),
        work=work_html(holder) if holder else SafeString(),
        where=clip(" \u00b7 ".join(filter(None, [where, more]))),
        held=held_html(holder) if holder else SafeString(),
        waiters=waiters_html(snapshot) if snapshot.waiter_count else SafeString(),
        group=key_group(lock.key),
        holding=snapshot.holder_count,
        waiting=snapshot.waiter_count,
    )


def _nearest_page(number: int, count: int, size: int) -> int:
    return min(max(1, number), max(1, -(-count // size)))


def _list_queues(names: Names) -> Snapshots:
    found = _read_by_alias(names, snapshots.list_queues)
    return [(reader, snapshot) for reader, read in found.items() for snapshot in read]


def _read_entries(locks: Snapshots, limit: int | None) -> Snapshots:
    """Return the locks with the data of their first entries, in the same order, without queues empty by now."""
    found = _read_by_alias(locks, partial(snapshots.read_entries, limit=limit))
    remaining = {reader: iter(read) for reader, read in found.items()}
    # A reader that has failed returns nothing.
    merged = [(reader, next(remaining[reader], None)) for reader, _snapshot in locks]
    return [(reader, read) for reader, read in merged if read and (read.nodes or read.unknown_nodes)]


def _read_by_alias(
    items: Sequence[tuple[AliasReader, T]], read: Callable[..., list[LockSnapshot]]
) -> dict[AliasReader, list[LockSnapshot]]:
    """Group the items by reader, and return what ``read`` returns for each group."""
    groups: dict[AliasReader, list[T]] = {}
    for reader, item in items:
        groups.setdefault(reader, []).append(item)
    found = map_parallel(lambda reader: reader.read(read, groups[reader]) or [], list(groups))
    return dict(zip(groups, found, strict=True))
