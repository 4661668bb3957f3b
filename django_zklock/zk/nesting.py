"""What the caller of a lock holds already: a nested hold, or a conflict in which it would wait for itself."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from django_zklock.exceptions import LockConflict

if TYPE_CHECKING:
    from django_zklock.zk.held import Held
    from django_zklock.zk.listener import LockValue
    from django_zklock.zk.owners import Caller


def nested_hold(lock: LockValue, caller: Caller) -> Held | None:
    """Return a hold nested in one that the caller has, ``None`` if it has none; raise ``LockConflict``, ``LockLost``.

    Another thread may release what the caller has at any moment, so each hold is looked at once, and the nesting itself
    decides.
    """
    mine = (caller.owner, *caller.outer)
    overlapping: list[Held] = [
        held
        for held in reversed(caller.available())
        if held._overlaps(lock) and not (held._is_kept and held._possession.is_in_use(mine))
    ]
    if not overlapping:
        return None
    # What goes on in a block has to hear that its lock is lost. Nothing may ever release a lost hold without a block.
    lost = [held for held in overlapping if held.lost]
    open_blocks = [held._possession for held in lost if held.in_block]
    forgotten = [held for held in lost if held._possession not in open_blocks]
    if forgotten:
        for held in forgotten:
            held._forget()
        return nested_hold(lock, caller)
    if not lock.reentrant:
        # Leases of a semaphore that has room for one more are no conflict.
        limits = [rule.limit for rule in (lock.rule, *(held.rule for held in overlapping))]
        if all(limit is not None and len(overlapping) < limit for limit in limits):
            return None
    if lost:
        raise lost[0]._loss_error("and a block of it is open here: leave that before you take the lock again")
    if not lock.reentrant:
        raise LockConflict(
            f"lock {lock.key!r} is held by this very thread or task, and reentrant=False: waiting would never end",
            key=lock.key,
        )
    outer = next((held for held in overlapping if held._possession.nodes.keys() >= set(lock.paths)), None)
    if outer is None:
        held_keys = [key for key in lock.keys if any(key in held.keys for held in overlapping)]
        missing = [key for key in lock.keys if key not in held_keys]
        owned, others = (" and ".join(map(repr, keys)) for keys in (held_keys, missing))
        raise LockConflict(
            f"this very thread or task holds {owned} already, but not {others or 'together'}. "
            f"Acquiring more keys while holding some can deadlock; acquire all keys together",
            key=lock.key,
        )
    if outer.lock.pool is not lock.pool:
        raise LockConflict(
            f"lock {lock.key!r} is held by this very thread or task through {outer.lock.pool.name!r}, which names "
            f"the same ensemble and ROOT as {lock.pool.name!r}: it would wait for itself. Use one alias for both",
            key=lock.key,
        )
    if not outer.rule.covers(lock.rule):
        raise LockConflict(
            f"lock {lock.key!r} is held by this very thread or task as {outer.rule}, and cannot be "
            f"taken as {lock.rule} inside of that: it could wait for itself. Take the stronger one first",
            key=lock.key,
        )
    # If another thread has released it meanwhile, or is in the way, the caller may have other holds, and else it has
    # none.
    return outer._nest(lock, caller.owner, alone=mine if outer._is_kept else ()) or nested_hold(lock, caller)


def new_nested_hold(lock: LockValue, caller: Caller) -> Held | None:
    """Do the same as :func:`nested_hold`; wherever an exception strikes, the caller has no hold more than before."""
    owner, before = caller.owner, caller.owner.holds[:]
    try:
        return nested_hold(lock, caller)
    except BaseException:
        owner.release_since(lock, before)
        raise


def kept_hold(lock: LockValue, caller: Caller) -> Held | None:
    """Return a hold nested in one that is kept for the caller, a job that waits for ``lock`` already, or ``None``.

    The lock may have been kept for it, or the last other job may have ended, after :func:`nested_hold` was asked.
    Raises ``LockConflict``, where the caller would wait for itself.
    """
    return new_nested_hold(lock, caller) if _kept(lock, caller) else None


def begin_to_wait(lock: LockValue, caller: Caller) -> None:
    """Tell others for which the lock is kept, and that wait for it, that the caller does too, if it is one of them."""
    for held in _kept(lock, caller):
        held._possession.wake_jobs()


def _kept(lock: LockValue, caller: Caller) -> list[Held]:
    """Return the holds that are kept for the caller and not lost."""
    return [held for held in caller.available() if held._is_kept and held._overlaps(lock) and not held.lost]


def check_wait(lock: LockValue, caller: Caller) -> None:
    """Raise ``LockConflict`` if the caller would wait for itself.

    It may be acquiring this lock already, as two calls in one ``gather`` do; or the holder needs the thread that would
    be blocked.
    """
    for get in caller.owner.acquisitions:
        other = get()
        # One of what runs for the caller does not count. In a forked child an acquisition is the parent's.
        if other is None or not other.is_waiting or other._owner() is not caller.owner:
            continue
        if other.contender.session.pid != os.getpid():
            continue
        if other.lock.rule.kind in lock.rule.conflicts and not set(other.lock.paths).isdisjoint(lock.paths):
            raise LockConflict(
                f"lock {lock.key!r} is being acquired by this very thread or task: it would wait for itself. Wait "
                f"for the first acquisition, or let each run in a task of its own that also releases it",
                key=lock.key,
            )
    thread = caller.thread
    if thread is None:
        return
    # What was acquired in this thread for other owners.
    here = [*(() if thread is caller.owner else thread.holds), *(thread.held_here or ())]
    available = caller.available() if here else []
    for held in here:
        if held not in available and held._overlaps(lock) and not held.lost and held.rule.kind in lock.rule.conflicts:
            raise LockConflict(
                f"lock {lock.key!r} was taken in this very thread by another task or greenlet, which may need the "
                f"thread to go on: waiting here could last for ever. Take the lock with `async with` in the "
                f"coroutine, or run each side in a thread of its own (sync_to_async(…, thread_sensitive=False))",
                key=lock.key,
            )
