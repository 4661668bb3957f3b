"""From the arguments of a call to the key of its lock."""

from __future__ import annotations

import inspect
import re
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from django.db.models import Model

KeyMaker = Callable[[tuple[Any, ...], dict[str, Any]], str]
"""Takes the positional and the keyword arguments of a call and gives the key."""

_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+>")
_NAMED = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)


def key_maker(key: str | Callable[..., Any], function: Callable[..., Any]) -> KeyMaker:
    """Make the key maker of ``function`` from a template over its arguments or a callable that takes them.

    Raises ``TypeError`` for anything else, and ``ValueError`` for an empty template, one that is malformed, or one
    that names an argument that ``function`` does not have.
    """
    if isinstance(key, str):
        return _template(key, function)
    if callable(key):
        return _callable(key, function)
    raise TypeError(f'the key must be a template like "invoice:{{invoice_id}}" or a callable, got {key!r}')


def text_of(value: object) -> str:
    """Give the text that stands for ``value`` in a key: the same in every process.

    A model instance becomes ``app_label.model:pk``. Raises ``ValueError`` for an unsaved instance, and for a
    value whose text is empty or an address in memory, which differs from process to process.
    """
    if isinstance(value, Model):
        if value.pk is None:
            raise ValueError(f"an unsaved {value._meta.label} has no primary key to lock by")  # noqa: SLF001 - Django's documented API
        return f"{value._meta.label_lower}:{value.pk}"  # noqa: SLF001
    return _stable(str(value), value)


def _stable(text: str, value: object) -> str:
    if not text:
        raise ValueError(f"a value in a lock key must not be empty, got {value!r}")
    if _ADDRESS.search(text):
        raise ValueError(
            f"a value in a lock key must read the same in every process, got {text!r}; use an attribute of it, or give "
            f"{type(value).__name__} a __str__"
        )
    return text


class _Formatter(string.Formatter):
    def format_field(self, value: Any, format_spec: str) -> str:
        return _stable(format(value, format_spec), value) if format_spec else text_of(value)


_formatter = _Formatter()


def _template(template: str, function: Callable[..., Any]) -> KeyMaker:
    if not template:
        raise ValueError("a lock key must not be empty")
    try:
        fields = [name for _, name, _, _ in _formatter.parse(template) if name is not None]
    except ValueError as error:
        raise ValueError(f"lock key {template!r} is not a template: {error}; write {{{{ for a brace") from error
    signature = inspect.signature(function)
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values())
    for field in fields:
        name = re.split(r"[.\[]", field, maxsplit=1)[0]
        if not name.isidentifier():
            raise ValueError(f"lock key {template!r}: name the argument, as in {{invoice_id}}, instead of {{{field}}}")
        if name not in signature.parameters and not open_ended:
            known = ", ".join(signature.parameters) or "none"
            raise ValueError(
                f"lock key {template!r} names {name!r}, which is no argument of {function.__qualname__}; "
                f"it has: {known}"
            )
    if not fields:
        constant = template.format()
        return lambda _args, _kwargs: constant

    def make(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        arguments = _bound(signature, args, kwargs)
        try:
            return _formatter.vformat(template, (), arguments)
        except (KeyError, AttributeError, IndexError) as error:
            raise ValueError(f"lock key {template!r} cannot be made from this call: {error!r}") from error

    return make


def _callable(key: Callable[..., Any], function: Callable[..., Any]) -> KeyMaker:
    signature = inspect.signature(function)
    wanted = _wanted_by_name(key, signature)

    def make(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        if wanted is None:
            made = key(*args, **kwargs)
        else:
            arguments = _bound(signature, args, kwargs)
            made = key(**{name: arguments[name] for name in wanted(arguments) if name in arguments})
        if made is None:
            raise ValueError(f"the key callable of {function.__qualname__} gave None instead of a key")
        return text_of(made)

    return make


def _wanted_by_name(
    key: Callable[..., Any], signature: inspect.Signature
) -> Callable[[Mapping[str, Any]], Sequence[str]] | None:
    """Tell which arguments ``key`` takes by name; ``None`` if its names are its own and it goes by position."""
    try:
        parameters = inspect.signature(key).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        return None
    names = [p.name for p in parameters if p.kind in _NAMED]
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in parameters)
    by_position = any(p.kind in (p.POSITIONAL_ONLY, p.VAR_POSITIONAL) for p in parameters)
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values())
    if by_position or not (open_ended or set(names) <= set(signature.parameters)):
        return None
    return list if takes_all else lambda _arguments: names


def _bound(signature: inspect.Signature, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Give every argument by name, defaults included; those behind ``**`` by their own names."""
    bound = signature.bind(*args, **kwargs)
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    for name, parameter in signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            arguments |= arguments.pop(name)
    return arguments
