"""Calling a function under a lock: what to do on a conflict, on a loss, and without ZooKeeper.

No state is kept between calls: a :class:`LockedCall` can be shared by any number of threads.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from django.core.management.base import BaseCommand

from django_zklock import interruption, signals, surroundings
from django_zklock.exceptions import (
    AlreadyAwaited,
    LockConflict,
    LockTimeout,
    ZkLockError,
    ZooKeeperUnavailable,
)
from django_zklock.keying import KeyMaker
from django_zklock.locks import Mode, make_lock
from django_zklock.zk import holds
from django_zklock.zk.held import Held
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
        waited = f" after {self.waited:g} s of waiting" if self.waited else ""
        return LockConflict(
            f"lock {self.key!r} is {by}{waited}; {self.function} did not run; on_conflict= chooses what happens then, "
            f"timeout= for how long to wait before",
            key=self.key,
            timeout=self.waited,
            holder=self.holder,
        )


Outcome = tuple[Held | None, ZkLockError | None]
"""What an attempt has led to: a hold, or the error that says why there is none."""

elsewhere: list[Callable[[Lock], Outcome | None]] = []
"""Who else may have acquired a lock for the call that runs here, as Celery's worker does for its tasks.

Each is asked with the lock that a call is about to acquire. The outcome of the first that gives one counts; what it
gives as a hold is in :mod:`~django_zklock.zk.holds` of the calling context.
"""

enders: list[Callable[[], Callable[[], None] | None]] = []
"""Who knows how to end the process that a call runs in, for ``on_lost="terminate"``.

The first that gives a way is used. It is called in a thread of its own, and ends more than the call.
"""

_MARK = "__zklock_call__"

OnConflict = Literal["wait", "skip", "raise", "retry", "coalesce"] | Callable[[Conflict], Any]
OnLost = Literal["raise", "interrupt", "terminate", "ignore"]
OnUnavailable = Literal["raise", "skip", "run"]


@dataclass(frozen=True, kw_only=True)
class LockedCall:
    """How one function is called under its lock. ``timeout`` is in seconds."""

    function: Callable[..., Any]
    key: KeyMaker
    mode: Mode
    limit: int | None
    using: str
    reentrant: bool
    timeout: float | None
    on_conflict: OnConflict
    on_lost: OnLost
    on_unavailable: OnUnavailable
    template: str
    # Whether the function is the `handle` of a command, if its first argument is one.
    is_handle: bool = False

    def wrap(self) -> Callable[..., Any]:
        """Give the function that takes the lock and then calls ours; a coroutine function for one."""
        if inspect.iscoroutinefunction(self.function):

            @functools.wraps(self.function)
            async def alocked(*args: Any, **kwargs: Any) -> Any:
                return await self.acall(args, kwargs)

            return self._with_signature(alocked)

        @functools.wraps(self.function)
        def locked(*args: Any, **kwargs: Any) -> Any:
            return self.call(args, kwargs)

        return self._with_signature(locked)

    def _with_signature(self, wrapper: Callable[..., Any]) -> Callable[..., Any]:
        # With the wrapper itself: functools.wraps copies attributes to whatever is put around it.
        setattr(wrapper, _MARK, (wrapper, self))
        # Not everybody follows __wrapped__: Celery checks the arguments of a task by inspect.getfullargspec.
        with contextlib.suppress(TypeError, ValueError):
            wrapper.__signature__ = inspect.signature(self.function)  # type: ignore[attr-defined]
        return wrapper

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function under the lock of these arguments."""
        lock = self.lock(args, kwargs, functools.partial(self._work, args))
        depth = len(holds.stack())
        try:
            held, refusal = self._acquire(lock)
            if refusal is not None and not self._runs_without(refusal):
                return self._refused(lock, self._conflict(lock, args, kwargs, refusal.holder), refusal)
            result = self._run(held, args, kwargs)
            self._refuse_coroutine(result)
            if held is not None:
                held.finish(raising=self.on_lost != "ignore")
            return result
        except BaseException:
            holds.unwind(depth, lock)
            raise
        finally:
            refusal = None  # its traceback refers to this frame

    async def acall(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Do as :meth:`call`, for a coroutine function."""
        lock = self.lock(args, kwargs, functools.partial(self._work, args))
        depth = len(holds.stack())
        try:
            held, refusal = await self._aacquire(lock)
            if refusal is not None and not self._runs_without(refusal):
                return await self._arefused(lock, self._conflict(lock, args, kwargs, refusal.holder), refusal)
            result = await self._arun(held, args, kwargs)
            if held is not None:
                await held.afinish(raising=self.on_lost != "ignore")
            return result
        except GeneratorExit:  # nothing can be awaited any more
            holds.unwind(depth, lock)
            raise
        except BaseException:
            for held in [held for held in reversed(holds.stack()[depth:]) if held.lock is lock]:
                await held.arelease()
            raise
        finally:
            refusal = None

    def _run(self, held: Held | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if held is None or self.on_lost in {"raise", "ignore"}:
            return self.function(*args, **kwargs)
        end = next((end for ask in enders if (end := ask())), None) if self.on_lost == "terminate" else None
        if end is not None:
            forget = held.when_lost(end)
            try:
                return self.function(*args, **kwargs)
            finally:
                forget()
        return interruption.run(held, functools.partial(self.function, *args, **kwargs))

    async def _arun(self, held: Held | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if held is None or self.on_lost in {"raise", "ignore"}:
            return await self.function(*args, **kwargs)
        return await interruption.arun(held, self.function(*args, **kwargs))

    # The errors are given and not raised, so that neither the body nor an `on_conflict` callable runs inside of an
    # `except`: Celery's Task.retry and logging.exception take what they find in sys.exc_info() for their own.

    def _acquire(self, lock: Lock) -> Outcome:
        for ask in elsewhere:
            outcome = ask(lock)
            if outcome is not None:
                return outcome
        chances = Chances(lock, self.patience, surroundings.work())
        while True:
            try:
                return lock.acquire(chances.patience), None
            except (LockTimeout, LockConflict) as error:  # noqa: PERF203 - three rounds at most
                if not chances.another(error):
                    return None, error
            except ZooKeeperUnavailable as error:
                return None, error

    async def _aacquire(self, lock: Lock) -> Outcome:
        chances = Chances(lock, self.patience, surroundings.work())
        while True:
            try:
                return await lock.aacquire(chances.patience), None
            except (LockTimeout, LockConflict) as error:  # noqa: PERF203 - three rounds at most
                if not chances.another(error):
                    return None, error
            except ZooKeeperUnavailable as error:
                return None, error

    def _refuse_coroutine(self, result: object) -> None:
        if inspect.iscoroutine(result):
            result.close()
            raise TypeError(
                f"{self.name} returned a coroutine, which would run after the lock is gone: put @zk_locked "
                f"directly above its `async def`"
            )

    def lock(self, args: tuple[Any, ...], kwargs: dict[str, Any], work: Callable[[], Work | None]) -> Lock:
        """Give the lock that a call with these arguments takes; ``work`` says what runs."""
        return make_lock(
            self.key(args, kwargs),
            mode=self.mode,
            limit=self.limit,
            reentrant=self.reentrant,
            using=self.using,
            work=work,
            template=self.template,
            sole_waiter=self.on_conflict == "coalesce",
        )

    def _work(self, args: tuple[Any, ...]) -> Work:
        if (found := surroundings.work()) is not None:
            return found
        if self._is_command(args):
            return Work(kind="command", name=type(args[0]).__module__.rpartition(".")[2])
        return Work(kind="function", name=self.name)

    def _is_command(self, args: tuple[Any, ...]) -> bool:
        return self.is_handle and bool(args) and isinstance(args[0], BaseCommand)

    @property
    def name(self) -> str:
        """What the function is called in messages."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    @property
    def patience(self) -> float | None:
        """How long to wait for the lock: "wait" and "coalesce" wait for ever by default, the others try once."""
        return self.timeout if self.on_conflict in {"wait", "coalesce"} else self.timeout or 0.0

    def _conflict(
        self, lock: Lock, args: tuple[Any, ...], kwargs: dict[str, Any], holder: Identity | None = None
    ) -> Conflict:
        return Conflict(key=lock.key, function=self.name, holder=holder, waited=self.patience, args=args, kwargs=kwargs)

    def _runs_without(self, refusal: ZkLockError) -> bool:
        """Whether the call is to run without protection."""
        if not isinstance(refusal, ZooKeeperUnavailable) or self.on_unavailable != "run":
            return False
        logger.error("event=unprotected key=%r function=%s error=%s", refusal.key, self.name, refusal)
        return True

    def _refused(self, lock: Lock, conflict: Conflict, refusal: ZkLockError) -> Any:
        """Do what the policies say about a call that has not got its lock."""
        reason = _reason(refusal)
        facts = self._facts(lock, conflict, reason)
        signals.send(signals.refused, **facts)
        if not self._skips(reason):
            return self._decide(conflict, refusal)
        signals.send(signals.skipped, **facts)
        return self._skip(conflict, reason)

    async def _arefused(self, lock: Lock, conflict: Conflict, refusal: ZkLockError) -> Any:
        reason = _reason(refusal)
        facts = self._facts(lock, conflict, reason)
        await signals.refused.asend_robust(Lock, **facts)
        if not self._skips(reason):
            decided = self._decide(conflict, refusal)
            return await decided if inspect.isawaitable(decided) else decided
        await signals.skipped.asend_robust(Lock, **facts)
        return self._skip(conflict, reason)

    def _skips(self, reason: str) -> bool:
        if reason == "unavailable":
            return self.on_unavailable == "skip"
        return reason == "coalesced" or self.on_conflict == "skip"

    def _decide(self, conflict: Conflict, refusal: ZkLockError) -> Any:
        if isinstance(refusal, ZooKeeperUnavailable) or self.on_conflict in {"wait", "coalesce"}:
            raise refusal
        if callable(self.on_conflict):
            return self.on_conflict(conflict)
        raise conflict.error() from refusal

    def _facts(self, lock: Lock, conflict: Conflict, reason: str) -> dict[str, Any]:
        return {**signals.about(lock), "holder": conflict.holder, "function": self.name, "reason": reason}

    def _skip(self, conflict: Conflict, reason: str) -> Any:
        """Log that the call is skipped, and give a result that cannot be mistaken for work done."""
        holder = str(conflict.holder) if conflict.holder else None
        logger.warning("event=skipped key=%r function=%s reason=%s holder=%r", conflict.key, self.name, reason, holder)
        if self._is_command(conflict.args):
            # Django writes what `handle` returns, and that must be text.
            why = f"held by {holder}" if holder else "taken"
            if reason == "unavailable":
                why = "ZooKeeper cannot be reached"
            return f"Skipped: lock {conflict.key!r}: {why}."
        return {"zklock": "skipped", "key": conflict.key, "reason": reason, "holder": holder}


def _reason(refusal: ZkLockError) -> str:
    if isinstance(refusal, ZooKeeperUnavailable):
        return "unavailable"
    return "coalesced" if isinstance(refusal, AlreadyAwaited) else "conflict"


def locked_call(function: Callable[..., Any]) -> LockedCall | None:
    """Give how ``function`` takes its lock, if a lock is the first thing that a call of it takes."""
    wrapper, call = getattr(function, _MARK, (None, None))
    return call if wrapper is function else None


class Chances:
    """How often, and with which ``patience``, one call tries before its policies say what happens.

    Once, but for two cases, each at most once. If nobody knows who the holder is, it was gone when we asked: it may
    have been what the next case is about. If it is an earlier delivery of the task that runs here, its process may be
    dead and its node still stand until the session ends, or it is about to end after a retry. Skipping then would
    lose the task; so it waits for that, under every policy. ``work`` is what runs here.
    """

    def __init__(self, lock: Lock, patience: float | None, work: Work | None) -> None:
        self.patience = patience
        self._lock = lock
        self._work = work
        self._left = {"unknown", "itself"}

    def another(self, error: LockTimeout | LockConflict) -> bool:
        """Whether to try again after ``error``, then with a new :attr:`patience`."""
        holder = error.holder.work if error.holder else None
        here = self._work
        if isinstance(error, AlreadyAwaited):
            # Whoever holds, what waits will run after this.
            return False
        if error.holder is None:
            case, patience = "unknown", 0.0
        elif here and holder and here.id and (here.kind, here.id) == (holder.kind, holder.id):
            options = self._lock.pool.options
            case, patience = "itself", options.connection.session_timeout + options.connect_timeout
        else:
            return False
        if case not in self._left:
            return False
        self._left.remove(case)
        self.patience = patience
        if case == "itself":
            logger.warning("event=met_itself key=%r work=%r consequence=waits_for_session_end", error.key, str(here))
        return True
