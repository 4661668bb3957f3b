"""The filters beside the list. Their parameters and values are those of the lock filter in ``zk``."""
# ruff: noqa: ARG002 - Django defines the arguments of overridden methods

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, ClassVar

from django.contrib import admin
from django.contrib.admin.options import IncorrectLookupParameters
from django.contrib.admin.views.main import PAGE_VAR, ChangeList
from django.http import HttpRequest
from django.utils.translation import gettext_lazy as _

from django_zklock.admin.format import KINDS
from django_zklock.admin.reader import readers
from django_zklock.models import Lock
from django_zklock.zk.formatting import DAY, HOUR, MINUTE


class ChoiceFilter(admin.SimpleListFilter):
    """A filter with a link for each of its values."""

    values: ClassVar[tuple[tuple[str, Any], ...]] = ()

    def __init__(
        self, request: HttpRequest, params: dict[str, Any], model: type[Lock], model_admin: admin.ModelAdmin[Any]
    ) -> None:
        super().__init__(request, params, model, model_admin)
        if not self.value():
            self.used_parameters.clear()
        elif self.value() not in dict(self.lookup_choices):
            # As Django's own filters: a list of all locks would be taken for the answer.
            raise IncorrectLookupParameters(f"{self.parameter_name} has no value {self.value()!r}")

    def lookups(self, request: HttpRequest, model_admin: admin.ModelAdmin[Any]) -> list[tuple[str, Any]]:
        return list(self.values)


class StateFilter(ChoiceFilter):
    title = _("state")
    parameter_name = "state"
    values = (
        ("held", _("held")),
        ("contended", _("held, with waiters")),
        ("revoked", _("release requested")),
        ("unknown", _("unknown")),
    )


class KindFilter(ChoiceFilter):
    title = _("kind")
    parameter_name = "kind"
    values = tuple((KINDS | {"": "", "lease": _("lease of a semaphore")}).items())[1:]


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
        return [(reader.alias, reader.alias) for reader in readers()]

    def has_output(self) -> bool:
        return len(self.lookup_choices) > 1


class TextFilter(admin.ListFilter):
    """A filter with a text field: a list of choices would require reading every lock."""

    template = "admin/django_zklock/lock/text_filter.html"
    parameter_name: str

    def __init__(
        self, request: HttpRequest, params: dict[str, Any], model: type[Lock], model_admin: admin.ModelAdmin[Any]
    ) -> None:
        super().__init__(request, params, model, model_admin)
        # All other parameters of the address.
        self.other_parameters = [
            (name, value)
            for name, values in request.GET.lists()
            if name not in {self.parameter_name, PAGE_VAR}
            for value in values
        ]
        if self.parameter_name in params:
            self.used_parameters[self.parameter_name] = params.pop(self.parameter_name)[-1]

    def value(self) -> str:
        """Return the entered text."""
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
