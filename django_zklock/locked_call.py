"""Calling a function under its lock, and what follows if the lock is not granted, is lost or cannot be asked for.

The module keeps the hooks that acquire or terminate elsewhere, and a context variable for the nested call.
"""

from __future__ import annotations

import contextlib
import contextvars
import dataclasses
import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from django.core.management.base import BaseCommand
from django.db import transaction
from django.dispatch import Signal
from django.http.response import HttpResponseBase

from django_zklock import interrupt, signals, transactions, unfinished
from django_zklock.api import current_work
from django_zklock.conflict import (
    AcquireRetries,
    Busy,
    Conflict,
    OnConflict,
    OnLost,
    OnUnavailable,
    Skipped,
    request_of,
)
from django_zklock.connections import Using, alias_of, connections
from django_zklock.exceptions import AlreadyAwaited, LockConflict, LockTimeout, ZkLockError, ZooKeeperUnavailable
from django_zklock.key_template import KeyMaker, fields_of, signature_of
from django_zklock.zk import owners
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work
from django_zklock.zk.queue import Rule
from django_zklock.zk.waiting import monotonic

logger = logging.getLogger("django_zklock.locked_call")

Outcome = tuple[Held | None, ZkLockError | None]
"""The result of acquiring: a hold, or the error that explains why there is none."""


@dataclass(frozen=True, slots=True)
class Undecided:
    """The call is to acquire its lock itself, with ``timeout`` in place of its own if it is not ``None``."""

    timeout: float | None = None


class Offer(Protocol):
    """The lock of a call that was chosen before the call began."""

    @property
    def lock(self) -> Lock: ...

    @property
    def waited(self) -> float:
        """The seconds that were waited for the lock before the call began."""

    def take(self, caller: owners.Caller) -> Outcome | Undecided:
        """Return the outcome if the lock was acquired or refused already; the hold is for ``caller``, which calls this.

        Otherwise the call acquires the lock, with the rest of its timeout if a part was spent in another process.
        """


acquire_hooks: list[Callable[[LockedCall, tuple[Any, ...], dict[str, Any]], Offer | None]] = []
"""Hooks that may know the lock of a call already, as Celery's gate knows the locks of its tasks.

Each hook is called with the locked call and its arguments, before the key is made. The first offer counts.
"""

terminate_hooks: list[Callable[[], Callable[[], None] | None]] = []
"""Hooks that know how to end the process of the running call, for ``on_lost="terminate"``.

The first function that a hook returns is used. It is called from a background thread, and ends more than the call.
"""

begin_hooks: list[Callable[[float], bool]] = []
"""Hooks for a call with ``unique_until`` that is about to begin its body, or to be refused.

Each one removes what keeps other calls from being sent, within so many seconds, and returns whether there was any. It
raises ``ZkLockError`` if it cannot.
"""

_ATTRIBUTE = "__zklock_call__"


@dataclass(frozen=True, kw_only=True)
class LockedCall:
    """How one function is called under its lock. ``timeout`` is in seconds, ``None`` for no limit.

    ``atomic`` is the database with a transaction around the body, which ends before the lock is released.
    ``plain_fields`` are the arguments whose values are in the key as they are.
    """

    function: Callable[..., Any]
    key: KeyMaker
    rule: Rule
    using: Using
    reentrant: bool
    timeout: float | None
    on_conflict: OnConflict
    on_lost: OnLost
    on_unavailable: OnUnavailable
    template: str
    atomic: str | None = None
    plain_fields: frozenset[str] = frozenset()
    unique_until: Literal["start"] | None = None
    # The function is the `handle` of a command if its first argument is a command.
    is_handle: bool = False

    def wrap(self) -> Callable[..., Any]:
        """Return the function that takes the lock and then calls ours: a coroutine function if ours is one."""

        def locked(*args: Any, **kwargs: Any) -> Any:
            return self.call(args, kwargs)

        async def alocked(*args: Any, **kwargs: Any) -> Any:
            return await self.acall(args, kwargs)

        is_async = inspect.iscoroutinefunction(self.function)
        for name, policy in {"on_conflict": self.on_conflict, "on_unavailable": self.on_unavailable}.items():
            if inspect.iscoroutinefunction(policy) and not is_async:
                raise TypeError(
                    f"{name}={policy!r} is async, and {self.function.__qualname__} is not: it would never be awaited"
                )
        wrapper: Callable[..., Any] = functools.wraps(self.function)(alocked if is_async else locked)
        # The wrapper is part of the value: functools.wraps copies attributes to every function put around it.
        setattr(wrapper, _ATTRIBUTE, (wrapper, self))
        # Celery checks the arguments of a task by inspect.getfullargspec, which does not follow __wrapped__.
        with contextlib.suppress(TypeError, ValueError):
            wrapper.__signature__ = signature_of(self.function)  # type: ignore[attr-defined]
        return wrapper

    def call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Call the function under the lock that these arguments name."""
        if _wanted_key.get() == id(self):
            raise _KeyFound(self.key(args, kwargs))
        if self.atomic is not None:
            transactions.check_atomic(self.atomic, self.template)
        offer = next((offer for hook in acquire_hooks if (offer := hook(self, args, kwargs))), None)
        lock = self._lock(args, kwargs) if offer is None else offer.lock
        caller, began = owners.caller(), monotonic()
        try:
            outcome = offer.take(caller) if offer is not None else Undecided()
            held, refusal = self._acquire(lock, outcome.timeout) if isinstance(outcome, Undecided) else outcome
            if self.unique_until is not None:
                held, refusal = self._end_mark(lock, held, refusal, began)
            if refusal is not None and not self._may_run_unprotected(refusal):
                waited = monotonic() - began + (offer.waited if offer is not None else 0.0)
                for signal, facts in self._refusal_signals(lock, refusal, waited):
                    signals.send(signal, **facts)
                return self._decide(lock, args, kwargs, refusal, waited)
            result = self._run(held, args, kwargs)
            if held is not None:
                # Not isinstance, which would evaluate an object of Django's lazy types.
                if issubclass(type(result), HttpResponseBase) and unfinished.goes_on(result):
                    unfinished.keep(held, result, self.on_lost, request_of(args, kwargs))
                else:
                    held._finish(raising=self.on_lost != "ignore")
            return result
        except BaseException:
            caller.owner.release_since(lock)
            raise
        finally:
            refusal, outcome = None, Undecided()  # its traceback refers to this frame

    async def acall(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Await the coroutine function under the lock that these arguments name."""
        lock = self._lock(args, kwargs)
        owner, began = owners.caller().owner, monotonic()
        try:
            held, refusal = await self._aacquire(lock)
            if refusal is not None and not self._may_run_unprotected(refusal):
                waited = monotonic() - began
                for signal, facts in self._refusal_signals(lock, refusal, waited):
                    await signals.asend(signal, **facts)
                decision = self._decide(lock, args, kwargs, refusal, waited)
                return await decision if inspect.isawaitable(decision) else decision
            if held is not None:
                held.in_block = True
            body = self.function(*args, **kwargs)
            if held is not None and self.on_lost in {"interrupt", "terminate"}:
                body = interrupt.arun(held, body)
            result = await body
            unfinished.check(result, self.function)
            if held is not None:
                if issubclass(type(result), HttpResponseBase) and unfinished.goes_on(result):
                    await unfinished.akeep(held, result, self.on_lost, request_of(args, kwargs))
                else:
                    await held._afinish(raising=self.on_lost != "ignore")
            return result
        except GeneratorExit:  # nothing can be awaited any more
            owner.release_since(lock)
            raise
        except BaseException:
            for held in [held for held in reversed(owner.holds) if held.lock is lock]:
                await held.arelease()
            raise
        finally:
            refusal = None

    def _run(self, held: Held | None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if held is not None:
            held.in_block = True
        body = functools.partial(self.function, *args, **kwargs)
        if self.atomic is None:
            result = self._run_while_held(held, body)
            unfinished.check(result, self.function)
            return result
        with transaction.atomic(self.atomic, durable=True):
            # The commit is not watched: an exception in the middle of it would leave the connection in disorder.
            result = self._run_while_held(held, body)
            unfinished.check(result, self.function)
            if held is not None and self.on_lost != "ignore":
                held.check()
            return result

    def _run_while_held(self, held: Held | None, body: Callable[[], Any]) -> Any:
        """Call the body, which is ended when the lock is lost, if ``on_lost`` says so."""
        if held is None or self.on_lost in {"raise", "ignore"}:
            return body()
        ways = (way for hook in terminate_hooks if (way := hook()))
        if self.on_lost == "terminate" and (terminate := next(ways, None)):
            forget = held._when_lost(terminate)
            try:
                return body()
            finally:
                if not forget():
                    # It was called in the background. Until this process has ended, the call must not have an outcome.
                    terminate()
        return interrupt.run(held, body)

    # Errors are returned and not raised, so that neither the body nor a callable as a policy runs inside of an
    # `except`: Celery's Task.retry and logging.exception read sys.exc_info().

    def _acquire(self, lock: Lock, timeout: float | None) -> Outcome:
        retries = AcquireRetries(lock, self.timeout if timeout is None else timeout, current_work())
        while True:
            try:
                return lock.acquire(retries.timeout), None
            except (LockTimeout, LockConflict, ZooKeeperUnavailable) as error:
                if not retries.should_retry(error):
                    return None, error

    async def _aacquire(self, lock: Lock) -> Outcome:
        retries = AcquireRetries(lock, self.timeout, current_work())
        while True:
            try:
                return await lock.aacquire(retries.timeout), None
            except (LockTimeout, LockConflict, ZooKeeperUnavailable) as error:
                if not retries.should_retry(error):
                    return None, error

    def _end_mark(self, lock: Lock, held: Held | None, refusal: ZkLockError | None, began: float) -> Outcome:
        """Let calls be sent again before the body begins, or before a refusal counts; return the outcome then."""
        if refusal is not None and self.keeps_mark(refusal):
            return held, refusal
        try:
            had_mark = any(hook(lock.pool.options.connect_timeout) for hook in begin_hooks)
        except ZooKeeperUnavailable as error:
            if held is not None:
                held.release()
            return None, error
        if refusal is None or not had_mark:
            return held, refusal
        # The refusal may be older than the last call that was not sent for this one.
        rest = None if self.timeout is None else max(0.0, self.timeout - (monotonic() - began))
        return self._acquire(lock, rest)

    def keeps_mark(self, refusal: ZkLockError) -> bool:
        """Whether the message of a refused task keeps its mark: it comes back, or the mark cannot be removed now."""
        sends_again = getattr(self._policy_for(refusal), "sends_again", False)
        return sends_again or isinstance(refusal, ZooKeeperUnavailable)

    def lock(
        self, key: str | Sequence[str], alias: str, work: Callable[[], Work | None], *, may_expire: bool = False
    ) -> Lock:
        """Return the lock of one call, ``key`` of the ensemble ``alias``; ``work`` returns what the call is a part of.

        With ``may_expire`` the call may be given up while it waits, so no other call is skipped for it.
        """
        if fields := fields_of(key):
            work = functools.partial(_with_arguments, work, ", ".join(fields))
        return Lock(
            key,
            connections[alias],
            rule=self.rule,
            reentrant=self.reentrant,
            listener=signals.listener,
            work=work,
            template=self.template,
            coalesces=self.name if self.on_conflict == "coalesce" else None,
            may_expire=may_expire,
        )

    def _lock(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Lock:
        """Return the lock of a call here; its work does not refer to the arguments, which would live with the lock."""
        key = self.key(args, kwargs)
        alias = self.alias(key)
        if self._is_command(args):
            name = type(args[0]).__module__.rpartition(".")[2]
            return self.lock(key, alias, functools.partial(self._command_work, alias, name))
        return self.lock(key, alias, functools.partial(self._own_work, alias))

    def alias(self, key: str | Sequence[str]) -> str:
        """Return the alias of the ensemble that has the lock ``key``."""
        return self.using if isinstance(self.using, str) else alias_of(key, self.using)

    # The lock asks for these before it joins the queue, and not for a nested hold.

    def _own_work(self, alias: str) -> Work:
        transactions.check_outside(alias, self.template)
        return current_work(self._function_work) or self._function_work

    def _command_work(self, alias: str, name: str) -> Work:
        transactions.check_outside(alias, self.template)
        place = Work(kind="command", name=name)
        found = current_work(place)
        # A command that the shell has started.
        return place if found is None or found.command == name else found

    @functools.cached_property
    def _function_work(self) -> Work:
        return Work(kind="function", name=self.name)

    def _is_command(self, args: tuple[Any, ...]) -> bool:
        return self.is_handle and bool(args) and isinstance(args[0], BaseCommand)

    @property
    def name(self) -> str:
        """The function's name in messages."""
        return f"{self.function.__module__}.{self.function.__qualname__}"

    def _may_run_unprotected(self, refusal: ZkLockError) -> bool:
        if not isinstance(refusal, ZooKeeperUnavailable) or self.on_unavailable != "run":
            return False
        logger.error("event=unprotected key=%r function=%s error=%s", refusal.key, self.name, refusal)
        return True

    def _refusal_signals(
        self, lock: Lock, refusal: ZkLockError, waited: float
    ) -> Iterator[tuple[Signal, dict[str, Any]]]:
        facts = {"holder": refusal.holder, "function": self.name, "reason": _reason(refusal), "waited": waited}
        yield signals.refused, signals.common_arguments(lock) | facts
        if self._policy_for(refusal) == "skip":
            yield signals.skipped, signals.common_arguments(lock) | facts

    def _policy_for(self, refusal: ZkLockError) -> OnConflict | OnUnavailable:
        if isinstance(refusal, ZooKeeperUnavailable):
            return self.on_unavailable
        return "skip" if isinstance(refusal, AlreadyAwaited) else self.on_conflict

    def _decide(
        self, lock: Lock, args: tuple[Any, ...], kwargs: dict[str, Any], refusal: ZkLockError, waited: float
    ) -> Any:
        """Skip a call without a lock, which has waited for ``waited`` seconds, or apply its policy."""
        policy = self._policy_for(refusal)
        if policy == "skip":
            return self._skip(lock, args, kwargs, refusal)
        unavailable = refusal if isinstance(refusal, ZooKeeperUnavailable) else None
        # A LockConflict has its own explanation: the caller itself is in the way.
        if not callable(policy) and (policy != "raise" or isinstance(refusal, (LockConflict, ZooKeeperUnavailable))):
            raise refusal
        conflict = Conflict(
            key=lock.key,
            function=self.name,
            holder=refusal.holder,
            waited=self.timeout,
            args=args,
            kwargs=kwargs,
            unavailable=unavailable,
            elapsed=waited,
        )
        if callable(policy):
            return policy(conflict)
        raise conflict.error() from refusal

    def _skip(self, lock: Lock, args: tuple[Any, ...], kwargs: dict[str, Any], refusal: ZkLockError) -> Any:
        """Log the skipped call and return a result that differs from every result of real work."""
        reason, holder = _reason(refusal), str(refusal.holder) if refusal.holder else None
        # A call that another one runs for is the normal case of "coalesce".
        level = logging.INFO if reason == "coalesced" else logging.WARNING
        logger.log(level, "event=skipped key=%r function=%s reason=%s holder=%r", lock.key, self.name, reason, holder)
        if request_of(args, kwargs) is not None:
            # A middleware, and the client, expect a response.
            return Busy().response(is_unavailable=reason == "unavailable")
        if not self._is_command(args):
            return Skipped(zklock="skipped", key=lock.key, reason=reason, holder=holder)
        # Django writes what `handle` returns, and that must be text.
        why = f"held by {holder}" if holder else "taken"
        if reason == "unavailable":
            why = "ZooKeeper cannot be reached"
        return f"Skipped: lock {lock.key!r}: {why}."


def _with_arguments(work: Callable[[], Work | None], arguments: str) -> Work | None:
    """Return the work; a task with the arguments that are in its key, which many tasks of one name have in common.

    The arguments of other work are not written: a process whose work is the same each time encodes it once.
    """
    found = work()
    return dataclasses.replace(found, arguments=arguments) if found is not None and found.kind == "task" else found


def _reason(refusal: ZkLockError) -> str:
    if isinstance(refusal, ZooKeeperUnavailable):
        return "unavailable"
    return "coalesced" if isinstance(refusal, AlreadyAwaited) else "conflict"


def locked_call_of(function: Callable[..., Any]) -> LockedCall | None:
    """Return how ``function`` takes its lock; ``None`` unless a call of it takes a lock first of all."""
    wrapper, call = getattr(function, _ATTRIBUTE, (None, None))
    return call if wrapper is function else None


# The id of the locked call that returns only its key and does not run.
_wanted_key: contextvars.ContextVar[int | None] = contextvars.ContextVar("django_zklock_wanted_key", default=None)


class _KeyFound(BaseException):
    """Carries the key of a call out through the function that converted the arguments."""


def key_through(wrapper: Callable[..., Any], call: LockedCall) -> KeyMaker:
    """Return the key maker of ``call`` for the arguments of ``wrapper``, which converts them and calls ``call``.

    The key maker calls ``wrapper``, which runs as far as the locked call; that takes no lock.
    """

    def make(args: tuple[Any, ...], kwargs: dict[str, Any]) -> str | tuple[str, ...]:
        token = _wanted_key.set(id(call))
        try:
            wrapper(*args, **kwargs)
        except _KeyFound as found:
            key: str | tuple[str, ...] = found.args[0]
            return key
        finally:
            _wanted_key.reset(token)
        raise ValueError(f"the key of {call.name} is not known: the function around it did not call it")

    return make
