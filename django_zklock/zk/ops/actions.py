"""Changes to the locks of other processes: break a lock, request its release, and prune lock nodes without use.

A lock that is broken is lost for its holder; the code that runs there goes on.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from django_zklock.exceptions import NotHeld
from django_zklock.zk import formatting, node_data, paths, scripts, wire
from django_zklock.zk.node_data import LockNodeData, Removal
from django_zklock.zk.ops import snapshots
from django_zklock.zk.pool import Pool
from django_zklock.zk.scripts import RequestScript
from django_zklock.zk.waiting import Deadline

logger = logging.getLogger("django_zklock.breaking")

# The maximum of deletions under way: other requests of the session wait behind them.
MAX_DELETIONS = 128

_GONE = "is gone: its owner has released the lock, or its session has ended"


def break_lock(pool: Pool, node: str, *, token: int, why: str, timeout: float) -> None:
    """Delete the node at the full path ``node`` for the reason ``why``, if it still has that fencing token.

    A holder loses its lock; the loss names the reason if the ACL lets us write it to the lock node. A waiter joins the
    queue again, at its end. Takes at most ``timeout`` seconds. Raises ``NotHeld`` if the node is gone,
    ``ZooKeeperUnavailable`` if ZooKeeper does not answer in time, ``ZkLockError`` if it refuses, ``ValueError`` without
    a reason.
    """
    if not why.strip():
        raise ValueError("say why the lock is taken away")
    lock, _, name = node.rpartition("/")
    session = pool.inspection()
    removal = Removal(node=name, why=why)
    # The node existed, and a deletion was sent whose reply may have been lost with the connection.
    sent = False
    # Whether to write the reason to the lock node in the same transaction.
    with_note = True

    def script() -> RequestScript[None]:
        nonlocal sent, with_note
        # The node may have been created through another server.
        session.wire.sync(node)
        try:
            (_data, stat), (data, lock_stat) = yield [partial(session.wire.get, node), partial(session.wire.get, lock)]
            if stat.czxid != token:
                raise NotHeld(f"{node} is another one by now")
            key = _key_in(data, lock) if with_note else None
            sent = True
            if key is None:
                yield [partial(session.wire.delete, node, version=stat.version)]
            else:
                note = lock, LockNodeData(key=key, removal=removal).encode(), lock_stat.version
                yield [partial(session.wire.delete_with_note, node, stat.version, note)]
        except wire.NoNodeError as error:
            if not sent:
                raise NotHeld(f"{node} {_GONE}") from error
        except wire.BadVersionError:
            # The node was written meanwhile, by its owner or with a revoke request.
            sent = False
            yield from script()
        except wire.NoAuthError:
            # The missing permission may be that to write the note.
            if not with_note:
                raise
            sent = with_note = False
            yield from script()

    scripts.run(session, script, action=f"delete {node}", timeout=timeout, mutates=True)
    logger.warning("event=removed path=%s node=%s token=%s reason=%r", lock, name, token, why)


def _key_in(data: bytes, lock: str) -> str | None:
    """Return the key in the data of the node ``lock``, maybe empty; ``None`` if another client wrote that data."""
    written = node_data.decode_lock_node(data)
    if written is None or (written.key and not paths.names_key(written.key, lock.rpartition("/")[2])):
        return None
    return written.key


@dataclass(frozen=True, kw_only=True)
class LastBreak:
    """The last break of a lock: the name of the deleted node, why, and when, in seconds since the Unix epoch."""

    node: str
    why: str
    at: float


def last_break(pool: Pool, lock: str, *, timeout: float | None) -> LastBreak | None:
    """Return the last break of the lock at the path ``lock``; ``None`` if there was none since the node was created.

    ZooKeeper deletes a lock node a while after the last node in its queue. Takes at most ``timeout`` seconds; raises
    what :func:`break_lock` raises.
    """
    session = pool.inspection()
    script = partial(scripts.read_many, session, [wire.Read(lock)])
    (found,) = scripts.run(session, script, action=f"read {lock}", timeout=timeout)
    if not isinstance(found, tuple):
        return None
    data, stat = found
    written = node_data.decode_lock_node(data)
    if written is None or written.removal is None:
        return None
    why = formatting.escape_controls(written.removal.why)
    return LastBreak(node=written.removal.node, why=why, at=stat.mtime / 1000.0)


def revoke(pool: Pool, node: str, why: str, *, timeout: float) -> None:
    """Request that the owner of the node at the full path ``node`` releases its lock, for the reason ``why``.

    Takes at most ``timeout`` seconds. Raises ``NotHeld`` if the node is gone, ``ZooKeeperUnavailable`` if ZooKeeper
    does not answer in time, ``ZkLockError`` if it refuses, ``ValueError`` without a reason.
    """
    if not why.strip():
        raise ValueError("give a reason for the request to release")
    session = pool.inspection()

    def script() -> RequestScript[None]:
        # The node may have been created through another server.
        session.wire.sync(node)
        try:
            ((data, stat),) = yield [partial(session.wire.get, node)]
            yield [partial(session.wire.set, node, node_data.encode_revoke(data, why), version=stat.version)]
        except wire.BadVersionError:
            # The owner has written to its node meanwhile.
            yield from script()
        except wire.NoNodeError as error:
            raise NotHeld(f"{node} {_GONE}") from error

    scripts.run(session, script, action=f"write {node}", timeout=timeout, mutates=True)


def find_idle(pool: Pool, *, timeout: float | None) -> list[str]:
    """Return the names of lock nodes with an empty queue.

    ZooKeeper deletes those that are containers, a while after the last node in them. It keeps the persistent nodes that
    other clients (kazoo) create, and containers that never had a node. A server does not tell which nodes are
    containers, so all are returned. Takes at most ``timeout`` seconds. Raises what
    :func:`prune` raises.
    """
    deadline = Deadline.after(timeout)
    root = pool.options.root
    session = pool.inspection()
    names = snapshots.list_names(pool, timeout=deadline.remaining())
    script = partial(scripts.read_many, session, [wire.Read(f"{root}/{name}") for name in names])
    found = scripts.run(session, script, action=f"read what is in {root}", timeout=deadline.remaining())
    read = [(name, outcome[1]) for name, outcome in zip(names, found, strict=True) if isinstance(outcome, tuple)]
    # An ephemeral node is no lock node.
    return [name for name, stat in read if (stat.numChildren, stat.ephemeralOwner) == (0, 0)]


def prune(pool: Pool, names: Sequence[str], *, timeout: float | None) -> list[str]:
    """Delete the lock nodes with these names whose queue is empty; return the names of those that are gone.

    A contender that is about to join such a queue creates the lock node again. Takes at most ``timeout`` seconds.
    Raises ``ZooKeeperUnavailable`` if ZooKeeper does not answer in time, and ``ZkLockError`` if it refuses.
    """
    root = pool.options.root
    session = pool.inspection()

    def script() -> RequestScript[list[str]]:
        gone: list[str] = []
        for start in range(0, len(names), MAX_DELETIONS):
            batch = names[start : start + MAX_DELETIONS]
            deletions = [partial(session.wire.delete, f"{root}/{name}") for name in batch]
            answers = yield [scripts.or_error(each, wire.NoNodeError, wire.NotEmptyError) for each in deletions]
            left = [isinstance(answer, wire.NotEmptyError) for answer in answers]
            gone += (name for name, is_left in zip(batch, left, strict=True) if not is_left)
        return gone

    return scripts.run(session, script, action=f"delete what is in {root}", timeout=timeout, mutates=True)
