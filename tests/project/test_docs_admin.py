"""The reference of the admin agrees with the code."""

from __future__ import annotations

import re

from django.contrib import admin

from django_zklock.admin import LockAdmin, filters, page, reader
from django_zklock.admin.actions import MAX_REASON
from django_zklock.models import Lock
from django_zklock.zk.ops.search import KINDS, STATES
from tests.project.reference_pages import REFERENCE, sections

PAGE = "admin.md"


def rows(section: str) -> dict[str, str]:
    """Return the rows of the tables of a section, by the name in their first column."""
    found = re.findall(r"^\| (.*?) \|(.*)\|$", sections(PAGE)[section], flags=re.MULTILINE)
    return {name.strip("`"): rest for name, rest in found if name.startswith("`")}


def test_permissions__are_those_of_the_model() -> None:
    """Each permission has a row, and there are no other rows."""
    names = [f"{name}_lock" for name in Lock._meta.default_permissions] + [
        name for name, _label in Lock._meta.permissions
    ]
    assert list(rows("Permissions")) == [f"django_zklock.{name}" for name in names]


def test_pages__are_those_of_the_admin() -> None:
    """Each address has a row with its name, and there are no other rows."""
    text = sections(PAGE)["Pages"]
    documented = {
        name: address.replace("<lock>", "<path:object_id>").strip("`")
        for address, name in re.findall(r"^\| (`\S+`)? ?\| `(\w+)` \|", text, flags=re.MULTILINE)
    }
    urls = LockAdmin(Lock, admin.site).get_urls()
    assert documented == {str(url.name).removeprefix("django_zklock_lock_"): str(url.pattern) for url in urls}


def test_list__parameters_are_those_of_the_filters() -> None:
    """Each filter has a row, with its values if it has choices."""
    documented = rows("List")
    names = [str(each.parameter_name) for each in filters.ALL]
    assert set(documented) == {"q", *names, "o", "p"}
    choices = (filters.StateFilter, filters.KindFilter, filters.AgeFilter)
    values = {each.parameter_name: each.values for each in choices}
    for name in ("state", "kind", "older"):
        assert re.findall(r"`(\w+)`", documented[name]) == [value for value, _label in values[name]]


def test_filters__values() -> None:
    """The choices of the filters are the values of the lock filter."""
    assert tuple(value for value, _label in filters.StateFilter.values) == STATES
    assert tuple(value for value, _label in filters.KindFilter.values) == KINDS


def test_numbers() -> None:
    """The numbers in the reference agree with the code."""
    text = (REFERENCE / PAGE).read_text(encoding="utf-8")
    assert (LockAdmin.list_per_page, reader.MAX_ENTRIES, page.MAX_HOLDERS, MAX_REASON) == (100, 100, 3, 200)
    for sentence in (
        "with a hundred locks",
        "It shows the first hundred entries of the queue.",
        "with the first hundred entries of its queue; in the list with the first three",
        "a reason of at most 200 characters",
    ):
        assert sentence in text
