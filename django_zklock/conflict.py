"""A call that did not get its lock: what its policies are told, and when acquiring again is worthwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from django_zklock.exceptions import AlreadyAwaited, LockConflict, ZkLockError, ZooKeeperUnavailable
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Identity, Work

logger = logging.getLogger("django_zklock.conflict")


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """A call whose lock was not granted: the argument of a callable as ``on_conflict`` or ``on_unavailable``.

    ``function`` is the name of the function that did not run, and ``args`` and ``kwargs`` are those of the call.
    ``waited`` is the timeout of the call in seconds, ``None`` for no limit. ``holder`` is the owner that holds the
    lock, where known. ``unavailable`` is the error if ZooKeeper could not be reached; ``on_unavailable`` decides then.
    """

    key: str
    function: str
    holder: Identity | None
    waited: float | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    unavailable: ZooKeeperUnavailable | None = None

    def error(self) -> LockConflict | ZooKeeperUnavailable:
        """Return the error that describes the conflict, for a policy that raises it."""
        if self.unavailable is not None:
            return self.unavailable
        by = f"held by {self.holder}" if self.holder else "taken"
        waited = f" after {self.waited:g} s of waiting" if self.waited else ""
        return LockConflict(
            f"lock {self.key!r} is {by}{waited}; {self.function} did not run; on_conflict= decides what happens then, "
            f"and timeout= is how long the call waits first",
            key=self.key,
            timeout=self.waited,
            holder=self.holder,
        )


ConflictPolicy = Literal["wait", "skip", "raise", "retry", "coalesce"]
UnavailablePolicy = Literal["raise", "skip", "run", "retry"]
OnConflict = ConflictPolicy | Callable[[Conflict], Any]
OnLost = Literal["raise", "interrupt", "terminate", "ignore"]
OnUnavailable = UnavailablePolicy | Callable[[Conflict], Any]


class AcquireRetries:
    """Decides whether one call tries to acquire again after a refusal, and with which ``timeout``.

    A call tries once, plus at most one retry for each of two cases:

    1. The holder is not known, because its node was deleted before its data was read. It may have been case 2.
    2. The holder is an earlier delivery of the same task. Its process may be dead while its session has not ended,
       or it ends soon. Skipping the call would lose the task, so the call waits, under every policy, until the
       session must have ended.

    ``work`` is what the call is a part of.
    """

    def __init__(self, lock: Lock, timeout: float | None, work: Work | None) -> None:
        self.timeout = timeout
        self._work = work
        options = lock.pool.options
        # The timeout of the retry for each case that has not occurred.
        self._retries = {"unknown": 0.0, "itself": options.connection.session_timeout + options.connect_timeout}

    def should_retry(self, error: ZkLockError) -> bool:
        """Return whether to acquire again after ``error``, and set :attr:`timeout` for it."""
        # After AlreadyAwaited the waiter that has the place runs after this call in any case.
        if isinstance(error, (AlreadyAwaited, ZooKeeperUnavailable)):
            return False
        own, other = self._work, error.holder.work if error.holder else None
        if error.holder is None:
            case = "unknown"
        elif own and other and own.id and (own.kind, own.id) == (other.kind, other.id):
            case = "itself"
        else:
            return False
        if case not in self._retries:
            return False
        self.timeout = self._retries.pop(case)
        if case == "itself":
            logger.warning("event=met_itself key=%r work=%r consequence=waits_for_session_end", error.key, str(own))
        return True
