"""Keys made from the arguments of a call."""

from __future__ import annotations

import datetime as dt
import enum
import functools
import operator
import types
import uuid
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from billing.models import Account
from django.contrib.auth.models import User

from django_zklock.key_template import compile_key, fields_of, metric_name


@dataclass(frozen=True)
class Order:
    pk: int
    lines: tuple[str, ...] = ()


class Stateless:
    """An object whose text is its address."""


class Point(NamedTuple):
    x: Any
    y: int


class Status(str, enum.Enum):  # noqa: UP042 - its text is not its value
    PAID = "paid"


class Number(int, enum.Enum):
    ONE = 1


class Service:
    def __str__(self) -> str:
        return "main"

    def bill(self, invoice_id: int) -> None: ...


def bill(invoice_id: int, shop: str = "main", *, force: bool = False) -> None: ...


def every(*args: int, **options: Any) -> None: ...


def positional(invoice_id: int, /, shop: str = "main") -> None: ...


def collecting(**options: Any) -> None: ...


def key_of(
    key: str | Callable[..., Any], function: Callable[..., Any], *args: Any, **kwargs: Any
) -> str | tuple[str, ...]:
    return compile_key(key, function)(args, kwargs)


@pytest.mark.parametrize(
    ("template", "args", "kwargs", "key"),
    [
        ("invoice:{invoice_id}", (42,), {}, "invoice:42"),
        ("invoice:{invoice_id}", (), {"invoice_id": 42}, "invoice:42"),
        ("{shop}/{invoice_id:05d}", (42,), {}, "main/00042"),
        ("{shop}/{invoice_id:>{invoice_id}}", (3,), {}, "main/  3"),
        ("{shop!r}:{force}", (1, "é"), {"force": True}, "'é':True"),
        ("{{{invoice_id}}}", (1,), {}, "{1}"),
        ("constant", (1,), {}, "constant"),
        ("{{constant}}", (1,), {}, "{constant}"),
        ("{invoice_id.pk}/{invoice_id.lines[1]}", (Order(7, ("a", "b")),), {}, "7/b"),
        ("{invoice_id[order]}", ({"order": 9},), {}, "9"),
        ("{invoice_id:%Y-%m}", (dt.date(2026, 11, 20),), {}, "2026-11"),
        ("{invoice_id}", (uuid.UUID(int=5),), {}, "00000000-0000-0000-0000-000000000005"),
    ],
)
def test_template__values(template: str, args: tuple[Any, ...], kwargs: dict[str, Any], key: str) -> None:
    """A template is filled with positional, named and default arguments."""
    assert key_of(template, bill, *args, **kwargs) == key


@pytest.mark.parametrize(
    ("template", "function", "args", "kwargs", "key"),
    [
        # What `*args` and `**options` collect can be named, an option by its own name too.
        ("{args[1]}", every, (1, 2), {}, "2"),
        ("{name}", every, (), {"name": "x"}, "x"),
        ("{options[name]}", every, (), {"name": "x"}, "x"),
        # A field with a dot is an attribute, and an option does not take the place of a declared argument.
        ("{invoice.pk}", every, (), {"invoice": Order(5), "invoice.pk": 7}, "5"),
        ("{options[options]}", collecting, (), {"options": "x"}, "x"),
        # An argument that cannot be given by name can be named.
        ("{invoice_id}:{shop}", positional, (3,), {}, "3:main"),
        ("{self}:{invoice_id}", Service.bill, (Service(), 3), {}, "main:3"),
    ],
)
def test_template__functions(
    template: str, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], key: str
) -> None:
    """A template is over the arguments that the function has, however it has them."""
    assert key_of(template, function, *args, **kwargs) == key


@pytest.mark.parametrize(
    ("template", "message"),
    [
        ("", "must not be empty"),
        ("{", "is not a template"),
        ("}", "is not a template"),
        ("{invoice_id", "is not a template"),
        ("{invoice_id!z}", "is not a template: unknown conversion !z"),
        ("{}", "name the argument"),
        ("{0}", "name the argument"),
        ("{invoice}", r"names 'invoice', which is no argument of bill; it has: invoice_id, shop, force"),
        ("{invoice.pk}", "names 'invoice'"),
        ("{invoice_id:{width}}", "names 'width'"),
        ("x" * 1025, "must not be longer than 1024 bytes"),
        ("\ud800", "valid Unicode"),
    ],
)
def test_template__wrong(template: str, message: str) -> None:
    """A template that can never work is refused at decoration, and the error names the arguments of the function."""
    with pytest.raises(ValueError, match=message):
        compile_key(template, bill)


@pytest.mark.parametrize("key", [None, 42, b"key", [], ["a", 1], {"a", "b"}, object()])
def test_compile_key__neither_template_nor_callable(key: Any) -> None:
    """Anything but a template and a callable is a TypeError that shows the right form."""
    with pytest.raises(TypeError, match=r'a template like "invoice:\{invoice_id\}" or a callable'):
        compile_key(key, bill)


@pytest.mark.parametrize(
    ("template", "value", "message"),
    [
        ("{invoice_id}", "", "must not be empty"),
        ("{invoice_id}", None, "must not be None"),
        ("{invoice_id!r}", None, "must not be None"),
        ("{invoice_id:>8}", None, "must not be None"),
        ("{invoice_id.name}", types.SimpleNamespace(name=None), "must not be None"),
        ("{invoice_id}", Stateless(), "must read the same in every process"),
        ("{invoice_id}", [Stateless()], "must read the same in every process"),
        ("{invoice_id!r}", Stateless(), "must read the same in every process"),
        ("{invoice_id}", Account(), "unsaved billing.Account"),
        ("{invoice_id}", [Account()], "unsaved billing.Account"),
        ("{invoice_id!s}", Account(), "unsaved billing.Account"),
        ("{invoice_id!r}", Account(), "unsaved billing.Account"),
        ("{invoice_id.pk}", 5, "cannot be made from this call: AttributeError"),
        ("{invoice_id[1]}", (5,), "cannot be made from this call: IndexError"),
        ("{invoice_id[a]}", {}, "cannot be made from this call: KeyError"),
        ("{invoice_id:05d}", "abc", "Unknown format code 'd'"),
        ("{invoice_id:>8}", [1], "cannot be made from this call: TypeError"),
    ],
)
def test_template__unusable_value(template: str, value: object, message: str) -> None:
    """A value that does not give the same key in every process is an error that names the template."""
    with pytest.raises(ValueError, match=message) as caught:
        key_of(template, bill, value)
    assert repr(template) in str(caught.value)


@pytest.mark.parametrize("template", ["{invoice_id}", "{invoice_id!s}", "{invoice_id!r}", "{invoice_id!a}"])
@pytest.mark.parametrize(
    "value",
    [
        {"a"},
        frozenset({"a"}),
        {"a": 1}.keys(),
        [{"a"}],
        ({"a"},),
        {"a": [{"b"}]},
        {frozenset({"a"}): 1},
        OrderedDict(a={"b"}),
        Point(x={"a"}, y=1),
        Order(1, lines=frozenset({"a"})),  # type: ignore[arg-type]
        deque([{"a"}]),
    ],
    ids=repr,
)
def test_template__set(template: str, value: object) -> None:
    """A set is refused at any depth of a value and with every conversion."""
    with pytest.raises(ValueError, match="a set has no order"):
        key_of(template, bill, value)


@pytest.mark.parametrize("template", ["{invoice_id}", "{invoice_id!r}"])
@pytest.mark.parametrize("wrap", [lambda value: value, lambda value: [value], lambda value: {"a": value}])
def test_template__query_set(template: str, wrap: Callable[[object], object]) -> None:
    """A query set is refused at any depth, without a query."""
    with pytest.raises(ValueError, match=r"a query set of User depends on what is in the database"):
        key_of(template, bill, wrap(User.objects.all()))


@pytest.mark.parametrize(("args", "kwargs"), [((), {}), ((1, "a", 3), {}), ((1,), {"shops": "a"})])
def test_template__constant_and_a_wrong_call(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A wrong call is an error before the lock is acquired, also if the key has no field."""
    assert key_of("report", bill, 1, force=True) == "report"
    with pytest.raises(TypeError, match="bill"):
        key_of("report", bill, *args, **kwargs)


@pytest.mark.celery
@pytest.mark.parametrize(
    ("template", "value", "key"),
    [
        ("{invoice_id:>6}", Status.PAID, "  paid"),
        ("{invoice_id!r}", Status.PAID, "'paid'"),
        ("{invoice_id:03d}", Number.ONE, "001"),
        ("{invoice_id:%Z}", dt.datetime(2026, 1, 1, tzinfo=ZoneInfo("Europe/Paris")), "UTC+01:00"),
    ],
)
def test_template__as_json(template: str, value: object, key: str) -> None:
    """With a conversion and a format specification, too, the key is that of what JSON makes of the value."""
    from kombu.utils.json import dumps, loads

    assert key_of(template, bill, value) == key_of(template, bill, loads(dumps(value))) == key


def test_template__address() -> None:
    """A template that is an f-string over an object has its address in memory, and is refused at decoration."""
    for template in (f"k:{object()}", f"k:{object()}:{{invoice_id}}"):
        with pytest.raises(ValueError, match="an object without a __str__: write an attribute of that object"):
            compile_key(template, bill)


def test_template__separator_in_a_value() -> None:
    """With `!r` the texts of two values cannot run into each other; without it they can."""
    one, other = ("x:y", "z"), ("x", "y:z")
    assert key_of("{invoice_id}:{shop}", bill, *one) == key_of("{invoice_id}:{shop}", bill, *other) == "x:y:z"
    assert key_of("{invoice_id!r}:{shop!r}", bill, *one) == "'x:y':'z'"
    assert key_of("{invoice_id!r}:{shop!r}", bill, *other) == "'x':'y:z'"


def test_template__unknown_option() -> None:
    """A template over `**options` fails in the call that does not have the option, and says what the call has."""
    with pytest.raises(ValueError, match=r"cannot be made from this call: KeyError.*; the call has: .*shop"):
        key_of("{name}", every, shop="main")


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "missing a required argument: 'invoice_id'"),
        ((), {"lines": 1}, "missing a required argument: 'invoice_id'"),
        ((), {"invoice": 1}, "missing a required argument: 'invoice_id'"),
        ((1,), {"invoice": 1}, "got an unexpected keyword argument 'invoice'"),
        ((1,), {"invoice_id": 1}, "multiple values for argument 'invoice_id'"),
        ((1, 2, 3), {}, "too many positional arguments"),
    ],
)
def test_template__wrong_call(args: tuple[int, ...], kwargs: dict[str, int], message: str) -> None:
    """A call that does not match the signature is the TypeError of the function itself."""

    def bill(invoice_id: int, lines: int = 0, *, dry: bool = False) -> None: ...

    with pytest.raises(TypeError, match=rf"bill\(\) {message}"):
        key_of("{invoice_id}", bill, *args, **kwargs)


@pytest.mark.parametrize(
    ("key", "made"),
    [
        (lambda invoice_id: f"i:{invoice_id}", "i:7"),
        (lambda force, shop: f"{shop}:{force}", "main:False"),
        (lambda shop, **_: shop, "main"),
        (lambda **everything: str(sorted(everything)), "['force', 'invoice_id', 'shop']"),
        (lambda: "constant", "constant"),
        (lambda shop, suffix="x": f"{shop}{suffix}", "mainx"),
        (lambda x: f"i:{x}", "i:7"),
        (lambda x, y: f"{x}{y}", "7main"),
        (lambda *args: str(args), "(7, 'main')"),
        (lambda *args, force: str((args, force)), "((7, 'main'), False)"),
        (lambda x, /, **rest: str((x, rest)), "(7, {'force': False})"),
        (lambda x=1: x, "7"),
        (functools.partial(lambda prefix, x: f"{prefix}{x}", "p"), "p7"),
        (functools.partial(lambda prefix, invoice_id: f"{prefix}{invoice_id}", prefix="p"), "p7"),
    ],
)
@pytest.mark.parametrize(("args", "kwargs"), [((7,), {}), ((), {"invoice_id": 7})])
def test_callable__arguments(key: Callable[..., Any], made: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """A key callable gets the arguments that it names, or the first ones by position."""
    assert key_of(key, bill, *args, **kwargs) == made


@pytest.mark.parametrize(
    ("key", "made"), [(str, "7"), (operator.itemgetter(0), "7"), ("i:{}".format, "i:7"), (operator.neg, "-7")]
)
def test_callable__builtin(key: Callable[..., Any], made: str) -> None:
    """A builtin without a signature gets the arguments as they are."""

    def one(value: Any) -> None: ...

    assert key_of(key, one, (7,) if isinstance(key, operator.itemgetter) else 7) == made


def test_callable__method() -> None:
    """A key callable may name `self` or leave it out."""
    service = Service()
    assert key_of(lambda self, invoice_id: f"{self}:{invoice_id}", Service.bill, service, 3) == "main:3"
    assert key_of(lambda invoice_id: invoice_id, Service.bill, service, 3) == "3"
    assert key_of(lambda self, **_: self, Service.bill, service, 3) == "main"


def test_callable__collected_arguments() -> None:
    """Of a function that collects arguments, a callable gets them under their own names, or by position."""
    assert key_of(lambda name, **_: name, every, 1, name="x", other="y") == "x"
    assert key_of(lambda **options: str(sorted(options)), every, 1, name="x", other="y") == "['name', 'other']"
    assert key_of(lambda x: x, every, 1, 2, name="x") == "1"
    assert key_of(lambda options: options["name"], every, 1, name="x") == "x"


def test_callable__model_instance() -> None:
    """A callable may return a model instance."""
    assert key_of(lambda invoice_id: Account(pk=invoice_id), bill, 7) == "billing.account:7"


@pytest.mark.parametrize(
    ("gives", "message"),
    [
        (None, "the key callable of bill returned None instead of a key"),
        (["fine", None], "returned None instead of a key"),
        (["fine", ""], "must not be empty"),
        ("", "must not be empty"),
        (Stateless(), "must read the same in every process"),
        ({"a"}, "a set has no order"),
        ({"a": [{"b"}]}, "a set has no order"),
    ],
)
def test_callable__unusable_value(gives: object, message: str) -> None:
    """A result of a callable that is not the same in every process is refused."""
    with pytest.raises(ValueError, match=message):
        key_of(lambda **_: gives, bill, 1)


def test_callable__wants_too_much() -> None:
    """A callable that wants more arguments than there are is refused at decoration."""

    def one(value: int) -> None: ...

    with pytest.raises(ValueError, match=r"the key callable of .*one takes x, y; the arguments are: value"):
        compile_key(lambda x, y: x, one)


def test_callable__async() -> None:
    """An async callable would return a coroutine and no key, and is refused at decoration."""

    async def key(invoice_id: int) -> str:
        return str(invoice_id)

    with pytest.raises(TypeError, match="must not be async"):
        compile_key(key, bill)


def test_callable__raises() -> None:
    """An error of a key callable reaches the caller unchanged."""
    with pytest.raises(ZeroDivisionError):
        key_of(lambda invoice_id: invoice_id / 0, bill, 1)


@pytest.mark.parametrize("several", [list, tuple])
def test_several__templates(several: Callable[..., Any]) -> None:
    """A list of templates makes one key for each, in order."""
    assert key_of(several(["shop:{shop}", "invoice:{invoice_id}"]), bill, 7) == ("shop:main", "invoice:7")


@pytest.mark.parametrize(
    ("key", "fields"),
    [
        ("invoice:{invoice_id}", ["invoice_id=7"]),
        ("{shop}:{invoice_id:03d}:{shop!r}", ["shop=main", "invoice_id=007", "shop='main'"]),
        ("{invoice_id.real}:{shop[0]}", ["invoice_id.real=7", "shop[0]=m"]),
        (["shop:{shop}", "{shop}/{invoice_id}"], ["shop=main", "invoice_id=7"]),
        ("nightly", []),
        ("{invoice_id:{shop[3]}>3}", []),
        (lambda invoice_id: invoice_id, []),
    ],
)
def test_fields_of(key: Any, fields: list[str]) -> None:
    """The fields of a template are known with their texts in the key; those of other keys are not."""
    assert fields_of(key_of(key, bill, 7)) == fields
    assert fields_of("invoice:7") == []


def test_several__one_is_wrong() -> None:
    """Each template of a list is checked at decoration."""
    with pytest.raises(ValueError, match="names 'nobody', which is no argument of bill"):
        compile_key(["invoice:{invoice_id}", "{nobody}"], bill)


def test_several__callable() -> None:
    """A callable may return several values, each of a type that one key may have."""
    assert key_of(lambda invoice_id, shop: [shop, Account(pk=invoice_id)], bill, 7) == ("main", "billing.account:7")
    assert key_of(lambda shop: (shop,), bill, 7) == ("main",)


# What keys have in common.


def account_key(invoice_id: int) -> str:
    return f"account:{invoice_id}"


@pytest.mark.parametrize(
    ("key", "template"),
    [
        ("invoice:{invoice_id}", "invoice:{invoice_id}"),
        ("nightly", "nightly"),
        (["invoice:{invoice_id}", "shop:{shop}"], "invoice:{invoice_id}, shop:{shop}"),
        (account_key, f"{__name__}.account_key"),
        (Service().bill, f"{__name__}.Service.bill"),
        (lambda invoice_id: invoice_id, f"{__name__}.bill"),
        (functools.partial(account_key, 1), f"{__name__}.bill"),
        (operator.itemgetter(0), f"{__name__}.bill"),
    ],
)
def test_template(key: Any, template: str) -> None:
    """The name is the template, the name of a function as the key, or else the name of the locked function."""
    assert metric_name(key, bill) == template
