"""Search for locks: which to show, and in what order, with as few requests as possible."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from functools import partial
from operator import attrgetter, itemgetter
from typing import Any, TypeVar

from django_zklock.zk import owners, paths
from django_zklock.zk.ops import snapshots
from django_zklock.zk.ops.snapshots import LockSnapshot, QueueEntry
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import Kind

A = TypeVar("A")
T = TypeVar("T")

STATES = ("held", "contended", "revoked", "unknown")
KINDS = tuple(kind.value for kind in Kind)

# How many locks are read within one timeout; the time for a whole tree depends on its size.
BATCH_SIZE = 10_000
# How many similar keys are found, and by how many characters their lengths may differ.
MAX_SIMILAR = 3
MAX_TYPING_ERRORS = 2


@dataclass(frozen=True, kw_only=True)
class LockFilter:
    """The conditions that a lock must meet; an empty one does not count. Upper and lower case are the same.

    ``key`` is a part of the key, or a pattern for the whole key if it has ``*``, ``?`` or ``[``. ``state`` is "held",
    "contended" (there is a waiter), "revoked" (a holder was asked to release) or "unknown" (nodes of no known recipe).
    ``host`` is a part of the host name of a contender, ``task`` a part of the name or id of its work. ``older`` is the
    minimum age of the first holder's node, in seconds.
    """

    key: str = ""
    state: str = ""
    kind: str = ""
    host: str = ""
    task: str = ""
    older: float = 0.0

    @property
    def needs_queues(self) -> bool:
        """Whether names of locks are not enough to decide."""
        return bool(self.state or self.kind) or self.needs_data

    @property
    def needs_data(self) -> bool:
        """Whether the data of the nodes is needed to decide."""
        return bool(self.host or self.task or self.older) or self.state == "revoked"

    def matches_name(self, name: str) -> bool:
        """Whether a lock node with that name may match; the whole key of a shortened name is in the node's data."""
        return paths.is_shortened(name) or self._matches_key(paths.display_key(name))

    def matches(self, lock: LockSnapshot, now: float) -> bool:
        """Whether ``lock`` matches at ``now``, in seconds since the Unix epoch."""
        return (
            self._matches_key(lock.key)
            and (not self.state or self.state in _states(lock))
            and (not self.kind or any(node.kind.value == self.kind for node in lock.nodes))
            and (not self.older or (bool(lock.holders) and now - lock.holders[0].since >= self.older))
            and (not (self.host or self.task) or any(map(self._matches_entry, lock.entries)))
        )

    def _matches_key(self, key: str) -> bool:
        wanted, key = self.key.casefold(), key.casefold()
        return fnmatchcase(key, wanted) if any(sign in wanted for sign in "*?[") else wanted in key

    def _matches_entry(self, entry: QueueEntry) -> bool:
        owner = entry.identity
        if owner is None or self.host.casefold() not in owner.host.casefold():
            return False
        if not self.task:
            return True
        return owner.work is not None and self.task.casefold() in f"{owner.work.name} {owner.work.id}".casefold()


def _states(lock: LockSnapshot) -> Iterator[str]:
    yield lock.state
    if lock.holder_count and lock.waiter_count:
        yield "contended"
    if any(entry.revoked for entry in lock.holders):
        yield "revoked"


@dataclass(frozen=True, kw_only=True)
class Ordering:
    """The column of :data:`COLUMNS` to sort by, descending if ``reverse``."""

    column: str = "key"
    reverse: bool = False

    @property
    def needs_queues(self) -> bool:
        """Whether names of locks are not enough to sort."""
        return self.column != "key"

    @property
    def needs_data(self) -> bool:
        """Whether the data of the nodes is needed to sort."""
        return self.column in COLUMNS_IN_DATA

    def value(self, lock: LockSnapshot) -> Any:
        """Return what ``lock`` has in the column; ``None`` if it has nothing there."""
        # Behind a waiter there are only waiters.
        return COLUMNS[self.column](lock, lock.entries[0] if lock.entries and lock.entries[0].held else None)

    def sort(self, locks: Iterable[LockSnapshot]) -> list[LockSnapshot]:
        """Return ``locks`` sorted by the column, then by key; those without a value in the column come last."""
        pairs = [(self.value(lock), lock) for lock in sorted(locks, key=attrgetter("key"))]
        valued = sorted((pair for pair in pairs if pair[0] is not None), key=itemgetter(0), reverse=self.reverse)
        return [lock for _value, lock in valued] + [lock for each, lock in pairs if each is None]


# The value of each column, of a lock and its first holder, if it has one.
COLUMNS: Mapping[str, Callable[[LockSnapshot, QueueEntry | None], Any]] = {
    "key": lambda lock, _holder: lock.key,
    "state": lambda lock, _holder: lock.state,
    "kind": lambda lock, _holder: lock.kind or None,
    "age": lambda _lock, holder: holder and -holder.since,
    "waiters": lambda lock, _holder: lock.waiter_count,
    "token": lambda _lock, holder: holder and holder.token,
    "holder": lambda _lock, holder: holder and holder.owner_text.casefold(),
    # Lower for locks that need attention: with waiters, with release requested, old. Of two locks of one millisecond
    # the one with the lower token is older.
    "urgency": lambda lock, holder: (
        holder and (not lock.waiter_count, holder.revoked is None, holder.since, holder.token)
    ),
}
COLUMNS_IN_DATA = frozenset({"age", "token", "holder", "urgency"})


ALL = LockFilter()
BY_KEY = Ordering()


def find(
    pool: Pool, lock_filter: LockFilter = ALL, ordering: Ordering = BY_KEY, *, limit: int | None = None, timeout: float
) -> list[LockSnapshot]:
    """Read the locks in use that match, in that order, at most ``limit`` of them, each with its whole queue.

    ZooKeeper has ``timeout`` seconds to list the names of all locks, and again for each ten thousand queues. Raises
    ``ZooKeeperUnavailable`` if ZooKeeper does not answer in time, and ``ZkLockError`` if it refuses.
    """
    names = list(filter(lock_filter.matches_name, snapshots.list_names(pool, timeout=timeout)))
    locks = _in_batches(partial(snapshots.list_queues, pool, timeout=timeout), names)
    read_first = lock_filter.needs_data or ordering.needs_data
    read = partial(snapshots.read_entries, pool, timeout=timeout)
    if read_first:
        locks = _in_batches(read, locks)
    now = time.time()
    chosen = ordering.sort(lock for lock in locks if lock_filter.matches(lock, now))[:limit]
    if not read_first:
        chosen = _in_batches(read, chosen)
    # Nodes may have been deleted since the queues were listed.
    return [lock for lock in chosen if lock.nodes or lock.unknown_nodes]


def similar_keys(pool: Pool, key: str, *, timeout: float) -> list[str]:
    """Return the keys with a queue that are like ``key``, the most similar first: those that a typing error misses.

    Upper and lower case are the same. Raises what :func:`find` raises.
    """
    names = snapshots.list_names(pool, timeout=timeout)
    by_folded = {found.casefold(): found for found in map(paths.display_key, names) if found != key}
    same = by_folded.get(key.casefold())
    # The comparison takes some microseconds for each key, and few keys of a large tree have about this length.
    near = [folded for folded in by_folded if abs(len(folded) - len(key)) <= MAX_TYPING_ERRORS]
    found = [by_folded[each] for each in get_close_matches(key.casefold(), near, n=MAX_SIMILAR, cutoff=0.8)]
    return found if same is None or same in found else [same, *found]


def map_parallel(function: Callable[[A], T], arguments: Sequence[A]) -> list[T]:
    """Return ``function`` of each argument, all called at the same time: the slowest ensemble determines the time.

    Several calls run in threads of their own, so ``function`` must not open connections to Django's database: they
    would stay open after the threads end.
    """
    if len(arguments) <= 1:
        # In this thread, which Ctrl-C interrupts.
        return [function(argument) for argument in arguments]
    owners.check_may_wait("ensembles cannot be read")
    with ThreadPoolExecutor(len(arguments), "zklock-search") as threads:
        return list(threads.map(function, arguments))


def _in_batches(read: Callable[[Sequence[T]], list[LockSnapshot]], items: Sequence[T]) -> list[LockSnapshot]:
    batches = [items[start : start + BATCH_SIZE] for start in range(0, len(items), BATCH_SIZE)]
    return [lock for batch in batches for lock in read(batch)]
