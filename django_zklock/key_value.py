"""The text of a value in the key of a lock: the same in every process."""

from __future__ import annotations

import re
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from typing import Any

from django.db.models import Model, QuerySet

_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+>")
# Most values are of these types, and none of them has an order or an address.
_PLAIN = frozenset({bool, float, int, str})


def key_text(value: object) -> str:
    """Return the text that stands for ``value`` in a key: the same in every process.

    A model instance becomes ``app_label.model:pk``; a proxy model counts as its concrete model. Equal dicts have the
    same text, whatever the order of their entries, also inside of other dicts, lists and tuples.

    Raise ``ValueError`` for ``None``, for an unsaved instance, for a query set, and for a value whose text is empty or
    differs from process to process: an address in memory, or the members of a set in their random order.
    """
    reject_none(value)
    if isinstance(value, Model):
        return _instance_text(value)
    return stable(str(sort_entries(value)), value)


def _instance_text(instance: Model) -> str:
    meta = instance._meta  # noqa: SLF001 - Django's documented API
    # A composite primary key is a tuple, and a part of it may be None.
    if instance.pk is None or (isinstance(instance.pk, tuple) and None in instance.pk):
        raise ValueError(f"an unsaved {meta.label} has no primary key to lock by")
    concrete = meta.concrete_model or type(instance)
    return f"{concrete._meta.label_lower}:{instance.pk}"  # noqa: SLF001


class _InstanceText(str):
    """The text of a model instance inside of a container, which would show it by ``repr``."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


def _ordered_member(value: Any) -> Any:
    return _InstanceText(_instance_text(value)) if isinstance(value, Model) else sort_entries(value)


def sort_entries(value: Any) -> Any:
    """Return ``value`` with the entries of the dicts in it sorted, and with the text of model instances in it.

    Raise ``ValueError`` for a set or a query set. A container with its own ``__repr__`` or ``__str__``, such as a named
    tuple, is returned as it is.
    """
    if type(value) in _PLAIN:
        return value
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
    kind: Any = type(value)
    if isinstance(value, Mapping):
        entries = [(_ordered_member(key), _ordered_member(each)) for key, each in value.items()]
        if (kind.__repr__, kind.__str__) == (dict.__repr__, object.__str__):
            return dict(sorted(entries, key=lambda entry: repr(entry[0])))
    elif isinstance(value, (list, tuple)):
        members = [_ordered_member(each) for each in value]
        for plain in (list, tuple):
            if (kind.__repr__, kind.__str__) == (plain.__repr__, object.__str__):
                return plain(members)
    return value


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
