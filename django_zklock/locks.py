"""Locks of the configured pools."""

from __future__ import annotations

from collections.abc import Callable

from django_zklock import surroundings
from django_zklock.conf import DEFAULT_ALIAS
from django_zklock.connections import connections
from django_zklock.signals import SignalObserver
from django_zklock.zk import holds
from django_zklock.zk.held import Held
from django_zklock.zk.identity import Work
from django_zklock.zk.lock import Lock

_observer = SignalObserver()


def zk_lock(
    key: str,
    *,
    reentrant: bool = True,
    using: str = DEFAULT_ALIAS,
    work: Callable[[], Work | None] = surroundings.work,
) -> Lock:
    """Give the lock named ``key`` of the ensemble ``ZKLOCK[using]``. No I/O.

    ``work`` is called at each acquisition and says what runs, for whoever asks who holds the lock. Raises
    ``ValueError`` for an empty key, one over 1 kB or one that is no valid text, ``TypeError`` for one that is not
    a ``str``, ``ImproperlyConfigured`` for an alias that is not configured.
    """
    return Lock(key, connections[using], reentrant=reentrant, observer=_observer, work=work)


def current_lock(key: str | None = None) -> Held | None:
    """Give the innermost hold of the calling thread, greenlet or asyncio task, of ``key`` if given.

    ``None`` if it holds nothing.
    """
    return holds.current(key)
