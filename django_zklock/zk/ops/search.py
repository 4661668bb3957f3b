"""Search for locks: which to show, and in what order, with as few requests as possible.

There may be a hundred thousand locks. So a search reads them in batches, keeps no more of them than it has to, and
hands them on as they are read; each batch has its own time.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from difflib import get_close_matches
from fnmatch import fnmatchcase
from operator import itemgetter
from typing import Any, Generic, Self, TypeVar

from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.zk import owners, paths
from django_zklock.zk.ops import snapshots
from django_zklock.zk.ops.snapshots import LockSnapshot, Progress, QueueEntry
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import Kind

A = TypeVar("A")
T = TypeVar("T")

STATES = ("held", "contended", "revoked", "unknown")
KINDS = tuple(kind.value for kind in Kind)

# The maximum of queues that are read within one timeout; the time for a whole tree depends on its size.
BATCH_SIZE = 1024
# Queues of the first batch, so that something can be shown soon; each batch is twice as large as the one before.
FIRST_BATCH = 128
# How many similar keys are found, and by how many characters their lengths may differ.
MAX_SIMILAR = 3
MAX_TYPING_ERRORS = 2


@dataclass(frozen=True, kw_only=True)
class LockFilter:
    """The conditions that a lock must meet; an empty one does not count. Upper and lower case are the same.

    ``key`` is a part of the key, or a pattern for the whole key if it has ``*``, ``?`` or ``[``. ``state`` is "held",
    "contended" (there is a waiter), "revoked" (a holder was asked to release) or "unknown" (nodes of no known recipe).
    ``host`` is a part of the host name of a contender, ``task`` a part of the name or id of its work. ``older`` is the
    minimum time, in seconds, for which the first holder holds, or may hold if it is not known when it was granted.
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
            and (not self.older or (bool(lock.holders) and now - lock.holders[0].held_since >= self.older))
            and (not (self.host or self.task) or any(map(self._matches_entry, lock.entries)))
        )

    def _matches_key(self, key: str) -> bool:
        if not self.key:
            return True
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
        return [lock for _value, _key, lock in self.sort_ranks((self.value(lock), lock.key, lock) for lock in locks)]

    def sort_ranks(self, ranks: Iterable[tuple[Any, str, T]]) -> list[tuple[Any, str, T]]:
        """Sort anything with the value and the key of a lock before it, as :meth:`sort` does."""
        by_key = sorted(ranks, key=itemgetter(1))
        valued = sorted((each for each in by_key if each[0] is not None), key=itemgetter(0), reverse=self.reverse)
        return valued + [each for each in by_key if each[0] is None]


class Ranking(Generic[T]):
    """The first ``limit`` of any number of locks in an order, by what names each; no lock is kept itself."""

    def __init__(self, ordering: Ordering, limit: int | None) -> None:
        self._ordering = ordering
        self._limit = limit
        self._ranks: list[tuple[Any, str, T]] = []

    def add(self, lock: LockSnapshot, name: T) -> None:
        """Add a lock that ``name`` names."""
        self._ranks.append((self._ordering.value(lock), lock.key, name))
        # Now and then, those that cannot be among the first any more are dropped.
        if self._limit is not None and len(self._ranks) >= 2 * self._limit + BATCH_SIZE:
            self._ranks = self._ordering.sort_ranks(self._ranks)[: self._limit]

    def __iadd__(self, other: Ranking[T]) -> Self:
        self._ranks += other._ranks
        return self

    def names(self) -> list[T]:
        """Return the names of the first locks, in their order."""
        return [name for _value, _key, name in self._ordering.sort_ranks(self._ranks)[: self._limit]]


# The value of each column, of a lock and its first holder, if it has one.
COLUMNS: Mapping[str, Callable[[LockSnapshot, QueueEntry | None], Any]] = {
    "key": lambda lock, _holder: lock.key,
    "state": lambda lock, _holder: lock.state,
    "kind": lambda lock, _holder: lock.kind or None,
    "age": lambda _lock, holder: holder and (-holder.held_since, -holder.token),
    "waiters": lambda lock, _holder: lock.waiter_count,
    "token": lambda _lock, holder: holder and holder.token,
    "holder": lambda _lock, holder: holder and holder.owner_text.casefold(),
    # Lower for locks that need attention: with waiters, with release requested, held for long. Of two locks of one
    # millisecond the one with the lower token is older.
    "urgency": lambda lock, holder: (
        holder and (not lock.waiter_count, holder.revoked is None, holder.held_since, holder.token)
    ),
}
COLUMNS_IN_DATA = frozenset({"age", "token", "holder", "urgency"})


ALL = LockFilter()
BY_KEY = Ordering()


class Search:
    """The locks in use that match, in an order, at most ``limit`` of them: iterate over them, more than once if needed.

    Each lock comes with its whole queue, or with its holders alone. In the order of keys a lock comes as soon as it has
    been read, and nothing behind the last one is read. In another order all are read first, and those that come a
    second time, so that not all have to be kept. ``progress`` says how far it is.

    ZooKeeper has ``timeout`` seconds to list the names of all locks, and again for each batch of queues. Iterating
    raises ``ZooKeeperUnavailable``, which says how many queues were read, if it does not answer in time, and
    ``ZkLockError`` if it refuses.
    """

    def __init__(
        self,
        pool: Pool,
        lock_filter: LockFilter = ALL,
        ordering: Ordering = BY_KEY,
        *,
        limit: int | None = None,
        whole: bool = True,
        timeout: float | None,
    ) -> None:
        self.progress = Progress()
        self.limit = limit
        self._pool = pool
        self._filter = lock_filter
        self._ordering = ordering
        self._whole = whole
        self._timeout = timeout
        self._names: list[str] | None = None

    def __iter__(self) -> Iterator[LockSnapshot]:
        for batch in self.batches():
            yield from batch

    def list_names(self) -> list[str]:
        """Return the names of the locks that may match, in use or not, in the order of keys: what is read first."""
        found = filter(self._filter.matches_name, snapshots.list_names(self._pool, timeout=self._timeout))
        reverse = self._ordering.reverse and not self._ordering.needs_queues
        self._names = sorted(found, key=paths.display_key, reverse=reverse)
        self.progress = Progress(total=len(self._names))
        return self._names

    def batches(self) -> Iterator[list[LockSnapshot]]:
        """Iterate by the batch, which may be empty: after each of them, something was read."""
        names, self._names = self.list_names() if self._names is None else self._names, None
        try:
            yield from self._sorted(names) if self._ordering.needs_queues else self._by_key(names)
        except ZooKeeperUnavailable as error:
            raise self.progress.failed(error) from error

    def _by_key(self, names: Sequence[str]) -> Iterator[list[LockSnapshot]]:
        left = self.limit
        first = self.limit or FIRST_BATCH
        for batch in self._scan(names, whole=self._whole, first=first, progress=self.progress):
            yield batch[:left]
            if left is not None:
                left -= len(batch)
                if left <= 0:
                    return

    def _sorted(self, names: Sequence[str]) -> Iterator[list[LockSnapshot]]:
        ranking = Ranking[str](self._ordering, self.limit)
        for batch in self._scan(names, read_data=self._ordering.needs_data, progress=self.progress):
            for lock in batch:
                ranking.add(lock, lock.name)
            yield []
        yield from self._scan(ranking.names(), whole=self._whole)

    def _scan(self, names: Sequence[str], **options: Any) -> Iterator[list[LockSnapshot]]:
        return scan(self._pool, names, self._filter, timeout=lambda: self._timeout, **options)


def find(
    pool: Pool, lock_filter: LockFilter = ALL, ordering: Ordering = BY_KEY, *, limit: int | None = None, timeout: float
) -> list[LockSnapshot]:
    """Return the locks of a :class:`Search`, each with its whole queue."""
    return list(Search(pool, lock_filter, ordering, limit=limit, timeout=timeout))


def scan(
    pool: Pool,
    names: Sequence[str],
    lock_filter: LockFilter,
    *,
    read_data: bool = True,
    whole: bool = False,
    timeout: Callable[[], float | None],
    progress: Progress | None = None,
    first: int = FIRST_BATCH,
) -> Iterator[list[LockSnapshot]]:
    """Read the queues of these locks batch by batch; iterate over those in use that match, in the order of ``names``.

    A batch may be empty. The holders are read with the queues, if ``read_data`` or the filter needs them, or with
    ``whole`` all contenders. ``timeout`` returns the seconds that ZooKeeper has for the next batch, and ``progress``
    counts what was read. Raises what a :class:`Search` raises.
    """
    start, size, now = 0, min(first, BATCH_SIZE), time.time()
    whole = whole or bool(lock_filter.host or lock_filter.task)
    while start < len(names):
        batch = names[start : start + size]
        locks = snapshots.list_queues(pool, batch, timeout=timeout())
        if read_data or lock_filter.needs_data:
            locks = snapshots.read_entries(pool, locks, holders=not whole, timeout=timeout())
        start += len(batch)
        size = min(2 * size, BATCH_SIZE)
        if progress is not None:
            progress.read += len(batch)
        # Nodes may have been deleted since the queues were listed.
        yield [lock for lock in locks if (lock.nodes or lock.unknown_nodes) and lock_filter.matches(lock, now)]


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
