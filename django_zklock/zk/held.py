"""Possession of a lock, and the handles on it: each is given once, to one owner, and can say that it is over."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import time
import warnings
from collections.abc import Callable, Sequence
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, NoReturn
from weakref import WeakSet, ref

from django_zklock.exceptions import AsyncUnsafe, LockLost, NotHeld
from django_zklock.zk import jobs, owners
from django_zklock.zk.contender import State
from django_zklock.zk.session import STOOD_STILL
from django_zklock.zk.waiting import AsyncAutoResetEvent, is_serving

if TYPE_CHECKING:
    from typing import Self

    from django_zklock.zk.grant import Grant
    from django_zklock.zk.jobs import Scope
    from django_zklock.zk.listener import LockValue
    from django_zklock.zk.owners import Caller, Owner

logger = logging.getLogger("django_zklock.held")

# Seconds that an error waits for the reason of a loss, which takes one round trip.
REASON_TIMEOUT = 1.0


Handle = Callable[[], "Held | None"]
"""What stands for a hold in its possession: a weak reference to it."""

NONE: frozenset[Handle] = frozenset()


class _Handles(NamedTuple):
    """The handles on a possession at one moment. ``successor`` has those of the next one, as soon as it is decided."""

    handles: frozenset[Handle]
    successor: dict[None, _Handles]


class Possession:
    """What a contender has got, from its grant until the last handle on it is released.

    The handles are the hold that was acquired, the outermost one, and those nested in it: one ``Held`` each. Any thread
    may use a possession. It has only a weak reference to the outermost hold, because it lives as long as the node, and
    a forgotten hold is to be noticed.
    """

    __slots__ = (
        "_handles", "_is_loss_reported", "_kept", "_loss_callbacks", "_pending_signals", "_seen_loss",
        "contender", "lock", "nodes", "outermost",
    )  # fmt: skip

    def __init__(self, outermost: Held, contender: Grant) -> None:
        self.contender = contender
        self.lock = outermost.lock
        self.outermost = ref(outermost)
        # The full path of the node in each queue, by the path of the lock.
        self.nodes = contender.node_paths
        self._handles = _Handles(frozenset({outermost._handle}), {})
        # The loss that this process has seen by its own means.
        self._seen_loss: str | None = None
        self._is_loss_reported = False
        self._loss_callbacks: list[Callable[[], object]] = []
        # The signals that are sent at most once. The thread that sends one takes it out.
        self._pending_signals = ["lost", "revoked"]
        # The outermost hold, until the reason of its loss is known.
        self._kept: Held | None = None

    # The handles. A hold may be released by another thread than that of its owner, which takes the lock again at that
    # moment: either the nested hold is granted and the node stays, or the node is deleted and the owner queues anew.
    # `dict.setdefault` decides, which is atomic: of two threads that change the same set one succeeds, and the other
    # one tries again with the result. So no mutex is needed, which a fork could copy or an exception leave locked.

    def _change(
        self, *, add: frozenset[Handle] = NONE, drop: frozenset[Handle] = NONE, alone: Sequence[Owner] = ()
    ) -> tuple[bool, bool]:
        """Change the set of handles, unless it is empty; return whether there were any before and after.

        With ``alone`` nothing is changed, and there are none after, while it is in use by others than these owners.
        """
        latest = self._handles
        while True:
            # `_handles` may lag behind: a thread may be interrupted between a decision and its note.
            while (successor := latest.successor.get(None)) is not None:
                latest = successor
            if alone and any(_is_in_the_way(handle, alone) for handle in latest.handles):
                return True, False
            mine = _Handles((latest.handles | add) - drop if latest.handles else NONE, {})
            self._handles = decided = latest.successor.setdefault(None, mine)
            if decided is mine:
                return bool(latest.handles), bool(mine.handles)

    def nest(self, handle: Handle, *, alone: Sequence[Owner] = ()) -> bool:
        """Add ``handle``; return ``False`` if the last handle has been released, or if it is in use beside ``alone``.

        It may be repeated.
        """
        _, is_open = self._change(add=frozenset({handle}), alone=alone)
        return is_open

    def is_in_use(self, mine: Sequence[Owner]) -> bool:
        """Whether others than these owners are under the lock, which a job that itself waits for it is not."""
        self._change()
        return any(_is_in_the_way(handle, mine) for handle in self._handles.handles)

    def drop(self, handle: Handle) -> bool:
        """Remove ``handle``, and leave if it was the last one; return ``True`` to the first that removes the last.

        May be repeated after an exception has interrupted it.
        """
        if self.contender.session.pid != os.getpid():
            return False
        was_open, is_open = self._change(drop=frozenset({handle}))
        if is_open:
            self.wake_jobs()
        else:
            self.contender.session.post(self.contender.leave)
        return was_open and not is_open

    def kept_holds(self) -> list[Held]:
        """Return the holds that are kept for jobs, if there are no others."""
        self._change()
        holds = [held for handle in self._handles.handles if (held := handle()) is not None]
        return holds if all(held._is_kept for held in holds) else []

    def wake_jobs(self) -> None:
        """Let each job for which the lock is kept, and that waits for it, look whether it may have it now."""
        for handle in self._handles.handles:
            held = handle()
            owner = None if held is None or not held._is_kept else held._owner()
            for acquisition in () if owner is None else owner.acquiring(tuple(self.nodes)):
                acquisition.wake()

    # The loss.

    def loss(self) -> str | None:
        """Return why the lock is lost, or ``None``."""
        if self.contender.session.pid != os.getpid():
            return "it was inherited over a fork; only the parent process holds it"
        contender = self.contender
        # Read before `lost`: the lease may belong to the next session, but then the end of ours was reported before.
        lease_expired, state = contender.session.lease_expired, contender.state
        if self._seen_loss is None and contender.lost is None:
            if lease_expired:
                # Kept, because the caller acts on it: a late answer must not take it back.
                self._seen_loss = STOOD_STILL
                contender.session.post(partial(self._lose, self._seen_loss, self.outermost()))
            elif state is not State.HELD and self._change()[0]:
                # The last handle goes before the contender leaves, so something else has made it leave.
                self._seen_loss = "this process has given it up elsewhere"
        return self._seen_loss or contender.lost

    def _lose(self, reason: str, _held: Held | None) -> None:
        # The hold is an argument so that it lives until the loss is reported.
        self.contender.lose(reason)

    def wait_for_reason(self) -> bool:
        """Wait for the reason of a loss if it is being read, unless nothing may wait in this thread.

        Return ``False`` if it is still not known.
        """
        if self.contender.loss_reason_pending and owners.running_loop() is None and not is_serving():
            known = self.lock.pool.system.event()
            forget = self.when_lost(known.set)
            known.wait(REASON_TIMEOUT)
            forget()
        return not self.contender.loss_reason_pending

    async def await_reason(self) -> None:
        """Wait for the reason of a loss if it is being read, in a task."""
        if self.contender.loss_reason_pending and not is_serving():
            known = AsyncAutoResetEvent()
            forget = self.when_lost(known.set)
            await known.wait(REASON_TIMEOUT)
            forget()

    def when_lost(self, call: Callable[[], object]) -> Callable[[], bool]:
        """Call ``call`` once, in the background, as soon as it is known that the lock is lost. It must not block.

        If it is known already, the call is made here and now. Returns a function that takes that back; it returns
        ``False`` if the call was made, or is being made.
        """
        waiting = self._loss_callbacks

        def forget() -> bool:
            try:
                waiting.remove(call)
            except ValueError:
                return False
            return True

        waiting.append(call)
        if self._is_loss_reported:
            self._call_when_lost()
        return forget

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
                logger.exception("event=when_lost_failed key=%r call=%r", self.lock.key, call)

    # The signals.

    def on_change(self) -> None:
        """Report, once each and in the background, that the lock is lost or revoked, if the hold was not forgotten."""
        contender, held = self.contender, self.outermost()
        if held is None:
            # Nothing refers to any hold, so none will be released. Other nodes than the lost one may still be there.
            if contender.lost is not None:
                contender.session.post(contender.leave)
            return
        if contender.lost is not None and contender.loss_reason_pending:
            # Keeps the hold alive until the reason is known: the block may end before.
            self._kept = held
        elif contender.lost is not None and self._take_signal("lost"):
            self.lock.pool.actions.submit(partial(self._report_loss, held, contender.lost))
            self._kept = None
        if contender.revoked is not None and self._take_signal("revoked"):
            self._notify("revoked", held, contender.revoked)

    def _take_signal(self, name: str) -> bool:
        """Return whether the signal was not sent yet; taking it out is atomic."""
        try:
            self._pending_signals.remove(name)
        except ValueError:
            return False
        return True

    def _report_loss(self, held: Held, reason: str) -> None:
        self._is_loss_reported = True
        self._call_when_lost()
        # In other threads than the calls above: the calls of other locks must not wait for a slow listener.
        self._notify("lost", held, reason)

    def _notify(self, event: str, held: Held, reason: str) -> None:
        """Notify the listener in the background."""
        call = partial(self.lock.listener.notify, event, self.lock, held=held, reason=reason)
        self.lock.pool.listeners.submit(call)


def _is_in_the_way(handle: Handle, mine: Sequence[Owner]) -> bool:
    held = handle()
    owner = None if held is None else held._owner()
    if held is None or owner is None:
        return True
    return owner not in mine and not (held._is_kept and owner.acquiring(tuple(held._possession.nodes)))


class Held:
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
        "__weakref__", "_handle", "_is_kept", "_outermost", "_owner", "_possession", "_scope",
        "in_block", "key", "keys", "lock", "node", "released", "rule", "since", "token", "waited",
    )  # fmt: skip

    def __init__(
        self,
        lock: LockValue,
        contender: Grant,
        *,
        waited: float,
        caller: Caller | None = None,
        outermost: Held | None = None,
        is_kept: bool = False,
    ) -> None:
        self.key = lock.key
        self.keys = lock.keys
        # The rule of the node, which for a nested hold may be stronger than the rule of its lock.
        self.rule = contender.rule
        self.token = contender.token or 0
        self.since = time.time()
        self.waited = waited
        self.lock = lock
        # What stands for this hold in the possession, which must not keep it alive.
        self._handle: Handle = ref(self)
        # What was started while a coroutine has this hold.
        self._scope: ref[Scope] | None = None
        # Whether this is kept for a job that goes on after the block it was started in.
        self._is_kept = is_kept
        # The outermost hold on this node, which listeners get; `None` if this is it.
        self._outermost = outermost
        self._possession: Possession = Possession(self, contender) if outermost is None else outermost._possession
        self.node = self._possession.nodes[lock.paths[0]]
        caller = caller or owners.caller()
        owner, thread = caller.owner, caller.thread
        # A weak reference, because the owner refers to its holds.
        self._owner = ref(owner)
        if thread is not None and thread is not owner:
            # Acquired in this thread for another owner.
            if thread.held_here is None:
                thread.held_here = WeakSet()
            thread.held_here.add(self)
        # A block, a function or a transaction has begun that releases this at its end, or it is kept for a job.
        self.in_block = is_kept
        # From here on the hold counts.
        self.released = False
        owner.holds.append(self)

    def __del__(self, _is_finalizing: Callable[[], bool] = sys.is_finalizing) -> None:
        # Nothing refers to this hold any more, so it can never be released. At the end of an interpreter, which only
        # the first one tells, this module may be empty.
        is_empty = os is None
        if getattr(self, "released", True) or _is_finalizing() or is_empty:
            return
        if self.lost or self._is_kept:
            # The node of a lost hold may still be there, and others wait for it. What was kept for a job, which is
            # gone, was about to be released when an exception struck.
            self._possession.drop(self._handle)
            return
        warnings.warn(
            f"lock {self.key!r} was never released, and the task, thread or job that acquired it has ended: node "
            f"{self.node} stays until this process ends; use `with`, or keep the hold and release it",
            ResourceWarning,
            source=self,
            stacklevel=2,
        )

    def __repr__(self) -> str:
        state = "released" if self.released else self._possession.loss() or "held"
        return f"<Held {self.key!r} token={self.token} {state}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"the hold of lock {self.key!r} cannot be copied or pickled: pass its token and key on")

    @property
    def tokens(self) -> dict[str, int]:
        """The fencing token for each key. All keys of one lock have the same token."""
        return dict.fromkeys(self.keys, self.token)

    @property
    def lost(self) -> bool:
        """Whether another process holds this lock, or may hold it by now. Once true it stays true. No I/O."""
        return self._possession.loss() is not None

    def check(self) -> None:
        """Make sure that the lock is still held. No I/O: cheap enough for an inner loop.

        It passes too in a thread for which the lock is kept, as that goes on after the coroutine has released it.
        A check that finds a loss waits a moment for its reason, unless that would block an event loop. Raises
        :exc:`~django_zklock.exceptions.LockLost` if the lock is, or may be, lost, and
        :exc:`~django_zklock.exceptions.NotHeld` if it has been released. A pause between this check and what
        follows cannot be excluded; where that matters, hand :attr:`token` to the resource (M. Kleppmann, "How to
        do distributed locking").
        """
        if self.released and not self._goes_on():
            raise NotHeld(f"lock {self.key!r} has been released here", key=self.key)
        if self._possession.loss() is not None:
            raise self._loss_error()

    def _goes_on(self) -> bool:
        """Whether the lock is kept for the calling job, which was started while this hold lasted."""
        mine: list[Held] = owners.caller().available()
        return any(held._is_kept and held._possession is self._possession for held in mine)

    def _loss_error(self, advice: str = "") -> LockLost:
        """Return the error that says how the lock was lost, and what to do."""
        known = self._possession.wait_for_reason()
        later = "" if known else " (the signal `lost` will say why, if a reason was given)"
        return LockLost(
            f"lock {self.key!r} was lost after {time.time() - self.since:.1f} s: {self._possession.loss()}{later}; "
            f"another process may hold it now, {advice or f'so stop, or fence with token {self.token}'}",
            key=self.key,
        )

    def _when_lost(self, call: Callable[[], object]) -> Callable[[], bool]:
        """Call ``call`` when the lock is lost, see :meth:`Possession.when_lost`."""
        return self._possession.when_lost(call)

    @property
    def revoked(self) -> str | None:
        """Why a release was requested, or ``None`` if it was not. The holder may ignore it.

        Known within a seventh of the session timeout after the request.
        """
        return self._possession.contender.revoked

    def release(self, wait: bool = False) -> None:  # noqa: FBT001, FBT002 - the public contract
        """Release the lock. The server gets the request at once, or when it can be reached again; this does not wait.

        What a coroutine has started in threads while it held the lock keeps it until that has ended.

        With ``wait`` the call returns when the server has confirmed, which is after the end of those threads, or after
        the connect timeout of the connection.
        Never raises because of the server; releasing twice does nothing. In a process that inherited the hold over a
        fork it only forgets the hold. In a thread whose event loop runs, or in which nothing may wait, ``wait`` raises
        :exc:`~django_zklock.exceptions.AsyncUnsafe` after the release, instead of waiting.
        """
        contender = self._possession.contender
        # Such as that of a session that was closed. At exit no thread may be left to make the call below.
        is_gone = contender.state is State.GONE
        try:
            was_last = self._let_go()
        except BaseException:  # raised in this thread: a time limit, Ctrl-C
            self._let_go()
            raise
        if was_last:
            root = self._outermost or self
            root.lock.listener.notify("released", root.lock, held=root)
            if self._is_kept:
                logger.info("event=released_after_job key=%r token=%s", self.key, self.token)
        if not wait or is_gone or not (was_last or self._is_left_to_others()):
            return
        owners.check_may_wait(f"lock {self.key!r} is released, but the confirmation cannot be waited for", key=self.key)
        if owners.must_not_block():
            raise AsyncUnsafe(
                f"lock {self.key!r} is released, but blocking code cannot wait for the confirmation in the thread of "
                f"a running event loop, which would stop: use `await held.arelease()`, which does not wait for it, or "
                f"`await asyncio.to_thread(held.release, wait=True)`",
                key=self.key,
            )
        gone = self.lock.pool.system.event()
        contender.session.post(partial(contender.when_deleted, gone.set))
        timeout = self.lock.pool.options.connect_timeout
        if not gone.wait(timeout):
            logger.warning("event=release_unconfirmed key=%r waited=%s", self.key, timeout)

    def _is_left_to_others(self) -> bool:
        """Whether the lock is kept for jobs alone, none of which is the calling one."""
        kept = self._possession.kept_holds()
        return bool(kept) and owners.caller().owner not in [held._owner() for held in kept]

    async def arelease(self) -> None:
        """Release the lock like :meth:`release` without ``wait``."""
        raised = None
        try:
            raised = sys.exc_info()[1]
            if self._scope is not None and jobs.leave(self._scope) and not isinstance(raised, GeneratorExit):
                # In this turn of the loop asyncio cancels those jobs of cancelled tasks that have not begun. The others
                # can be seen in their threads then, and none is on its way out of the queue.
                await asyncio.sleep(0)
            was_last = self._let_go()
        except BaseException:
            self.release()
            raise
        if was_last:
            if isinstance(raised, asyncio.CancelledError):
                logger.info("event=released_at_cancellation key=%r token=%s", self.key, self.token)
            root = self._outermost or self
            await root.lock.listener.anotify("released", root.lock, held=root)

    def _overlaps(self, lock: LockValue) -> bool:
        """Whether this hold is on a node that ``lock`` would need."""
        return not self._possession.nodes.keys().isdisjoint(lock.paths) and self._counts_for(lock)

    def _counts_for(self, lock: LockValue) -> bool:
        """Whether this was acquired by this process, in the tree of ``lock``, and not released; it may be lost."""
        is_ours = not self.released and self._possession.contender.session.pid == os.getpid()
        return is_ours and self.lock.pool.tree == lock.pool.tree

    def _nest(
        self, lock: LockValue, owner: Owner, *, thread: Owner | None = None, alone: Sequence[Owner] = ()
    ) -> Held | None:
        """Return a nested hold on the same node; ``None`` if another thread has released the last one meanwhile.

        ``thread`` is the thread that ``owner`` needs to go on, if it is not that thread. With ``alone`` it is ``None``
        too while the lock is in use by others than these owners.
        """
        # Known to its owner before it is added: wherever an exception strikes, the owner finds and releases it.
        held = self._inner(lock, owners.Caller(owner, thread))
        if self._possession.nest(held._handle, alone=alone):
            return held
        held._let_go()
        return None

    def _inner(self, lock: LockValue, caller: Caller, *, is_kept: bool = False) -> Held:
        """Return a nested hold that is not added to the possession yet."""
        contender = self._possession.contender
        return Held(lock, contender, waited=0.0, caller=caller, outermost=self._outermost or self, is_kept=is_kept)

    def __enter__(self) -> Self:
        self.in_block = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._finish(raising=kind is None)

    async def __aenter__(self) -> Self:
        self.in_block = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        try:
            await self._afinish(raising=kind is None)
        except BaseException:  # also one that was thrown in before that began
            self.release()
            raise

    def _finish(self, *, raising: bool) -> None:
        """Release at the end of a body; raise ``LockLost`` if it was lost and ``raising``."""
        try:
            if raising and not self.released and self._possession.loss() is not None:
                raise self._loss_error()
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
                await self._possession.await_reason()
                self.check()
        finally:
            await self.arelease()

    def _forget(self) -> None:
        """Drop this hold, which is lost, and which nothing may ever release; warn once.

        A later check of it says that it is lost, and a later release does nothing. May be repeated after an exception
        has interrupted it.
        """
        if self._scope is not None:
            self._keep_for_jobs(self._scope)
        self._possession.drop(self._handle)
        owner = self._owner()
        try:
            if owner is not None:
                owner.holds.remove(self)
        except ValueError:  # another thread has released or forgotten it
            return
        logger.warning("event=forgotten key=%r token=%s reason=%s", self.key, self.token, self._possession.loss())

    def _let_go(self) -> bool:
        """Drop this handle; return ``True`` if that released the node too, for the first time.

        Local state comes first: from then on this is no held lock, whatever the network does. Every step may be done
        again, so that a release that an exception has interrupted can be repeated.
        """
        if self._scope is not None:
            self._keep_for_jobs(self._scope)
        self.released = True
        owner = self._owner()
        if owner is not None:
            try:  # noqa: SIM105 - `suppress` is four calls in Python
                owner.holds.remove(self)
            except ValueError:  # another thread has released it too
                pass
        return self._possession.drop(self._handle)

    # A hold follows the work: what a coroutine has started in threads, in a copy of its context, may go on when its
    # block has ended. Each such job gets a nested hold, which its end releases, so the node stays until then.
    #
    # The job is its owner, and may take the lock again as soon as it would be alone with it: others for which the lock
    # is kept are in its way, unless they wait for it themselves. A job that waits in the queue already is behind the
    # node that it keeps, so it is woken, and takes the lock here.

    def _keep_for_jobs(self, scope: ref[Scope]) -> None:
        """Keep the lock for each job that was started while this hold lasted and has not ended. May be repeated."""
        if not jobs.leave(scope) or self._possession.contender.session.pid != os.getpid():
            return
        try:
            found = jobs.started_in(scope)
        except (AttributeError, LookupError, RuntimeError, TypeError, ValueError):
            # Another version of an executor; what cannot be found must not keep the lock for ever. Not of all kinds: a
            # time limit may be any exception, and is for the caller.
            logger.exception("event=jobs_not_found key=%r token=%s", self.key, self.token)
            return
        kept_for = []
        for job in found:
            owner = owners.owner_of(job)
            known = [held for held in owner.holds if held._is_kept and held._possession is self._possession]
            kept: Held = known[0] if known else self._inner(self.lock, owners.Caller(owner, None), is_kept=True)
            if not self._possession.nest(kept._handle) or kept.released:
                kept._let_go()
                continue
            # Once more after an exception: releasing twice does nothing.
            job.future.add_done_callback(kept._release_after_job)
            if not known:
                kept_for.append(jobs.name_of(job))
        if kept_for:
            self._possession.wake_jobs()
            names = ", ".join(kept_for)
            logger.warning("event=release_deferred key=%r token=%s jobs=%r", self.key, self.token, names)

    def _release_after_job(self, _future: object) -> None:
        self.release()


def held_stack() -> list[Held]:
    """Return the holds of the calling owner, innermost last; the caller may change the list."""
    return owners.caller().owner.holds


def current(key: str | None = None, alias: str | None = None) -> Held | None:
    """Return the innermost hold of the calling owner, of ``key`` and of the pool ``alias`` if given, or ``None``."""
    held: Held
    for held in reversed(owners.caller().available()):
        # A hold that was inherited over a fork does not count.
        if (
            held._counts_for(held.lock)
            and (key is None or key in held.keys)
            and (alias is None or held.lock.pool.name == alias)
        ):
            return held
    return None
