"""The texts of values in keys."""

from __future__ import annotations

from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, deque
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any, NamedTuple

import pytest
from billing.models import Account
from django.contrib.auth.models import User
from django.http import QueryDict
from django.utils.datastructures import MultiValueDict
from django.utils.functional import SimpleLazyObject

from django_zklock.key_value import key_text


class ProxyAccount(Account):
    class Meta:
        proxy = True
        app_label = "billing"


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Account(pk=7), "billing.account:7"),
        (ProxyAccount(pk=7), "billing.account:7"),
        (SimpleLazyObject(lambda: User(pk=3)), "auth.user:3"),
        (0, "0"),
        (False, "False"),
        (("a", 1), "('a', 1)"),
    ],
)
def test_key_text(value: object, text: str) -> None:
    """A model instance becomes the label of its concrete model and the primary key; others become their text."""
    assert key_text(value) == text


class Point(NamedTuple):
    account: Account
    tags: Any = ()


@dataclass
class Filter:
    account: Account
    tags: Any = ()
    seen: Any = field(default_factory=set, repr=False)


@dataclass
class Named:
    tags: Any

    def __repr__(self) -> str:
        return "Named"


@pytest.mark.parametrize(
    "value",
    [
        OrderedDict(b=[1], a=[2]),
        defaultdict(list, {"b": [1], "a": [2]}),
        UserDict({"b": [1], "a": [2]}),
        ChainMap({"b": [1]}, {"a": [2]}),
        MappingProxyType({"b": [1], "a": [2]}),
        MultiValueDict({"b": [1], "a": [2]}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_key_text__mapping(value: object) -> None:
    """Every mapping has the text of a dict that is equal to it."""
    assert key_text(value) == key_text([value])[1:-1] == "{'a': [2], 'b': [1]}"


def test_key_text__query_dict() -> None:
    """All values of a parameter count, and the order of the parameters does not."""
    texts = {key_text(QueryDict(query)) for query in ("a=1&b=2", "b=2&a=1", "b=3&b=2&a=1")}
    assert texts == {"{'a': ['1'], 'b': ['2']}", "{'a': ['1'], 'b': ['3', '2']}"}


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Point(Account(pk=7), {"b": 1, "a": 2}), "Point(account=billing.account:7, tags={'a': 2, 'b': 1})"),
        (Filter(Account(pk=7), Counter("aba")), "Filter(account=billing.account:7, tags={'a': 2, 'b': 1})"),
        (deque([Account(pk=7), "x"]), "[billing.account:7, 'x']"),
        (Named({"a"}), "Named"),
    ],
)
def test_key_text__members(value: object, text: str) -> None:
    """What applies to a value applies to the members of a container too, unless its class has a text of its own."""
    assert key_text(value) == text


def test_key_text__composite_primary_key() -> None:
    """A composite primary key of which a part is missing belongs to an unsaved instance."""

    class Line(Account):
        class Meta:
            proxy = True
            app_label = "billing"

        pk = (1, None)  # type: ignore[assignment]

    with pytest.raises(ValueError, match="unsaved"):
        key_text(Line())
