"""The errors of locks: one tree, and every error carries its facts as attributes."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_zklock.zk.node_data import Identity


class ZkLockError(Exception):
    """Base of every error of this package.

    ``key`` is the key of the lock (several keys with commas between), ``timeout`` the timeout of the caller in seconds
    (``None`` for no limit), and ``holder`` the identity of the owner that holds the lock, where known.
    Raised itself when ZooKeeper refuses a request, for example by its ACL.
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
        # Celery pickles exceptions between processes, and pickle does not pass keyword-only arguments.
        return partial(type(self), key=self.key, timeout=self.timeout, holder=self.holder), (str(self),)


class LockTimeout(ZkLockError, TimeoutError):  # noqa: N818 - the names are the public contract
    """The lock was not granted in time; the caller has left the queue.

    Raised by ``acquire``, ``aacquire`` and ``with lock:``, and by a decorated function with ``on_conflict="wait"`` or
    ``"coalesce"``.
    """


class LockConflict(ZkLockError):  # noqa: N818
    """Another owner holds the lock, and the caller does not wait any longer (``on_conflict="raise"``).

    Raised by ``"retry"`` too, when its budget is used up or there is no queue to return to; if the caller would wait
    for itself, with ``reentrant=False`` or in the thread that the holder needs; and by a nested acquisition that the
    outer hold does not cover: to write inside of a read, a lower ``limit``.
    """


class LockCancelled(ZkLockError):  # noqa: N818
    """The wait for the lock was ended from outside; the caller has left the queue.

    Raised by ``acquire`` and ``aacquire`` with a ``cancellation`` that is cancelled, before the wait or during it.
    """


class AlreadyAwaited(LockConflict):
    """Another call waits for the lock already, and will run the same function (``on_conflict="coalesce"``)."""


class LockLost(ZkLockError):  # noqa: N818
    """The lock was lost while it was held; another owner may hold it now.

    Raised by ``Held.check``, at the end of a block or a decorated function, and by an acquisition inside of a block
    whose lock is lost. If the lock was broken, it has the reason, or says that the reason could not be read in time;
    the signal ``lost`` has it then.
    """


class NotHeld(ZkLockError, RuntimeError):  # noqa: N818
    """The operation needs a held lock, and this one is not held here, or not any more.

    Raised by ``Held.check`` after a release, and at the end of a block if the lock was released inside of it, or if it
    cannot be known which of several blocks ends.
    """


class AsyncUnsafe(ZkLockError, RuntimeError):  # noqa: N818
    """A call that may block was made in a thread that must not; the message says what to do instead.

    In a thread whose event loop runs it is raised by ``acquire``, ``try_acquire``, ``holders`` and ``with lock:``, and
    by a decorated plain function, unless the task holds the lock already; by ``release(wait=True)`` after the release.
    The environment variable ``DJANGO_ALLOW_ASYNC_UNSAFE`` allows it, as for blocking calls of Django itself.

    It is raised by everything that would wait, coroutines included, in a thread of this package that sends heartbeats
    or reports losses. Python's garbage collector runs finalizers of the application there, and such a thread would wait
    for itself. Nothing allows that.
    """


class LockInTransaction(ZkLockError, RuntimeWarning):  # noqa: N818
    """A lock is acquired inside of a database transaction, and would be released before the commit.

    It is a warning by default, once for each place in the code, and raised with ``"IN_TRANSACTION": "error"``, and
    always by a function with ``atomic=`` inside of a transaction of that database.
    """


class StaleToken(ZkLockError):  # noqa: N818
    """A fenced write was refused, because a later holder has written, or the row is gone; nothing was changed.

    Raised by ``fenced_update``, and by ``save()`` of a ``FencedModel``.
    """


class ZooKeeperUnavailable(ZkLockError, ConnectionError):  # noqa: N818
    """ZooKeeper could not be reached, or did not answer, before the deadline.

    The message names the servers and what to look at; if nothing listens on this machine, the server for development.
    If this process could not begin to connect, for want of a file descriptor, a thread or memory, ``__cause__`` has the
    error of the system.
    """
