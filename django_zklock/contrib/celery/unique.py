"""``unique_until="start"``: a call is not sent while one that will run the same is sent and has not begun.

Before a message is sent, its mark is created in ZooKeeper (see :mod:`django_zklock.zk.ops.sent`), and a header of the
message names the mark. Whatever ends the message without its body, or begins the body, removes it.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any

import celery
from celery.signals import task_failure, task_postrun, task_rejected, task_revoked, task_unknown

from django_zklock import signals
from django_zklock.connections import connections
from django_zklock.exceptions import ZkLockError
from django_zklock.locked_call import LockedCall
from django_zklock.zk.lock import Lock
from django_zklock.zk.ops import sent
from django_zklock.zk.ops.sent import Mark
from django_zklock.zk.pool import Pool

logger = logging.getLogger("django_zklock.celery")

# The alias of the ensemble and the name of the mark. It stays in the message when that goes back to its broker.
HEADER = "zklock_sent"
# Seconds after which a message is taken for lost, unless a setting says otherwise.
MAX_AGE = 3600.0

# Where a message goes: a call to another queue is another one.
WAY = ("queue", "exchange", "routing_key", "priority")
# What says nothing about the message. All other options ask for a message of their own: its id, its time, what follows
# it, or what its body reads in its request.
_HARMLESS = frozenset({"producer", "connection", "retry", "retry_policy", "add_to_parent", "periodic_task_name", *WAY})
_EMPTY = frozenset({dict, list, tuple})
# What beat writes.
_HARMLESS_HEADERS = frozenset({"celery_beat_task"})


def send(task: Any, call: LockedCall, own: tuple[Any, ...], arguments: tuple[Any, Any], options: dict[str, Any]) -> Any:
    """Send ``task``, or return the result of the message that waits for the same run already."""
    publish = partial(type(task).apply_async, task, *arguments)
    if not _is_plain(options) or task.expires is not None or task.app.conf.task_always_eager:
        return publish(**options)
    try:
        key = call.key((*own, *(arguments[0] or ())), dict(arguments[1] or {}))
        lock = call.lock(key, call.alias(key), lambda: None)
    except Exception:  # noqa: BLE001 - the key is the user's
        # The same error will fail the task.
        return publish(**options)
    way = [getattr(options.get(name), "name", options.get(name)) for name in WAY]
    mark = sent.new_mark(lock.pool, celery.uuid(), call.name, task.name, lock.rule, lock.keys, way)
    found = _claim(task, lock, mark)
    if found is not None and found != mark.id:
        logger.info("event=not_sent key=%r task=%s waiting=%s", lock.key, task.name, found)
        signals.send(signals.not_sent, **signals.common_arguments(lock), task=task.name, id=found)
        return task.AsyncResult(found)
    headers = {**(options.get("headers") or {}), HEADER: [lock.pool.name, mark.name]}
    try:
        result = publish(**{**options, "task_id": mark.id, "headers": headers})
    except BaseException:
        _remove_soon(lock.pool, mark)
        raise
    if found is not None:
        # At the end of the interpreter there may be no session any more.
        with suppress(ZkLockError):
            sent.confirm(lock.pool, mark)
    return result


def _is_plain(options: dict[str, Any]) -> bool:
    """Return whether the call asks for nothing that another message might not give it."""
    given = {name for name, value in options.items() if not (value is None or (type(value) in _EMPTY and not value))}
    return given - {"headers"} <= _HARMLESS and set(options.get("headers") or ()) <= _HARMLESS_HEADERS


def _claim(task: Any, lock: Lock, mark: Mark) -> str | None:
    """Return the id of the message that will run this call; ``None`` if it is to be sent without a mark."""
    limit = max_age(task.app)
    data = sent.encode(key=lock.key, task=task.name, max_age=limit)
    try:
        return sent.claim(lock.pool, mark, data, max_age=limit)
    except ZkLockError as error:
        # The mark may exist, and then stays unconfirmed until the body begins.
        logger.warning("event=sent_unmarked task=%s id=%s error=%s", task.name, mark.id, error)
        return None


def max_age(app: Any) -> float:
    """Return the seconds after which a message that has not begun is taken for lost."""
    chosen = app.conf.get("zklock_unique_max_age")
    return MAX_AGE if chosen is None else float(chosen)


# The ends of a mark.


def mark_in(headers: Mapping[str, Any] | None, id: object) -> tuple[Pool, Mark] | None:  # noqa: A002
    """Return the mark of the message with these headers, of any client, and its pool; ``None`` without one."""
    value = (headers or {}).get(HEADER)
    if not isinstance(value, (list, tuple)) or len(value) != 2 or value[0] not in list(connections):
        return None
    pool = connections[value[0]]
    mark = sent.mark_of(pool, value[1], id)
    return None if mark is None else (pool, mark)


def end_mark(request: Any, timeout: float) -> bool:
    """Remove the mark of the message of ``request``, a task's, and return whether it had one.

    It is gone when this returns. Takes at most ``timeout`` seconds; raises what :func:`~.sent.remove` raises.
    """
    if (found := mark_in({HEADER: request.get(HEADER)}, request.id)) is None:
        return False
    pool, mark = found
    sent.remove(pool, mark, timeout=timeout)
    # Retries are other messages.
    vars(request).pop(HEADER, None)
    if request.headers and HEADER in request.headers:
        request.headers = {name: value for name, value in request.headers.items() if name != HEADER}
    return True


def _remove_soon(pool: Pool, mark: Mark) -> None:
    """Remove the mark without waiting, as soon as there is a connection."""
    try:
        sent.Removal(pool.session(mark.path), mark).start()
    except ZkLockError as error:
        logger.warning("event=mark_left path=%s id=%s error=%r", mark.path, mark.id, error)


def _message_ended(request: Any = None, message: Any = None, sender: Any = None, **_facts: Any) -> None:
    """Remove the mark of a message that a worker has revoked or rejected, or whose process was lost."""
    if message is not None:
        headers = message.headers or {}
        found = mark_in(headers, headers.get("id"))
    else:
        # Of a failure Celery's request is that of the task.
        request = request or getattr(sender, "request", None)
        found = None if request is None else mark_in({HEADER: request.get(HEADER)}, request.id)
    if found is not None:
        _remove_soon(*found)


def _task_ended(task: Any = None, state: str | None = None, **_facts: Any) -> None:
    """Remove the mark of a task whose body has not begun, unless it comes back."""
    if state != "RETRY":
        _message_ended(request=task.request)


def notice_end(task: Any) -> None:
    """Notice the ends of ``task`` where its body runs."""
    task_postrun.connect(_task_ended, sender=task, dispatch_uid="django_zklock.unique", weak=False)


def install() -> None:
    """Notice the ends of messages in workers; calling it again changes nothing."""
    for signal in (task_failure, task_rejected, task_revoked, task_unknown):
        signal.connect(_message_ended, dispatch_uid="django_zklock.unique", weak=False)
