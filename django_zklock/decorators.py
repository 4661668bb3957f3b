"""``@zk_locked``: at most one call at a time, across all hosts."""

from __future__ import annotations

import dataclasses
import inspect
import sys
import types
from collections.abc import Callable, Sequence
from typing import Any, Protocol, TypeVar, cast, get_args

from django.core.management.base import BaseCommand

from django_zklock.calls import LockedCall, OnConflict, OnLost, OnUnavailable
from django_zklock.conf import DEFAULT_ALIAS
from django_zklock.keying import key_maker, template_of
from django_zklock.locks import Mode
from django_zklock.zk import keys
from django_zklock.zk.deadline import Timeout, seconds
from django_zklock.zk.rules import rule


class DjangoTask(Protocol):
    """What a type checker needs to know of a task of ``django.tasks``, which is not callable; new in Django 6.0."""

    @property
    def func(self) -> Callable[..., Any]: ...


Target = TypeVar("Target", bound=Callable[..., Any] | DjangoTask)

USAGE = '@zk_locked("invoice:{invoice_id}")'
CONFLICT_POLICIES = ("wait", "skip", "raise", "retry", "coalesce")


def zk_locked(
    key: str | Sequence[str] | Callable[..., Any],
    *,
    mode: Mode = "exclusive",
    limit: int | None = None,
    reentrant: bool = True,
    using: str = DEFAULT_ALIAS,
    timeout: Timeout = None,
    on_conflict: OnConflict = "wait",
    on_lost: OnLost = "raise",
    on_unavailable: OnUnavailable = "raise",
    template: str | None = None,
) -> Locked:
    """Decorate a function, coroutine function, method, ``BaseCommand`` class, Celery task or Django task.

    ``key`` is a template over the call's arguments (``"invoice:{invoice_id}"``, defaults included), or a
    callable that takes them; a list of templates, or a list that the callable gives, names locks to take together.
    ``mode`` and ``limit`` are those of :func:`~django_zklock.zk_lock`. ``timeout`` is how long a call waits for the
    lock, in seconds or as a ``timedelta``: ``None`` is for ever under ``on_conflict="wait"`` and ``"coalesce"``
    and one try under every other policy.

    ``on_conflict`` says what happens when the lock is not granted: ``"wait"`` raises ``LockTimeout`` after
    ``timeout``; ``"raise"`` raises ``LockConflict``; ``"skip"`` does not run the function, logs, sends the signal
    ``skipped`` and gives ``{"zklock": "skipped", …}``; ``"coalesce"`` waits as ``"wait"`` does, but skips if
    another call waits already, which then runs for both; ``"retry"`` (Celery only) sends the task back to the queue
    without touching its retries; a callable is given a :class:`~django_zklock.calls.Conflict` and its result is
    the call's. ``on_lost``: ``"raise"`` ends a call whose lock was lost with ``LockLost`` if nothing else
    propagates; ``"interrupt"`` also raises it into the running body as soon as the loss is known, which cannot
    break into a call of C code; ``"terminate"`` ends the process of a Celery pool that runs the task, and does as
    ``"interrupt"`` where there is none; ``"ignore"`` does nothing. ``on_unavailable``: without ZooKeeper ``"raise"``
    raises ``ZooKeeperUnavailable``, ``"skip"`` skips, ``"run"`` runs without protection and logs an error.

    ``template`` is what signals and metrics call all these locks; without it, it is the template that ``key`` is (of
    a list, all of them, with commas between). A function as ``key`` lends its qualified name, a lambda or any other
    callable that of the function that is decorated.

    Raises ``TypeError`` or ``ValueError`` at decoration for arguments that can never work.
    """
    if _is_bare_use(key):
        raise TypeError(f"zk_locked needs the key of the lock: write {USAGE}")
    if not isinstance(key, (str, list, tuple)) and not callable(key):
        raise TypeError(f"the key must be a template or a callable that gives the key, got {key!r}: write {USAGE}")
    if on_conflict == "coalesce" and isinstance(key, (list, tuple)) and len(key) > 1:
        raise TypeError(f'on_conflict="coalesce" is for one key, got {list(key)!r}')
    # Whether they make a lock is known now, and not at the first call.
    rule(mode, limit)
    if not isinstance(using, str):
        raise TypeError(f"using must be the name of an alias in ZKLOCK, got {using!r}")
    return Locked(
        key=key,
        mode=mode,
        limit=limit,
        reentrant=_choice("reentrant", reentrant, (True, False)),
        using=using,
        timeout=seconds(timeout),
        on_conflict=_policy(on_conflict),
        on_lost=_choice("on_lost", on_lost, get_args(OnLost)),
        on_unavailable=_choice("on_unavailable", on_unavailable, get_args(OnUnavailable)),
        template=keys.check_template(template),
    )


@dataclasses.dataclass(frozen=True, kw_only=True)
class Locked:
    """The decorator that :func:`zk_locked` gives; keeps nothing between calls and can decorate any number."""

    key: str | Sequence[str] | Callable[..., Any]
    mode: Mode
    limit: int | None
    reentrant: bool
    using: str
    timeout: float | None
    on_conflict: OnConflict
    on_lost: OnLost
    on_unavailable: OnUnavailable
    template: str | None

    def __call__(self, target: Target) -> Target:
        """Give ``target``, or what takes its place, so that calling it takes the lock first."""
        return cast("Target", self._decorate(target))

    def _decorate(self, target: Any) -> Any:
        celery = _celery()
        # Before anything else is asked of the target, for even isinstance redeems the promise of a task.
        if celery is not None and celery.is_task(target):
            return celery.lock_task(target, self.wrap)
        if isinstance(target, (classmethod, staticmethod)):
            return type(target)(self._decorate(target.__func__))
        if inspect.isclass(target):
            return self._decorate_class(target)
        if _is_django_task(target):
            return dataclasses.replace(target, func=self.wrap(target.func))
        return self.wrap(target)

    def wrap(self, function: Any, *, is_handle: bool = False) -> Callable[..., Any]:
        """Wrap a plain function or coroutine function; ``is_handle`` says that it is a command's, whatever its name."""
        if not callable(function) or not hasattr(function, "__qualname__"):
            raise TypeError(f"zk_locked decorates functions, commands and tasks, not {function!r}: write {USAGE}")
        if _runs_later(function):
            raise TypeError(
                f"zk_locked cannot lock the generator {function.__qualname__}: its body runs after the call has "
                f"returned; take the lock inside, with zk_lock(key)"
            )
        if inspect.iscoroutinefunction(self.on_conflict) and not inspect.iscoroutinefunction(function):
            raise TypeError(
                f"on_conflict={self.on_conflict!r} is async, and {function.__qualname__} is not: nobody would await it"
            )
        return LockedCall(
            function=function,
            key=key_maker(self.key, function),
            mode=self.mode,
            limit=self.limit,
            using=self.using,
            reentrant=self.reentrant,
            timeout=self.timeout,
            on_conflict=self.on_conflict,
            on_lost=self.on_lost,
            on_unavailable=self.on_unavailable,
            template=template_of(self.key, function) if self.template is None else self.template,
            is_handle=is_handle or function.__name__ == "handle",
        ).wrap()

    def _decorate_class(self, target: Any) -> Any:
        if issubclass(target, BaseCommand):
            target.handle = self.wrap(target.handle, is_handle=True)
            return target
        celery = _celery()
        if celery is not None and celery.is_task_class(target):
            target.run = self.wrap(celery.body_of(target))
            return target
        raise TypeError(f"zk_locked decorates BaseCommand and Celery task classes, not {target!r}")


def _policy(on_conflict: Any) -> OnConflict:
    if callable(on_conflict):
        return cast("OnConflict", on_conflict)
    _choice("on_conflict", on_conflict, CONFLICT_POLICIES)
    if on_conflict == "retry":
        try:
            from django_zklock.contrib.celery.policy import RetryLater
        except ImportError as error:
            raise ValueError('on_conflict="retry" needs Celery: pip install django-zklock[celery]') from error
        return RetryLater()
    return cast("OnConflict", on_conflict)


def _choice(name: str, value: Any, choices: tuple[object, ...]) -> Any:
    # By identity of types too: 1 == True, and a slip.
    if not any(type(value) is type(choice) and value == choice for choice in choices):
        raise ValueError(f"{name} must be one of {', '.join(map(repr, choices))}, got {value!r}")
    return value


def _celery() -> Any:
    """Give what knows Celery's tasks; ``None`` where nobody has imported Celery, and nothing is one of its tasks."""
    if sys.modules.get("celery") is None:
        return None
    from django_zklock.contrib.celery import binding

    return binding


def _is_django_task(target: object) -> bool:
    # django.tasks came with Django 6.0; where nobody has imported it, nothing is one of its tasks.
    tasks = sys.modules.get("django.tasks.base")
    return tasks is not None and isinstance(target, tasks.Task)


def _runs_later(function: Callable[..., Any]) -> bool:
    """Whether a call of ``function`` returns before its body has run, and so would give the lock back too early."""
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return True
    # What contextlib's decorators make of a generator function hides it, and runs it as late.
    module = getattr(function, "__globals__", {}).get("__name__")
    return module == "contextlib" and _runs_later(inspect.unwrap(function))


def _is_bare_use(key: object) -> bool:
    """Whether ``key`` is the thing being decorated, as in a bare ``@zk_locked``.

    A key callable is legitimate, and looks the same but for this: a function that is being decorated calls us from
    inside the lines of its own definition, or, a class, from right behind them; and neither has its name yet.
    """
    celery = _celery()
    # Before anything else is asked of the key, for even isinstance redeems the promise of a task.
    if celery is not None and celery.is_task(key):
        return True
    if isinstance(key, (staticmethod, classmethod, property)) or _is_django_task(key):
        return True
    frame = sys._getframe(2)  # noqa: SLF001 - CPython's documented way to see the caller
    if inspect.isclass(key):
        return key.__module__ == frame.f_globals.get("__name__") and not _is_named(key, frame)
    # The decorators below ours may have put something before the function, with functools.wraps.
    function = inspect.unwrap(key) if callable(key) else None
    code = getattr(function, "__code__", None)
    if code is None or code.co_name == "<lambda>" or frame.f_code.co_filename != code.co_filename:
        return False
    lines = [line for _, _, line in code.co_lines() if line is not None]
    inside = frame.f_code is not code and code.co_firstlineno <= frame.f_lineno <= max(lines)
    return inside and not _is_named(key, frame)


def _is_named(key: Any, frame: types.FrameType) -> bool:
    """Whether the code that runs in ``frame`` knows ``key`` by its name; an interactive shell counts lines anew."""
    return any(names.get(key.__name__) is key for names in (frame.f_locals, frame.f_globals))
