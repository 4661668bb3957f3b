"""The text of a value in the key of a lock: one value has one text, in every process and however it came there.

A task is called directly, and through Celery, whose JSON gives it a list for a tuple, the text of an enum for the enum,
and a dict whose keys are texts. Both must have the same key, so the text of a value is that of what JSON makes of it.
"""

from __future__ import annotations

import dataclasses
import re
import types
from collections import deque
from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from datetime import date, datetime, time
from decimal import Decimal
from typing import Any
from uuid import UUID

from django.db.models import Model, QuerySet
from django.utils.functional import LazyObject, Promise, empty

# As Python writes an address, and as classes of others do; a number alone is a text.
_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+[>;,:]|<[^<>]*[ @]0x[0-9A-Fa-f]{6,}\b[^<>]*>")
# Most values are of these types, and none of them has an order or an address.
_PLAIN = frozenset({bool, float, int, str, date, Decimal, UUID})
# What Celery's JSON makes of classes that are derived from these, such as enums, and of time zones. The first counts.
_AS_JSON: dict[type, Callable[[Any], Any]] = {
    str: str.__str__,
    bytes: lambda value: bytes(memoryview(value)),
    int: int.__int__,
    float: float.__float__,
    datetime: lambda value: datetime.fromisoformat(datetime.isoformat(value)),
    date: lambda value: date(value.year, value.month, value.day),
    time: lambda value: time.fromisoformat(time.isoformat(value)),
    Decimal: Decimal,
    UUID: lambda value: UUID(int=value.int),
}


def key_text(value: object) -> str:
    """Return the text that stands for ``value`` in a key: the same in every process.

    What Celery's JSON makes equal has the same text: an enum that is a ``str`` or an ``int`` and its value, a list and
    every kind of tuple, a dict whose keys are numbers and one whose keys are their texts. A model instance becomes
    ``app_label.model:pk``; a proxy model counts as its concrete model. Equal mappings have the same text, whatever
    their types and the order of their entries. All this applies at any depth of mappings, lists, tuples, deques and
    dataclasses. Of the others, a container whose class has a ``__str__`` of its own has that text.

    Raise ``ValueError`` for ``None``, for an unsaved instance, for a query set, for a lazy text, which depends on the
    language, and for a value whose text is empty or differs from process to process: an address in memory, or the
    members of a set in their random order.
    """
    reject_none(value)
    return stable(str(stable_form(value)), value)


class _Text(str):
    """A text that looks the same by ``repr``, which is how a container shows its members."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def stable_form(value: Any) -> Any:
    """Return what has the same ``str`` and ``repr`` in every process, for all that :func:`key_text` knows.

    Any other value is returned as it is. Raise ``ValueError`` for an unsaved instance, a query set, a lazy text and a
    set.
    """
    if issubclass(type(value), LazyObject):
        if value._wrapped is empty:  # noqa: SLF001 - as Django's own functions for lazy objects do
            value._setup()  # noqa: SLF001
        value = value._wrapped  # noqa: SLF001
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    convert = next((convert for base, convert in _AS_JSON.items() if issubclass(kind, base)), None)
    if convert is None and hasattr(kind, "__json__") and not issubclass(kind, (dict, list, tuple, Model)):
        convert = _json_form
    if convert is not None:
        return convert(value)
    _reject(value)
    if isinstance(value, Model):
        return _Text(_instance_text(value))
    if isinstance(value, (list, tuple)):
        return [stable_form(each) for each in value]
    form = value
    if isinstance(value, Mapping):
        # The items of Django's MultiValueDict are only the last value of each list.
        items = dict.items(form) if issubclass(kind, dict) else form.items()
        entries = [(_dict_key(key), stable_form(each)) for key, each in items]
        form = dict(sorted(entries, key=lambda entry: repr(entry[0])))
        if issubclass(kind, dict):
            return form
    elif fields := _fields(value):
        texts = [f"{name}={stable_form(getattr(value, name))!r}" for name in fields]
        form = _Text(f"{kind.__qualname__}({', '.join(texts)})")
    elif isinstance(value, deque):
        form = [stable_form(each) for each in value]
    # A function: what C has written, as for `MappingProxyType`, is not meant as a key.
    return value if isinstance(kind.__str__, types.FunctionType) else form


def _json_form(value: Any) -> Any:
    """Return the form of what an object is in Celery's JSON, which asks it for that."""
    return stable_form(value.__json__())


def _dict_key(key: Any) -> Any:
    """Return the key of a dict as JSON writes it: a text, also for what is a number or nothing."""
    form = stable_form(key)
    if form is None or isinstance(form, bool):
        return {None: "null", True: "true", False: "false"}[form]
    if isinstance(form, (int, float)):
        return repr(form)
    # JSON has no other keys. A tuple, whose form is a list, can be a key in a direct call.
    return _Text(form) if isinstance(form, (list, dict)) else form


def _reject(value: Any) -> None:
    """Raise ``ValueError`` for what has no text that is the same everywhere."""
    if isinstance(value, Promise):
        raise ValueError(  # noqa: TRY004 - the content of the value is wrong, as in `stable`
            f"a value in a lock key must read the same in every process, and a lazy text depends on the language that "
            f"is active, got {str(value)!r}; use the code or the number that it stands for"
        )
    if isinstance(value, QuerySet):
        raise ValueError(  # noqa: TRY004
            f"a value in a lock key must read the same in every process, and a query set of {value.model.__name__} "
            f"depends on what is in the database; use the field of its filter, or a sorted list of primary keys"
        )
    if isinstance(value, AbstractSet):
        raise ValueError(  # noqa: TRY004
            f"a value in a lock key must read the same in every process, and a set has no order, got {value!r}; "
            f"use a sorted list"
        )


def _fields(value: Any) -> tuple[str, ...]:
    """Return the names that are in the text of a dataclass, if Python has written its ``__repr__``."""
    kind = type(value)
    # Python wraps what it writes for a dataclass.
    if dataclasses.is_dataclass(kind) and hasattr(kind.__repr__, "__wrapped__"):
        return tuple(field.name for field in dataclasses.fields(kind) if field.repr)
    return ()


def _instance_text(value: Model) -> str:
    meta = value._meta  # noqa: SLF001 - Django's documented API
    # A composite primary key is a tuple, and a part of it may be None.
    if value.pk is None or (isinstance(value.pk, tuple) and None in value.pk):
        raise ValueError(f"an unsaved {meta.label} has no primary key to lock by")
    concrete = meta.concrete_model or type(value)
    return f"{concrete._meta.label_lower}:{value.pk}"  # noqa: SLF001


def reject_none(value: object) -> None:
    """Raise ``ValueError`` for ``None``."""
    if value is None:
        raise ValueError(
            "a value in a lock key must not be None, which all calls without the value would share; a callable as the "
            "key can replace it"
        )


def stable(text: str, value: object) -> str:
    """Return the ``text`` of ``value``; raise ``ValueError`` if it is empty, or differs from process to process."""
    if not text:
        raise ValueError(f"a value in a lock key must not be empty, got {value!r}")
    if "0x" in text:
        # A value that is a text itself was made of others, in an f-string or by a callable.
        reject_address(text, None if isinstance(value, str) else type(value).__name__)
    return text


def reject_address(text: str, kind: str | None = None) -> None:
    """Raise ``ValueError`` if ``text`` has an address in memory in it; ``kind`` is the class of what it stands for."""
    if not _ADDRESS.search(text):
        return
    advice = "it contains the text of an object without a __str__: write an attribute of that object"
    if kind is not None:
        advice = f"use an attribute of it, or give {kind} a __str__"
    raise ValueError(f"a value in a lock key must read the same in every process, got {text!r}; {advice}")
