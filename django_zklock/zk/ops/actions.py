"""Changes to the locks of other processes: break a lock, request its release, and prune lock nodes without use.

A lock that is broken is lost for its holder; the code that runs there goes on.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial

from django_zklock.exceptions import NotHeld, ZooKeeperUnavailable
from django_zklock.zk import formatting, node_data, paths, queue, scripts, wire
from django_zklock.zk.contender import NODE_DELETED
from django_zklock.zk.listing import SharedListing
from django_zklock.zk.node_data import LockNodeData, Removal
from django_zklock.zk.ops import snapshots, trail
from django_zklock.zk.ops.snapshots import Progress
from django_zklock.zk.ops.trail import Action
from django_zklock.zk.place import Place
from django_zklock.zk.pool import Pool, pools_of
from django_zklock.zk.scripts import Request, RequestScript
from django_zklock.zk.waiting import AutoResetEvent, Deadline

logger = logging.getLogger("django_zklock.breaking")

# The maximum of deletions under way: other requests of the session wait behind them.
MAX_DELETIONS = 128
# Queues that are read within one timeout.
BATCH_SIZE = 1024


def break_lock(pool: Pool, node: str, *, token: int, why: str, timeout: float | None, by: str = "") -> None:
    """Delete the node at the full path ``node`` for the reason ``why``, if it still has that fencing token.

    A holder loses its lock; the loss names the reason, and ``by`` if that is given, if the ACL lets us write it to the
    lock node. A holder in this process has lost it when this returns. A waiter joins the queue again, at its end. The
    break is added to the trail. Takes at most ``timeout`` seconds. Raises ``NotHeld`` if the node is gone,
    ``ZooKeeperUnavailable`` if ZooKeeper does not answer in time, ``ZkLockError`` if it refuses, ``ValueError`` without
    a reason and for a node that is in no queue.
    """
    if not why.strip():
        raise ValueError("say why the lock is taken away")
    _carry_out(pool, node, trail.BROKEN, token=token, why=why, by=by, timeout=timeout)


def revoke(pool: Pool, node: str, why: str, *, timeout: float | None, token: int | None = None, by: str = "") -> None:
    """Request that the owner of the node at the full path ``node`` releases its lock, for the reason ``why``.

    The owner reads the reason, and ``by`` if that is given; one in this process knows it when this returns. The request
    is added to the trail. With ``token`` the node must still have that fencing token. Takes as long as
    :func:`break_lock` and raises the same.
    """
    if not why.strip():
        raise ValueError("give a reason for the request to release")
    _carry_out(pool, node, trail.REQUESTED, token=token, why=why, by=by, timeout=timeout)


def _carry_out(  # noqa: PLR0915 - one script, with the ways on after each refusal
    pool: Pool, node: str, what: str, *, token: int | None, why: str, by: str, timeout: float | None
) -> None:
    """Delete ``node``, or write the request to release into it, and add that to the trail in the same transaction."""
    deadline = Deadline.after(timeout)
    session = pool.inspection()
    lock, _, name = node.rpartition("/")
    if queue.parse_name(name) is None:
        raise ValueError(f"{node} is no node in the queue of a lock")
    breaks, at = what == trail.BROKEN, round(time.time(), 3)
    # Another operator may do the same at the same time.
    number = os.urandom(8).hex()
    reason = f"{'broken' if breaks else 'asked'} by {by}: {why}" if by else why
    # The node existed, and a deletion was sent whose reply may have been lost with the connection.
    sent = False
    # What is written too: the reason to the lock node, and the trail.
    notes = (True, False) if breaks else (False,)
    allowed = iter([(with_note, with_trail) for with_note in notes for with_trail in (True, False)])
    with_note, with_trail = next(allowed)

    def script() -> RequestScript[None]:
        nonlocal sent, with_note, with_trail
        # The node may have been created through another server.
        session.wire.sync(node)
        try:
            reads: list[Request] = [partial(session.wire.get, node), partial(session.wire.get, lock)]
            if with_trail:
                reads.append(scripts.or_error(partial(session.wire.get, trail.path(pool)), wire.NoNodeError))
            (data, stat), (lock_data, lock_stat), *found = yield reads
            if token is not None and stat.czxid != token:
                raise NotHeld(f"{node} is another one by now")
            key = _key_in(lock_data, lock)
            writes = []
            if not breaks:
                writes.append(wire.Write(node, node_data.encode_revoke(data, reason), stat.version))
            elif with_note and key is not None:
                removal = Removal(node=name, why=reason, id=number)
                writes.append(wire.Write(lock, LockNodeData(key=key, removal=removal).encode(), lock_stat.version))
            if with_trail:
                action = Action(
                    at=at,
                    what=what,
                    key=key or "",
                    lock=lock.rpartition("/")[2],
                    node=name,
                    token=stat.czxid,
                    holder=str(node_data.decode_identity(data) or "unknown client"),
                    # Code may name no user.
                    by=by or node_data.current_identity(None).process,
                    why=why,
                    id=number,
                )
                before, version = (b"", None) if isinstance(found[0], Exception) else (found[0][0], found[0][1].version)
                writes.append(wire.Write(trail.path(pool), trail.added(before, action), version))
            earlier, sent = sent, breaks
            write = partial(session.wire.write_all, writes, delete=(node, stat.version) if breaks else None)
            (answer,) = yield [scripts.or_error(write, wire.NoNodeError)]
            if isinstance(answer, wire.NoNodeError):
                # This one says that nothing was done; only an answer that was lost leaves that open.
                sent = earlier
                raise answer
        except wire.NoNodeError as error:
            # The owner may have released the lock before the deletion whose answer was lost, or another operator may
            # have broken it; what was written with that deletion tells.
            done, other = yield from _records_of(pool, lock, name, number)
            if not sent or ((with_trail or with_note) and number not in done):
                how = other or "its owner has released the lock, or its session has ended"
                raise NotHeld(f"{node} is gone: {how}") from error
        except (wire.BadVersionError, wire.NodeExistsError):
            # The node was written meanwhile, by its owner or with a revoke request, or the trail by another client.
            sent = False
            yield from script()
        except wire.NoAuthError:
            # The missing permission may be that to write the note, or the trail.
            sent = False
            if (following := next(allowed, None)) is None:
                raise
            with_note, with_trail = following
            yield from script()

    scripts.run(session, script, action=f"{'delete' if breaks else 'write'} {node}", timeout=timeout, mutates=True)
    mark = partial(_mark_broken, reason) if breaks else partial(_mark_revoked, reason)
    _mark_here(pool, node, mark, deadline)
    if breaks:
        logger.warning("event=removed path=%s node=%s token=%s reason=%r", lock, name, token, reason)
    if not with_trail:
        logger.warning("event=not_in_trail path=%s node=%s", lock, name)


# T1 breaks a lock of its own process, and acquires it at once. The watch or the heartbeat that tells the holder may
# come later than the answer to T1, and until then T1 would be told that the lock is held.


def _mark_here(pool: Pool, node: str, mark: Callable[[Place], None], deadline: Deadline) -> None:
    """Call ``mark`` for the place that has ``node``, if it is of this process, and wait for that."""
    marked: list[AutoResetEvent] = []
    _, lock, name = node.rsplit("/", 2)
    for other in pools_of(pool.tree):
        for session in other.sessions():
            listing: SharedListing[Place] | None = session.shared.get(f"{other.options.root}/{lock}")
            if listing is not None:
                marked.append(AutoResetEvent())
                session.post(partial(_mark_local, listing, name, mark, marked[-1].set))
    for each in marked:
        each.wait(deadline.remaining())


def _mark_local(
    listing: SharedListing[Place], name: str, mark: Callable[[Place], None], done: Callable[[], None]
) -> None:
    # Under the monitor of the session.
    try:
        place = listing.local.get(name)
        if place is not None:
            mark(place)
    finally:
        done()


def _mark_broken(reason: str, place: Place) -> None:
    why = formatting.escape_controls(reason[: node_data.MAX_BREAK_REASON])
    place.contender.lose(f"{NODE_DELETED}: {why}")


def _mark_revoked(reason: str, place: Place) -> None:
    place.contender.on_data(place, node_data.encode_revoke(b"{}", reason))


def _records_of(pool: Pool, lock: str, name: str, number: str) -> RequestScript[tuple[set[str], str]]:
    """Return the ids of the breaks of the node with that name, and which operator broke it, as a part of a script.

    The latter is a sentence, and empty if it was not broken, or by the break with the id ``number``.
    """
    found = yield from scripts.read_many(pool.inspection(), [wire.Read(trail.path(pool)), wire.Read(lock)])
    in_trail, in_note = (outcome[0] if isinstance(outcome, tuple) else b"" for outcome in found)
    node = (trail.BROKEN, lock.rpartition("/")[2], name)
    broken = [each for each in trail.decode(in_trail) if (each.what, each.lock, each.node) == node]
    records = {each.id: f"it was broken by {each.by}: {each.why}" for each in broken}
    note = node_data.decode_lock_node(in_note)
    if note is not None and note.removal is not None and note.removal.node == name:
        why = formatting.escape_controls(note.removal.why)
        # Without a name it is the reason alone.
        records.setdefault(
            note.removal.id, f"it was {why}" if why.startswith("broken by ") else f"it was broken: {why}"
        )
    return set(records), next((text for each, text in records.items() if each != number), "")


def _key_in(data: bytes, lock: str) -> str | None:
    """Return the key in the data of the node ``lock``, maybe empty; ``None`` if another client wrote that data."""
    written = node_data.decode_lock_node(data)
    if written is None or (written.key and not paths.names_key(written.key, lock.rpartition("/")[2])):
        return None
    return written.key


def last_break(pool: Pool, lock: str, *, timeout: float | None) -> Removal | None:
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
    return replace(written.removal, why=formatting.escape_controls(written.removal.why), at=stat.mtime / 1000.0)


def find_idle(pool: Pool, *, timeout: float | None) -> Iterator[list[str]]:
    """Iterate over the names of lock nodes with an empty queue, by the batch.

    ZooKeeper deletes those that are containers, a while after the last node in them. It keeps the persistent nodes that
    other clients (kazoo) create, and containers that never had a node. A server does not tell which nodes are
    containers, so all are returned. ZooKeeper has ``timeout`` seconds for the list of all names, and again for each
    batch. Raises what :func:`prune` raises, with the number of queues that were read.
    """
    root = pool.options.root
    session = pool.inspection()
    names = snapshots.list_names(pool, timeout=timeout)
    progress = Progress(total=len(names))
    for start in range(0, len(names), BATCH_SIZE):
        batch = names[start : start + BATCH_SIZE]
        script = partial(scripts.read_many, session, [wire.Read(f"{root}/{name}") for name in batch])
        try:
            found = scripts.run(session, script, action=f"read what is in {root}", timeout=timeout)
        except ZooKeeperUnavailable as error:
            raise progress.failed(error) from error
        progress.read += len(batch)
        read = [(name, outcome[1]) for name, outcome in zip(batch, found, strict=True) if isinstance(outcome, tuple)]
        # An ephemeral node is no lock node.
        yield [name for name, stat in read if (stat.numChildren, stat.ephemeralOwner) == (0, 0)]


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
