"""Locks of the configured pools."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

from django_zklock import surroundings
from django_zklock.conf import DEFAULT_ALIAS
from django_zklock.connections import connections
from django_zklock.signals import SignalObserver
from django_zklock.zk import holds
from django_zklock.zk.held import Held
from django_zklock.zk.identity import Work
from django_zklock.zk.lock import Lock
from django_zklock.zk.rules import rule

Mode = Literal["exclusive", "read", "write"]

_observer = SignalObserver()


def zk_lock(
    key: str | Sequence[str],
    *,
    mode: Mode = "exclusive",
    limit: int | None = None,
    reentrant: bool = True,
    using: str = DEFAULT_ALIAS,
    work: Callable[[], Work | None] = surroundings.work,
    template: str | None = None,
) -> Lock:
    """Give the lock named ``key`` of the ensemble ``ZKLOCK[using]``. No I/O.

    A list or tuple of keys gives one lock of all of them: acquiring it takes all or none, and who takes keys in
    this way only cannot deadlock, whatever their order.

    ``mode``: any number may hold as ``"read"`` at once, and one alone as ``"write"`` or ``"exclusive"``; first come
    first served, so a reader waits for a writer that came before it. With ``limit`` the lock is a semaphore, which
    so many may hold at once; where callers differ in it, each keeps to its own.

    ``work`` is called at each acquisition and says what runs, for whoever asks who holds the lock. ``template`` is
    what many keys have in common (``"invoice:{invoice_id}"``), by which signals and metrics tell locks apart; it
    changes nothing else.

    Raises ``ValueError`` for an empty key, one over 1 kB or one that is no valid text, for a key that comes twice and
    for an unknown mode, ``TypeError`` for a key or a template that is not a ``str``, a limit that is not positive and
    one with a mode, ``ImproperlyConfigured`` for an alias that is not configured.
    """
    return make_lock(key, mode=mode, limit=limit, reentrant=reentrant, using=using, work=work, template=template)


def make_lock(
    key: str | Sequence[str],
    *,
    mode: Mode,
    limit: int | None,
    reentrant: bool,
    using: str,
    work: Callable[[], Work | None],
    template: str | None,
    sole_waiter: bool = False,
) -> Lock:
    """Do as :func:`zk_lock`; ``sole_waiter`` is that of :class:`~django_zklock.zk.lock.Lock`."""
    return Lock(
        key,
        connections[using],
        rule=rule(mode, limit),
        reentrant=reentrant,
        observer=_observer,
        work=work,
        template=template,
        sole_waiter=sole_waiter,
    )


def current_lock(key: str | None = None) -> Held | None:
    """Give the innermost hold of the calling thread, greenlet or asyncio task, of ``key`` if given.

    ``None`` if it holds nothing.
    """
    return holds.current(key)
