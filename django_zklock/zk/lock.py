"""A lock as a value: its keys, its rule and its pool. Possession is another object."""

from __future__ import annotations

import asyncio
import os
import secrets
import threading
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Never

from django_zklock.exceptions import AsyncUnsafe, LockConflict, NotHeld, ZooKeeperUnavailable
from django_zklock.zk import acquire, arguments, jobs, nesting, node_data, owners, paths
from django_zklock.zk.contender import Contender, data_room
from django_zklock.zk.held import Held
from django_zklock.zk.listener import LockListener
from django_zklock.zk.node_data import Identity, Work
from django_zklock.zk.ops import snapshots
from django_zklock.zk.place import LockPath
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import EXCLUSIVE, Mark, Rule
from django_zklock.zk.waiting import NO_THREAD, UNSET, Cancellation, Timeout, Unset, call_in_thread, seconds

if TYPE_CHECKING:
    from weakref import ref

    from django_zklock.zk.jobs import Scope
    from django_zklock.zk.owners import Caller


class Lock:
    """A named lock, or several that are acquired together.

    Making one does no I/O and holds nothing, so a lock object can be kept, shared between threads and used
    again. Acquiring returns a :class:`~django_zklock.zk.held.Held`. As a context manager, sync or async, it acquires
    the lock within ``timeout`` (``None``: without a limit), and releases it at the end of the block.

    A reentrant lock (the default) can be acquired again by its owner: the asyncio task, greenlet or thread that holds
    it. Another task or thread than the one that entered a block may leave it. ``key`` is text, also for several keys:
    for messages, all ``keys`` separated by commas. ``template`` is what the keys of similar locks have in common, a
    label for metrics.

    With ``coalesces``, the name of what runs under the lock, the lock is for one call: acquiring raises
    ``AlreadyAwaited`` instead of waiting if another call waits already to run the same. Only a call that waits without
    a timeout counts, and none that ``may_expire``.
    """

    def __init__(
        self,
        key: str | Sequence[str],
        pool: Pool,
        *,
        rule: Rule = EXCLUSIVE,
        reentrant: bool = True,
        timeout: Timeout = None,
        listener: LockListener | None = None,
        work: Callable[[], Work | None] | None = None,
        template: str | None = None,
        coalesces: str | None = None,
        may_expire: bool = False,
    ) -> None:
        self.keys = check_keys(key) if isinstance(key, (list, tuple)) else (paths.check_key(key),)
        self.key = ", ".join(self.keys)
        # The data of the lock's node is the whole key, if the node's name has room for a part of it only.
        self._lock_paths = [
            LockPath(f"{pool.options.root}/{name}", key.encode() if paths.HASH_MARK in name else b"")
            for key, name in [(key, paths.escape(key)) for key in self.keys]
        ]
        self.paths = tuple([path for path, _data in self._lock_paths])
        self.pool = pool
        self.rule = rule
        self.reentrant = reentrant
        self.timeout = seconds(timeout)
        self.listener = listener or LockListener()
        self._work = work
        self.template = None if template is None else paths.check_template(template)
        if coalesces is not None and len(self.keys) > 1:
            raise TypeError(f"coalesces is for one key only, got {', '.join(self.keys)}")
        self._coalesces = coalesces
        self._may_expire = may_expire
        # Names the call, if its work has no id.
        self._call_id = "" if coalesces is None else secrets.token_hex(8)
        self._data_room = node_data.MAX_BYTES
        if len(self.paths) > 1:
            self._data_room = data_room(self.paths, rule, pool.options.connection)
        # What the blocks hold that are open now. A dict keeps the order, and forgets in one step, also twice.
        self._blocks: dict[Any, None] = {}

    def __repr__(self) -> str:
        return f"<Lock {self.key!r} {self.rule.kind.value} pool={self.pool.name!r}>"

    def _new_contender(self, *, wait: bool, notify: Callable[[], None], stays: bool = False) -> Contender:
        """Return a contender for one acquisition; it joins the queue later."""
        work = None if self._work is None else self._work()
        thread = threading.current_thread().name
        data = node_data.encode_identity(os.getpid(), thread, work, self._data_room, len(self.paths))
        mark = None
        if self._coalesces is not None:
            # Tasks may share a function and do different work: the `run` of their base class, or that of a factory.
            task = work.name if work is not None and work.kind == "task" else ""
            call = work.id if work is not None and work.id else self._call_id
            mark = Mark.of(f"{self._coalesces} {task} {self.rule}", call)
        # A transaction belongs to one session, so all nodes of a lock are in one. The contender may move to another.
        session = self.pool.session(min(self.paths))
        return Contender(
            session,
            self._lock_paths,
            self.rule,
            data=data,
            wait=wait,
            coalesces=mark,
            stays=stays and not self._may_expire,
            notify=notify,
        )

    def acquire(
        self, timeout: Timeout | Unset = UNSET, *, cancellation: Cancellation | None = None, **unknown: Never
    ) -> Held:
        """Wait for the lock and return the hold.

        ``timeout`` is in seconds or a ``timedelta``; ``None`` waits for ever, 0 tries once; without it, the lock's own
        counts. ``cancellation`` can end the wait from outside; a nested acquisition does not wait. Raises
        ``LockTimeout`` if it was not granted in time, ``LockCancelled`` if the wait was cancelled,
        ``ZooKeeperUnavailable`` if ZooKeeper did not answer in time (with ``None`` and 0: within the connect timeout),
        ``LockConflict`` if the caller itself is in the way, so that waiting would never end (not reentrant; being
        acquired already; to write inside of one's own read; some of several keys held already; held through another
        alias of the same ensemble; held by another owner that needs this very thread to go on), ``AlreadyAwaited`` as
        said above, ``LockLost`` inside of a block of the caller that has lost the lock (a lost hold without a block is
        forgotten, with a log record), ``AsyncUnsafe`` in a thread whose event loop runs, unless the caller holds the
        lock already, and in one in which nothing may wait, ``ValueError`` for a negative timeout.
        No way out leaves a node behind.
        """
        if unknown:
            raise arguments.unexpected("acquire", unknown, ["timeout", "cancellation"])
        limit = self.timeout if timeout is UNSET else seconds(timeout)
        caller = owners.caller()
        owner, before = caller.owner, caller.owner.holds[:]
        try:
            return self._acquire(caller, limit, cancellation)
        except BaseException:
            owner.release_since(self, before)
            raise

    def try_acquire(self) -> Held | None:
        """Return the hold, or ``None`` if another contender holds the lock; that takes one round trip and no write.

        Raises ``ZooKeeperUnavailable`` if ZooKeeper does not answer within the connect timeout, and ``LockLost`` and
        ``AsyncUnsafe`` as :meth:`acquire` does.
        """
        caller = owners.caller()
        owner, before = caller.owner, caller.owner.holds[:]
        try:
            held = nesting.nested_hold(self, caller)
            if held is None:
                if caller.in_loop:
                    self._check_no_loop("atry_acquire")
                held = acquire.acquire(self, 0, caller, may_be_taken=True)
            return held
        except LockConflict:
            if self.reentrant:
                raise
            return None
        except BaseException:
            owner.release_since(self, before)
            raise

    # Not `async def`, so that the owner is found at the call. Another task may await the coroutine, such as the one
    # which asyncio.wait_for makes in Python 3.11.

    def aacquire(
        self, timeout: Timeout | Unset = UNSET, *, cancellation: Cancellation | None = None, **unknown: Never
    ) -> Coroutine[Any, Any, Held]:
        """Acquire as :meth:`acquire` does, without a thread for the waiter; cancelling it leaves no node.

        The hold belongs to the task that makes the call, also if another one awaits the result.
        """
        if unknown:
            raise arguments.unexpected("aacquire", unknown, ["timeout", "cancellation"])
        limit = self.timeout if timeout is UNSET else seconds(timeout)
        return jobs.enter(partial(self._aacquire, owners.caller(), limit, cancellation))

    def atry_acquire(self) -> Coroutine[Any, Any, Held | None]:
        """Acquire as :meth:`try_acquire` does; the hold belongs to the task that makes the call."""
        return jobs.enter(partial(self._atry_acquire, owners.caller()))

    def holders(self) -> tuple[Identity | None, ...]:
        """Return the owners that hold the lock now, first come first; empty if the lock is free.

        Of several keys, return the owners that hold any of them; an owner that holds more than one counts once. One
        that takes several keys counts where it is first, also if it waits for another of them.
        ``None`` stands for a holder of another client, such as Curator, that leaves no identity. The answer tells of
        the past when it arrives: to act on a free lock, acquire it.

        Raise ``ZooKeeperUnavailable`` if ZooKeeper does not answer within the connect timeout, and ``AsyncUnsafe`` in
        a thread whose event loop runs, or in which nothing may wait.
        """
        self._check_no_loop("aholders")
        return snapshots.holders(self.pool, self.keys, timeout=self.pool.options.connect_timeout)

    async def aholders(self) -> tuple[Identity | None, ...]:
        """Return the same as :meth:`holders`, without blocking the event loop."""
        # In another thread this one would not be seen.
        owners.check_may_wait(f"the holders of lock {self.key!r} cannot be read", key=self.key)
        read = partial(snapshots.holders, self.pool, self.keys, timeout=self.pool.options.connect_timeout)
        try:
            reading = call_in_thread(read)
        except NO_THREAD as error:
            text = f"the holders of lock {self.key!r} cannot be read: {error}"
            raise ZooKeeperUnavailable(text, key=self.key) from error
        return await asyncio.wrap_future(reading)

    def __enter__(self) -> Held:
        caller = owners.caller()
        owner, before = caller.owner, caller.owner.holds[:]
        held = None
        try:
            held = self._acquire(caller, self.timeout)
            held.in_block = True
            self._blocks[held] = None
            return held
        except BaseException:
            owner.release_since(self, before)
            self._blocks.pop(held, None)
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held, is_found = None, False
        try:
            held = self._find_block()
            is_found = True
            # First: a block that is released and not forgotten would be taken for another one that ends later.
            self._blocks.pop(held, None)
            if held is None or held.released:
                raise self._not_held(held)  # noqa: TRY301 - the end is the same for all that is raised here
            held._finish(raising=kind is None)
        except BaseException:
            # Not only what the lines above raise: a time limit or Ctrl-C may strike between any two of them.
            if not is_found:
                held = self._find_block()
            if held is not None:
                self._blocks.pop(held, None)
                held._finish(raising=False)
            raise

    def __aenter__(self) -> Coroutine[Any, Any, Held]:
        return jobs.enter(partial(self._aacquire, owners.caller(), self.timeout, None, is_block=True))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        held, is_found = None, False
        try:
            held = self._find_block()
            is_found = True
            self._blocks.pop(held, None)
            if held is None or held.released:
                raise self._not_held(held)  # noqa: TRY301 - as in `__exit__`
            await held._afinish(raising=kind is None)
        except BaseException:
            if not is_found:
                held = self._find_block()
            if held is not None:
                self._blocks.pop(held, None)
                held._finish(raising=False)
            raise

    def _acquire(self, caller: Caller, limit: float | None, cancellation: Cancellation | None = None) -> Held:
        held = nesting.nested_hold(self, caller)
        if held is None:
            if caller.in_loop:
                self._check_no_loop("aacquire")
            if limit != 0:
                nesting.check_wait(self, caller)
            held = acquire.acquire(self, limit, caller, cancellation=cancellation)
        assert held is not None, "a taken lock is an error here"
        return held

    async def _aacquire(
        self,
        caller: Caller,
        limit: float | None,
        cancellation: Cancellation | None,
        scope: ref[Scope],
        *,
        is_block: bool = False,
    ) -> Held:
        held = None
        try:
            held = nesting.new_nested_hold(self, caller)
            if held is None:
                if limit != 0:
                    nesting.check_wait(self, caller)
                held = await acquire.aacquire(self, limit, caller, cancellation=cancellation)
            assert held is not None, "a taken lock is an error here"
            if is_block:
                held.in_block = True
                self._blocks[held] = None
            _settle(scope, held)
            return held
        except BaseException:
            self._give_back(scope, held)
            raise

    async def _atry_acquire(self, caller: Caller, scope: ref[Scope]) -> Held | None:
        held = None
        try:
            held = nesting.new_nested_hold(self, caller)
            if held is None:
                held = await acquire.aacquire(self, 0, caller, may_be_taken=True)
            _settle(scope, held)
            return held
        except LockConflict:
            self._give_back(scope, held)
            if self.reentrant:
                raise
            return None
        except BaseException:
            self._give_back(scope, held)
            raise

    def _give_back(self, scope: ref[Scope], held: Held | None) -> None:
        """End an acquisition that an exception has ended; ``held`` is what it has got already."""
        jobs.leave(scope)
        if held is not None:
            self._blocks.pop(held, None)
            held.release()

    def _check_no_loop(self, instead: str) -> None:
        """Raise ``AsyncUnsafe`` if waiting would stop an event loop."""
        if not owners.must_not_block():
            return
        raise AsyncUnsafe(
            f"lock {self.key!r} cannot be used by blocking code in the thread of a running event loop, which would "
            f"stop: use `async with lock`, `await lock.{instead}()` or an `async def` under @zk_locked, or call "
            f"this code by sync_to_async",
            key=self.key,
        )

    # Blocks. Each end looks for the hold that its beginning has got: that of the same caller, or, as the end of a
    # generator may run in another task or thread, the only one that it can be.

    def _not_held(self, held: Held | None) -> NotHeld:
        """Return the error of the end of a block whose hold is released, or is not known."""
        if held is None and self._blocks:
            return NotHeld(
                f"which block of lock {self.key!r} ends here cannot be known: several are open, and none of them was "
                f"entered by this task or thread; use `with lock.acquire() as held`, which knows its own",
                key=self.key,
            )
        return NotHeld(f"lock {self.key!r} is not held here: it was released inside its own block", key=self.key)

    def _find_block(self) -> Held | None:
        """Return the hold of the block that ends here, ``None`` if it could be any of several, or is none."""
        blocks: list[Held] = list(self._blocks)
        if len(blocks) < 2:
            return blocks[0] if blocks else None
        caller = owners.caller()
        available = caller.available()
        own = [held for held in blocks if held in available or held._owner() is caller.owner]
        if own:
            return own[-1]
        # Those whose task, greenlet or thread has ended.
        orphaned = [held for held in blocks if (owner := held._owner()) is None or owner.ended]
        for candidates in (blocks, orphaned):
            if candidates and all(held._possession is candidates[0]._possession for held in candidates):
                return candidates[-1]
        return None

    # What looks right, and would do nothing. Templates of Django call what can be called, unless this is true.

    do_not_call_in_templates = True

    def __call__(self, *_arguments: object, **_options: object) -> Never:
        """Say what was meant: a lock is no decorator."""
        raise TypeError(f"zk_lock makes a lock and does not decorate: write @zk_locked({self.key!r}) above a function")

    def __bool__(self) -> Never:
        """Say what was meant: a lock is neither held nor free, but a name."""
        raise TypeError(
            f"a lock has no truth value: write `with lock:`, or `if held := lock.try_acquire():` for lock {self.key!r}"
        )


def check_keys(given: Sequence[str]) -> tuple[str, ...]:
    """Return ``given`` if one lock can have all these keys; raise what :func:`.paths.check_key` raises if not."""
    if not given:
        raise ValueError("a lock needs at least one key, got an empty list")
    several = tuple(map(paths.check_key, given))
    twice = sorted(key for key, count in Counter(several).items() if count > 1)
    if twice:
        raise ValueError(f"a lock cannot be taken twice at once, got {', '.join(map(repr, twice))} more than once")
    return several


def _settle(scope: ref[Scope], held: Held | None) -> None:
    """Note the hold that was acquired in a scope; end the scope if there is none."""
    if held is None:
        jobs.leave(scope)
    else:
        held._scope = scope
        jobs.belongs_to(scope, held)
