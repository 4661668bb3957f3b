"""What is called when something happens to locks, and what a lock is to the code that acquires it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from django_zklock.zk.contender import Contender
    from django_zklock.zk.pool import Pool
    from django_zklock.zk.queue import Rule


class LockValue(Protocol):
    """A lock, as far as acquisitions, holds and listeners need it."""

    key: str
    keys: tuple[str, ...]
    paths: tuple[str, ...]
    pool: Pool
    rule: Rule
    reentrant: bool
    template: str | None
    listener: LockListener

    def _new_contender(self, *, wait: bool, notify: Callable[[], None], stays: bool = False) -> Contender:
        """Return a contender for one acquisition; with ``stays`` its caller has no timeout."""


class LockListener:
    """What is called for each event of a lock. This base class does nothing.

    - "contended": the caller waits in the queue; ``holder`` is an :class:`~.node_data.Identity` or ``None``.
    - "acquired": the caller has ``held`` the lock from now on.
    - "released": the caller has released ``held``.
    - "lost": ``held`` is lost, for a ``reason``.
    - "revoked": the holder of ``held`` was requested to release it, for a ``reason``.

    The first three are called in the caller's thread, or awaited in its task; "lost" and "revoked" in background
    threads.
    """

    def wants(self, event: str) -> bool:  # noqa: ARG002 - for subclasses
        """Return whether a call for ``event`` has an effect: what only the listener needs is read only then."""
        return False

    def notify(self, event: str, lock: LockValue, /, **facts: Any) -> None:
        """Something has happened to ``lock``."""

    async def anotify(self, event: str, lock: LockValue, /, **facts: Any) -> None:
        """Something has happened to ``lock``, in a task."""
