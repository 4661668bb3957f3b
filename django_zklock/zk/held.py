"""Possession of a lock: given once, to one owner, and able to say that it is over."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NoReturn
from weakref import ref

from django_zklock.exceptions import LockLost, NotHeld
from django_zklock.zk import loss, owners
from django_zklock.zk.hints import Hinted
from django_zklock.zk.waiting import AutoResetEvent

if TYPE_CHECKING:
    from typing import Self

    from django_zklock.zk.contender import Contender
    from django_zklock.zk.listener import LockValue
    from django_zklock.zk.owners import Caller, Owner

logger = logging.getLogger("django_zklock.held")


class Held(Hinted):
    """A held lock.

    ``key`` is the lock's key, ``node`` the full path of the znode, ``token`` the fencing token: the transaction
    id that created the node, strictly increasing in the order in which an exclusive lock is granted, below
    2**63. ``since`` is when it was granted (seconds since the Unix epoch) and ``waited`` for how many seconds
    the caller had waited. Where several locks are held together, ``keys`` has them all, ``tokens`` the token for
    each, and ``node`` is that of the first. A nested hold of a reentrant lock shares node and token with the outer
    one; the node goes when the last of them is released.

    May be checked from any thread. As a context manager, sync or async, it is released at the end of the block, and the
    end raises :exc:`~django_zklock.exceptions.LockLost` if the lock was lost and nothing else propagates.
    """

    __slots__ = (
        "__weakref__", "_contender", "_handle", "_handles", "_is_loss_reported", "_loss_callbacks", "_outermost",
        "_owner", "_paths", "_pid", "_seen_loss",
        "key", "keys", "lock", "node", "released", "rule", "since", "token", "waited",
    )  # fmt: skip

    def __init__(
        self,
        lock: LockValue,
        contender: Contender,
        *,
        waited: float,
        caller: Caller | None = None,
        outer: Held | None = None,
    ) -> None:
        self.key = lock.key
        self.keys = lock.keys
        nodes = contender.node_paths
        self.node = nodes[lock.paths[0]]
        # The rule of the node, which for a nested hold may be stronger than the rule of its lock.
        self.rule = contender.rule
        self.token = contender.token or 0
        self.since = time.time()
        self.waited = waited
        self.lock = lock
        self._contender = contender
        self._paths = frozenset(nodes)
        self._pid = os.getpid()
        self._seen_loss: str | None = None
        # The outermost hold on this node, `None` if this is it. Listeners get the outermost hold.
        self._outermost: Held | None = None if outer is None else outer._root
        self._is_loss_reported = False
        self._loss_callbacks: list[Callable[[], None]] = []
        # One for each hold on this node, shared by all of them. Adding to and discarding from a set is atomic, and the
        # hold that empties it releases the node.
        self._handle = object()
        self._handles: set[object] = set() if outer is None else outer._handles
        self._handles.add(self._handle)
        caller = caller or owners.caller()
        owner, thread = caller.owner, caller.thread
        # A weak reference, because the owner refers to its holds.
        self._owner = ref(owner)
        if thread is not None and thread is not owner:
            thread.add_guest(self)
        # From here on the hold counts.
        self.released = False
        owner.holds.append(self)

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Nothing refers to this hold any more, so it can never be released. At exit this module may be empty.
        if getattr(self, "released", True) or _is_finalizing() or self._loss() is not None:
            return
        warnings.warn(
            f"lock {self.key!r} was never released, and the task, thread or job that acquired it has ended: node "
            f"{self.node} stays until this process ends; use `with`, or keep the hold and release it",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )

    def __repr__(self) -> str:
        state = "released" if self.released else self._loss() or "held"
        return f"<Held {self.key!r} token={self.token} {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"the hold of lock {self.key!r} cannot be copied or pickled: pass its token and key on")

    @property
    def _root(self) -> Held:
        return self._outermost or self

    @property
    def tokens(self) -> dict[str, int]:
        """The fencing token for each key. All keys of one lock have the same token."""
        return dict.fromkeys(self.keys, self.token)

    @property
    def lost(self) -> bool:
        """Whether another process holds this lock, or may hold it by now. Once true it stays true. No I/O."""
        return self._loss() is not None

    def check(self) -> None:
        """Make sure that the lock is still held. No I/O: cheap enough for an inner loop.

        A check that finds a loss waits a moment for its reason, unless that would block an event loop. Raises
        :exc:`~django_zklock.exceptions.LockLost` if the lock is, or may be, lost, and
        :exc:`~django_zklock.exceptions.NotHeld` if it has been released. A pause between this check and what
        follows cannot be excluded; where that matters, hand :attr:`token` to the resource (M. Kleppmann, "How to
        do distributed locking").
        """
        if self.released:
            raise NotHeld(f"lock {self.key!r} has been released here", key=self.key)
        if self.lost:
            raise self._loss_error()

    def _loss_error(self) -> LockLost:
        """Return the error that says how the lock was lost."""
        known = loss.wait_for_reason(self._contender, self._when_lost)
        later = "" if known else " (the signal `lost` will say why, if a reason was given)"
        return LockLost(
            f"lock {self.key!r} was lost after {time.time() - self.since:.1f} s: {self._loss()}{later}; "
            f"another process may hold it now, so stop, or fence with token {self.token}",
            key=self.key,
        )

    def _when_lost(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call ``call`` once, in the background, as soon as it is known that the lock is lost. It must not block.

        If it is known already, the call is made here and now. Returns a function that takes that back.
        """
        waiting = self._root._loss_callbacks

        def forget() -> None:
            with contextlib.suppress(ValueError):  # called already
                waiting.remove(call)

        waiting.append(call)
        if self._root._is_loss_reported:
            self._root._call_when_lost()
        return forget

    def _report_loss(self, reason: str) -> None:
        """Make the calls of :meth:`_when_lost`, and then notify the listener, all in the background."""
        self.lock.pool.actions.submit(partial(self._report_loss_now, reason))

    def _report_loss_now(self, reason: str) -> None:
        self._is_loss_reported = True
        self._call_when_lost()
        # In other threads than the calls above: the calls of other locks must not wait for a slow listener.
        self._notify("lost", reason)

    def _notify(self, event: str, reason: str) -> None:
        """Notify the listener in the background."""
        call = partial(self.lock.listener.notify, event, self.lock, held=self, reason=reason)
        self.lock.pool.listeners.submit(call)

    def _call_when_lost(self) -> None:
        while True:
            try:
                # Taking one out is atomic, so each is called once.
                call = self._loss_callbacks.pop(0)
            except IndexError:
                return
            try:
                call()
            except Exception:
                logger.exception("event=when_lost_failed key=%r call=%r", self.key, call)

    @property
    def revoked(self) -> str | None:
        """Why a release was requested, or ``None`` if it was not. The holder may ignore it.

        Known within a seventh of the session timeout after the request.
        """
        return self._contender.revoked

    def release(self, wait: bool = False) -> None:  # noqa: FBT001, FBT002 - the public contract
        """Release the lock. The server gets the request at once, or when it can be reached again; this does not wait.

        With ``wait`` the call returns when the server has confirmed, or after the connect timeout of the connection.
        Never raises because of the server; releasing twice does nothing. In a process that inherited the hold over a
        fork it only forgets the hold.
        """
        try:
            was_last = self._release_node()
        except BaseException:  # raised in this thread: a time limit, Ctrl-C
            self._release_node()
            raise
        if not was_last:
            return
        self._root.lock.listener.notify("released", self._root.lock, held=self._root)
        if wait:
            gone = AutoResetEvent()
            self._contender.session.post(partial(self._contender.on_deleted, gone.set))
            timeout = self.lock.pool.options.connect_timeout
            if not gone.wait(timeout):
                logger.warning("event=release_unconfirmed key=%r waited=%s", self.key, timeout)

    async def arelease(self) -> None:
        """Release the lock like :meth:`release` without ``wait``."""
        if self._release_node():
            await self._root.lock.listener.anotify("released", self._root.lock, held=self._root)

    def _covers(self, lock: LockValue) -> bool:
        """Whether this hold is on every node that ``lock`` would need."""
        return self._paths.issuperset(lock.paths) and self._is_ours(lock)

    def _overlaps(self, lock: LockValue) -> bool:
        """Whether this hold is on a node that ``lock`` would need."""
        return not self._paths.isdisjoint(lock.paths) and self._is_ours(lock)

    def _is_ours(self, lock: LockValue) -> bool:
        if self.released or self._pid != os.getpid():
            return False
        # A pool that was closed has lost all that it had, and another one may have taken its place.
        pool = self.lock.pool
        return pool is lock.pool or (pool.tree == lock.pool.tree and not self.lost)

    def _nest(self, lock: LockValue, owner: Owner) -> Held:
        """Return a nested hold on the same node."""
        return Held(lock, self._contender, waited=0.0, caller=owners.Caller(owner, None), outer=self)

    @property
    def _is_orphaned(self) -> bool:
        """Whether the task, greenlet or thread that has acquired this has ended."""
        owner = self._owner()
        return owner is None or owner.ended

    def _shares_node(self, other: Held) -> bool:
        """Whether ``other`` is a hold on the same node."""
        return self._handles is other._handles

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish(raising=kind is None)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self._afinish(raising=kind is None)

    def _finish(self, *, raising: bool) -> None:
        """Release at the end of a body; raise ``LockLost`` if it was lost and ``raising``."""
        try:
            if raising and not self.released:
                self.check()
        finally:
            try:
                self.release()
            except BaseException:  # thrown into this thread: a time limit, Ctrl-C
                self.release()
                raise

    async def _afinish(self, *, raising: bool) -> None:
        """Do the same as :meth:`_finish`."""
        try:
            if raising and not self.released:
                await loss.await_reason(self._contender, self._when_lost)
                self.check()
        finally:
            await self.arelease()

    def _release_node(self) -> bool:
        """Drop this handle; return ``True`` if that released the node too, for the first time.

        Local state comes first: from then on this is no held lock, whatever the network does. Every step may be done
        again, so that a release that an exception has interrupted can be repeated.
        """
        first, self.released = not self.released, True
        owner = self._owner()
        if owner is not None and self in owner.holds:
            owner.holds.remove(self)
        self._handles.discard(self._handle)
        if self._handles or self._pid != os.getpid():
            return False
        self._contender.session.post(self._contender.leave)
        return first

    def _loss(self) -> str | None:
        if self._pid != os.getpid():
            return "it was inherited over a fork; only the parent process holds it"
        contender = self._contender
        # Read first: the lease may belong to the next session, but then the end of ours was reported before.
        lease_expired = contender.session.lease_expired
        if self._seen_loss is None and contender.lost is None and lease_expired:
            # Kept, because the caller acts on it: a late answer must not take it back.
            self._seen_loss = "the lease ran out: this process or its connection stood still for too long"
            contender.session.post(partial(self._lose, self._seen_loss))
        return self._seen_loss or contender.lost

    def _lose(self, reason: str) -> None:
        # A method of the hold, which keeps the hold alive until the loss is reported.
        self._contender.lose(reason)


def held_stack() -> list[Held]:
    """Return the holds of the calling owner, innermost last; the caller may change the list."""
    return owners.caller().owner.holds


def current(key: str | None = None, alias: str | None = None) -> Held | None:
    """Return the innermost hold of the calling owner, of ``key`` and of the pool ``alias`` if given, or ``None``."""
    held: Held
    for held in reversed(owners.caller().available()):
        # A hold that was inherited over a fork does not count.
        if (
            held._covers(held.lock)
            and (key is None or key in held.keys)
            and (alias is None or held.lock.pool.name == alias)
        ):
            return held
    return None
