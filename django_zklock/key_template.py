"""The key of a lock, made from the arguments of a call by a template or a callable.

The module keeps what was warned of, by place and by module.
"""

from __future__ import annotations

import functools
import inspect
import re
import string
import types
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Self

from django_zklock.key_value import key_text, reject_address, reject_none, stable, stable_form
from django_zklock.zk import paths

KeyMaker = Callable[[tuple[Any, ...], dict[str, Any]], "str | tuple[str, ...]"]
"""Takes the positional and the keyword arguments of a call and returns the key, or the keys to take together."""

_BY_POSITION = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_BY_NAME = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
_COLLECTING = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
_CONTEXT_ARGUMENTS = {"self", "cls", "request"}
_PERCENT = re.compile(r"%(\(\w+\))?[sdr]")
# Django's method_decorator decorates a method at each call; a warning is given once.
_warned: dict[Any, Any] = {}
# The modules of which a key without a field was warned of. Where one is meant there are often many.
_modules_without_field: set[str] = set()


class MadeKey(str):
    """A key that was made by a template. ``fields`` are the template's, as in ``("invoice_id=42",)``, for people."""

    __slots__ = ("fields",)
    fields: tuple[str, ...]

    def __new__(cls, text: str, fields: Iterable[str] = ()) -> Self:
        key = super().__new__(cls, text)
        key.fields = tuple(fields)
        return key


def fields_of(key: str | Sequence[str]) -> list[str]:
    """Return the fields of the templates that ``key``, or several keys, were made by, each once; none if not known."""
    keys = [key] if isinstance(key, str) else key
    return list(dict.fromkeys(field for each in keys if isinstance(each, MadeKey) for field in each.fields))


def plain_fields(key: str | Sequence[str] | Callable[..., Any]) -> frozenset[str]:
    """Return the arguments whose values a template, or several, have as they are: ``{invoice_id}``."""
    templates = [] if callable(key) else [key] if isinstance(key, str) else key
    return frozenset(field for each in templates for field in _fields(each) if field.isidentifier())


def compile_key(key: str | Sequence[str] | Callable[..., Any], function: Callable[..., Any]) -> KeyMaker:
    """Return the key maker of ``function`` for a template over its arguments or a callable that takes them.

    A callable whose parameters are all named like parameters of ``function`` gets the arguments with those names. Any
    other callable gets the leading arguments by position. Defaults of ``function`` are arguments too.

    Raise ``TypeError`` for any other key; ``ValueError`` for an empty or malformed template, a template that names an
    argument that ``function`` does not have, and a callable that needs more arguments than there are.
    """
    if isinstance(key, str):
        return _template(key, function)
    if callable(key):
        return _callable(key, function)
    if isinstance(key, (list, tuple)) and key and all(isinstance(each, str) for each in key):
        makers = [_template(each, function) for each in key]
        return lambda args, kwargs: tuple(make(args, kwargs) for make in makers)
    raise TypeError(f'the key must be a template like "invoice:{{invoice_id}}" or a callable, got {key!r}')


def metric_name(key: str | Sequence[str] | Callable[..., Any], function: Callable[..., Any]) -> str:
    """Return the name that all keys of ``function`` share in metrics, by default: see ``zk_locked``."""
    if isinstance(key, str):
        return key
    if isinstance(key, (list, tuple)):
        return ", ".join(key)
    is_named = isinstance(key, (types.FunctionType, types.MethodType)) and key.__name__ != "<lambda>"
    named: Any = key if is_named else function
    return f"{named.__module__}.{named.__qualname__}"


def signature_of(function: Callable[..., Any]) -> inspect.Signature:
    """Return the signature that calls of ``function`` have to match."""
    if isinstance(function, functools.partial):
        # Django's method_decorator copies __wrapped__, the method with `self`, to a partial of the bound method.
        function = functools.partial(function.func, *function.args, **function.keywords)
    return inspect.signature(function)


def warn_of_mistakes(
    key: str | Sequence[str] | Callable[..., Any], function: Callable[..., Any], *, needs_field: bool
) -> None:
    """Warn if a template has a ``%s``, and, with ``needs_field``, if no template has a field although calls differ.

    Calls differ if ``function`` has an argument without a default, other than ``self``, ``cls`` and ``request``. The
    second warning is given once for a module.
    """
    if callable(key):
        return
    templates = [key] if isinstance(key, str) else key
    for template in templates:
        text = "".join(literal for literal, *_field in _formatter.parse(template))
        if found := _PERCENT.search(text):
            _warn(
                function,
                f"lock key {template!r} of {function.__qualname__} has {found[0]}, which is not replaced: write "
                f"{{name}}, with the name of an argument",
            )
    required = [
        parameter.name
        for parameter in signature_of(function).parameters.values()
        if parameter.default is parameter.empty
        and parameter.kind not in _COLLECTING
        and parameter.name not in _CONTEXT_ARGUMENTS
    ]
    is_constant = not any(field for template in templates for field in _fields(template))
    if needs_field and required and is_constant and function.__module__ not in _modules_without_field:
        _warn(
            function,
            f"lock key {key!r} of {function.__qualname__} has no field, so all calls share one lock, whatever "
            f"{' and '.join(required)} may be: name an argument, as in {{{required[0]}}}, or add template= if one lock "
            f"for all calls is meant; other keys of the module {function.__module__} may have none either",
        )
        # Not if the warning is an error.
        _modules_without_field.add(function.__module__)


def _warn(function: Callable[..., Any], message: str) -> None:
    code = getattr(inspect.unwrap(function), "__code__", None)
    # At the line of the function, however many decorators are between.
    file, line = (code.co_filename, code.co_firstlineno) if code else (__file__, 1)
    warnings.warn_explicit(message, UserWarning, file, line, module=function.__module__, registry=_warned)


class _Formatter(string.Formatter):
    def convert_field(self, value: Any, conversion: Any) -> Any:
        reject_none(value)
        return super().convert_field(stable_form(value) if conversion else value, conversion)

    def format_field(self, value: Any, format_spec: str) -> str:
        return stable(format(stable_form(value), format_spec), value) if format_spec else key_text(value)


_formatter = _Formatter()


def _compile(template: str) -> Callable[[Mapping[str, Any]], str]:
    """Return a function that formats ``template``, which is parsed only once."""
    parsed = list(_formatter.parse(template))
    if any("{" in (specification or "") for _, _, specification, _ in parsed):
        return lambda arguments: _formatter.vformat(template, (), arguments)
    parts = [(*part, part[1] is not None and part[1].isidentifier()) for part in parsed]

    def write(arguments: Mapping[str, Any]) -> str:
        texts, fields = [], []
        for literal, name, specification, conversion, is_argument in parts:
            texts.append(literal)
            if name is not None:
                value = arguments[name] if is_argument else _formatter.get_field(name, (), arguments)[0]
                text = _formatter.format_field(_formatter.convert_field(value, conversion), specification or "")
                texts.append(text)
                fields.append(f"{name}={text}")
        return MadeKey("".join(texts), fields)

    return write


def _template(template: str, function: Callable[..., Any]) -> Callable[[tuple[Any, ...], dict[str, Any]], str]:
    if not template:
        raise ValueError("a lock key must not be empty")
    reject_address(template)
    try:
        fields = list(_fields(template))
    except ValueError as error:
        raise ValueError(f"lock key {template!r} is not a template: {error}; write {{{{ for a brace") from error
    signature = signature_of(function)
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
    arguments_of = _argument_finder(signature, function)
    if not fields:
        constant = paths.check_key(template.format())

        def make_constant(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
            # A wrong call fails before it waits for the lock, as with any other key.
            arguments_of(args, kwargs)
            return constant

        return make_constant
    write = _compile(template)

    def make(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str:
        arguments = arguments_of(args, kwargs)
        try:
            return write(arguments)
        except (KeyError, AttributeError, IndexError, TypeError) as error:
            there = f"; the call has: {', '.join(arguments) or 'no arguments'}" if isinstance(error, KeyError) else ""
            raise ValueError(f"lock key {template!r} cannot be made from this call: {error!r}{there}") from error
        except ValueError as error:
            raise ValueError(f"lock key {template!r}: {error}") from error

    return make


def _fields(template: str) -> Iterator[str]:
    """Yield the names of the fields of a template, including those inside of format specifications."""
    for _, name, specification, conversion in _formatter.parse(template):
        if name is not None:
            if conversion not in {None, "r", "s", "a"}:
                raise ValueError(f"unknown conversion !{conversion}")
            yield name
            yield from _fields(specification or "")


def _callable(key: Callable[..., Any], function: Callable[..., Any]) -> KeyMaker:
    if inspect.iscoroutinefunction(key):
        raise TypeError(f"the key callable of {function.__qualname__} must not be async, got {key!r}")
    signature = signature_of(function)
    try:
        parameters = inspect.signature(key).parameters.values()
    except (TypeError, ValueError):  # some builtins have no signature
        parameters = inspect.signature(lambda *_args, **_kwargs: None).parameters.values()
    names = {p.name for p in parameters if p.kind in _BY_NAME}
    required = {p.name for p in parameters if p.kind in _BY_NAME and p.default is p.empty}
    keyword_only = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY}
    places = sum(p.kind in _BY_POSITION for p in parameters)
    takes_more = any(p.kind is p.VAR_POSITIONAL for p in parameters)
    takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters)
    own_names = takes_more or any(p.kind is p.POSITIONAL_ONLY for p in parameters)
    collected = {p.name for p in signature.parameters.values() if p.kind in _COLLECTING}
    if not collected and (own_names or not required <= signature.parameters.keys()):
        wanted = sum(p.kind in _BY_POSITION and p.default is p.empty for p in parameters)
        if wanted > len(signature.parameters):
            raise ValueError(
                f"the key callable of {function.__qualname__} takes {', '.join(p.name for p in parameters)}; "
                f"the arguments are: {', '.join(signature.parameters) or 'none'}"
            )

    def text(made: object) -> str:
        if made is None:
            raise ValueError(f"the key callable of {function.__qualname__} returned None instead of a key")
        return key_text(made)

    def make(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | tuple[str, ...]:
        bound = _bound(signature, function, args, kwargs)
        named = _named(bound)
        if not own_names and required <= named.keys() and (names & named.keys() or not names):
            made = key(**{k: v for k, v in named.items() if k in names or (takes_any and k not in collected)})
        else:
            positional = bound.args if takes_more else bound.args[:places]
            rest = {k: v for k, v in named.items() if k in keyword_only}
            made = key(*positional, **rest | (bound.kwargs if takes_any else {}))
        return tuple(map(text, made)) if isinstance(made, (list, tuple)) else text(made)

    return make


def _bound(
    signature: inspect.Signature, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> inspect.BoundArguments:
    """Return the arguments of a call with the defaults; raise ``TypeError``, as the call would."""
    try:
        bound = signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{function.__qualname__}() {error}") from None
    bound.apply_defaults()
    return bound


def _argument_finder(
    signature: inspect.Signature, function: Callable[..., Any]
) -> Callable[[tuple[Any, ...], dict[str, Any]], Mapping[str, Any]]:
    """Return a function that returns all arguments of a call by name."""
    parameters = signature.parameters
    kinds = [parameter.kind for parameter in parameters.values()]
    positions = sum(kind in _BY_POSITION for kind in kinds)
    has_names_only = all(kind in _BY_NAME for kind in kinds)
    defaults = {name: each.default for name, each in parameters.items() if each.default is not each.empty}

    def find(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Mapping[str, Any]:
        if has_names_only and len(args) <= positions:
            # Without `bind`, which takes longer than all the rest, unless it has to say what is wrong.
            by_position = dict(zip(parameters, args, strict=False))
            named = defaults | by_position | kwargs
            if named.keys() == parameters.keys() and by_position.keys().isdisjoint(kwargs):
                return named
        return _named(_bound(signature, function, args, kwargs))

    return find


def _named(bound: inspect.BoundArguments) -> dict[str, Any]:
    """Return all arguments by name; those collected by ``**`` also by their own names."""
    named: dict[str, Any] = {}
    for name, parameter in bound.signature.parameters.items():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            named |= bound.arguments[name]
    return named | bound.arguments
