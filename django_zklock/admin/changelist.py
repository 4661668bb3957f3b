"""The admin's change list: the locks in ZooKeeper instead of the result of a query."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from functools import partial
from typing import Any

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
    local_time,
    process_text,
    waiters_html,
    work_html,
)
from django_zklock.admin.page import Page, SharedPages, read_page
from django_zklock.admin.reader import AliasReader, readers
from django_zklock.conf import DEFAULT_ALIAS
from django_zklock.models import Lock
from django_zklock.zk.ops.search import LockFilter, Ordering

# What the list can be sorted by, by the number in its address.
ORDERS = ("key", "urgency", "holder", "age", "waiters", "kind", "token")
# The columns of the page. The long waits come first where one looks for them.
DESCENDING_FIRST = frozenset({"age", "waiters"})

# By this header a page that updates itself says when what it shows was read: one that another page has read since then
# will do.
LIVE = "X-Zklock-Live"
shared_pages = SharedPages()


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

    ``page`` is what was read.
    """

    page: Page

    def get_queryset(self, request: HttpRequest, exclude_parameters: Any = None) -> QuerySet[Lock]:  # noqa: ARG002
        self.filter_specs, self.has_filters, unknown, _, self.has_active_filters = self.get_filters(request)
        if unknown:
            raise IncorrectLookupParameters
        self.clear_all_filters_qs = self.get_query_string(remove=list(self.get_filters_params()))
        return self.root_queryset

    def get_results(self, request: HttpRequest) -> None:
        chosen: dict[str, Any] = {
            name: value for spec in self.filter_specs for name, value in spec.used_parameters.items()
        }
        alias = chosen.pop("alias", "")
        lock_filter = LockFilter(key=self.query, older=float(chosen.pop("older", 0)), **chosen)
        wanted = (lock_filter, self._ordering(), self.page_num, self.list_per_page)
        read = partial(self._read, alias, *wanted)
        seen = _moment(request.headers.get(LIVE, ""))
        self.page = read() if seen is None else shared_pages.get((alias, *wanted), seen, read)
        self.result_list = self.page.locks
        self.result_count = self.page.count
        self.page_num = self.page.number
        # The paginator needs only the count; the locks of other pages were not read.
        self.paginator = Paginator(range(self.result_count), self.list_per_page)
        # The search form shows the result count if it differs from this one.
        self.full_result_count = None if self.query and self.exact else self.result_count
        self.show_full_result_count = False
        self.show_admin_actions = False
        self.can_show_all = False
        self.multi_page = self.paginator.num_pages > 1
        if len(self.page.kinds) == 1 and "kind" not in self.params:
            # To choose by kind would change nothing.
            self.filter_specs = [spec for spec in self.filter_specs if not isinstance(spec, KindFilter)]

    @staticmethod
    def _read(alias: str, lock_filter: LockFilter, ordering: Ordering, number: int, size: int) -> Page:
        return read_page(readers(alias), lock_filter, ordering, number=number, size=size)

    @property
    def exact(self) -> bool:
        """Whether ``result_count`` is exact; otherwise it is an upper bound."""
        return self.page.is_exact

    @property
    def read_at(self) -> datetime:
        """When the locks were read."""
        return local_time(self.page.read_at)

    @property
    def readers(self) -> list[AliasReader]:
        """The readers of the aliases."""
        return self.page.readers

    @property
    def columns(self) -> Iterator[dict[str, str]]:
        """The columns of the page, each with the parameters that sort by it."""
        current = self.page.ordering
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
        old = [entry.granted is not None for lock in locks for entry in lock.holders[:1] if is_old(entry)]
        found = []
        if contended:
            text = ngettext("%(waiting)s waiting for %(n)s lock", "%(waiting)s waiting for %(n)s locks", contended)
            found.append(("contended", text % {"waiting": waiting, "n": contended}, {"state": "contended"}))
        if revoked:
            text = ngettext("release of %(n)s lock requested", "release of %(n)s locks requested", revoked)
            found.append(("revoked", text % {"n": revoked}, {"state": "revoked"}))
        if known := old.count(True):
            text = ngettext("%(n)s held for over an hour", "%(n)s held for over an hour", known)
            found.append(("old", text % {"n": known}, {"older": str(OLD_AFTER)}))
        if unknown := old.count(False):
            # It may have waited for a part of that.
            text = ngettext("%(n)s perhaps held for over an hour", "%(n)s perhaps held for over an hour", unknown)
            found.append(("old", text % {"n": unknown}, {"older": str(OLD_AFTER)}))
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


def _moment(text: str) -> float | None:
    """Return the time in a header; ``None`` if there is none."""
    try:
        return float(text)
    except ValueError:
        return None


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
