"""The text of a value in the key of a lock: the same in every process."""

from __future__ import annotations

import dataclasses
import re
import types
from collections import deque
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from django.db.models import Model, QuerySet

_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+>")
# Most values are of these types, and none of them has an order or an address.
_PLAIN = frozenset({bool, float, int, str})


def key_text(value: object) -> str:
    """Return the text that stands for ``value`` in a key: the same in every process.

    A model instance becomes ``app_label.model:pk``; a proxy model counts as its concrete model. Equal mappings have the
    same text, whatever their types and the order of their entries. Both apply at any depth of mappings, lists, tuples,
    deques and dataclasses. A container whose class has a ``__str__`` of its own has that text.

    Raise ``ValueError`` for ``None``, for an unsaved instance, for a query set, and for a value whose text is empty or
    differs from process to process: an address in memory, or the members of a set in their random order.
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

    Any other value is returned as it is. Raise ``ValueError`` for an unsaved instance, a query set and a set.
    """
    kind: Any = type(value)
    if kind in _PLAIN:
        return value
    if isinstance(value, Model):
        return _Text(_instance_text(value))
    if isinstance(value, QuerySet):
        raise ValueError(  # noqa: TRY004 - as below
            f"a value in a lock key must read the same in every process, and a query set of {value.model.__name__} "
            f"depends on what is in the database; use the field of its filter, or a sorted list of primary keys"
        )
    if isinstance(value, AbstractSet):
        raise ValueError(  # noqa: TRY004 - the content of the value is wrong, as in `stable`
            f"a value in a lock key must read the same in every process, and a set has no order, got {value!r}; "
            f"use a sorted list"
        )
    form = value
    if isinstance(value, Mapping):
        # The items of Django's MultiValueDict are only the last value of each list.
        items = dict.items(form) if issubclass(kind, dict) else form.items()
        entries = [(stable_form(key), stable_form(each)) for key, each in items]
        form = dict(sorted(entries, key=lambda entry: repr(entry[0])))
    elif fields := _fields(value):
        texts = [f"{name}={stable_form(getattr(value, name))!r}" for name in fields]
        form = _Text(f"{kind.__qualname__}({', '.join(texts)})")
    elif isinstance(value, (list, tuple, deque)):
        members = [stable_form(each) for each in value]
        form = tuple(members) if isinstance(value, tuple) else members
    # A function: what C has written, as for `MappingProxyType`, is not meant as a key.
    return value if isinstance(kind.__str__, types.FunctionType) else form


def _fields(value: Any) -> tuple[str, ...]:
    """Return the names that are in the text of a named tuple or a dataclass, if Python has written its ``__repr__``."""
    kind = type(value)
    # Python wraps what it writes for a dataclass.
    if dataclasses.is_dataclass(kind) and hasattr(kind.__repr__, "__wrapped__"):
        return tuple(field.name for field in dataclasses.fields(kind) if field.repr)
    return getattr(kind, "_fields", ()) if isinstance(value, tuple) else ()


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
    if _ADDRESS.search(text):
        raise ValueError(
            f"a value in a lock key must read the same in every process, got {text!r}; use an attribute of it, or give "
            f"{type(value).__name__} a __str__"
        )
    return text
