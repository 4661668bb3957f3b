"""The texts of values in keys."""

from __future__ import annotations

import asyncio
import enum
import threading
from collections import ChainMap, Counter, OrderedDict, UserDict, defaultdict, deque
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import UTC, date, datetime, time
from decimal import Decimal
from types import MappingProxyType
from typing import Any, NamedTuple
from uuid import UUID
from weakref import ref
from zoneinfo import ZoneInfo

import pytest
from billing.models import Account
from django.contrib.auth.models import User
from django.http import QueryDict
from django.utils.datastructures import MultiValueDict
from django.utils.functional import SimpleLazyObject, lazystr
from django.utils.safestring import mark_safe
from django.utils.translation import gettext_lazy

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
        (("a", 1), "['a', 1]"),
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


class Parts(deque[str]):
    def __str__(self) -> str:
        return "+".join(self)


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
        (Point(Account(pk=7), {"b": 1, "a": 2}), "[billing.account:7, {'a': 2, 'b': 1}]"),
        (Filter(Account(pk=7), Counter("aba")), "Filter(account=billing.account:7, tags={'a': 2, 'b': 1})"),
        (deque([Account(pk=7), "x"]), "[billing.account:7, 'x']"),
        (Named({"a"}), "Named"),
        (Parts("ba"), "b+a"),
        ([(), {}], "[[], {}]"),
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


# One value, one text: that of what Celery's JSON makes of it.


class Status(str, enum.Enum):  # noqa: UP042 - its text is not its value
    PAID = "paid"


class Number(int, enum.Enum):
    ONE = 1


class Share(float, enum.Enum):
    HALF = 0.5


class Day(date, enum.Enum):
    FIRST = (2026, 1, 1)


class Slug(str):
    """A text with another text."""

    __slots__ = ()

    def __str__(self) -> str:
        return "slug"


class Names(list[str]):
    """A list with another text."""

    def __str__(self) -> str:
        return "names"


@pytest.mark.celery
@pytest.mark.parametrize(
    ("value", "text"),
    [
        (Status.PAID, "paid"),
        ([Status.PAID], "['paid']"),
        (Number.ONE, "1"),
        (Share.HALF, "0.5"),
        (Day.FIRST, "2026-01-01"),
        (Slug("a"), "a"),
        (mark_safe("a"), "a"),
        (Names(["a"]), "['a']"),
        ((1, (2, "3")), "[1, [2, '3']]"),
        (Point, "[[1, 2], 3]"),
        ({1: (2,), 1.5: 0, None: 1, Status.PAID: 3}, "{'1': [2], '1.5': 0, 'null': 1, 'paid': 3}"),
        ({False: Number.ONE, Number.ONE: 0}, "{'1': 0, 'false': 1}"),
        (
            [datetime(2026, 1, 1, tzinfo=ZoneInfo("UTC"))],
            "[datetime.datetime(2026, 1, 1, 0, 0, tzinfo=datetime.timezone.utc)]",
        ),
        (datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Paris")), "2026-01-01 00:00:00+01:00"),
        ([time(1)], "[datetime.time(1, 0)]"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Decimal("1.10"), "1.10"),
        (b"a", "b'a'"),
    ],
    ids=repr,
)
def test_key_text__as_json(value: object, text: str) -> None:
    """A value has the same text before and after Celery's JSON."""
    from kombu.utils.json import dumps, loads

    if value is Point:
        value = Point((1, 2), 3)  # type: ignore[arg-type]
    assert key_text(value) == key_text(loads(dumps(value))) == text


PARIS = datetime(2026, 1, 1, 1, tzinfo=ZoneInfo("Europe/Paris"))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Decimal("1.0"), Decimal("1.00")),
        (1, 1.0),
        (1, True),
        (PARIS, PARIS.astimezone(UTC)),
        ("\u00e9", "e\u0301"),
        ("a", " a"),
        ("AB", "ab"),
        ([None], []),
        (QueryDict("a=1&a=2"), {"a": "2"}),
    ],
)
def test_key_text__two_texts(one: object, other: object) -> None:
    """What the documents say of values that people take for one, and that have two keys."""
    assert key_text(one) != key_text(other)


def test_key_text__not_json() -> None:
    """A dict that JSON cannot write has a text too."""
    assert key_text({(1, 2): "a"}) == "{[1, 2]: 'a'}"


@pytest.mark.parametrize(
    ("value", "text"),
    [(SimpleLazyObject(lambda: (1, 2)), "[1, 2]"), ([SimpleLazyObject(lambda: Status.PAID)], "['paid']")],
    ids=["a tuple", "in a list"],
)
def test_key_text__lazy_object(value: object, text: str) -> None:
    """A lazy object is what it stands for."""
    assert key_text(value) == text


@pytest.mark.parametrize("value", [gettext_lazy("Yes"), [gettext_lazy("Yes")], {"a": lazystr("Yes")}], ids=type)
def test_key_text__lazy_text(value: object) -> None:
    """A lazy text depends on the language, and is refused."""
    with pytest.raises(ValueError, match="a lazy text depends on the language that is active, got 'Yes'"):
        key_text(value)


def test_key_text__address() -> None:
    """An address in memory is refused, and what is named is the object that has it, if that is known."""
    with pytest.raises(
        ValueError, match=r"got '<object object at 0x[0-9a-f]+>'; use an attribute of it, or give object"
    ):
        key_text(object())
    with pytest.raises(ValueError, match="it contains the text of an object without a __str__"):
        key_text(f"account:{object()}")
    with pytest.raises(ValueError, match="read the same in every process"):
        key_text([ref(Status)])


class Own:
    """A class whose text has an address in a form of its own."""

    def __repr__(self) -> str:
        return f"<Own {hex(id(self))}>"


class AtSign:
    """And one as in the packages of Celery."""

    def __repr__(self) -> str:
        return f"<promise@{id(self):#x}>"


@pytest.mark.parametrize("value", [Future(), threading.Event(), asyncio.Lock(), Own(), AtSign(), [Own()]], ids=type)
def test_key_text__address_of_another_look(value: object) -> None:
    """So it is where the address is followed by the state of the object, or written by a class itself."""
    for each in (value, f"of {value}"):
        with pytest.raises(ValueError, match="read the same in every process"):
            key_text(each)


@pytest.mark.parametrize("value", ["0x7f3a5c001230", "wallet:0x52908400098527886E0F7030069857D2E4169EE7", "<0x1>"])
def test_key_text__number_in_a_text(value: str) -> None:
    """A number that is only written like an address is a text."""
    assert key_text(value) == value
