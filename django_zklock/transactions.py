"""Locks and the database transactions of the caller.

A lock that is released before the commit lets the next holder read the old state. So acquiring inside of a transaction
warns, and a lock with ``release="commit"`` is kept until the transaction has ended.

Django has hooks for a commit alone. How a transaction ends otherwise can be seen by what its connection does with
``run_on_commit``, its list of these hooks:

- after a commit it takes the list, and calls what is in it;
- after a rollback, before it closes, and when it connects anew, it drops the list;
- after a rollback to a savepoint it drops what was registered since.

So an object in this list, to which nothing else refers, is called after a commit and destroyed after everything else.
"""

from __future__ import annotations

import contextlib
import logging
import sys
import warnings
from collections.abc import Callable, Coroutine
from functools import partial
from pathlib import Path
from typing import Any, Literal, Never, NoReturn

from django import db
from django.db.backends.base.base import BaseDatabaseWrapper
from django.db.transaction import TransactionManagementError

from django_zklock import conf
from django_zklock.exceptions import LockInTransaction
from django_zklock.zk import owners
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.waiting import UNSET, Cancellation, Timeout, Unset

logger = logging.getLogger("django_zklock.transactions")

Release = Literal["block", "commit"]

# What stands between the caller and a lock: this package, and the standard library's tools for `with`.
_BETWEEN = (f"{Path(__file__).parent}/", contextlib.__file__)


def _blocks_of_tests(connection: BaseDatabaseWrapper) -> int:
    """Return how many blocks a ``TestCase`` has put around the project's transactions: to the project they are none.

    Django has the same exception for ``durable=True``.
    """
    return sum(getattr(block, "_from_testcase", False) for block in connection.atomic_blocks)


def _in_transaction() -> list[BaseDatabaseWrapper]:
    """Return the connections of this thread whose transaction, begun by ``atomic``, can still be committed."""
    return [
        connection
        for connection in db.connections.all(initialized_only=True)
        if connection.in_atomic_block
        and not connection.closed_in_transaction
        and len(connection.atomic_blocks) > _blocks_of_tests(connection)
    ]


def _check_not_manual(connection: BaseDatabaseWrapper, what: str) -> None:
    """Raise Django's ``TransactionManagementError`` if the caller commits by itself, and Django does not know when.

    There a block of ``atomic`` does not commit, and hooks are not called until autocommit is on again.
    """
    if connection.connection is None:
        is_manual = not connection.settings_dict["AUTOCOMMIT"]
    else:
        is_manual = not connection.autocommit and not (connection.in_atomic_block and connection.commit_on_exit)
    if is_manual:
        raise TransactionManagementError(
            f"database {connection.alias!r} is in manual transaction management, where {what} cannot be used, as "
            f"on_commit() cannot: turn autocommit on and use atomic()"
        )


# Acquiring inside of a transaction.


def check_atomic(database: str, template: str | None) -> None:
    """Raise if ``database`` cannot begin a transaction that ends with the hold: before the caller waits for the lock.

    That is ``LockInTransaction`` where one is open, whatever the setting says, also if the lock is held already, and
    Django's ``TransactionManagementError`` in manual transaction management.
    """
    connection = db.connections[database]
    if connection in _in_transaction():
        raise _error([database], template)
    _check_not_manual(connection, "atomic=")


def check_outside(using: str, template: str | None) -> None:
    """Warn, or raise ``LockInTransaction``, if a lock of the alias ``using`` is acquired inside of a transaction."""
    names = [connection.alias for connection in _in_transaction()]
    policy = conf.database_options(using).in_transaction if names else "allow"
    if policy == "allow":
        return
    error = _error(names, template)
    if policy == "error":
        raise error
    frame, level = sys._getframe(), 1  # noqa: SLF001 - CPython's documented way to see the caller
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_BETWEEN):
        frame, level = frame.f_back, level + 1
    warnings.warn(error, stacklevel=level)


def _error(databases: list[str], template: str | None) -> LockInTransaction:
    # Without the key: Python shows a text once for each line of code, and the keys at a line differ.
    subject = "a lock" if template is None else f"the lock {template!r}"
    return LockInTransaction(
        f"{subject} is acquired inside of a transaction of database {', '.join(map(repr, databases))}, and would be "
        f"released before the commit: the next holder would read the old state. Acquire it first, with "
        f"@zk_locked(…, atomic=True) or a `with` around the transaction, or keep it until the commit: "
        f'zk_lock(…, release="commit")'
    )


# Keeping the lock until the end of the transaction.


class CommitLock(Lock):
    """A lock that is kept, if it is acquired inside of transactions, until the last of them has ended.

    Each transaction has a hold of its own, on the same node, and the hold of the caller is nested in these. So a block
    ends as always, with ``LockLost`` after a loss, and the node goes with the last of these holds.
    """

    # The holds of the transactions come first. What interrupts the acquisition after that, such as a time limit, leaves
    # the lock held until the transactions end, which is what it is for.

    def acquire(
        self, timeout: Timeout | Unset = UNSET, *, cancellation: Cancellation | None = None, **unknown: Never
    ) -> Held:
        self._keep(partial(super().acquire, timeout, cancellation=cancellation, **unknown))
        return super().acquire(timeout, cancellation=cancellation, **unknown)

    def try_acquire(self) -> Held | None:
        return super().try_acquire() if self._keep(super().try_acquire) else None

    def __enter__(self) -> Held:
        self._keep(super().acquire)
        return super().__enter__()

    def _keep(self, acquire: Callable[[], Held | None]) -> bool:
        """Acquire the lock for each open transaction; return ``False`` if it is taken."""
        # Those too that are not used yet: the transaction may begin inside of the block.
        for connection in db.connections.all():
            _check_not_manual(connection, 'release="commit"')
        owner = owners.caller().owner
        before = owner.holds[:]
        try:
            for connection in _in_transaction():
                held = acquire()
                if held is None:
                    return False
                _release_at_end(connection, held)
        except BaseException:
            owner.release_since(self, before)
            raise
        return True

    def aacquire(self, *_arguments: object, **_options: object) -> Coroutine[Any, Any, Held]:
        self._refuse_async()

    def atry_acquire(self, *_arguments: object, **_options: object) -> Coroutine[Any, Any, Held | None]:
        self._refuse_async()

    def __aenter__(self) -> Coroutine[Any, Any, Held]:
        self._refuse_async()

    def _refuse_async(self) -> NoReturn:
        raise TypeError(
            f'lock {self.key!r} with release="commit" cannot be acquired by async code, where Django has no '
            f"transactions: put the transaction and the lock into one plain function, and call that by sync_to_async"
        )


class _TransactionHold:
    """The hold of a transaction; only the connection's list of hooks refers to it."""

    __slots__ = ("_held",)

    def __init__(self, held: Held) -> None:
        # The transaction is its block: what was written after the loss is to be rolled back, not to go on anew.
        held.in_block = True
        self._held = held

    def keeps(self, other: Held) -> bool:
        """Whether the node of ``other``, which is held, is held until the end of the transaction."""
        return not self._held.released and self._held.node == other.node

    def __call__(self) -> None:
        """Release the lock after the commit."""
        held = self._held
        if held.lost and not held.released:
            logger.error("event=committed_without_lock key=%r token=%s", held.key, held.token)
        held.release()

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # The transaction was rolled back, or its connection is about to be closed, and nothing can be committed.
        if not self._held.released and not _is_finalizing():
            self._held.release()


def _release_at_end(connection: BaseDatabaseWrapper, held: Held) -> None:
    hooks: list[Any] = connection.run_on_commit
    if any(isinstance(hook, _TransactionHold) and hook.keeps(held) for _savepoints, hook, _robust in hooks):
        # A loop over one key in a long transaction.
        held.release()
        return
    tests = _blocks_of_tests(connection)
    if not tests:
        # The first: other hooks need no lock, and one that raises an error keeps Django from calling those behind it.
        # Without savepoints: rolling back to one does not end the transaction.
        hooks.insert(0, (set(), _TransactionHold(held), False))
        return
    # In a TestCase the transaction is a savepoint, the first one that is not a test's: with that it is rolled back, or
    # with those of the test around it. For Django its commit is no event, so the hook is called by
    # captureOnCommitCallbacks, which wants it to be the last.
    hooks.append((set(connection.savepoint_ids[:tests]), _TransactionHold(held), False))
