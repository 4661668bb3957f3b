"""The sessions of one process to one ensemble.

The module keeps all pools, to close them at exit and after a fork, and the processes that have an exit hook for this.
"""

from __future__ import annotations

import atexit
import os
import sys
import threading
import weakref
import zlib
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial

from django_zklock.exceptions import ZooKeeperUnavailable
from django_zklock.zk import background, owners, paths
from django_zklock.zk.background import DeferredLogger
from django_zklock.zk.formatting import advise
from django_zklock.zk.session import Session
from django_zklock.zk.system import MACHINE, Calls, System
from django_zklock.zk.waiting import can_start_threads
from django_zklock.zk.wire import MAX_REQUEST, ConnectionOptions
from django_zklock.zk.wire.options import NOT_STARTED

logger = DeferredLogger("django_zklock.pool")

CLOSE_TIMEOUT = 2.0
# The session for inspection and overflow sessions are closed when they were not used for this time, in seconds.
IDLE_TIMEOUT = 60.0
INSPECTION = "inspection"
# Bytes of the paths of all nodes of a session. A server reads a transaction of twice jute.maxbuffer, or less if it sets
# jute.maxbuffer.extrasize; half of it is safe on every server that leaves jute.maxbuffer alone.
SESSION_BUDGET = MAX_REQUEST // 2
# Two, because one may be busy with a connection that is slow to close.
ACTION_THREADS = 2
LISTENER_THREADS = 8


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """The options of a pool. Times are seconds; ``root`` is a path without a slash at its end.

    ``name_code`` says to the makers of locks whether the name of their code may be in the nodes.

    ``budget`` is how many bytes the paths of the nodes of one session may have, see
    :class:`~django_zklock.zk.session.Session`. Only tests set it.
    """

    connection: ConnectionOptions
    root: str = "/django_zklock"
    size: int = 1
    budget: int = SESSION_BUDGET
    connect_timeout: float = 5.0
    strict: bool = False
    name_code: bool = True


class Pool:
    """A fixed number of lazy, multiplexed home sessions, and more while these are full.

    A key always has the same home, so ``size`` spreads load over servers and does not limit concurrency. A contender
    that finds its home full joins in an overflow session of that home, see :class:`~django_zklock.zk.session.Session`;
    so one key may have contenders in several sessions. Operations on the locks of others use a session of their own,
    see :meth:`inspection`. Any thread may use a pool. In a forked child it is empty, and makes new sessions at first
    use. It is closed when the interpreter exits, so that a normal end of the process frees its locks at once.
    """

    def __init__(
        self, name: str, options: PoolOptions, *, tree: Hashable | None = None, system: System = MACHINE
    ) -> None:
        """Make a pool; ``tree`` is equal for all pools whose locks are known to be in the same tree."""
        self.system = system
        self.name = name
        self.options = options
        self.tree = id(self) if tree is None else tree
        # By process id; after the first use in a process it has one entry. Each step that changes it is atomic, so no
        # lock is needed, which a fork could copy while it is taken.
        self._states: dict[int, _ProcessState] = {}
        _pools.add(self)

    def __repr__(self) -> str:
        return f"<Pool {self.name!r} hosts={self.options.connection.hosts!r} root={self.options.root!r}>"

    def path(self, key: str) -> str:
        """Return the path of the lock of ``key``."""
        return f"{self.options.root}/{paths.escape(key)}"

    def session(self, path: str | None) -> Session:
        """Return the home session of ``path``, and start it if necessary. Does not wait for a connection.

        If it cannot be started at this moment, for want of a descriptor, a thread or memory, the session has a
        ``start_failure``, and begins when that is possible. Raises ``ZooKeeperUnavailable`` if it never will be.

        A contender of ``path`` may be in another session; its ``session`` says in which. Without a path this is
        :meth:`inspection`.
        """
        slot = INSPECTION if path is None else str(zlib.crc32(path.encode()) % self.options.size)
        while True:
            state = self._states.get(os.getpid()) or self._of_this_process()
            session = state.sessions.get(slot)
            if session is None or session.ended is not None or session.start_failure is not None or slot == INSPECTION:
                session = self._open_session(state, slot)
            if session is not None:
                return session

    def inspection(self) -> Session:
        """Return a session that carries no lock, and start it if necessary. Does not wait for a connection.

        Reading ten thousand queues takes many requests. On this session they do not delay the heartbeats that keep
        locks. It is closed when it was not used for a minute.
        """
        return self.session(None)

    def sessions(self) -> list[Session]:
        """Return the started sessions for locks, overflow sessions too."""
        return [session for slot, session in self._started().items() if slot != INSPECTION]

    def overflow_sessions(self) -> list[Session]:
        """Return those of :meth:`sessions` that were started because a home was full."""
        return [session for slot, session in self._started().items() if "+" in slot]

    @property
    def inspecting(self) -> Session | None:
        """The session for inspection, if it is started."""
        return self._started().get(INSPECTION)

    @property
    def actions(self) -> Calls:
        """The threads for calls that end or interrupt a body whose lock is lost: short calls that must be prompt."""
        return self._of_this_process().actions

    @property
    def listeners(self) -> Calls:
        """The threads that notify listeners, each of which may be slow."""
        return self._of_this_process().listeners

    def close(self, timeout: float = CLOSE_TIMEOUT) -> bool:
        """End every session, which frees every lock held through it; the pool may be used again.

        Waits at most ``timeout`` seconds for the servers. Returns ``False`` if one has not answered by then; its locks
        are freed when the session times out. The threads of the pool end soon after.

        Raises ``AsyncUnsafe`` in a thread in which nothing may wait.
        """
        owners.check_may_wait(f"the sessions of {self.name!r} cannot be closed")
        pid = os.getpid()
        self.abandon_inherited(keep=pid)
        state = self._states.pop(pid, None)
        if state is None:
            return True
        with state.home_guard, state.overflow_guard:
            state.closed = True
            sessions = list(state.sessions.values())
        end = self.system.monotonic() + timeout
        # All at the same time, because a server needs a while for a session with thousands of nodes. No contender of
        # one session is granted a lock that the end of another one has freed.
        for session in sessions:
            session.closing = True
        for session in sessions:
            session.wire.begin_close()
        closed = [session.close(max(0.0, end - self.system.monotonic())) for session in sessions]
        state.timers.stop()
        if not all(closed):
            logger.warning("event=close_unconfirmed pool=%s timeout=%s", self.name, timeout)
        return all(closed)

    def abandon_inherited(self, *, keep: int = 0) -> None:
        """In a forked child: leave the parent's sessions alone; those of the process ``keep`` are its own."""
        for other in [each for each in list(self._states) if each != keep]:
            # Only one thread gets it.
            inherited = self._states.pop(other, None)
            for session in list(inherited.sessions.values()) if inherited is not None else ():
                session.abandon()

    def _started(self) -> dict[str, Session]:
        state = self._states.get(os.getpid())
        return {} if state is None else state.sessions.copy()

    def _of_this_process(self) -> _ProcessState:
        """Return what belongs to this process."""
        pid = os.getpid()
        state = self._states.get(pid)
        if state is None:
            # os.register_at_fork discards inherited sessions, but not in servers that fork without Python's knowledge
            # (uWSGI). Those are stored under the parent's process id, so they are not found here.
            self.abandon_inherited(keep=pid)
            state = self._states.setdefault(pid, _ProcessState(self.system))
        return state

    def _open_session(self, state: _ProcessState, slot: str) -> Session | None:
        """Start the session of that slot if there is none; return ``None`` if the pool was closed meanwhile."""
        with state.home_guard:
            if state.closed:
                return None
            session = state.sessions.get(slot)
            if session is None or session.ended is not None:
                session = self._start_session(state, slot, home=slot)
            elif session.start_failure is not None:
                session.start_wire()
            session.used_at = self.system.monotonic()
            return session

    def _overflow(self, state: _ProcessState, home: str, size: int) -> Session:
        """Return a session of that home that has room for ``size`` bytes, and start one if none has.

        Called under the monitor of a session that has no room, for each contender that joins there. Thousands may come
        at once: the first one starts a session, and the others find it. If it is full when they get there, they ask
        again.
        """
        with state.overflow_guard:
            if state.closed:
                raise ConnectionError("the session was closed")
            # One slot beside the home more than there are sessions, so that one is free: the home has none while
            # another thread starts it anew.
            slots = [home, *(f"{home}+{number}" for number in range(1, len(state.sessions) + 2))]
            usable = {
                slot: session
                for slot in slots
                if (session := state.sessions.get(slot)) is not None and session.ended is None
            }
            session = next((each for each in usable.values() if each.has_room(size)), None)
            if session is None:
                # Never the home: that is started by the threads of users, under `home_guard`.
                slot = next(slot for slot in slots[1:] if slot not in usable)
                session = self._start_session(state, slot, home=home)
                logger.info("event=session_full pool=%s budget=%d next=%s", self.name, self.options.budget, slot)
            session.used_at = self.system.monotonic()
            return session

    def _start_session(self, state: _ProcessState, slot: str, *, home: str) -> Session:
        ended = state.sessions.pop(slot, None)
        if ended is not None:
            # Its thread is about to end, and this closes its descriptors. In the background, because an event loop may
            # wait for this call.
            state.actions.submit(partial(ended.close, CLOSE_TIMEOUT))
        try:
            session = Session(
                self.options.connection,
                timers=state.timers,
                name=f"{self.name}-{slot}",
                connect_timeout=self.options.connect_timeout,
                budget=self.options.budget,
                overflow=partial(self._overflow, state, home),
                # No lock depends on the connection of the session for inspection.
                strict=self.options.strict and slot != INSPECTION,
                system=self.system,
            )
        except (OSError, MemoryError) as error:  # the first one imports kazoo
            facts = f"{NOT_STARTED}: {error!r}"
            raise ZooKeeperUnavailable(f"{facts}; {advise(facts, self.options.connection.hosts)}") from error
        known = None
        try:
            session.start()
            if (failure := session.start_failure) is not None and not can_start_threads():
                raise ZooKeeperUnavailable(
                    f"{NOT_STARTED}, now or later: {failure!r}; use locks before the interpreter exits, and only in "
                    f"one that allows daemon threads"
                ) from failure
            # T1 is interrupted here by a signal handler, which takes a lock and starts the session of the same slot.
            known = state.sessions.setdefault(slot, session)
        finally:
            if known is not session:  # also after an exception in this thread: nothing else would ever end that session
                session.close(0)
        if known is not session:
            return known
        if slot == INSPECTION or slot != home:
            self._end_when_idle(state, slot, session)
        _expect_exit()
        return session

    def _end_when_idle(self, state: _ProcessState, slot: str, session: Session) -> None:
        check = partial(self._close_if_idle, state, slot, session)
        state.timers.call_later(IDLE_TIMEOUT / 4, partial(session.post, check))

    def _close_if_idle(self, state: _ProcessState, slot: str, session: Session) -> None:
        # Under the session's monitor, so that no contender joins meanwhile: one that was given the session before this
        # finds no room in it later, and asks again. Guarded, so that no caller is given a session that is closed.
        guard = state.home_guard if slot == INSPECTION else state.overflow_guard
        # T1, a thread of a user, has the guard, and is interrupted by a finalizer that waits for a lock. T1 may need
        # this thread, which must not wait for it.
        if not guard.acquire(blocking=False):
            self._end_when_idle(state, slot, session)
            return
        try:
            if state.sessions.get(slot) is not session:
                return
            now = self.system.monotonic()
            if session.listeners:
                session.used_at = now
            if now - session.used_at < IDLE_TIMEOUT:
                self._end_when_idle(state, slot, session)
                return
            session.closing = True
            del state.sessions[slot]
        finally:
            guard.release()
        state.actions.submit(partial(session.close, CLOSE_TIMEOUT))


class _ProcessState:
    """The state of a pool in one process, made at first use, when monkey patches are in place."""

    def __init__(self, system: System) -> None:
        self.timers = system.timers()
        # Guard `sessions` and `closed`. Both are reentrant, for a signal handler that acquires a lock.
        #
        # T1, in the main thread, starts a home and has `home_guard` when a signal handler interrupts it, which waits
        # for a lock in another home. That one is full, and its thread must start an overflow session without
        # `home_guard`. So threads of sessions take `overflow_guard`, under the monitor of a session; threads of users
        # take it only to close the pool.
        self.home_guard = threading.RLock()
        self.overflow_guard = threading.RLock()
        self.closed = False
        # Homes are "0", "1", …, and the overflow sessions of "0" are "0+1", "0+2", …
        self.sessions: dict[str, Session] = {}
        self.actions = system.calls("zklock-actions", threads=ACTION_THREADS, call_later=self.timers.call_later)
        # Receivers of signals may take other locks. No heartbeat and no other lock depends on these threads.
        self.listeners = system.calls(
            "zklock-listeners", threads=LISTENER_THREADS, may_wait=True, call_later=self.timers.call_later
        )


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _abandon_all() -> None:
    _expected.clear()
    for pool in list(_pools):
        pool.abandon_inherited()


def pools_of(tree: Hashable) -> list[Pool]:
    """Return the pools of this process whose locks are known to be in ``tree``."""
    return [pool for pool in list(_pools) if pool.tree == tree]


def close_all(timeout: float = CLOSE_TIMEOUT) -> None:
    """Close every pool of this process, within ``timeout`` seconds each."""
    for pool in list(_pools):
        pool.close(timeout)


# Processes that end without atexit and have a hook that calls close_all(), with the module of the hook.
_expected: set[tuple[int, str]] = set()


def _expect_exit() -> None:
    """Close everything also at the end of a child of multiprocessing, which ends by os._exit, without atexit."""
    # A child process of one of these modules has imported it.
    for name in ("multiprocessing.util", "billiard.util"):
        util = sys.modules.get(name)
        if util is not None and (os.getpid(), name) not in _expected:
            _expected.add((os.getpid(), name))
            # Below 0: after the children of the child have ended.
            util.Finalize(None, _end, exitpriority=-50)


def _end() -> None:
    close_all()
    background.flush_log()


atexit.register(close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_abandon_all)
