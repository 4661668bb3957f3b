"""The errors of an acquisition: what happened, for how long, which contender holds the lock, and what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_zklock.exceptions import AlreadyAwaited, LockConflict, LockTimeout, ZkLockError, ZooKeeperUnavailable
from django_zklock.zk.contender import SessionUnavailable
from django_zklock.zk.formatting import advise, format_silence

if TYPE_CHECKING:
    from django_zklock.zk.contender import Contender
    from django_zklock.zk.listener import LockValue


def timed_out(lock: LockValue, contender: Contender, timeout: float | None) -> LockTimeout | LockConflict:
    """Return the error of a lock that was not granted in time, or for which another call waits already."""
    holder = contender.holder
    by = f"held by {holder.as_holder}" if holder else "its holder left no readable identity"
    if not contender.answered and not contender.taken:
        by = "ZooKeeper had not answered by then, so its holder is not known"
    if contender.taken and timeout != 0:
        return AlreadyAwaited(
            f"lock {lock.key!r} is taken, and another call of the function waits for it already; {by}",
            key=lock.key,
            timeout=timeout,
            holder=holder,
        )
    what = "is taken" if timeout == 0 else f"was not granted within {timeout:g} s"
    return LockTimeout(
        f"lock {lock.key!r} {what}; {by}; see `manage.py zklock show`, or wait longer with a larger timeout",
        key=lock.key,
        timeout=timeout,
        holder=holder,
    )


def unanswered(lock: LockValue, contender: Contender, timeout: float | None, waited: float) -> ZooKeeperUnavailable:
    """Return the error of an acquisition that ZooKeeper has not answered within ``waited`` seconds."""
    session, refusal = contender.session, contender.refusal
    facts = format_silence(session.server, waited, connected=session.connected, refusal=refusal)
    return _unavailable(lock, timeout, facts)


def refused(lock: LockValue, contender: Contender, timeout: float | None, error: Exception) -> ZkLockError:
    """Return the error of an acquisition that has failed with ``error``."""
    server = contender.session.server
    if isinstance(error, SessionUnavailable):
        return _unavailable(lock, timeout, f"ZooKeeper at {server}: {error}")
    return ZkLockError(
        f"lock {lock.key!r}: ZooKeeper at {server} refused: {error!r} at {' and '.join(lock.paths)}; "
        f"check the ACL there and the credentials in ZKLOCK",
        key=lock.key,
        timeout=timeout,
    )


def _unavailable(lock: LockValue, timeout: float | None, facts: str) -> ZooKeeperUnavailable:
    return ZooKeeperUnavailable(
        f"lock {lock.key!r}: {facts}; {advise(facts, lock.pool.options.connection.hosts)}",
        key=lock.key,
        timeout=timeout,
    )
