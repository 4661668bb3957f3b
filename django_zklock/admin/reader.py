"""What a page reads from ZooKeeper: each alias within its deadline, a failure as a sentence."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

from django.core.exceptions import ImproperlyConfigured

from django_zklock import conf
from django_zklock.connections import connections
from django_zklock.exceptions import ZkLockError
from django_zklock.models import Lock
from django_zklock.zk import formatting
from django_zklock.zk.ops import snapshots
from django_zklock.zk.ops.snapshots import LockSnapshot
from django_zklock.zk.waiting import Deadline

T = TypeVar("T")

# A queue can have ten thousand waiters.
MAX_ENTRIES = 100
# Seconds within which ZooKeeper begins to answer, or a page says that it does not.
PROMPT = 1.0


class AliasReader:
    """Reads the locks of one alias for one page.

    All reads share one deadline: ``CONNECT_TIMEOUT`` seconds after the first one starts. The first one, which is
    small, has to be answered within a second, unless the process is only just connecting. After the first failure
    ``error`` is set, and every further read returns ``None``.
    """

    def __init__(self, alias: str, error: str = "") -> None:
        self.alias = alias
        self.error = formatting.escape_controls(error)
        self._deadline: Deadline | None = None

    def read(self, function: Callable[..., T], *arguments: Any) -> T | None:
        """Return what ``function`` returns for the pool and these ``arguments``; ``None`` after a failure."""
        if self.error:
            return None
        try:
            pool = connections[self.alias]
            if self._deadline is not None:
                return function(pool, *arguments, timeout=self._deadline.remaining())
            limit = pool.options.connect_timeout
            connects = pool.inspecting is None
            self._deadline = Deadline.after(limit)
            if not (connects and connections.wait_for_first_answer(pool, limit)):
                limit = PROMPT
            return function(pool, *arguments, timeout=self._deadline.capped(limit).remaining())
        except (ZkLockError, ImproperlyConfigured) as error:
            self.error = formatting.escape_controls(str(error))
            return None

    def read_lock(self, lock: Lock) -> LockSnapshot | None:
        """Return the queue of ``lock`` with the data of its first entries; ``None`` if it cannot be read.

        The lock gets its whole key, of which the name of the znode may contain only the beginning.
        """
        listed = self.read(snapshots.list_queues, [lock.name])
        found = self.read(partial(snapshots.read_entries, limit=MAX_ENTRIES), listed)
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
