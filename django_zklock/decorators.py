"""``@zk_locked``: at most one call at a time, across all hosts."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import types
from collections.abc import Callable, Coroutine, Sequence
from typing import (
    Any,
    Concatenate,
    Literal,
    Never,
    ParamSpec,
    Protocol,
    TypeAlias,
    TypedDict,
    TypeVar,
    Unpack,
    cast,
    get_args,
    overload,
)

from django.apps import apps
from django.core.management.base import BaseCommand
from django.db import DEFAULT_DB_ALIAS
from django.http import HttpRequest, HttpResponse

from django_zklock.api import Mode
from django_zklock.conf import DEFAULT_ALIAS
from django_zklock.conflict import ConflictPolicy, OnConflict, OnLost, OnUnavailable, Skipped, UnavailablePolicy
from django_zklock.connections import Using, check_using
from django_zklock.key_template import compile_key, metric_name, plain_fields, warn_of_mistakes
from django_zklock.locked_call import LockedCall
from django_zklock.zk import arguments, paths
from django_zklock.zk.queue import rule
from django_zklock.zk.waiting import UNSET, Timeout, Unset, seconds


class DjangoTask(Protocol):
    """A task of ``django.tasks`` (new in Django 6.0), which is not callable, for type checkers."""

    @property
    def func(self) -> Callable[..., Any]: ...


class CeleryTask(Protocol):
    """A task of Celery, for type checkers."""

    def delay(self, *args: Any, **kwargs: Any) -> Any: ...


Target = TypeVar("Target", bound=Callable[..., Any] | DjangoTask)
P = ParamSpec("P")
T = TypeVar("T")
Class = TypeVar("Class", bound=type)
Task = TypeVar("Task", bound=CeleryTask | DjangoTask)
Command = TypeVar("Command", bound=BaseCommand)
Request = TypeVar("Request", bound=HttpRequest)

USAGE = '@zk_locked("invoice:{invoice_id}")'


class _Options(TypedDict, total=False):
    """The options of :func:`zk_locked` that do not change what a decorated function returns."""

    mode: Mode
    limit: int | None
    reentrant: bool
    using: Using
    timeout: Timeout | Unset
    on_lost: OnLost
    template: str | None
    atomic: bool | str
    unique_until: Literal["start"] | None


Key: TypeAlias = str | Sequence[str] | Callable[..., Any]


@overload
def zk_locked(
    key: Key,
    *,
    on_conflict: Literal["skip", "coalesce"],
    on_unavailable: OnUnavailable = "raise",
    **options: Unpack[_Options],
) -> LockedOrSkipped: ...


@overload
def zk_locked(
    key: Key,
    *,
    on_conflict: OnConflict = "wait",
    on_unavailable: Literal["skip"],
    **options: Unpack[_Options],
) -> LockedOrSkipped: ...


@overload
def zk_locked(
    key: Key,
    *,
    on_conflict: Literal["wait", "raise", "retry"] | Callable[..., Any] = "wait",
    on_unavailable: Literal["raise", "run", "retry"] | Callable[..., Any] = "raise",
    **options: Unpack[_Options],
) -> Locked: ...


def zk_locked(
    key: str | Sequence[str] | Callable[..., Any] | Unset = UNSET,
    *,
    mode: Mode = "exclusive",
    limit: int | None = None,
    reentrant: bool = True,
    using: Using = DEFAULT_ALIAS,
    timeout: Timeout | Unset = UNSET,
    on_conflict: OnConflict = "wait",
    on_lost: OnLost = "raise",
    on_unavailable: OnUnavailable = "raise",
    template: str | None = None,
    atomic: bool | str = False,
    unique_until: Literal["start"] | None = None,
    **unknown: Never,
) -> Any:
    """Decorate a function, coroutine function, method, ``BaseCommand`` class, Celery task or Django task.

    ``key`` is a template over the call's arguments (``"invoice:{invoice_id}"``, defaults included), or a callable that
    takes the arguments and returns the key. A list of templates, or a callable that returns a list, names locks to
    take together. ``mode`` and ``limit`` are those of :func:`~django_zklock.zk_lock`.

    ``using`` is the alias of the ensemble in ``ZKLOCK``, or a function that takes the key and returns the alias, which
    must be the same for one key in every process. A call raises ``ValueError`` if the keys of its lock have different
    ones, and ``TypeError`` for what is no ``str``.

    ``timeout`` is how long a call waits for the lock, in seconds or as a ``timedelta``: ``None`` waits without a limit,
    0 tries once. If it is not given, ``on_conflict="wait"`` and ``"coalesce"`` wait without a limit, and every other
    policy tries once.

    ``on_conflict`` decides what happens when the lock is not granted in time:

    - ``"wait"`` raises ``LockTimeout``;
    - ``"raise"`` raises ``LockConflict``;
    - ``"skip"`` does not run the function, logs, sends the signal ``skipped`` and returns
      :class:`~django_zklock.Skipped`, ``{"zklock": "skipped", …}``. A view returns a response with status 409 and
      ``Retry-After``, or 503 without ZooKeeper; :class:`~django_zklock.Busy` as the policy chooses another one;
    - ``"coalesce"`` waits, but skips the call if another call of the function (the same dotted name, key and mode or
      limit, in a task of the same name) waits already, which then runs for both, with its own arguments; after the
      timeout it raises ``LockTimeout``. A call with a timeout may give up, so none is skipped for it;
    - ``"retry"`` (Celery only) sends the task back to the queue and does not count this as a retry of the task;
    - a callable is called with a :class:`~django_zklock.Conflict`, and its result is that of the call.

    ``on_lost`` decides what happens when the lock is lost during the call:

    - ``"raise"`` raises ``LockLost`` at the end of the call, unless another error propagates;
    - ``"interrupt"`` also raises it in the running body, as soon as the loss is known. It cannot interrupt C code;
    - ``"terminate"`` ends the process of a Celery pool that runs the task; elsewhere it is ``"interrupt"``;
    - ``"ignore"`` does nothing.

    ``on_unavailable`` decides what happens without ZooKeeper: ``"raise"`` raises ``ZooKeeperUnavailable``; ``"skip"``
    skips the call; ``"run"`` runs the function without protection and logs an error; ``"retry"`` (Celery only) sends
    the task back to the queue; a callable is called with a :class:`~django_zklock.Conflict`.

    ``template`` is the name of all these locks in signals and metrics. By default it is the template that ``key`` is
    (of a list, all templates with commas between), the qualified name of a function as ``key``, and for a lambda or any
    other callable the qualified name of the decorated function.

    ``atomic=True`` runs the function in a transaction of the default database, and ``atomic="reports"`` in one of that
    alias: the transaction begins under the lock, and is committed before the release. A lock that is lost by the end of
    the function rolls it back, unless ``on_lost`` is ``"ignore"``. Where that database has a transaction already, the
    call raises ``LockInTransaction``. Without ZooKeeper, ``on_unavailable="run"`` runs the transaction too.

    ``unique_until="start"`` (Celery only) does not send a call while another one of the task that will run the same
    (equal as for ``"coalesce"``, and to the same queue) is sent and has not begun: ``delay`` and ``apply_async`` return
    the result object of that one. A call that asks for a message of its own, such as one with a countdown, ``expires``
    or a callback, is sent, and so is every call without ZooKeeper. ``on_unavailable="run"`` cannot go with it: a body
    would begin while calls still count on it.

    The lock of a view is kept until its response is rendered, or its content has ended. A call raises ``TypeError`` if
    its result would run after the release, such as a generator or a coroutine.

    Raise ``TypeError`` or ``ValueError`` at decoration for arguments that can never work. Warn at decoration if the
    template has a ``%s``, which is not a field, and if it has no field although the function has an argument without a
    default. One lock for all calls is meant if ``template``, ``mode`` or ``limit`` is given, and for a command, so that
    does not warn.
    """
    if unknown:
        known = [name for name in zk_locked.__annotations__ if name not in {"unknown", "return"}]
        raise arguments.unexpected("zk_locked", unknown, known)
    if key is UNSET or _is_bare_use(key):
        raise TypeError(f"zk_locked needs the key of the lock: write {USAGE}")
    if not isinstance(key, (str, list, tuple)) and not callable(key):
        raise TypeError(f"the key must be a template or a callable that returns the key, got {key!r}: write {USAGE}")
    if on_conflict == "coalesce" and isinstance(key, (list, tuple)) and len(key) > 1:
        raise TypeError(f'on_conflict="coalesce" is for one key, got {list(key)!r}')
    check_using(using)
    if not isinstance(atomic, (bool, str)):
        raise TypeError(f"atomic must be True, False or the name of a database, got {atomic!r}")
    if atomic == "":
        raise ValueError("atomic must be True, False or the name of a database, got an empty text")
    decided = _policy("on_conflict", on_conflict, get_args(ConflictPolicy))
    if _choice("unique_until", unique_until, (None, "start")) and on_unavailable == "run":
        raise ValueError(
            'unique_until="start" cannot go with on_unavailable="run": a body would begin, without ZooKeeper, while '
            "calls that were not sent still count on it"
        )
    if timeout is UNSET:
        timeout = None if decided in ("wait", "coalesce") else 0
    how = functools.partial(
        LockedCall,
        rule=rule(mode, limit),
        using=using,
        reentrant=_choice("reentrant", reentrant, (True, False)),
        timeout=seconds(timeout),
        on_conflict=decided,
        on_lost=_choice("on_lost", on_lost, get_args(OnLost)),
        on_unavailable=_policy("on_unavailable", on_unavailable, get_args(UnavailablePolicy), like=decided),
        atomic=DEFAULT_DB_ALIAS if atomic is True else str(atomic) if atomic else None,
        unique_until=unique_until,
    )
    is_meant_for_all = template is not None or mode != "exclusive" or limit is not None
    return Locked(key, paths.check_template(template), how, needs_field=not is_meant_for_all)


@dataclasses.dataclass(frozen=True)
class Locked:
    """The decorator that :func:`zk_locked` returns; it keeps no state and can decorate any number of functions."""

    key: str | Sequence[str] | Callable[..., Any]
    template: str | None
    make_call: functools.partial[LockedCall]
    # Whether one lock for all calls would be a mistake.
    needs_field: bool

    def __call__(self, target: Target) -> Target:
        """Return ``target`` or its replacement, so that a call takes the lock first."""
        locked: Any = target
        celery = _celery()
        # First of all: even isinstance evaluates Celery's promise of a task.
        if celery is not None and celery.is_task(locked):
            celery.lock_task(locked, self.wrap)
        elif isinstance(locked, (classmethod, staticmethod)):
            locked = type(locked)(self(locked.__func__))
        elif inspect.isclass(locked):
            self._lock_class(locked)
        elif _is_django_task(locked):
            locked = dataclasses.replace(locked, func=self.wrap(locked.func))
        else:
            locked = self.wrap(locked)
        return cast("Target", locked)

    def __enter__(self) -> Never:
        """Say what was meant: a decorator is no block."""
        raise TypeError(
            f'zk_locked is a decorator; for a block write `with zk_lock("…"):`, got {self.key!r} as the key'
        )

    async def __aenter__(self) -> Never:
        """Say what was meant."""
        raise TypeError(f'zk_locked is a decorator; for a block write `async with zk_lock("…"):`, got {self.key!r}')

    def __exit__(self, *_error: object) -> None:
        """Belong to ``__enter__``, which always raises."""

    async def __aexit__(self, *_error: object) -> None:
        """Belong to ``__aenter__``, which always raises."""

    def _lock_class(self, target: Any) -> None:
        celery = _celery()
        if issubclass(target, BaseCommand) and self.make_call.keywords["unique_until"] is not None:
            raise TypeError(f'unique_until="start" is for tasks of Celery, and {target.__qualname__} is a command')
        if issubclass(target, BaseCommand):
            target.handle = self.wrap(target.handle, is_handle=True)
        elif celery is not None and celery.is_task_class(target):
            target.run = self.wrap(celery.body_of(target))
        else:
            raise TypeError(
                f"zk_locked decorates BaseCommand and Celery task classes, not {target!r}; decorate a method, which "
                f'Django\'s method_decorator does from outside: @method_decorator(zk_locked(…), name="post")'
            )

    def wrap(self, function: Any, *, is_handle: bool = False) -> Callable[..., Any]:
        """Wrap a plain function or coroutine function; ``is_handle`` marks the method of a command."""
        if not callable(function) or not hasattr(function, "__qualname__"):
            raise TypeError(f"zk_locked decorates functions, commands and tasks, not {function!r}: write {USAGE}")
        if _runs_later(function):
            raise TypeError(
                f"zk_locked cannot lock the generator {function.__qualname__}: its body runs after the call has "
                f"returned; take the lock inside, with zk_lock(key)"
            )
        is_atomic = self.make_call.keywords["atomic"] is not None
        if is_atomic and inspect.iscoroutinefunction(function):
            raise TypeError(
                f"atomic= is for plain functions, and {function.__qualname__} is async, where Django has no "
                f"transactions: decorate a plain function that does the work, and call it by sync_to_async"
            )
        call = self.make_call(
            function=function,
            key=compile_key(self.key, function),
            plain_fields=plain_fields(self.key),
            template=metric_name(self.key, function) if self.template is None else self.template,
            is_handle=is_handle or function.__name__ == "handle",
        )
        # The options of a command do not choose what it must exclude: it is one job.
        warn_of_mistakes(self.key, function, needs_field=self.needs_field and not call.is_handle)
        return call.wrap()


class LockedOrSkipped(Protocol):
    """:class:`Locked` for type checkers, if a call may be skipped: then its result is :class:`Skipped`.

    A skipped command returns a text, and a skipped view a response. Classes and finished tasks keep their type.
    """

    @overload
    def __call__(self, target: Class) -> Class: ...
    @overload
    def __call__(self, target: Task) -> Task: ...
    @overload
    def __call__(self, target: classmethod[Any, P, T]) -> classmethod[Any, P, T | Skipped]: ...
    @overload
    def __call__(self, target: staticmethod[P, T]) -> staticmethod[P, T | Skipped]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(  # type: ignore[overload-overlap]
        self, target: Callable[Concatenate[Request, P], Coroutine[Any, Any, T]]
    ) -> Callable[Concatenate[Request, P], Coroutine[Any, Any, T | HttpResponse]]: ...
    @overload
    def __call__(
        self, target: Callable[Concatenate[Request, P], T]
    ) -> Callable[Concatenate[Request, P], T | HttpResponse]: ...
    @overload
    def __call__(self, target: Callable[Concatenate[Command, P], T]) -> Callable[Concatenate[Command, P], T]: ...
    @overload
    def __call__(
        self, target: Callable[P, Coroutine[Any, Any, T]]
    ) -> Callable[P, Coroutine[Any, Any, T | Skipped]]: ...
    @overload
    def __call__(self, target: Callable[P, T]) -> Callable[P, T | Skipped]: ...


def _policy(name: str, chosen: Any, choices: tuple[str, ...], *, like: Any = None) -> Any:
    """Return the policy chosen as the argument ``name``; "retry" is ``like`` if that is a ``RetryLater``."""
    if callable(chosen):
        return chosen
    _choice(name, chosen, choices)
    if chosen != "retry":
        return chosen
    try:
        from django_zklock.contrib.celery import RetryLater
    except ImportError as error:
        raise ValueError(f'{name}="retry" needs Celery: pip install django-zklock[celery]') from error
    return like if isinstance(like, RetryLater) else RetryLater()


def _choice(name: str, value: Any, choices: tuple[object, ...]) -> Any:
    # The types are compared as well: 1 == True, but 1 is a mistake.
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def _celery() -> Any:
    """Return the module that knows Celery's tasks; ``None`` if Celery is not imported, so that there are no tasks."""
    if sys.modules.get("celery") is None:
        return None
    from django_zklock.contrib import celery

    if apps.ready and apps.is_installed("django_zklock"):
        # Celery may have been imported after Django was set up.
        celery.install()
    return celery.tasks


def _is_django_task(target: object) -> bool:
    # django.tasks is new in Django 6.0. As long as it is not imported, no object can be one of its tasks.
    tasks = sys.modules.get("django.tasks.base")
    return tasks is not None and isinstance(target, tasks.Task)


def _runs_later(function: Callable[..., Any]) -> bool:
    """Return whether a call of ``function`` returns before its body has run, which would release the lock too early."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return True
    # contextlib's decorators wrap a generator function in a plain one, whose body runs just as late.
    module = getattr(function, "__globals__", {}).get("__name__")
    return module == "contextlib" and _runs_later(inspect.unwrap(function))


def _is_bare_use(key: object) -> bool:
    """Return whether ``key`` is the decorated function or class itself, as in a bare ``@zk_locked``.

    A key callable looks the same, with two differences. The frame that decorates a function is at a line of that
    function's definition, and the name of a decorated function or class is not bound yet.
    """
    celery = _celery()
    # First of all: even isinstance evaluates Celery's promise of a task.
    if celery is not None and celery.is_task(key):
        return True
    if isinstance(key, (staticmethod, classmethod, property)) or _is_django_task(key):
        return True
    frame = sys._getframe(2)  # noqa: SLF001 - CPython's documented way to see the caller
    if inspect.isclass(key):
        return key.__module__ == frame.f_globals.get("__name__") and not _is_named(key, frame)
    # The decorators below ours may have wrapped the function with functools.wraps.
    function = inspect.unwrap(key) if callable(key) else None
    code = getattr(function, "__code__", None)
    if code is None or code.co_name == "<lambda>" or frame.f_code.co_filename != code.co_filename:
        return False
    lines = [line for _, _, line in code.co_lines() if line is not None]
    inside = frame.f_code is not code and code.co_firstlineno <= frame.f_lineno <= max(lines)
    return inside and not _is_named(key, frame)


def _is_named(key: Any, frame: types.FrameType) -> bool:
    """Return whether the name of ``key`` is bound in ``frame``; in a shell, line numbers alone prove nothing."""
    return any(names.get(key.__name__) is key for names in (frame.f_locals, frame.f_globals))
