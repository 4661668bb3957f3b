"""What happens to locks, as Django signals.

Every signal is sent with ``sender`` (the :class:`~django_zklock.zk.lock.Lock`'s class), ``key``, ``alias``,
``template`` (what the keys of such locks have in common, or ``None`` where nobody has said it) and ``kind``
("exclusive", "read", "write" or "lease"):

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
``refused`` (``holder``, ``function``, ``reason``)
    A decorated function has not got its lock and does not run, whatever the policies make of that: ``reason`` is
    "conflict" (somebody else holds the lock), "coalesced" (somebody waits already) or "unavailable" (ZooKeeper could
    not be reached).
``skipped`` (``holder``, ``function``, ``reason``)
    That was no error: the caller has got a result that says that the function did not run.

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
refused = Signal()
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


def about(lock: Lock) -> dict[str, Any]:
    """Give what every signal says of ``lock``."""
    return {"key": lock.key, "alias": lock.pool.name, "template": lock.template, "kind": lock.rule.kind.value}


class SignalObserver:
    """Turns what the recipe layer reports into signals."""

    def contended(self, lock: Lock, holder: Identity | None) -> None:
        send(contended, **about(lock), holder=holder)

    def acquired(self, held: Held) -> None:
        send(acquired, **about(held.lock), held=held)

    def released(self, held: Held) -> None:
        send(released, **about(held.lock), held=held, duration=_duration(held))

    def lost(self, held: Held, reason: str) -> None:
        send(lost, **about(held.lock), held=held, reason=reason)

    def revoked(self, held: Held, reason: str) -> None:
        send(revoked, **about(held.lock), held=held, reason=reason)

    async def acontended(self, lock: Lock, holder: Identity | None) -> None:
        await contended.asend_robust(Lock, **about(lock), holder=holder)

    async def aacquired(self, held: Held) -> None:
        await acquired.asend_robust(Lock, **about(held.lock), held=held)

    async def areleased(self, held: Held) -> None:
        await released.asend_robust(Lock, **about(held.lock), held=held, duration=_duration(held))


def _duration(held: Held) -> float:
    return time.time() - held.since
