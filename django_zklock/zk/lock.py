"""A lock as a value: which line, under which rule, through which pool. Possession is another object."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any

from django_zklock.exceptions import LockConflict, NotHeld
from django_zklock.zk import attempt, holds, identity, keys
from django_zklock.zk.contender import Contender
from django_zklock.zk.deadline import Timeout, seconds
from django_zklock.zk.held import Held
from django_zklock.zk.identity import Identity, Work
from django_zklock.zk.multilock import MultiContender, Place
from django_zklock.zk.pool import Pool
from django_zklock.zk.rules import EXCLUSIVE, Rule

if TYPE_CHECKING:
    from django_zklock.zk.attempt import Observer


class Silent:
    """The observer of those who want none."""

    def contended(self, lock: Lock, holder: Identity | None) -> None: ...
    def acquired(self, held: Held) -> None: ...
    def released(self, held: Held) -> None: ...
    def lost(self, held: Held, reason: str) -> None: ...
    def revoked(self, held: Held, reason: str) -> None: ...
    async def acontended(self, lock: Lock, holder: Identity | None) -> None: ...
    async def aacquired(self, held: Held) -> None: ...
    async def areleased(self, held: Held) -> None: ...


def _no_work() -> Work | None:
    return None


class Lock:
    """A named lock, or several that are taken together.

    Making one does no I/O and holds nothing, so a lock object can be kept, shared between threads and used
    again. Acquiring gives a :class:`~django_zklock.zk.held.Held`. As a context manager, sync or async, it waits for
    ever for the lock and releases it at the end of the block.

    A reentrant lock (the default) can be acquired again by the execution context (thread, greenlet or asyncio
    task) that holds it. ``key`` is a text also where there are several: for messages, the ``keys`` one after the other.
    ``template`` is what the keys of such locks have in common, for whoever counts; nothing depends on it.
    With ``sole_waiter`` acquiring raises ``AlreadyAwaited`` instead of waiting if somebody else waits already.
    """

    def __init__(
        self,
        key: str | Sequence[str],
        pool: Pool,
        *,
        rule: Rule = EXCLUSIVE,
        reentrant: bool = True,
        observer: Observer | None = None,
        work: Callable[[], Work | None] = _no_work,
        template: str | None = None,
        sole_waiter: bool = False,
    ) -> None:
        self.keys = _several(key) if isinstance(key, (list, tuple)) else (keys.check(key),)
        self.key = ", ".join(self.keys)
        self.pool = pool
        self.rule = rule
        self.reentrant = reentrant
        self.observer: Observer = observer or Silent()
        self.work = work
        self.template = keys.check_template(template)
        if sole_waiter and len(self.keys) > 1:
            raise TypeError(f"whether somebody else waits can be asked for one key only, got {', '.join(self.keys)}")
        self.sole_waiter = sole_waiter
        self.paths = tuple(map(pool.path, self.keys))

    def __repr__(self) -> str:
        return f"<Lock {self.key!r} {self.rule.kind.value} pool={self.pool.name!r}>"

    def contender(self, *, wait: bool, notify: Callable[[], None]) -> Contender | MultiContender:
        """Make what stands in line for one attempt; it joins when told to."""
        data = identity.own(self.work(), self.rule.limit).encode()
        # One transaction is of one session; whoever names the same keys finds the same one.
        session = self.pool.session(min(self.paths))
        if len(self.paths) == 1:
            return Contender(
                session,
                self.paths[0],
                self.rule,
                data=data,
                parent_data=_label(self.key),
                wait=wait,
                sole_waiter=self.sole_waiter,
                notify=notify,
            )
        places = [Place(path, _label(key)) for path, key in zip(self.paths, self.keys, strict=True)]
        return MultiContender(session, places, self.rule, data=data, wait=wait, notify=notify)

    def acquire(self, timeout: Timeout = None) -> Held:
        """Wait for the lock and give the hold.

        ``timeout`` is in seconds or a ``timedelta``; ``None`` waits for ever, 0 tries once. Raises
        ``LockTimeout`` if it was not granted in time, ``ZooKeeperUnavailable`` if ZooKeeper did not answer in
        time (with ``None`` and 0: within the connect timeout), ``LockConflict`` if this context itself is in the
        way, so that waiting would never end (not reentrant; to write inside of one's own read; some of several keys
        held already), ``AlreadyAwaited`` as said above, ``LockLost`` if this context holds it and has lost it,
        ``ValueError`` for a negative timeout.
        No way out leaves a node behind.
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
            if self.reentrant:
                raise
            return None
        except BaseException:
            holds.unwind(depth, self)
            raise

    async def aacquire(self, timeout: Timeout = None) -> Held:
        """Do as :meth:`acquire`, without a thread for the waiter; cancelling it leaves no node."""
        limit = seconds(timeout)
        return self._nested() or attempt.granted(await attempt.aacquire(self, limit))

    async def atry_acquire(self) -> Held | None:
        """Do as :meth:`try_acquire`."""
        try:
            return self._nested() or await attempt.atry_acquire(self)
        except LockConflict:
            if self.reentrant:
                raise
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

    def __aenter__(self) -> Coroutine[Any, Any, Held]:
        return self.aacquire()

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
        """Give a hold inside of one that this context has; raise ``LockConflict`` where it would wait for itself."""
        overlapping = [held for held in reversed(holds.stack()) if held.overlaps(self)]
        if not overlapping:
            return None
        if not self.reentrant:
            self._check_room(overlapping)
            return None
        outer = next((held for held in overlapping if held.covers(self)), None)
        if outer is None:
            raise self._conflict(self._some_held(overlapping))
        if not outer.rule.covers(self.rule.kind):
            raise self._conflict(
                f"lock {self.key!r} is held by this very thread or task as {outer.rule.kind.value}, and cannot be "
                f"taken as {self.rule.kind.value} inside of that: it would wait for itself. Take the stronger one first"
            )
        if outer.lost:
            outer.check()
        return outer.again(self)

    def _some_held(self, mine: list[Held]) -> str:
        """Say why several keys cannot be taken when some of them, or each for itself, are held here."""
        here = [key for key in self.keys if any(key in held.keys for held in mine)]
        missing = [key for key in self.keys if key not in here]
        return (
            f"this very thread or task holds {_listing(here)} already, but not {_listing(missing) or 'together'}: who "
            f"adds to what he holds can meet another who does the same. Take all the keys at once, first"
        )

    def _check_room(self, mine: list[Held]) -> None:
        """Raise ``LockConflict`` unless these are leases of a semaphore with room for one more beside them."""
        limit = self.rule.limit
        if limit is None or any(held.rule.limit is None for held in mine) or len(mine) >= limit:
            raise self._conflict(
                f"lock {self.key!r} is held by this very thread or task, and reentrant=False: waiting would never end"
            )

    def _conflict(self, message: str) -> LockConflict:
        return LockConflict(message, key=self.key)


def _several(given: Sequence[str]) -> tuple[str, ...]:
    if not given:
        raise ValueError("a lock needs at least one key, got an empty list")
    several = tuple(map(keys.check, given))
    twice = sorted({key for key in several if several.count(key) > 1})
    if twice:
        raise ValueError(f"a lock cannot be taken twice at once, got {', '.join(map(repr, twice))} more than once")
    return several


def _listing(keys: list[str]) -> str:
    return " and ".join(map(repr, keys))


def _label(key: str) -> bytes:
    """Give what the parent node of a line says: the whole key, where its name has room for a part only."""
    return b"" if keys.unescape(keys.escape(key)) is not None else key.encode()
