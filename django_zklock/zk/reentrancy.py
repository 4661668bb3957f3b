"""What the caller of a lock holds already: a nested hold, or a conflict in which it would wait for itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from django_zklock.exceptions import LockConflict

if TYPE_CHECKING:
    from django_zklock.zk.held import Held
    from django_zklock.zk.listener import LockValue
    from django_zklock.zk.owners import Caller


def nested_hold(lock: LockValue, caller: Caller) -> Held | None:
    """Return a hold nested in one that the caller has, ``None`` if it has none; raise ``LockConflict``.

    Another thread may release what the caller has at any moment, so each hold is looked at once, and the nesting itself
    decides.
    """
    overlapping: list[Held] = [held for held in reversed(caller.available()) if held._overlaps(lock)]
    if not overlapping:
        return None
    if not lock.reentrant:
        _check_room(lock, overlapping)
        return None
    outer = next((held for held in overlapping if held._possession.nodes.keys() >= set(lock.paths)), None)
    if outer is None:
        raise _conflict(lock, _some_held(lock, overlapping))
    if outer.lock.pool is not lock.pool:
        raise _conflict(
            lock,
            f"lock {lock.key!r} is held by this very thread or task through {outer.lock.pool.name!r}, which names "
            f"the same ensemble and ROOT as {lock.pool.name!r}: it would wait for itself. Use one alias for both",
        )
    if not outer.rule.covers(lock.rule):
        raise _conflict(
            lock,
            f"lock {lock.key!r} is held by this very thread or task as {outer.rule}, and cannot be "
            f"taken as {lock.rule} inside of that: it could wait for itself. Take the stronger one first",
        )
    if outer.lost:
        raise outer._loss_error()
    # If another thread has released it meanwhile, the caller may have other holds, and else it has none.
    return outer._nest(lock, caller.owner) or nested_hold(lock, caller)


def check_acquisitions(lock: LockValue, caller: Caller) -> None:
    """Raise ``LockConflict`` if the caller is acquiring this lock already, as two calls in one ``gather`` do."""
    for other in caller.owner.acquisitions:
        if other.lock.rule.kind in lock.rule.conflicts and not set(other.lock.paths).isdisjoint(lock.paths):
            raise _conflict(
                lock,
                f"lock {lock.key!r} is being acquired by this very thread or task: it would wait for itself. Wait "
                f"for the first acquisition, or let each run in a task of its own that also releases it",
            )


def check_thread(lock: LockValue, caller: Caller) -> None:
    """Raise ``LockConflict`` if the holder needs the thread that would be blocked by waiting for it."""
    for held in caller.others():
        if held._overlaps(lock) and not held.lost and held.rule.kind in lock.rule.conflicts:
            raise _conflict(
                lock,
                f"lock {lock.key!r} was taken in this very thread by another task or greenlet, which may need the "
                f"thread to go on: waiting here could last for ever. Take the lock with `async with` in the "
                f"coroutine, or run each side in a thread of its own (sync_to_async(…, thread_sensitive=False))",
            )


def _some_held(lock: LockValue, held_here: list[Held]) -> str:
    held_keys = [key for key in lock.keys if any(key in held.keys for held in held_here)]
    missing = [key for key in lock.keys if key not in held_keys]
    return (
        f"this very thread or task holds {_listing(held_keys)} already, but not {_listing(missing) or 'together'}. "
        f"Acquiring more keys while holding some can deadlock; acquire all keys together"
    )


def _check_room(lock: LockValue, held_here: list[Held]) -> None:
    """Raise ``LockConflict`` unless these are leases of a semaphore that has room for one more."""
    limits = [rule.limit for rule in (lock.rule, *(held.rule for held in held_here))]
    if any(limit is None or len(held_here) >= limit for limit in limits):
        raise _conflict(
            lock,
            f"lock {lock.key!r} is held by this very thread or task, and reentrant=False: waiting would never end",
        )


def _conflict(lock: LockValue, message: str) -> LockConflict:
    return LockConflict(message, key=lock.key)


def _listing(keys: list[str]) -> str:
    return " and ".join(map(repr, keys))
