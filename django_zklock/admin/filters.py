"""What stands beside the list to choose from. The values are those of a selection, by its own names."""
# ruff: noqa: ARG002 - the arguments are what Django passes to what is overridden here

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.core.exceptions import ImproperlyConfigured
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_zklock import conf
from django_zklock.models import Lock

MINUTE = 60
HOUR = 60 * MINUTE
DAY = 24 * HOUR


class ChoiceFilter(admin.SimpleListFilter):
    """A few values, one of which is chosen by a link."""

    values: ClassVar[tuple[tuple[str, Any], ...]] = ()

    def __init__(
        self, request: HttpRequest, params: dict[str, Any], model: type[Lock], model_admin: admin.ModelAdmin[Any]
    ) -> None:
        super().__init__(request, params, model, model_admin)
        # What is typed into the address bar, and is none of the values, chooses nothing.
        if self.value() not in dict(self.lookup_choices):
            self.used_parameters.clear()

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, Any]]:
        return list(self.values)


class StateFilter(ChoiceFilter):
    title = _("state")
    parameter_name = "state"
    values = (
        ("held", _("held")),
        ("contended", _("held, and somebody waits")),
        ("revoked", _("asked to let go")),
        ("unknown", _("unknown")),
    )


class KindFilter(ChoiceFilter):
    title = _("kind")
    parameter_name = "kind"
    values = (
        ("exclusive", _("exclusive")),
        ("write", _("write")),
        ("read", _("read")),
        ("lease", _("lease of a semaphore")),
    )


class AgeFilter(ChoiceFilter):
    title = _("age")
    parameter_name = "older"
    values = (
        (str(MINUTE), _("more than a minute")),
        (str(10 * MINUTE), _("more than ten minutes")),
        (str(HOUR), _("more than an hour")),
        (str(DAY), _("more than a day")),
    )


class AliasFilter(ChoiceFilter):
    title = _("alias")
    parameter_name = "alias"

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, Any]]:
        try:
            aliases = conf.aliases()
        except ImproperlyConfigured:
            # The page says so.
            return []
        return [(alias, alias) for alias in aliases] if len(aliases) > 1 else []


class TextFilter(admin.ListFilter):
    """A text to be typed in: what there is to choose from would have to be read first."""

    template = "admin/django_zklock/lock/text_filter.html"
    parameter_name: str

    def __init__(
        self, request: HttpRequest, params: dict[str, Any], model: type[Lock], model_admin: admin.ModelAdmin[Any]
    ) -> None:
        super().__init__(request, params, model, model_admin)
        # All of what stands behind it in the address.
        self.others = [
            (name, value)
            for name, values in request.GET.lists()
            if name not in {self.parameter_name, PAGE_VAR}
            for value in values
        ]
        if self.parameter_name in params:
            self.used_parameters[self.parameter_name] = params.pop(self.parameter_name)[-1]

    def value(self) -> str:
        """Give what was typed in."""
        return str(self.used_parameters.get(self.parameter_name, ""))

    def has_output(self) -> bool:
        return True

    def choices(self, changelist: ChangeList) -> Iterator[Any]:
        yield {
            "selected": not self.value(),
            "query_string": changelist.get_query_string(remove=[self.parameter_name]),
            "display": _("All"),
        }


class HostFilter(TextFilter):
    title = _("host")
    parameter_name = "host"


class TaskFilter(TextFilter):
    title = _("task")
    parameter_name = "task"


ALL = (StateFilter, KindFilter, AgeFilter, AliasFilter, HostFilter, TaskFilter)
