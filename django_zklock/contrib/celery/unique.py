"""``unique_until="start"``: a call is not sent while one that will run the same is sent and has not begun.

Before a message is sent, its mark is created in ZooKeeper (see :mod:`django_zklock.zk.ops.sent`), and a header of the
message names the mark. Whatever ends the message without its body, or begins the body, removes it.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn
from weakref import WeakValueDictionary

import celery
from celery.signals import task_failure, task_postrun, task_received, task_rejected, task_revoked, task_unknown

from django_zklock import signals
from django_zklock.connections import connections
from django_zklock.contrib.celery.internals.sending import destination
from django_zklock.exceptions import ZkLockError
from django_zklock.locked_call import LockedCall
from django_zklock.zk import owners
from django_zklock.zk.lock import Lock
from django_zklock.zk.ops import sent
from django_zklock.zk.ops.sent import Mark
from django_zklock.zk.pool import Pool
from django_zklock.zk.waiting import seconds

logger = logging.getLogger("django_zklock.celery")

# The alias of the ensemble and the name of the mark. It stays in the message when that goes back to its broker.
HEADER = "zklock_sent"
# Seconds after which a message is taken for lost, unless a setting says otherwise.
MAX_AGE = 3600.0

# What says nothing about the message but where it goes, which is looked up. All other options ask for a message of
# their own: its id, its time, what follows it, or what its body reads in its request.
_HARMLESS = frozenset({
    "queue", "exchange", "routing_key", "priority", "producer", "connection", "retry", "retry_policy", "add_to_parent",
    "periodic_task_name",
})  # fmt: skip
_EMPTY = frozenset({dict, list, tuple})
# What beat writes, Celery's and that of django-celery-beat.
_HARMLESS_HEADERS = frozenset({"celery_beat_task", "periodic_task_name"})

# The requests of a worker's main process whose messages have a mark, by the id of the message.
_received: WeakValueDictionary[str, Any] = WeakValueDictionary()
# Tasks for which it was said already that each call is sent.
_told: set[str] = set()


def send(task: Any, call: LockedCall, own: tuple[Any, ...], arguments: tuple[Any, Any], options: dict[str, Any]) -> Any:
    """Send ``task``, or return the result of the message that waits for the same run already."""
    publish = partial(type(task).apply_async, task, *arguments)
    found = _what_runs(task, call, own, arguments, options) if _is_plain(task, options) else None
    if found is None:
        return publish(**options)
    lock, way = found
    mark = sent.new_mark(lock.pool, celery.uuid(), call.name, task.name, lock.rule, lock.keys, way)
    waiting = _claim(task, lock, mark)
    if waiting is not None and waiting != mark.id:
        logger.info("event=not_sent key=%r task=%s waiting=%s", lock.key, task.name, waiting)
        signals.send(signals.not_sent, **signals.common_arguments(lock), task=task.name, id=waiting)
        return task.AsyncResult(waiting)
    headers = {**(options.get("headers") or {}), HEADER: [lock.pool.name, mark.name]}
    try:
        result = publish(**{**options, "task_id": mark.id, "headers": headers})
    except BaseException:
        remove_soon(lock.pool, mark)
        raise
    if waiting is not None:
        # At the end of the interpreter there may be no session any more.
        with suppress(ZkLockError):
            sent.confirm(lock.pool, mark)
    return result


def _what_runs(
    task: Any, call: LockedCall, own: tuple[Any, ...], arguments: tuple[Any, Any], options: dict[str, Any]
) -> tuple[Lock, list[str]] | None:
    """Return the lock of the call and the way of its message, or ``None`` if no other message can stand for it."""
    if owners.must_not_block():
        tell_always_sent(task, "it is sent in the thread of a running event loop, which would stop")
        return None
    try:
        with _without_request(task):
            key = call.key((*own, *(arguments[0] or ())), dict(arguments[1] or {}))
            lock = call.lock(key, call.alias(key), lambda: None)
        way = destination(task, *arguments, options)
    except _NoRequestError:
        tell_always_sent(task, "its key is made of the request of its message")
        return None
    except Exception:  # noqa: BLE001 - the key is the user's
        # The same error will fail the task.
        return None
    if way is None:
        tell_always_sent(task, "only the process that sends a message can read its result")
        return None
    return lock, way


class _NoRequestError(Exception):
    """The request of a message was asked for before there is a message."""


class _NoRequest:
    """Stands in a task for the request of the message that is not sent yet."""

    was_asked = False

    def __getattr__(self, name: str) -> NoReturn:
        self.was_asked = True
        raise _NoRequestError(name)


@contextmanager
def _without_request(task: Any) -> Iterator[None]:
    """Let a bound task have no request, neither an empty one nor that of another message which runs here."""
    request = _NoRequest()
    task.request_stack.push(request)
    try:
        yield
    finally:
        task.request_stack.pop()
    if request.was_asked:
        # The key has caught the error.
        raise _NoRequestError


def tell_always_sent(task: Any, reason: str) -> None:
    """Log once that each call of ``task`` is sent, and why."""
    if task.name not in _told:
        _told.add(task.name)
        logger.warning("event=not_unique task=%s reason=%r consequence=always_sent", task.name, reason)


def _is_plain(task: Any, options: dict[str, Any]) -> bool:
    """Return whether the call asks for nothing that another message might not give it."""
    if task.expires is not None or task.app.conf.task_always_eager:
        return False
    given = {name for name, value in options.items() if not (value is None or (type(value) in _EMPTY and not value))}
    return given - {"headers"} <= _HARMLESS and set(options.get("headers") or ()) <= _HARMLESS_HEADERS


def _claim(task: Any, lock: Lock, mark: Mark) -> str | None:
    """Return the id of the message that will run this call; ``None`` if it is to be sent without a mark."""
    try:
        limit = max_age(task.app)
        data = sent.encode(key=lock.key, task=task.name, max_age=limit)
        return sent.claim(lock.pool, mark, data, max_age=limit)
    except (ZkLockError, TypeError, ValueError) as error:
        # The mark may exist, and then stays unconfirmed until the body begins. Or the setting is wrong.
        logger.warning("event=sent_unmarked task=%s id=%s error=%s", task.name, mark.id, error)
        return None


def max_age(app: Any) -> float:
    """Return the seconds after which a message that has not begun is taken for lost.

    Raises ``TypeError`` and ``ValueError`` for what is no time.
    """
    limit = seconds(app.conf.get("zklock_unique_max_age"), "zklock_unique_max_age")
    return MAX_AGE if limit is None else limit


# The ends of a mark.


def mark_in(headers: Mapping[str, Any] | None, id: object) -> tuple[Pool, Mark] | None:  # noqa: A002
    """Return the mark of the message with these headers, of any client, and its pool; ``None`` without one."""
    value = (headers or {}).get(HEADER)
    if not isinstance(value, (list, tuple)) or len(value) != 2 or value[0] not in list(connections):
        return None
    pool = connections[value[0]]
    mark = sent.mark_of(pool, value[1], id)
    return None if mark is None else (pool, mark)


def end_mark(request: Any, timeout: float | None = None) -> bool:
    """Remove the mark of the message of ``request``, a task's, and return whether it had one.

    It is gone when this returns. Takes at most ``timeout`` seconds, or the connect timeout; raises what
    :func:`~.sent.remove` raises.
    """
    if (found := mark_in({HEADER: request.get(HEADER)}, request.id)) is None:
        return False
    pool, mark = found
    sent.remove(pool, mark, timeout=pool.options.connect_timeout if timeout is None else timeout)
    # Retries are other messages.
    vars(request).pop(HEADER, None)
    if request.headers and HEADER in request.headers:
        request.headers = {name: value for name, value in request.headers.items() if name != HEADER}
    return True


def remove_soon(pool: Pool, mark: Mark) -> None:
    """Remove the mark without waiting, as soon as there is a connection."""
    try:
        sent.Removal(pool.session(mark.path), mark).start()
    except ZkLockError as error:
        logger.warning("event=mark_left path=%s id=%s error=%r", mark.path, mark.id, error)


def _on_received(request: Any, **_facts: Any) -> None:
    if HEADER in (request.message.headers or {}):
        _received[request.id] = request


def _message_ended(
    request: Any = None, message: Any = None, sender: Any = None, task_id: Any = None, **_facts: Any
) -> None:
    """Remove the mark of a message that a worker has revoked or rejected, or whose task has failed."""
    if message is not None:
        headers = message.headers or {}
        found = mark_in(headers, headers.get("id"))
    elif (received := _received.get(task_id)) is not None:
        # Of a failure in the main process, such as a lost child, Celery gives no request before 5.5.
        found = mark_in(received.message.headers, task_id)
    else:
        request = request or getattr(sender, "request", None)
        found = None if request is None else mark_in({HEADER: request.get(HEADER)}, request.id)
    if found is not None:
        remove_soon(*found)


def _task_ended(task: Any = None, state: str | None = None, **_facts: Any) -> None:
    """Remove the mark of a task whose body has not begun, unless it comes back."""
    if state != "RETRY":
        _message_ended(request=task.request)


def notice_end(task: Any) -> None:
    """Notice the ends of ``task`` where its body runs."""
    task_postrun.connect(_task_ended, sender=task, dispatch_uid="django_zklock.unique", weak=False)


def install() -> None:
    """Notice the ends of messages in workers; calling it again changes nothing."""
    task_received.connect(_on_received, dispatch_uid="django_zklock.unique", weak=False)
    for signal in (task_failure, task_rejected, task_revoked, task_unknown):
        signal.connect(_message_ended, dispatch_uid="django_zklock.unique", weak=False)
