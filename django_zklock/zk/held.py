"""Possession of a lock: given once, to one owner, and able to say that it is over."""

from __future__ import annotations

import contextlib
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING

from django_zklock.exceptions import LockLost, NotHeld
from django_zklock.zk import holds
from django_zklock.zk.alarm import Alarm

if TYPE_CHECKING:
    from typing_extensions import Self

    from django_zklock.zk.claim import Claim
    from django_zklock.zk.lock import Lock

logger = logging.getLogger("django_zklock.held")


class Held:
    """A held lock.

    ``key`` is the lock's key, ``node`` the full path of the znode, ``token`` the fencing token: the transaction
    id that created the node, strictly increasing in the order in which an exclusive lock is granted, below
    2**63. ``since`` is when it was granted (seconds since the Unix epoch) and ``waited`` for how many seconds
    the caller had waited. Where several locks are held together, ``keys`` has them all, ``tokens`` the token for
    each, and ``node`` is that of the first. A nested hold of a reentrant lock shares node and token with the outer
    one; the node goes when the last of them is released.

    May be checked from any thread. As a context manager it is released at the end of the block, and the end
    raises :exc:`~django_zklock.exceptions.LockLost` if the lock was lost and nothing else propagates.
    """

    __slots__ = (
        "__weakref__", "_contender", "_handles", "_loss_told", "_paths", "_pid", "_released", "_root", "_seen_loss",
        "_stack", "_when_lost",
        "key", "keys", "lock", "node", "rule", "since", "token", "waited",
    )  # fmt: skip

    def __init__(self, lock: Lock, contender: Claim, *, waited: float, outer: Held | None = None) -> None:
        self.key = lock.key
        self.keys = lock.keys
        nodes = contender.node_paths
        self.node = nodes[lock.paths[0]]
        # What the node asks for: that of a nested hold may be more than its lock does.
        self.rule = contender.rule
        self.token = contender.token or 0
        self.since = time.time()
        self.waited = waited
        self.lock = lock
        self._contender = contender
        self._paths = frozenset(nodes)
        self._pid = os.getpid()
        self._released = False
        self._seen_loss: str | None = None
        # The outermost hold on this node; it is the one that an observer is told of.
        self._root: Held = self if outer is None else outer._root  # noqa: SLF001 - our own class
        self._loss_told = False
        self._when_lost: list[Callable[[], None]] = []
        # Everyone who holds through this node. Shared with the outer hold; adding to and discarding from a
        # set are atomic, and whoever empties it lets go of the node.
        self._handles: set[Held] = set() if outer is None else outer._handles  # noqa: SLF001 - our own class
        self._handles.add(self)
        self._stack = holds.stack()
        self._stack.append(self)

    def __repr__(self) -> str:
        state = "released" if self._released else self._loss() or "held"
        return f"<Held {self.key!r} token={self.token} {state}>"

    @property
    def tokens(self) -> dict[str, int]:
        """The fencing token for each key. Locks taken together have one in common."""
        return dict.fromkeys(self.keys, self.token)

    @property
    def lost(self) -> bool:
        """Whether this lock is, or may be, somebody else's by now. Once true it stays so. No I/O."""
        return self._loss() is not None

    def check(self) -> None:
        """Make sure that the lock is still held. No I/O: cheap enough for an inner loop.

        Raises :exc:`~django_zklock.exceptions.LockLost` if it is, or may be, lost, and
        :exc:`~django_zklock.exceptions.NotHeld` if it has been released. A pause between this check and what
        follows cannot be excluded; where that matters, hand :attr:`token` to the resource (M. Kleppmann, "How to
        do distributed locking").
        """
        if self._released:
            raise NotHeld(f"lock {self.key!r} has been released here", key=self.key)
        if self.lost:
            raise self.loss()

    def loss(self) -> LockLost:
        """Give the error that says how the lock was lost."""
        return LockLost(
            f"lock {self.key!r} was lost after {time.time() - self.since:.1f} s: {self._loss()}; "
            f"somebody else may hold it now, so stop, or fence with token {self.token}",
            key=self.key,
        )

    def when_lost(self, call: Callable[[], None]) -> Callable[[], None]:
        """Call ``call`` once, in a thread of its own, as soon as it is known that the lock is lost.

        If it is known already, the call is made here and now. Gives what takes that back.
        """
        waiting = self._root._when_lost  # noqa: SLF001 - our own class

        def forget() -> None:
            with contextlib.suppress(ValueError):  # called already
                waiting.remove(call)

        waiting.append(call)
        if self._root._loss_told:  # noqa: SLF001 - our own class
            self._root._call_when_lost()  # noqa: SLF001 - our own class
        return forget

    def tell_loss(self, reason: str) -> None:
        """Tell the observer, and all who have asked for it, that the lock is lost."""
        self._loss_told = True
        self._call_when_lost()
        self.lock.observer.lost(self, reason)

    def _call_when_lost(self) -> None:
        while True:
            try:
                # Taking one out is one step, so each is called once.
                call = self._when_lost.pop(0)
            except IndexError:
                return
            call()

    @property
    def revoked(self) -> str | None:
        """Why the holder was asked to let go, or ``None`` if it was not. It may go on: nobody forces it.

        Known within a sixth of the session timeout after the asking.
        """
        return self._contender.revoked

    def release(self, wait: bool = False) -> None:  # noqa: FBT001, FBT002 - the public contract
        """Let go. The server is told at once, or when it can be reached again; this does not wait for it.

        With ``wait`` the call returns when the server has confirmed, or after the connect timeout of the
        connection. Never raises because of the server; releasing twice does nothing. A process that
        inherited the hold over a fork only forgets it.
        """
        try:
            let_go = self._let_go()
        except BaseException:  # thrown into this thread: a time limit, Ctrl-C
            self._let_go()
            raise
        if not let_go:
            return
        self._root.lock.observer.released(self._root)
        if wait:
            gone = Alarm()
            self._contender.session.post(partial(self._contender.when_gone, gone.ring))
            patience = self.lock.pool.options.connect_timeout
            if not gone.wait(patience):
                logger.warning("event=release_unconfirmed key=%r waited=%s", self.key, patience)

    async def arelease(self) -> None:
        """Let go, as :meth:`release` without ``wait``."""
        if self._let_go():
            await self._root.lock.observer.areleased(self._root)

    def through(self, contender: Claim) -> bool:
        """Whether this is a hold on the node of ``contender``."""
        return self._contender is contender

    def covers(self, lock: Lock) -> bool:
        """Whether this hold is on every node that ``lock`` would need."""
        return self._paths.issuperset(lock.paths) and self._is_ours(lock)

    def overlaps(self, lock: Lock) -> bool:
        """Whether this hold is on a node that ``lock`` would need."""
        return not self._paths.isdisjoint(lock.paths) and self._is_ours(lock)

    def _is_ours(self, lock: Lock) -> bool:
        return self.lock.pool is lock.pool and not self._released and self._pid == os.getpid()

    def again(self, lock: Lock) -> Held:
        """Give a nested hold on the same node."""
        return Held(lock, self._contender, waited=0.0, outer=self)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.finish(raising=kind is None)

    def finish(self, *, raising: bool) -> None:
        """Release at the end of a body; raise ``LockLost`` if it was lost and ``raising``."""
        try:
            if raising and not self._released:
                self.check()
        finally:
            try:
                self.release()
            except BaseException:  # thrown into this thread: a time limit, Ctrl-C
                self.release()
                raise

    async def afinish(self, *, raising: bool) -> None:
        """Do as :meth:`finish`."""
        try:
            if raising and not self._released:
                self.check()
        finally:
            await self.arelease()

    def _let_go(self) -> bool:
        """Give up this handle; ``True`` if that gave up the node too, for the first time.

        Local state first: from here on nobody takes this for a held lock, whatever the network does. Every
        step may be done again, so that a release that was interrupted by an exception can be repeated.
        """
        first, self._released = not self._released, True
        if self in self._stack:
            self._stack.remove(self)
        self._handles.discard(self)
        if self._handles or self._pid != os.getpid():
            return False
        self._contender.session.post(self._contender.leave)
        return first

    def _loss(self) -> str | None:
        if self._pid != os.getpid():
            return "it was inherited over a fork; only the parent process holds it"
        contender = self._contender
        # Asked first: the lease may be that of the next session, but then the end of ours has been told before.
        lease_over = contender.session.lease_over
        if self._seen_loss is None and contender.lost is None and lease_over:
            # Remembered here, because whoever asked acts on it: a late answer must not unsay it.
            self._seen_loss = "the lease ran out: this process or its connection stood still for too long"
            contender.session.post(partial(contender.lose, self._seen_loss))
        return self._seen_loss or contender.lost
