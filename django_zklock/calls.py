"""Calling a function under a lock: what to do on a conflict, on a loss, and without ZooKeeper.

No state is kept between calls: a :class:`LockedCall` can be shared by any number of threads.
"""

from __future__ import annotations

import functools
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from django_zklock import signals, surroundings
from django_zklock.exceptions import LockConflict, LockTimeout, ZooKeeperUnavailable
from django_zklock.keying import KeyMaker
from django_zklock.locks import zk_lock
from django_zklock.zk import holds
from django_zklock.zk.identity import Identity, Work
from django_zklock.zk.lock import Lock

logger = logging.getLogger("django_zklock.calls")


@dataclass(frozen=True, kw_only=True)
class Conflict:
    """A call that met a taken lock: what an ``on_conflict`` callable is given.

    ``waited`` is for how long, in seconds, the call was ready to wait, ``holder`` who holds, where known.
    """

    key: str
    function: str
    holder: Identity | None
    waited: float | None
    args: tuple[Any, ...]
    kwargs: dict[str, Any]

    def error(self) -> LockConflict:
        """Give the error that says so."""
        by = f"held by {self.holder}" if self.holder else "taken"
        return LockConflict(
            f"lock {self.key!r} is {by}; {self.function} did not run (on_conflict= chooses what happens then)",
            key=self.key,
            timeout=self.waited,
            holder=self.holder,
        )


OnConflict = Literal["wait", "skip", "raise", "retry"] | Callable[[Conflict], Any]
OnLost = Literal["raise", "ignore"]
OnUnavailable = Literal["raise", "skip", "run"]


@dataclass(frozen=True, kw_only=True)
class LockedCall:
    """How one function is called under its lock. ``timeout`` is in seconds."""

    function: Callable[..., Any]
    name: str
    key: KeyMaker
    using: str
    reentrant: bool
    timeout: float | None
    on_conflict: OnConflict
    on_lost: OnLost
    on_unavailable: OnUnavailable
    kind: str = "function"
    # What a skipped call gives back, made from the result that says so.
    render_skip: Callable[[dict[str, Any]], Any] = dict

    def wrap(self) -> Callable[..., Any]:
        """Give the function that takes the lock and then calls ours; a coroutine function for one."""
        if inspect.iscoroutinefunction(self.function):

            @functools.wraps(self.function)
            async def alocked(*args: Any, **kwargs: Any) -> Any:
                return await self.acall(args, kwargs)

            return alocked

        @functools.wraps(self.function)
        def locked(*args: Any, **kwargs: Any) -> Any:
            return self.call(args, kwargs)

        return locked

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function under the lock of these arguments."""
        lock = self._lock(args, kwargs)
        depth = len(holds.stack())
        try:
            try:
                held = lock.acquire(self._patience)
            except (LockTimeout, LockConflict) as error:
                if not self._met_itself(error):
                    return self._resolve(self._conflict(lock, args, kwargs, error.holder), error)
                held = lock.acquire(_redelivery_patience(lock))
            except ZooKeeperUnavailable as error:
                if self._skips_without(error):
                    return self._skip(self._conflict(lock, args, kwargs), "unavailable")
                return self.function(*args, **kwargs)
            result = self.function(*args, **kwargs)
            held.finish(raising=self.on_lost == "raise")
            return result
        except BaseException:
            holds.unwind(depth, lock)
            raise

    async def acall(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do as :meth:`call`, for a coroutine function."""
        lock = self._lock(args, kwargs)
        depth = len(holds.stack())
        try:
            try:
                held = await lock.aacquire(self._patience)
            except (LockTimeout, LockConflict) as error:
                if not self._met_itself(error):
                    resolved = self._resolve(self._conflict(lock, args, kwargs, error.holder), error)
                    return await resolved if inspect.isawaitable(resolved) else resolved
                held = await lock.aacquire(_redelivery_patience(lock))
            except ZooKeeperUnavailable as error:
                if self._skips_without(error):
                    return self._skip(self._conflict(lock, args, kwargs), "unavailable")
                return await self.function(*args, **kwargs)
            result = await self.function(*args, **kwargs)
            await held.afinish(raising=self.on_lost == "raise")
            return result
        except BaseException:
            holds.unwind(depth, lock)
            raise

    def _lock(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lock:
        return zk_lock(self.key(args, kwargs), reentrant=self.reentrant, using=self.using, work=self._work)

    def _work(self) -> Work | None:
        return surroundings.work() or Work(kind=self.kind, name=self.name)

    @property
    def _patience(self) -> float | None:
        """Only "wait" waits for ever by default; under the other policies a call tries once."""
        return self.timeout if self.on_conflict == "wait" else self.timeout or 0.0

    def _conflict(
        self, lock: Lock, args: tuple[Any, ...], kwargs: dict[str, Any], holder: Identity | None = None
    ) -> Conflict:
        return Conflict(
            key=lock.key, function=self.name, holder=holder, waited=self._patience, args=args, kwargs=kwargs
        )

    def _met_itself(self, error: LockTimeout | LockConflict) -> bool:
        """Whether the holder is an earlier delivery of the task that runs here.

        Its process may be dead and its node still stand until the session ends. Skipping then would lose the
        task; so it waits for that, once, under every policy.
        """
        holder = error.holder.work if error.holder else None
        here = surroundings.work()
        met = (
            here is not None
            and holder is not None
            and bool(here.id)
            and (here.kind, here.id) == (holder.kind, holder.id)
        )
        if met:
            logger.warning("event=met_itself key=%r work=%r consequence=waits_for_session_end", error.key, str(here))
        return met

    def _resolve(self, conflict: Conflict, error: LockTimeout | LockConflict) -> Any:
        if self.on_conflict == "skip":
            return self._skip(conflict, "conflict")
        if callable(self.on_conflict):
            return self.on_conflict(conflict)
        raised = error if self.on_conflict == "wait" else conflict.error()
        surroundings.raising(raised)
        raise raised from (error if raised is not error else error.__cause__)

    def _skips_without(self, error: ZooKeeperUnavailable) -> bool:
        """Decide what to do without ZooKeeper: ``True`` to skip, ``False`` to run unprotected, or raise."""
        if self.on_unavailable == "raise":
            raise error
        if self.on_unavailable == "run":
            logger.error("event=unprotected key=%r function=%s error=%s", error.key, self.name, error)
        return self.on_unavailable == "skip"

    def _skip(self, conflict: Conflict, reason: str) -> Any:
        """Skip the call, and say so: a log line, a signal, and a result that cannot be mistaken for work done."""
        holder = str(conflict.holder) if conflict.holder else None
        logger.warning("event=skipped key=%r function=%s reason=%s holder=%r", conflict.key, self.name, reason, holder)
        signals.skipped.send_robust(
            Lock,
            key=conflict.key,
            alias=self.using,
            holder=conflict.holder,
            function=self.name,
            reason=reason,
        )
        return self.render_skip({"zklock": "skipped", "key": conflict.key, "reason": reason, "holder": holder})


def _redelivery_patience(lock: Lock) -> float:
    options = lock.pool.options
    return options.connection.session_timeout + options.connect_timeout
