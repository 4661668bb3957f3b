"""The admin's change list over a survey instead of a query."""

from __future__ import annotations

from itertools import islice
from typing import Any, Literal

from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import ChangeList
from django.core.paginator import Paginator
from django.db.models import QuerySet
from django.http import HttpRequest

from django_zklock.admin import listing, source
from django_zklock.admin.source import Source
from django_zklock.models import Lock
from django_zklock.zk.inspection.selection import COLUMNS, Ordering, Selection


class LockChangeList(ChangeList):
    """Search, filters, sorting and pages as anywhere in the admin; what they are about is read from ZooKeeper.

    ``exact`` says whether ``result_count`` is that; if not, it is an upper bound.
    """

    sources: list[Source]
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
        self.sources = source.every(chosen.pop("alias", ""))
        selection = Selection(key=self.query, older=float(chosen.pop("older", 0)), **chosen)
        page = listing.page(self.sources, selection, self._ordering(), number=self.page_num, size=self.list_per_page)
        self.page_num = page.number
        # Of numbers alone: the locks of the other pages are not known.
        self.paginator = Paginator(range(page.count), self.list_per_page)
        self.result_list = page.locks
        self.result_count = page.count
        self.exact = page.exact
        # The search form shows its count where the two differ.
        self.full_result_count = None if self.query and page.exact else page.count
        self.show_full_result_count = False
        self.show_admin_actions = False
        self.can_show_all = False
        self.multi_page = self.paginator.num_pages > 1

    def get_ordering_field_columns(self) -> dict[int, Literal["desc", "asc"]]:
        """Give the one column that the list is sorted by."""
        return dict(islice(super().get_ordering_field_columns().items(), 1))

    @property
    def problems(self) -> list[Source]:
        """The aliases that could not be read."""
        return [each for each in self.sources if each.problem]

    def _ordering(self) -> Ordering:
        for number, direction in self.get_ordering_field_columns().items():
            if 0 <= number < len(self.list_display):
                column = self.get_ordering_field(self.list_display[number])
                if isinstance(column, str) and column in COLUMNS:
                    return Ordering(column=column, reverse=direction == "desc")
        return Ordering()
