"""A lock as a value: which line, under which rule, through which pool. Possession is another object."""

from __future__ import annotations

from collections.abc import Callable
from types import TracebackType
from typing import TYPE_CHECKING

from django_zklock.exceptions import LockConflict, NotHeld
from django_zklock.zk import attempt, holds, keys
from django_zklock.zk.deadline import Timeout, seconds
from django_zklock.zk.held import Held
from django_zklock.zk.identity import Identity, Work
from django_zklock.zk.nodes import EXCLUSIVE, Rule
from django_zklock.zk.pool import Pool

if TYPE_CHECKING:
    from django_zklock.zk.attempt import Observer


class Silent:
    """The observer of those who want none."""

    def contended(self, lock: Lock, holder: Identity | None) -> None: ...
    def acquired(self, held: Held) -> None: ...
    def released(self, held: Held) -> None: ...
    def lost(self, held: Held, reason: str) -> None: ...
    async def acontended(self, lock: Lock, holder: Identity | None) -> None: ...
    async def aacquired(self, held: Held) -> None: ...
    async def areleased(self, held: Held) -> None: ...


def _no_work() -> Work | None:
    return None


class Lock:
    """A named lock.

    Making one does no I/O and holds nothing, so a lock object can be kept, shared between threads and used
    again. Acquiring gives a :class:`~django_zklock.zk.held.Held`. As a context manager, sync or async, it waits for
    ever for the lock and releases it at the end of the block.

    A reentrant lock (the default) can be acquired again by the execution context (thread, greenlet or asyncio
    task) that holds it.
    """

    def __init__(
        self,
        key: str,
        pool: Pool,
        *,
        rule: Rule = EXCLUSIVE,
        reentrant: bool = True,
        observer: Observer | None = None,
        work: Callable[[], Work | None] = _no_work,
    ) -> None:
        self.key = keys.check(key)
        self.pool = pool
        self.rule = rule
        self.reentrant = reentrant
        self.observer: Observer = observer or Silent()
        self.work = work
        self.path = pool.path(key)

    def __repr__(self) -> str:
        return f"<Lock {self.key!r} {self.rule.kind.value} pool={self.pool.name!r}>"

    @property
    def parent_data(self) -> bytes:
        """What the line's parent node says: the whole key, where its name has room for a part only."""
        return b"" if keys.unescape(keys.escape(self.key)) is not None else self.key.encode()

    def acquire(self, timeout: Timeout = None) -> Held:
        """Wait for the lock and give the hold.

        ``timeout`` is in seconds or a ``timedelta``; ``None`` waits for ever, 0 tries once. Raises
        ``LockTimeout`` if it was not granted in time, ``ZooKeeperUnavailable`` if ZooKeeper did not answer in
        time (with ``None`` and 0: within the connect timeout), ``LockConflict`` if the lock is not reentrant
        and this context holds it, ``LockLost`` if this context holds it and has lost it, ``ValueError`` for a
        negative timeout. No way out leaves a node behind.
        """
        limit = seconds(timeout)
        depth = len(holds.stack())
        try:
            return self._nested() or attempt.acquire(self, limit)
        except BaseException:
            holds.unwind(depth, self)
            raise

    def try_acquire(self) -> Held | None:
        """Give the hold, or ``None`` if somebody else has the lock. One round trip if so, and no write.

        Raises ``ZooKeeperUnavailable`` if ZooKeeper does not answer within the connect timeout.
        """
        depth = len(holds.stack())
        try:
            return self._nested() or attempt.try_acquire(self)
        except LockConflict:
            return None
        except BaseException:
            holds.unwind(depth, self)
            raise

    async def aacquire(self, timeout: Timeout = None) -> Held:
        """Do as :meth:`acquire`, without a thread for the waiter; cancelling it leaves no node."""
        limit = seconds(timeout)
        return self._nested() or await attempt.aacquire(self, limit)

    async def atry_acquire(self) -> Held | None:
        """Do as :meth:`try_acquire`."""
        try:
            return self._nested() or await attempt.atry_acquire(self)
        except LockConflict:
            return None

    def __enter__(self) -> Held:
        depth = len(holds.stack())
        try:
            return self.acquire()
        except BaseException:
            holds.unwind(depth, self)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held = None
        try:
            held = self._innermost()
            held.finish(raising=kind is None)
        except BaseException:
            # Not only what `finish` raises: a time limit or Ctrl-C may strike before it has begun.
            held = held or self._find()
            if held is not None:
                held.release()
            raise

    async def __aenter__(self) -> Held:
        return await self.aacquire()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._innermost().afinish(raising=kind is None)

    def _innermost(self) -> Held:
        held = self._find()
        if held is None:
            raise NotHeld(
                f"lock {self.key!r} is not held here: it was released inside its own block, or the block was left by "
                f"another thread or task than the one that entered it",
                key=self.key,
            )
        return held

    def _find(self) -> Held | None:
        return next((held for held in reversed(holds.stack()) if held.lock is self), None)

    def _nested(self) -> Held | None:
        outer = next((held for held in reversed(holds.stack()) if held.covers(self)), None)
        if outer is None:
            return None
        if not self.reentrant:
            raise LockConflict(
                f"lock {self.key!r} is held by this very thread or task, and reentrant=False: waiting would never end",
                key=self.key,
            )
        if outer.lost:
            outer.check()
        return outer.again(self)
