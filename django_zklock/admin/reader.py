"""What a page reads from ZooKeeper: each alias within its deadline, a failure as a sentence."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from django.core.exceptions import ImproperlyConfigured

from django_zklock import conf
from django_zklock.connections import connections
from django_zklock.exceptions import ZkLockError
from django_zklock.zk import formatting, paths
from django_zklock.zk.ops import actions, snapshots
from django_zklock.zk.ops.actions import LastBreak
from django_zklock.zk.ops.snapshots import LockSnapshot
from django_zklock.zk.pool import Pool
from django_zklock.zk.waiting import Deadline

A = TypeVar("A")
T = TypeVar("T")


class AliasReader:
    """Reads the locks of one alias for one page.

    All reads share one deadline: ``CONNECT_TIMEOUT`` seconds after the first one starts. After the first failure
    ``error`` is set, and every further read returns nothing.
    """

    def __init__(self, alias: str, error: str = "") -> None:
        self.alias = alias
        self.error = formatting.escape_controls(error)
        self._deadline: Deadline | None = None

    def list_names(self) -> list[str]:
        """Return the names of all queues."""
        return self._read(lambda pool, timeout: snapshots.list_names(pool, timeout=timeout))

    def list_queues(self, names: Sequence[str]) -> list[LockSnapshot]:
        """Return the queues of these names that are not empty, without the data of their entries."""
        return self._read(lambda pool, timeout: snapshots.list_queues(pool, names, timeout=timeout))

    def read_entries(self, locks: Sequence[LockSnapshot], limit: int | None = None) -> list[LockSnapshot]:
        """Return ``locks`` with the data of their first ``limit`` entries, or of all."""
        return self._read(lambda pool, timeout: snapshots.read_entries(pool, locks, timeout=timeout, limit=limit))

    def read_lock(self, name: str, limit: int | None = None) -> LockSnapshot | None:
        """Return one queue with the data of its first ``limit`` entries; ``None`` if it cannot be read."""
        found = self.read_entries(self.list_queues([name]), limit)
        if self.error:
            return None
        return (
            found[0]
            if found
            else LockSnapshot(key=paths.display_key(name), path=f"{connections[self.alias].options.root}/{name}")
        )

    def last_break(self, snapshot: LockSnapshot) -> LastBreak | None:
        """Return when and why this lock was last broken."""
        found = self._read(lambda pool, timeout: [actions.last_break(pool, snapshot.path, timeout=timeout)])
        return found[0] if found else None

    def _read(self, read: Callable[[Pool, float | None], list[T]]) -> list[T]:
        if self.error:
            return []
        try:
            pool = connections[self.alias]
            if self._deadline is None:
                self._deadline = Deadline.after(pool.options.connect_timeout)
            return read(pool, self._deadline.remaining())
        except (ZkLockError, ImproperlyConfigured) as error:
            self.error = formatting.escape_controls(str(error))
            return []


def readers(alias: str = "") -> list[AliasReader]:
    """Return a reader of each alias, or of ``alias`` alone; a single one with the error if the setting is wrong."""
    try:
        aliases = conf.aliases()
    except ImproperlyConfigured as error:
        return [AliasReader("", str(error))]
    return [AliasReader(each) for each in aliases if alias in {"", each}]


def map_parallel(function: Callable[[A], T], arguments: Sequence[A]) -> list[T]:
    """Return ``function`` of each argument, each called in its own thread: the slowest ensemble determines the time.

    ``function`` must not use Django's database: its connections would stay open after the threads end.
    """
    if len(arguments) <= 1:
        return [function(argument) for argument in arguments]
    with ThreadPoolExecutor(len(arguments), "zklock-admin") as threads:
        return list(threads.map(function, arguments))
