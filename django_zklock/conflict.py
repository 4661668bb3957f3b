"""A call that did not get its lock: what its policies are told, and when acquiring again is worthwhile."""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal, TypedDict

from django.http import HttpRequest, HttpResponse

from django_zklock.exceptions import LockConflict, LockTimeout, ZkLockError, ZooKeeperUnavailable
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Identity, Work

logger = logging.getLogger("django_zklock.conflict")

# Seconds by which a session may outlive its timeout at the servers: they look for ended sessions once a tick, and hear
# from each other within another one. A client is not told their tickTime; this is twice ZooKeeper's default, 3000 ms.
TWO_TICKS = 6.0


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """A call whose lock was not granted: the argument of a callable as ``on_conflict`` or ``on_unavailable``.

    ``function`` is the name of the function that did not run, and ``args`` and ``kwargs`` are those of the call.
    ``waited`` is the timeout of the call in seconds, ``None`` for no limit, and ``elapsed`` is for how many seconds it
    has waited, those at Celery's gate included. ``holder`` is the owner that holds the lock, where known.
    ``unavailable`` is the error if ZooKeeper could not be reached; ``on_unavailable`` decides then.
    """

    key: str
    function: str
    holder: Identity | None
    waited: float | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    unavailable: ZooKeeperUnavailable | None = None
    elapsed: float = 0.0

    def error(self) -> LockConflict | ZooKeeperUnavailable:
        """Return the error that describes the conflict, for a policy that raises it."""
        if self.unavailable is not None:
            return self.unavailable
        by = f"held by {self.holder.as_holder}" if self.holder else "taken"
        waited = f" after {self.waited:g} s of waiting" if self.waited else ""
        return LockConflict(
            f"lock {self.key!r} is {by}{waited}; {self.function} did not run; on_conflict= decides what happens then, "
            f"and timeout= is how long the call waits first",
            key=self.key,
            timeout=self.waited,
            holder=self.holder,
        )


class Skipped(TypedDict):
    """The result of a call that was skipped; ``result["zklock"] == "skipped"`` tells it from a result of the function.

    ``reason`` is "conflict", "coalesced" or "unavailable"; ``holder`` describes the owner that holds the lock, where
    known.
    """

    zklock: Literal["skipped"]
    key: str
    reason: str
    holder: str | None


@dataclass(frozen=True, kw_only=True)
class Busy:
    """A policy for views: the response for a request whose lock was not granted, or whose ZooKeeper is unavailable.

    ``status`` is that of a conflict: 409 (Conflict), or 423 (Locked), which WebDAV (RFC 4918, section 11.3) has for a
    resource that is locked. Without ZooKeeper it is 503. ``retry_after`` is the header of that name, in seconds. The
    text names neither key nor holder, because clients read it.
    """

    status: int = 409
    retry_after: int = 2

    def __post_init__(self) -> None:
        """Raise ``ValueError`` for a status that is no error, and for a time that is no whole number of seconds."""
        if type(self.status) is not int or not 400 <= self.status < 600:
            raise ValueError(f"status must be one of an error, such as 409 or 423, got {self.status!r}")
        if type(self.retry_after) is not int or self.retry_after < 0:
            raise ValueError(f"retry_after must be whole seconds, got {self.retry_after!r}")

    def __call__(self, conflict: Conflict) -> HttpResponse:
        """Return the response."""
        return self.response(is_unavailable=conflict.unavailable is not None)

    def response(self, *, is_unavailable: bool) -> HttpResponse:
        """Return the response for a conflict, or for a ZooKeeper that cannot be reached."""
        return HttpResponse(
            "Try again in a moment.\n",
            status=503 if is_unavailable else self.status,
            content_type="text/plain; charset=utf-8",
            headers={"Retry-After": str(self.retry_after)},
        )


def request_of(args: tuple[Any, ...], kwargs: dict[str, Any]) -> HttpRequest | None:
    """Return the request of a call of a view, a method of a view, or one of an API view; ``None`` for other calls.

    Django passes the request first, to a method after ``self``. Django REST framework wraps it, as ``_request``.
    """
    candidates = [*args[:2], kwargs.get("request")]
    # Not isinstance, nor the attribute: an argument may be any object. A lazy one would be evaluated, and one that
    # makes attributes on demand has each of them.
    wrapped = [getattr(each, "__dict__", {}).get("_request") for each in candidates]
    return next((each for each in (*candidates, *wrapped) if issubclass(type(each), HttpRequest)), None)


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
       session must have ended: for the session timeout that the servers have granted, two ticks, and the connect
       timeout. Two ticks are 6 s, or one session timeout where that is less: by default the servers grant none that is
       shorter than two ticks (minSessionTimeout).

    ``work`` is what the call is a part of.
    """

    def __init__(self, lock: Lock, timeout: float | None, work: Work | None) -> None:
        self.timeout = timeout
        self._pool = lock.pool
        self._work = work
        # The cases that have not occurred.
        self._cases = {"unknown", "itself"}

    def should_retry(self, error: ZkLockError) -> bool:
        """Return whether to acquire again after ``error``, and set :attr:`timeout` for it."""
        # A LockConflict says that the caller itself is in the way, so another attempt could only hide the explanation,
        # or that another call waits that will run the same. Its run serves this call too.
        if not isinstance(error, LockTimeout):
            return False
        own, other = self._work, error.holder.work if error.holder else None
        if error.holder is None:
            case = "unknown"
        elif own and other and own.id and (own.kind, own.id) == (other.kind, other.id):
            case = "itself"
        else:
            return False
        if case not in self._cases:
            return False
        self._cases.remove(case)
        self.timeout = 0.0 if case == "unknown" else self._session_end()
        if case == "itself":
            logger.warning("event=met_itself key=%r work=%r consequence=waits_for_session_end", error.key, str(own))
        return True

    def _session_end(self) -> float:
        """Return the seconds after which a session of a process with the same settings has ended, if it is dead."""
        options = self._pool.options
        # The servers may grant another timeout than was requested. The refusal came over one of these sessions.
        granted = [session.timeout for session in self._pool.sessions()]
        timeout = max(granted, default=options.connection.session_timeout)
        return timeout + min(timeout, TWO_TICKS) + options.connect_timeout
