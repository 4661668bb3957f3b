"""Celery tasks and their locks: putting a lock into a task, finding the first lock of a body, naming the holder."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import os
import types
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

from billiard import current_process
from celery import Task
from celery.contrib.django.task import DjangoTask
from celery.local import PromiseProxy, Proxy, maybe_evaluate
from celery.signals import task_prerun
from django.db import connections as databases
from django.utils.functional import Promise

from django_zklock import locked_call
from django_zklock.api import resolvers
from django_zklock.contrib.celery import unique
from django_zklock.contrib.celery.internals.tasks import (
    autoretry_options,
    body_attribute,
    current_request,
    current_task,
    delivered_task,
    finalized_apps,
    has_autoretry,
    on_app_finalize,
    registered,
    when_evaluated,
    wraps_for_pydantic,
)
from django_zklock.exceptions import LockConflict, LockTimeout, ZkLockError
from django_zklock.key_template import signature_of
from django_zklock.locked_call import LockedCall, key_through, locked_call_of
from django_zklock.zk.node_data import Work

logger = logging.getLogger("django_zklock.celery")

Wrap = Callable[..., Callable[..., Any]]

REFUSALS = (LockConflict, LockTimeout)

_LOCKS = "__zklock__"
_ASYNC_TASK = (
    "zk_locked cannot lock the task {}: its body is async, and Celery never awaits it; write a plain function, which "
    "can call asyncio.run()"
)

# `@zk_locked` above `@shared_task`: the lock goes into the task that Celery has made or will make.


def is_task(target: object) -> bool:
    """Return whether ``target`` is a Celery task or the proxy of one, without evaluating the proxy."""
    # A proxy reports the class of its task, and to ask for that evaluates a proxy of Celery; one of an agent is a task.
    return issubclass(type(target), (Proxy, Task)) or isinstance(target, Task)


def is_task_class(target: type) -> bool:
    """Return whether ``target`` is a class of Celery tasks."""
    return issubclass(target, Task)


def body_of(target: type[Task[..., Any]]) -> Callable[..., Any]:
    """Return the ``run`` of a class of tasks; raise ``TypeError`` if the class has none of its own."""
    if target.run is Task.run:
        raise TypeError(f"{target.__qualname__} has no run() to lock: decorate the class that has it")
    if inspect.iscoroutinefunction(target.run):
        raise TypeError(_ASYNC_TASK.format(target.__qualname__))
    return target.run


def lock_task(target: Any, wrap: Wrap) -> Any:
    """Put the lock around the body of ``target`` in every app that has the task, and return ``target``."""
    lock = _lock_once(wrap)
    if type(target) is PromiseProxy:
        # Made by `@app.task`: evaluated when its app is finalized, or now if the app is.
        when_evaluated(target, lambda: lock(maybe_evaluate(target)))
    elif not issubclass(type(target), Proxy):
        # An agent may have put a proxy in the task's place.
        lock(target if issubclass(type(target), Task) else registered(target))

    # Celery's decorators make one task in each app: now in finalized apps, later in the others. The proxy of
    # `@shared_task` looks up the task of the current app. At the end of an app's finalization its task exists.
    def lock_in(app: Any) -> None:
        task = app.tasks.get(target.name)
        if task is not None and _user_function(task) is _user_function(target):
            lock(task)

    on_app_finalize(_on_finalize)
    _decorators.append(lock_in)
    if type(target) is Proxy:
        # Made by `@shared_task`, the only decorator that adds tasks to finalized apps.
        for app in finalized_apps():
            lock_in(app)
    return target


# In the order of decoration, which is the order of the locks on one task. Celery keeps its own callbacks in a set: two
# processes would take the same two locks in different orders, and deadlock.
_decorators: list[Callable[[Any], None]] = []


def _on_finalize(app: Any) -> None:
    """Lock the tasks of ``app`` when it has made them, and refuse the calls of locked tasks whose body is async."""

    def lock_all(**_facts: Any) -> None:
        for lock_in in _decorators:
            lock_in(app)
        for task in app.tasks.values():
            body, _own = task_body(task)
            if inspect.iscoroutinefunction(body) and locked_call_of(body) is not None:
                _refuse_calls(task)
            elif locked_call_of(body) is not None:
                _check_when_sent(task)

    app.on_after_finalize.connect(lock_all, weak=False)


def _refuse_calls(task: Any) -> None:
    # Not an error here: Celery only logs the errors of its signals' receivers.
    @functools.wraps(_user_function(task))
    def refuse(*_args: Any, **_kwargs: Any) -> None:
        raise TypeError(_ASYNC_TASK.format(task.name))

    task.run = refuse


def _user_function(task: Any) -> Any:
    """Return the function that the user wrote, without its wrappers."""
    return inspect.unwrap(task_body(task)[0])


def _lock_once(wrap: Wrap) -> Callable[[Any], None]:
    """Return a function that puts the lock into a task, at most once into each task."""
    mark = object()

    def lock(task: Any) -> None:
        marks = vars(task).setdefault(_LOCKS, [])
        if mark in marks:
            return
        marks.append(mark)
        if inspect.iscoroutinefunction(_user_function(task)):
            _refuse_calls(task)
            return
        # Inside of autoretry's wrapper: the lock must be free before the task is sent again.
        name = body_attribute(task)
        body, own = task_body(task)
        # `bind=True`: the key may be made from the task too.
        setattr(task, name, types.MethodType(wrap(body), *own) if own else wrap(body))
        _check_when_sent(task)

    return lock


# A key that cannot be made fails where the task is sent, and not only in a worker.


def _check_when_sent(task: Any) -> None:
    # A class with a method of its own may send other arguments than it is called with.
    kind = type(task)
    call, _own = outermost_lock(task)
    is_unique = call is not None and call.unique_until is not None
    if is_unique:
        unique.notice_end(task)
    if kind.apply_async is not Task.apply_async:
        if is_unique:
            unique.tell_always_sent(task, "its class has an apply_async() of its own")
    else:
        task.apply_async = types.MethodType(_apply_async_once if is_unique else _apply_async, task)
        for method in (_delay_on_commit, _apply_async_on_commit):
            name = method.__name__[1:]
            if getattr(kind, name, None) is getattr(DjangoTask, name):
                setattr(task, name, types.MethodType(method, task))


def _apply_async(task: Any, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
    """Send ``task``; raise ``ValueError`` if a value that its key needs is missing in these arguments."""
    _reject_missing(task, tuple(args or ()), dict(kwargs or {}))
    return type(task).apply_async(task, args, kwargs, *rest, **options)


def _apply_async_once(task: Any, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> Any:
    """Send ``task``, unless a call that will run the same is sent and has not begun."""
    _reject_missing(task, tuple(args or ()), dict(kwargs or {}))
    call, own = outermost_lock(task)
    if call is None or any(each is not None for each in rest):
        return type(task).apply_async(task, args, kwargs, *rest, **options)
    return unique.send(task, call, own, (args, kwargs), options)


# Within the transaction, which an error rolls back. After the commit it would cost the messages that come after it.


def _delay_on_commit(task: Any, *args: Any, **kwargs: Any) -> None:
    _reject_missing(task, args, kwargs)
    DjangoTask.delay_on_commit(task, *args, **kwargs)


def _apply_async_on_commit(task: Any, args: Any = None, kwargs: Any = None, *rest: Any, **options: Any) -> None:
    _reject_missing(task, tuple(args or ()), dict(kwargs or {}))
    DjangoTask.apply_async_on_commit(task, args, kwargs, *rest, **options)


def _reject_missing(task: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Raise ``ValueError`` if the key of ``task`` has an argument that is ``None``, an empty text, or a lazy text.

    ``None`` is the same in every process, and a lazy text is sent in the language that is active here. What else a
    key refuses may be something else behind the serializer. A class with its own ``__call__`` may call the body with
    other arguments, and so does Celery with ``pydantic=True``.
    """
    body, own = task_body(task)
    call = locked_call_of(body)
    if call is None or not task.typing or type(task).__call__ is not Task.__call__:
        return
    try:
        bound = signature_of(call.function).bind(*own, *args, **kwargs)
    except TypeError:  # Celery says what is wrong
        return
    bound.apply_defaults()
    named = {name: bound.arguments.get(name, kwargs.get(name, ...)) for name in call.plain_fields}
    if any(value is None or (type(value) is str and not value) or _has_lazy_text(value) for value in named.values()):
        try:
            call.key((*own, *args), kwargs)
        except ValueError as error:
            raise ValueError(f"task {task.name} is not sent: {error}") from None


def _has_lazy_text(value: Any) -> bool:
    """Return whether ``value`` is a lazy text, or has one at any depth of what JSON sends."""
    kind = type(value)
    if kind in {list, tuple, dict}:
        return any(map(_has_lazy_text, value.values() if kind is dict else value))
    return issubclass(kind, Promise)


# The task that runs here, and its locks.


def running_task() -> Any:
    """Return the task that a worker runs here; ``None`` in a direct call, and in eager mode."""
    task = current_task()
    if task is None or task.request.called_directly or task.request.is_eager:
        return None
    return registered(task)


def end_mark_of_running_task(timeout: float) -> bool:
    """Remove the mark of the message of the task that runs here; see :func:`.unique.end_mark`."""
    task = running_task()
    return task is not None and unique.end_mark(task.request, timeout)


def _end_mark_of_other_code(task: Any, **_facts: Any) -> None:
    """Remove the mark of a message whose task removes none here: its sender has another version of the code."""
    if task.request.get(unique.HEADER) is None:
        return
    call, _own = outermost_lock(task)
    if call is not None and call.unique_until is not None:
        return
    try:
        unique.end_mark(task.request)
    except ZkLockError as error:
        logger.warning("event=mark_left task=%s id=%s error=%r", task.name, task.request.id, error)


def outermost_lock(task: Any) -> tuple[LockedCall | None, tuple[Any, ...]]:
    """Return the locked call that is the body of ``task``, if it is one, and the arguments that the body is bound to.

    With ``pydantic=True`` Celery wraps the body, and the key is made of the converted arguments.
    """
    body, own = task_body(task)
    call, is_converted = locked_call_in(body)
    if call is not None and is_converted:
        call = dataclasses.replace(call, key=key_through(body, call))
    return call, own


def message_key(call: LockedCall, request: Any, own: tuple[Any, ...]) -> tuple[Any, str]:
    """Return the key and the alias of ``call``, the lock of the task of ``request``, in the worker's main process."""
    before = {each.alias for each in databases.all(initialized_only=True) if each.connection is not None}
    try:
        with current_request(request) if own else nullcontext():
            key = call.key((*own, *request.args), dict(request.kwargs))
            return key, call.alias(key)
    finally:
        # If a callable as the key or as `using` has queried the database, the children must not inherit the connection.
        for each in databases.all(initialized_only=True):
            if each.alias not in before:
                each.close()


def hidden_lock(task: Any) -> tuple[LockedCall | None, str]:
    """Return the lock that the body of ``task`` takes below a decorator of another kind, and the decorator's name."""
    body, _own = task_body(task)
    wrappers = [each for each in _wrappers(body) if not wraps_for_pydantic(each)]
    call = next((call for each in wrappers if (call := locked_call_of(each)) is not None), None)
    code = getattr(wrappers[0], "__code__", None)
    if code is None:
        return call, type(wrappers[0]).__qualname__
    # The name comes from the code: functools.wraps has given the wrapper the name of the body.
    return call, f"{wrappers[0].__globals__['__name__']}.{code.co_qualname.partition('.<locals>')[0]}"


def task_body(task: Any) -> tuple[Any, tuple[Any, ...]]:
    """Return the function that ``task`` runs, without autoretry's wrapper, and the arguments that it is bound to."""
    body = getattr(task, body_attribute(task))
    return (body.__func__, (body.__self__,)) if isinstance(body, types.MethodType) else (body, ())


def locked_call_in(body: Any) -> tuple[LockedCall | None, bool]:
    """Return the locked call that ``body`` is, and whether Celery converts the arguments (``pydantic=True``)."""
    call = locked_call_of(body)
    if call is None and wraps_for_pydantic(body):
        return locked_call_of(body.__wrapped__), True
    return call, False


def _wrappers(function: Any) -> Iterator[Any]:
    """Yield ``function``, the function that it wraps, and so on."""
    while function is not None:
        yield function
        function = getattr(function, "__wrapped__", None)


def current_task_work() -> Work | None:
    """Return the running task as the work that is named as the holder; ``None`` if no task runs here.

    It is the one that the worker was given: only that one has an id that is the same in its next delivery, and an
    operator can end it. Its body may have called another task, or applied one.
    """
    task = current_task()
    found = delivered_task() or (None if task is None else (task, task.request))
    if found is None or not found[1].id:
        return None
    task, request = found
    limit, _soft = request.timelimit or (None, None)
    is_child = not request.is_eager and current_process().name != "MainProcess"
    return Work(
        kind="task",
        name=task.name,
        id=request.id,
        worker=(request.hostname or "") if not request.is_eager else "",
        child=os.getpid() if is_child else None,
        time_limit=limit or task.time_limit or task.app.conf.task_time_limit,
    )


def install() -> None:
    """Register the resolver of the holder once, and exclude conflicts from the retries of tasks."""
    if current_task_work not in resolvers:
        resolvers.append(current_task_work)
    if end_mark_of_running_task not in locked_call.begin_hooks:
        locked_call.begin_hooks.append(end_mark_of_running_task)
    on_app_finalize(_on_finalize)
    task_prerun.connect(_exclude_from_autoretry, dispatch_uid="django_zklock.task", weak=False)
    task_prerun.connect(_end_mark_of_other_code, dispatch_uid="django_zklock.unique", weak=False)
    unique.install()


def _exclude_from_autoretry(sender: Any, **_facts: Any) -> None:
    """Add conflicts to the task's ``dont_autoretry_for``, unless ``autoretry_for`` names them.

    ``autoretry_for=(Exception,)`` means failed attempts. A conflict is not a failed attempt, and must not use up the
    retries.
    """
    task = registered(sender)
    if not has_autoretry(task):
        return
    # Celery reads these options once, when it makes the task: before a lock is put above it.
    run, options = autoretry_options(_wrappers(task.run))
    if not {"autoretry_for", "dont_autoretry_for"} <= options.keys():
        logger.warning("event=autoretry_unknown task=%s consequence=conflicts_are_retried", task.name)
        return
    # The wrapper has copied the signature of the body with its `self`, and Task.retry would require that argument.
    vars(run).pop("__signature__", None)
    if any(issubclass(kind, ZkLockError) for kind in options["autoretry_for"].cell_contents):
        return
    excluded = options["dont_autoretry_for"]
    if not set(REFUSALS) <= set(excluded.cell_contents):
        excluded.cell_contents = (*excluded.cell_contents, *REFUSALS)
