"""What happens to locks, as Django signals.

Every signal is sent with ``sender`` (the :class:`~django_zklock.zk.lock.Lock`'s class), ``key`` and ``alias``:

``acquired`` (``held``)
    The lock was granted; ``held.waited`` says after how many seconds.
``contended`` (``holder``)
    The caller has joined a line and waits.
``released`` (``held``, ``duration``)
    The holder let go after ``duration`` seconds.
``lost`` (``held``, ``reason``)
    A held lock was lost. Sent from a thread of its own, as soon as it is known.
``revoked`` (``held``, ``reason``)
    Somebody asks the holder to let go. Sent from a thread of its own.
``skipped`` (``holder``, ``function``, ``reason``)
    A decorated function did not run: ``reason`` is "conflict" (somebody else holds the lock) or "unavailable"
    (ZooKeeper could not be reached).

Receivers run in the thread that acquires and releases, before the body and after it; an error in one is logged
and does not reach the body (``send_robust``). Around asynchronous code they run as Django runs them there: async
ones in the event loop, the others in the thread that ``sync_to_async`` gives them.
"""

from __future__ import annotations

import asyncio
import time
from typing import Any

from django.dispatch import Signal

from django_zklock.zk.held import Held
from django_zklock.zk.identity import Identity
from django_zklock.zk.lock import Lock

acquired = Signal()
contended = Signal()
released = Signal()
lost = Signal()
revoked = Signal()
skipped = Signal()


# The loop keeps weak references to tasks only.
_sending: set[asyncio.Task[Any]] = set()


def send(signal: Signal, **facts: Any) -> None:
    """Send ``signal`` from a plain function; never raises."""
    try:
        loop = asyncio.get_running_loop()
    except RuntimeError:
        signal.send_robust(Lock, **facts)
        return
    # A plain function called by a coroutine, such as the release after an exception. Django would raise an error
    # here if there are async receivers, and that error would take the place of the one that is on its way.
    if signal.has_listeners(Lock):
        task = loop.create_task(signal.asend_robust(Lock, **facts))
        _sending.add(task)
        task.add_done_callback(_sending.discard)


class SignalObserver:
    """Turns what the recipe layer reports into signals."""

    def contended(self, lock: Lock, holder: Identity | None) -> None:
        send(contended, **_about(lock), holder=holder)

    def acquired(self, held: Held) -> None:
        send(acquired, **_about(held.lock), held=held)

    def released(self, held: Held) -> None:
        send(released, **_about(held.lock), held=held, duration=_duration(held))

    def lost(self, held: Held, reason: str) -> None:
        send(lost, **_about(held.lock), held=held, reason=reason)

    def revoked(self, held: Held, reason: str) -> None:
        send(revoked, **_about(held.lock), held=held, reason=reason)

    async def acontended(self, lock: Lock, holder: Identity | None) -> None:
        await contended.asend_robust(Lock, **_about(lock), holder=holder)

    async def aacquired(self, held: Held) -> None:
        await acquired.asend_robust(Lock, **_about(held.lock), held=held)

    async def areleased(self, held: Held) -> None:
        await released.asend_robust(Lock, **_about(held.lock), held=held, duration=_duration(held))


def _about(lock: Lock) -> dict[str, Any]:
    return {"key": lock.key, "alias": lock.pool.name}


def _duration(held: Held) -> float:
    return time.time() - held.since
