"""What a page reads from ZooKeeper: each alias within its deadline, a failure as a sentence."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured

from django_zklock import conf
from django_zklock.connections import connections
from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.models import Lock
from django_zklock.zk import formatting, waiting
from django_zklock.zk.ops import search, snapshots
from django_zklock.zk.ops.search import LockFilter
from django_zklock.zk.ops.snapshots import LockSnapshot, Progress
from django_zklock.zk.pool import Pool
from django_zklock.zk.waiting import Deadline

T = TypeVar("T")

# A queue can have ten thousand waiters.
MAX_ENTRIES = 100
# Seconds within which ZooKeeper begins to answer, or a page says that it does not.
PROMPT = 1.0


class AliasReader:
    """Reads the locks of one alias for one page.

    All reads share one deadline: ``CONNECT_TIMEOUT`` seconds after the first one begins. Before that one, something
    small is asked, and ZooKeeper has a second to answer, unless the process is only just connecting. After a failure
    ``error`` is set, and every further read returns ``None``.

    That a page has no time left is no failure of ZooKeeper: a scan ends at the deadline, and ``progress`` says how far
    it has come. What is shown is read all the same, within :data:`PROMPT` seconds for each request.
    """

    def __init__(self, alias: str, error: str = "") -> None:
        self.alias = alias
        self.error = formatting.escape_controls(error)
        self.progress = Progress()
        self._began = 0.0
        self._deadline: Deadline | None = None

    @property
    def is_late(self) -> bool:
        """Whether the time of the page is up."""
        return self._deadline is not None and self._deadline.passed

    @property
    def elapsed(self) -> float:
        """The seconds since the first read."""
        return waiting.monotonic() - self._began

    def read(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """Return what ``function`` returns for the pool and these ``arguments``; ``None`` after a failure."""
        if self.error:
            return None
        try:
            return function(self._pool(), *arguments, timeout=self._remaining())
        except (ZkLockError, ImproperlyConfigured) as error:
            self.error = formatting.escape_controls(str(error))
            return None

    def list_names(self, lock_filter: LockFilter) -> list[str]:
        """Return the names of the locks that may match, in use or not."""
        names = list(filter(lock_filter.matches_name, self.read(snapshots.list_names) or ()))
        self.progress = Progress(total=len(names))
        return names

    def scan(
        self, names: Sequence[str], lock_filter: LockFilter, *, read_data: bool = False
    ) -> Iterator[list[LockSnapshot]]:
        """Iterate over the locks of these names that match, by the batch, until the deadline."""
        if self.error or not names or (self.is_late and self.progress.read):
            return
        try:
            pool = self._pool()
            for batch in search.scan(
                pool, names, lock_filter, read_data=read_data, timeout=self._remaining, progress=self.progress
            ):
                yield batch
                if self.is_late:
                    return
        except (ZkLockError, ImproperlyConfigured) as error:
            # ZooKeeper has answered this page, and is connected still: the time was too short.
            is_late = isinstance(error, ZooKeeperUnavailable) and self.progress.read
            if not is_late or not connections[self.alias].inspection().connected:
                self.error = formatting.escape_controls(str(error))

    def _pool(self) -> Pool:
        """Return the pool; before the first read, see whether ZooKeeper answers."""
        pool = connections[self.alias]
        if self._deadline is not None:
            return pool
        limit = pool.options.connect_timeout
        connects = pool.inspecting is None
        self._began = waiting.monotonic()
        self._deadline = Deadline.after(limit)
        if connects and connections.wait_for_first_answer(pool, limit):
            return pool
        asked = waiting.boottime()
        try:
            snapshots.check_answers(pool, timeout=self._deadline.capped(PROMPT).remaining())
        except ZooKeeperUnavailable:
            # Something else was answered: it has much to do, maybe a longer list for another page.
            session = pool.inspection()
            if not (session.connected and session.wire.received > asked):
                raise
        return pool

    def _remaining(self) -> float:
        """Return the seconds for the next request: those until the deadline, or :data:`PROMPT` if these are fewer."""
        assert self._deadline is not None
        return max(PROMPT, self._deadline.remaining() or 0.0)

    def read_lock(self, lock: Lock, node: str | None = None) -> LockSnapshot | None:
        """Return the queue of ``lock`` with the data of its first entries; ``None`` if it cannot be read.

        With ``node`` it has the entry of the node with that name instead. The lock gets its whole key, of which the
        name of the znode may contain only the beginning.
        """
        listed = self.read(snapshots.list_queues, [lock.name])
        found = self.read(partial(snapshots.read_entries, limit=MAX_ENTRIES, node=node), listed)
        if found is None:
            return None
        path = f"{connections[self.alias].options.root}/{lock.name}"
        snapshot = found[0] if found else LockSnapshot(key=lock.key, path=path)
        lock.key = snapshot.key
        return snapshot


def readers(alias: str = "") -> list[AliasReader]:
    """Return a reader of each alias, or of ``alias`` alone; a single one with the error if the setting is wrong."""
    try:
        aliases = conf.aliases()
    except ImproperlyConfigured as error:
        return [AliasReader("", str(error))]
    return [AliasReader(each) for each in aliases if alias in {"", each}]
