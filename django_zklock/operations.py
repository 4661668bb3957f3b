"""Look at the locks of all processes, and act on them: what ``manage.py zklock`` and the admin do, for code.

::

    from django_zklock import operations

    for lock in operations.find_locks("import:*", older_than=timedelta(hours=2)):
        for holder in lock.holders:
            operations.revoke_lock(holder, "older than two hours")

These functions wait for ZooKeeper and take no lock: code of an event loop calls them in a thread.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator

from django_zklock.conf import DEFAULT_ALIAS, did_you_mean
from django_zklock.connections import connections
from django_zklock.exceptions import NotHeld
from django_zklock.zk import paths
from django_zklock.zk.ops import actions, sent, snapshots, trail
from django_zklock.zk.ops.search import COLUMNS, KINDS, STATES, LockFilter, Ordering, Search
from django_zklock.zk.ops.sent import SentCall
from django_zklock.zk.ops.snapshots import LockSnapshot, QueueEntry
from django_zklock.zk.ops.trail import Action
from django_zklock.zk.pool import Pool
from django_zklock.zk.waiting import UNSET, Timeout, Unset, seconds

__all__ = [
    "Action",
    "LockSnapshot",
    "QueueEntry",
    "Search",
    "SentCall",
    "break_lock",
    "find_locks",
    "lock_history",
    "prune_queues",
    "prune_sent",
    "revoke_lock",
    "sent_calls",
    "show_lock",
]


def find_locks(
    match: str = "",
    *,
    state: str = "",
    kind: str = "",
    host: str = "",
    task: str = "",
    older_than: Timeout = 0,
    sort: str = "key",
    reverse: bool = False,
    limit: int | None = None,
    holders_only: bool = False,
    using: str = DEFAULT_ALIAS,
    timeout: Timeout | Unset = UNSET,
) -> Search:
    """Return the locks with a holder or a waiter that meet all conditions: iterate over them.

    The conditions and the orders are those of ``zklock list``: ``match`` is a part of the key, or a pattern for all of
    it with ``*``, ``?`` or ``[``. Each lock comes with the data of its whole queue, or with ``holders_only`` of its
    holders, for which less is read. Sorted by key, a lock comes as soon as it has been read; a search for ``limit`` of
    them reads no more.

    ZooKeeper has ``timeout``, by default ``CONNECT_TIMEOUT``, for the list of the names, and again for each batch of a
    thousand queues. Raises ``ValueError`` for an unknown state, kind or order, and for a limit or a timeout that is not
    positive; iterating raises ``ZooKeeperUnavailable`` if ZooKeeper does not answer in time, and ``ZkLockError`` if it
    refuses.
    """
    for name, text in {"match": match, "host": host, "task": task}.items():
        if not isinstance(text, str):
            raise TypeError(f"{name} must be a text, got {text!r}")
    _check_choice("state", state, {"", *STATES})
    _check_choice("kind", kind, {"", *KINDS})
    _check_choice("sort", sort, COLUMNS)
    if limit is not None and (type(limit) is not int or limit < 1):
        raise ValueError(f"limit must be a positive integer, got {limit!r}")
    older = seconds(older_than, "older_than")
    lock_filter = LockFilter(key=match, state=state, kind=kind, host=host, task=task, older=older or 0.0)
    pool = connections[using]
    return Search(
        pool,
        lock_filter,
        Ordering(column=sort, reverse=reverse),
        limit=limit,
        whole=not holders_only,
        timeout=_seconds(pool, timeout),
    )


def show_lock(key: str, *, using: str = DEFAULT_ALIAS, timeout: Timeout | Unset = UNSET) -> LockSnapshot:
    """Return one lock with its queue, which is empty if the lock has no holder and no waiter.

    Takes at most ``timeout``, by default ``CONNECT_TIMEOUT``. Raises ``ZooKeeperUnavailable`` if ZooKeeper does not
    answer in time, ``ZkLockError`` if it refuses, and ``ValueError`` for a key that cannot name a lock.
    """
    pool = connections[using]
    return snapshots.one_lock(pool, key, timeout=_seconds(pool, timeout))


def break_lock(
    holder: QueueEntry, reason: str, *, by: str = "", using: str = DEFAULT_ALIAS, timeout: Timeout | Unset = UNSET
) -> None:
    """Take a lock away from ``holder``, one of ``holders`` of a lock; its work goes on.

    The holder finds the reason, and ``by``, the user's name, if that is given; :func:`lock_history` keeps both. If
    another one holds the lock by now, it keeps it. Takes and raises what :func:`show_lock` does, ``NotHeld`` if the
    holder does not hold the lock any more, or is a waiter, and ``ValueError`` for an empty reason.
    """
    _check_holder(holder)
    pool = connections[using]
    actions.break_lock(pool, holder.path, token=holder.token, why=reason, by=by, timeout=_seconds(pool, timeout))


def revoke_lock(
    holder: QueueEntry, reason: str, *, by: str = "", using: str = DEFAULT_ALIAS, timeout: Timeout | Unset = UNSET
) -> None:
    """Request that ``holder`` releases its lock: its code decides when. Otherwise the same as :func:`break_lock`."""
    _check_holder(holder)
    pool = connections[using]
    actions.revoke(pool, holder.path, reason, token=holder.token, by=by, timeout=_seconds(pool, timeout))


def lock_history(
    key: str | None = None, *, using: str = DEFAULT_ALIAS, timeout: Timeout | Unset = UNSET
) -> list[Action]:
    """Return what was done to all locks, or to one: breaks, and requests to release; the oldest first.

    Takes and raises what :func:`show_lock` does.
    """
    pool = connections[using]
    lock = None if key is None else paths.escape(paths.check_key(key))
    return trail.read(pool, lock=lock, timeout=_seconds(pool, timeout))


def prune_queues(
    *, dry_run: bool = False, using: str = DEFAULT_ALIAS, timeout: Timeout | Unset = UNSET
) -> Iterator[str]:
    """Delete empty queues that ZooKeeper does not delete; iterate over the keys of those that are gone, as they go.

    With ``dry_run`` they are only found. ZooKeeper has ``timeout``, by default ``CONNECT_TIMEOUT``, for the list of the
    names, and again for each batch. Raises what :func:`show_lock` raises, with the number of queues that were read.
    """
    pool = connections[using]
    limit = _seconds(pool, timeout)
    for names in actions.find_idle(pool, timeout=limit):
        gone = names if dry_run else actions.prune(pool, names, timeout=limit)
        yield from map(paths.display_key, gone)


def sent_calls(
    key: str | None = None, *, using: str = DEFAULT_ALIAS, timeout: Timeout | Unset = UNSET
) -> list[SentCall]:
    """Return the calls of tasks with ``unique_until`` that are sent and have not begun, all or those of one lock.

    Takes and raises what :func:`show_lock` does.
    """
    pool = connections[using]
    return [call for call in sent.find(pool, timeout=_seconds(pool, timeout)) if key in {None, call.key}]


def prune_sent(
    *, everything: bool = False, dry_run: bool = False, using: str = DEFAULT_ALIAS, timeout: Timeout | Unset = UNSET
) -> list[SentCall]:
    """Remove the marks of calls that may be lost, and return these calls: the next one of each is sent.

    With ``everything`` the marks of all calls, for example when the broker has been purged: a call whose message is
    still there may be sent once more. With ``dry_run`` they are only found. Takes and raises what :func:`show_lock`
    does.
    """
    pool = connections[using]
    limit = _seconds(pool, timeout)
    calls = [call for call in sent.find(pool, timeout=limit) if everything or call.state == "stale"]
    if not dry_run:
        sent.prune(pool, calls, timeout=limit)
    return calls


def _check_choice(name: str, value: str, known: Collection[str]) -> None:
    if value not in known:
        named = ", ".join(sorted(filter(None, known)))
        raise ValueError(f"{name} must be one of {named}, got {value!r}{did_you_mean(value, known)}")


def _check_holder(holder: QueueEntry) -> None:
    # A lock has a path too: that of the node above its queue.
    if not isinstance(holder, QueueEntry):
        raise TypeError(f"give one of the holders of a lock, not a {type(holder).__name__}")
    if not holder.held:
        raise NotHeld(f"{holder.path} is a waiter's")


def _seconds(pool: Pool, timeout: Timeout | Unset) -> float | None:
    if timeout is UNSET:
        return pool.options.connect_timeout
    limit = seconds(timeout)
    if limit == 0:
        raise ValueError("timeout must be positive, got 0: an answer takes time")
    return limit
