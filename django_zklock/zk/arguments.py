"""Arguments that locks of other libraries have, and what is written here instead."""

from __future__ import annotations

from collections.abc import Iterable
from difflib import get_close_matches

_NO_TIME_TO_LIVE = "a lock has no time to live: it is held until its release, or until its process ends; leave it out"
_NO_WAIT = 'lock.try_acquire() does not wait, and @zk_locked(…, on_conflict="skip") skips the call'
_TIMEOUT = "timeout= is how long a call waits, in seconds"
_NO_POLLING = "a waiter is notified, and does not ask again and again; leave it out"
_LIMIT = "limit= is how many may hold the lock at once"
_KEY = "the key is the first argument"

ADVICE = {
    **dict.fromkeys(["ttl", "expire", "expires", "ex", "px", "lease", "lease_time", "auto_renewal"], _NO_TIME_TO_LIVE),
    **dict.fromkeys(["blocking", "block", "wait"], _NO_WAIT),
    **dict.fromkeys(["blocking_timeout", "acquire_timeout", "max_wait"], _TIMEOUT),
    **dict.fromkeys(["sleep", "poll_interval", "retry_delay"], _NO_POLLING),
    **dict.fromkeys(["max_leases", "permits", "concurrency"], _LIMIT),
    "shared": 'mode="read" shares the lock, and mode="write" is for the others',
    **dict.fromkeys(["name", "lock_name"], _KEY),
}


def unexpected(function: str, given: Iterable[str], known: Iterable[str]) -> TypeError:
    """Return the error of a call of ``function`` with the unknown arguments ``given``, which says what was meant."""
    name = next(iter(given))
    advice = ADVICE.get(name)
    if advice is None:
        known = list(known)
        similar = get_close_matches(name, known, n=1)
        advice = f"did you mean {similar[0]}=?" if similar else f"it has {', '.join(f'{each}=' for each in known)}"
    return TypeError(f"{function}() got an unexpected keyword argument {name!r}: {advice}")
