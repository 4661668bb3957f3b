"""Hints for names that do not exist here, but do in other lock libraries; and for misspelled ones."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

_NO_EXPIRY = (
    "a hold has no expiry and needs no renewal: it lasts until its release or the end of its process, and if the "
    "process is cut off, for the session timeout"
)
_ONCE = 'lock.try_acquire() does not wait, and neither does a function under @zk_locked(…, on_conflict="skip")'
_AT_MOST = "timeout= limits the wait, in seconds"
_NO_POLLING = "a waiter does not poll: it is woken when its turn comes"
_RELEASE = "release what acquire() returns, as in `held = lock.acquire()` and `held.release()`, or use `with lock:`"
_HOLDERS = "lock.holders() is empty while the lock is free, and current_lock(key) is the caller's own hold"
_OF_HOLD = "it belongs to a hold, as in `with lock as held:` or `held = lock.acquire()`"
_STATE = "held.lost tells whether the lock was lost, and held.check() raises"


def _each(names: str, hint: str) -> dict[str, str]:
    return dict.fromkeys(names.split(), hint)


# Arguments of redis-py, python-redis-lock, celery-once, kazoo, threading and asyncio.
_ARGUMENTS = (
    _each("ttl expire expires expiry expiration ex px lease lease_time lock_ttl lock_expiry auto_renewal", _NO_EXPIRY)
    | _each("block blocking wait", _ONCE)
    | _each("blocking_timeout wait_timeout acquire_timeout max_wait", _AT_MOST)
    | _each("sleep poll_interval check_interval retry_delay retry_interval", _NO_POLLING)
    | _each("max_leases permits concurrency max_concurrency", "limit= is how many may hold the lock at once")
    | _each("shared", 'mode="read" shares the lock with other readers')
    | _each("name lock_name", "the key is the first argument")
    | {"timeout": "lock.acquire(timeout=5) waits for at most 5 s"}
)
_OF_LOCK = (
    _each("release unlock arelease", _RELEASE)
    | _each("locked is_locked is_acquired owned is_owned", _HOLDERS)
    | _each("extend renew reacquire refresh", _NO_EXPIRY)
    | _each("token lost check revoked", _OF_HOLD)
)
_OF_HELD = (
    _each("extend renew reacquire refresh ttl", _NO_EXPIRY)
    | _each("locked is_locked is_held held owned valid", _STATE)
    | _each("unlock", "call release()")
)
_ATTRIBUTES = {"Lock": _OF_LOCK, "Held": _OF_HELD}


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """Return ``" (did you mean …?)"`` if one of the known names is like ``name``, in upper or lower case."""
    names = {each.lower(): each for each in known}
    found = get_close_matches(name.lower(), names, n=1, cutoff=0.7)
    return f" (did you mean {names[found[0]]}?)" if found else ""


def reject_unknown(function: Callable[..., Any], unknown: Iterable[str]) -> None:
    """Raise ``TypeError`` for the first keyword argument in ``unknown``, which ``function`` does not have."""
    for name in unknown:
        hint = _ARGUMENTS.get(name)
        known = [parameter for parameter in inspect.signature(function).parameters if parameter != "unknown"]
        hint = f": {hint}" if hint else did_you_mean(name, known)
        raise TypeError(f"{function.__qualname__}() got an unexpected keyword argument {name!r}{hint}")


class Hinted:
    """A lock or a hold: the error of an attribute that it does not have can have a hint."""

    __slots__ = ()

    if not TYPE_CHECKING:  # a type checker would accept any name

        def __getattr__(self, name: str) -> object:
            kind = type(self).__name__
            hint = _ATTRIBUTES.get(kind, {}).get(name)
            message = f"{kind!r} object has no attribute {name!r}" + (f": {hint}" if hint else "")
            raise AttributeError(message, name=name, obj=self)
