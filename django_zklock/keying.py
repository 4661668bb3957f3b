"""From the arguments of a call to the key of its lock."""

from __future__ import annotations

import inspect
import re
import string
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from django.db.models import Model

from django_zklock.zk import keys

KeyMaker = Callable[[tuple[Any, ...], dict[str, Any]], "str | tuple[str, ...]"]
"""Takes the positional and the keyword arguments of a call and gives the key, or the keys to take together."""

Chooser = Callable[[inspect.BoundArguments], tuple[Sequence[Any], Mapping[str, Any]]]
"""Takes the arguments of a call and gives those that a key callable is called with."""

_ADDRESS = re.compile(r" at 0x[0-9A-Fa-f]+>")
_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def key_maker(key: str | Sequence[str] | Callable[..., Any], function: Callable[..., Any]) -> KeyMaker:
    """Make the key maker of ``function`` from a template over its arguments or a callable that takes them.

    A list or tuple of templates, and a callable that gives a list or tuple, name keys to take together.

    A callable whose parameters are named as those of ``function`` is given these, in any order and as few as it
    wants; one with names of its own is given the first ones by position. Defaults count as arguments.

    Raises ``TypeError`` for anything else, and ``ValueError`` for an empty template, one that is malformed, one
    that names an argument that ``function`` does not have, and a callable that wants more than there is.
    """
    if isinstance(key, str):
        return _template(key, function)
    if callable(key):
        return _callable(key, function)
    if isinstance(key, (list, tuple)) and key and all(isinstance(each, str) for each in key):
        makers = [_template(each, function) for each in key]
        return lambda args, kwargs: tuple(str(make(args, kwargs)) for make in makers)
    raise TypeError(f'the key must be a template like "invoice:{{invoice_id}}" or a callable, got {key!r}')


def template_of(key: str | Sequence[str] | Callable[..., Any], function: Callable[..., Any]) -> str:
    """Give one text for all keys that the key maker of ``function`` makes, for whoever counts.

    That is the template, or all of them with commas between. A callable has none, so a function lends its qualified
    name; what has no name of its own, such as a lambda, goes by that of ``function``.
    """
    if isinstance(key, str):
        return key
    if isinstance(key, (list, tuple)):
        return ", ".join(key)
    is_named = isinstance(key, (types.FunctionType, types.MethodType)) and key.__name__ != "<lambda>"
    named: Any = key if is_named else function
    return f"{named.__module__}.{named.__qualname__}"


def text_of(value: object) -> str:
    """Give the text that stands for ``value`` in a key: the same in every process.

    A model instance becomes ``app_label.model:pk``, one of a proxy model the same as one of the model behind it.
    Raises ``ValueError`` for an unsaved instance, and for a value whose text is empty or differs from process to
    process: an address in memory, or the members of a set in their random order.
    """
    if isinstance(value, Model):
        meta = value._meta  # noqa: SLF001 - Django's documented API
        # A composite primary key is a tuple, of which a part may be missing.
        if value.pk is None or (isinstance(value.pk, tuple) and None in value.pk):
            raise ValueError(f"an unsaved {meta.label} has no primary key to lock by")
        concrete = meta.concrete_model or type(value)
        return f"{concrete._meta.label_lower}:{value.pk}"  # noqa: SLF001
    return _stable(str(value), value)


def _stable(text: str, value: object) -> str:
    if not text:
        raise ValueError(f"a value in a lock key must not be empty, got {value!r}")
    if _ADDRESS.search(text):
        raise ValueError(
            f"a value in a lock key must read the same in every process, got {text!r}; use an attribute of it, or give "
            f"{type(value).__name__} a __str__"
        )
    if isinstance(value, (set, frozenset)):
        raise ValueError(  # noqa: TRY004 - its content is what is wrong, as above
            f"a value in a lock key must read the same in every process, and a set has no order, got {text}; "
            f"use a sorted list"
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
        fields = list(_fields(template))
    except ValueError as error:
        raise ValueError(f"lock key {template!r} is not a template: {error}; write {{{{ for a brace") from error
    signature = inspect.signature(function)
    open_ended = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in signature.parameters.values())
    for field in fields:
        name = re.split(r"[.\[]", field, maxsplit=1)[0]
        if not name.isidentifier():
            raise ValueError(f"lock key {template!r}: name the argument, as in {{invoice_id}}, instead of {{{field}}}")
        if name not in signature.parameters and not open_ended:
            raise ValueError(
                f"lock key {template!r} names {name!r}, which is no argument of {function.__qualname__}; "
                f"it has: {', '.join(signature.parameters) or 'none'}"
            )
    if not fields:
        constant = keys.check(template.format())
        return lambda _args, _kwargs: constant

    def make(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        arguments = _named(_bound(signature, function, args, kwargs))
        try:
            return _formatter.vformat(template, (), arguments)
        except (KeyError, AttributeError, IndexError, TypeError) as error:
            raise ValueError(f"lock key {template!r} cannot be made from this call: {error!r}") from error
        except ValueError as error:
            raise ValueError(f"lock key {template!r}: {error}") from error

    return make


def _fields(template: str) -> Iterator[str]:
    """Give the names of the fields of a template, those inside of format specifications too."""
    for _, name, specification, conversion in _formatter.parse(template):
        if name is not None:
            if conversion not in {None, "r", "s", "a"}:
                raise ValueError(f"unknown conversion !{conversion}")
            yield name
            yield from _fields(specification or "")


def _callable(key: Callable[..., Any], function: Callable[..., Any]) -> KeyMaker:
    if inspect.iscoroutinefunction(key):
        raise TypeError(f"the key callable of {function.__qualname__} must not be async, got {key!r}")
    signature = inspect.signature(function)
    choose = _chooser(key, function, signature)

    def text(made: object) -> str:
        if made is None:
            raise ValueError(f"the key callable of {function.__qualname__} gave None instead of a key")
        return text_of(made)

    def make(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | tuple[str, ...]:
        positional, named = choose(_bound(signature, function, args, kwargs))
        made = key(*positional, **named)
        return tuple(map(text, made)) if isinstance(made, (list, tuple)) else text(made)

    return make


def _chooser(key: Callable[..., Any], function: Callable[..., Any], signature: inspect.Signature) -> Chooser:
    """Find out which arguments of ``function`` the callable ``key`` takes, by name or by position."""
    try:
        parameters = list(inspect.signature(key).parameters.values())
    except (TypeError, ValueError):  # some builtins have no signature
        return lambda bound: (bound.args, bound.kwargs)
    names = {p.name for p in parameters if p.kind in _BY_NAME}
    required = {p.name for p in parameters if p.kind in _BY_NAME and p.default is p.empty}
    places = sum(p.kind in _BY_POSITION for p in parameters)
    takes_more = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    own_names = takes_more or any(p.kind is p.POSITIONAL_ONLY for p in parameters)
    collected = {p.name for p in signature.parameters.values() if p.kind in _COLLECTING}

    def choose(bound: inspect.BoundArguments) -> tuple[Sequence[Any], Mapping[str, Any]]:
        named = _named(bound)
        if not own_names and required <= named.keys() and (names & named.keys() or not names):
            return (), {k: v for k, v in named.items() if k in names or (takes_any and k not in collected)}
        positional = bound.args if takes_more else bound.args[:places]
        rest = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
        return positional, {k: v for k, v in named.items() if k in rest} | (bound.kwargs if takes_any else {})

    if not any(p.kind in _COLLECTING for p in signature.parameters.values()):
        by_name = not own_names and required <= signature.parameters.keys()
        wanted = sum(p.kind in _BY_POSITION and p.default is p.empty for p in parameters)
        if not by_name and wanted > len(signature.parameters):
            raise ValueError(
                f"the key callable of {function.__qualname__} takes {', '.join(p.name for p in parameters)}; "
                f"the arguments are: {', '.join(signature.parameters) or 'none'}"
            )
    return choose


def _bound(
    signature: inspect.Signature, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    """Give the arguments of a call, defaults included, or raise what the call itself would."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{function.__qualname__}() {error}") from None
    bound.apply_defaults()
    return bound


def _named(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Give every argument by name; those behind ``**`` by their own names too."""
    named: dict[str, Any] = {}
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            named |= bound.arguments[name]
    return named | bound.arguments
