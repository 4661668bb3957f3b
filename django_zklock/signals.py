"""The Django signals of locks.

Every signal is sent with ``sender`` (the class :class:`~django_zklock.zk.lock.Lock`), ``key``, ``alias``, ``template``
(the name that many locks share, or ``None``) and ``kind`` ("exclusive", "read", "write" or "lease"), and with these:

``acquired`` (``held``)
    The lock was granted after ``held.waited`` seconds.
``contended`` (``holder``)
    The caller has joined a queue and waits.
``released`` (``held``, ``duration``)
    The lock was released after ``duration`` seconds.
``lost`` (``held``, ``reason``)
    A held lock was lost. Sent from a background thread as soon as the loss is known.
``revoked`` (``held``, ``reason``)
    The holder is asked to release the lock. Sent from a background thread.
``refused`` (``holder``, ``function``, ``reason``, ``waited``)
    A decorated function did not get its lock in ``waited`` seconds and does not run, whatever its policies decide.
    ``reason`` is "conflict"
    (another owner holds the lock), "coalesced" (another call of the function waits already) or "unavailable" (ZooKeeper
    could not be reached).
``skipped`` (``holder``, ``function``, ``reason``, ``waited``)
    A decorated function did not run, and the call returned a result that says so instead of raising an error.
``dropped`` (``task``, ``id``)
    A Celery worker has released the lock of a task that Celery dropped, as it does when it loses the broker, which
    delivers the task again. Sent in the worker's main process.
``not_sent`` (``task``, ``id``)
    A call of a Celery task was not sent, because the message ``id`` waits for the same run (``unique_until="start"``).

If a task is cancelled while receivers handle an asynchronous acquisition or release, the cancellation waits for them.

Receivers run in the thread that acquires and releases, before the body and after it; an error in one is logged
and does not reach the body (``send_robust``). For asynchronous code Django chooses: async receivers run in the event
loop, the others in the thread of ``sync_to_async``.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from django.dispatch import Signal

from django_zklock.zk.listener import LockListener, LockValue
from django_zklock.zk.lock import Lock

acquired = Signal()
contended = Signal()
released = Signal()
lost = Signal()
revoked = Signal()
refused = Signal()
skipped = Signal()
dropped = Signal()
not_sent = Signal()


# The running tasks that send signals, by hold. Event loops have only weak references to tasks.
_sending: dict[object, asyncio.Task[Any]] = {}


def send(signal: Signal, **facts: Any) -> None:
    """Send ``signal`` from a plain function without raising."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        signal.send_robust(Lock, **facts)
        return
    # A coroutine has called a plain function, such as the release after an exception. With async receivers Django
    # would raise an error here, which would replace that exception.
    if signal.has_listeners(Lock):
        _start(signal, facts)


async def asend(signal: Signal, **facts: Any) -> None:
    """Send ``signal`` from a coroutine to all receivers, even if the task is cancelled meanwhile.

    A receiver that counts acquisitions and releases must not miss one of them. So the first cancellation is raised
    when the receivers have finished. A second one is raised at once, and the receivers finish in the background.
    """
    if not signal.has_listeners(Lock):
        return
    task = _start(signal, facts)
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        if not task.done():
            await asyncio.shield(task)
        raise


def _start(signal: Signal, facts: dict[str, Any]) -> asyncio.Task[Any]:
    """Send ``signal`` in a new task, after the signals of the same hold that are being sent."""
    subject = facts.get("held") or object()
    before = _sending.get(subject)

    async def send_next() -> None:
        if before is not None and before.get_loop() is asyncio.get_running_loop():
            await asyncio.wait([before])
        await signal.asend_robust(Lock, **facts)

    task = _sending[subject] = asyncio.get_running_loop().create_task(send_next())
    task.add_done_callback(lambda sent: _sending.get(subject) is sent and _sending.pop(subject))
    return task


def common_arguments(lock: LockValue) -> dict[str, Any]:
    """Return the arguments that every signal about ``lock`` has."""
    return {"key": lock.key, "alias": lock.pool.name, "template": lock.template, "kind": lock.rule.kind.value}


class SignalListener(LockListener):
    """Sends a signal for each event of a lock."""

    def wants(self, event: str) -> bool:
        signal = _SIGNALS[event]
        # Mostly nothing listens; Django takes a mutex and several calls to find that out.
        return bool(signal.receivers) and signal.has_listeners(Lock)

    def notify(self, event: str, lock: LockValue, /, **facts: Any) -> None:
        if self.wants(event):
            send(_SIGNALS[event], **_arguments(event, lock, facts))

    async def anotify(self, event: str, lock: LockValue, /, **facts: Any) -> None:
        if self.wants(event):
            await asend(_SIGNALS[event], **_arguments(event, lock, facts))


_SIGNALS = {"acquired": acquired, "contended": contended, "released": released, "lost": lost, "revoked": revoked}


def _arguments(event: str, lock: LockValue, facts: dict[str, Any]) -> dict[str, Any]:
    if event == "released":
        facts["duration"] = time.time() - facts["held"].since
    return common_arguments(lock) | facts


listener = SignalListener()
