"""What can go wrong with a lock: one tree, every error carries its facts."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_zklock.zk.identity import Identity


class ZkLockError(Exception):
    """Base of every error of this package.

    ``key`` is the lock's key (for several keys, joined by commas), ``timeout`` the seconds the caller was
    ready to wait (``None``: for ever), ``holder`` the identity of the one in the way, where known.
    """

    def __init__(
        self,
        message: str,
        *,
        key: str | None = None,
        timeout: float | None = None,
        holder: Identity | None = None,
    ) -> None:
        super().__init__(message)
        self.key = key
        self.timeout = timeout
        self.holder = holder

    def __reduce__(self) -> tuple[object, ...]:
        # Celery pickles exceptions between processes; keyword-only arguments need help to survive that.
        return _rebuild, (type(self), str(self), self.key, self.timeout, self.holder)


def _rebuild(
    cls: type[ZkLockError], message: str, key: str | None, timeout: float | None, holder: Identity | None
) -> ZkLockError:
    return cls(message, key=key, timeout=timeout, holder=holder)


class LockTimeout(ZkLockError, TimeoutError):  # noqa: N818 - the names are the public contract
    """The lock was not granted in time; the place in the line has been given up."""


class LockConflict(ZkLockError):  # noqa: N818
    """Somebody else holds the lock and the caller chose not to wait any longer (``on_conflict="raise"``)."""


class AlreadyAwaited(LockConflict):
    """Somebody waits for the lock already, and the caller waits only if nobody does (``on_conflict="coalesce"``)."""


class LockLost(ZkLockError):  # noqa: N818
    """The lock was lost while it was held; somebody else may hold it now."""


class NotHeld(ZkLockError, RuntimeError):  # noqa: N818
    """The operation needs a held lock, and this one is not, or no longer, held here."""


class ZooKeeperUnavailable(ZkLockError, ConnectionError):  # noqa: N818
    """ZooKeeper could not be reached, or did not answer, before the deadline."""
