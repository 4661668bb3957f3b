"""The sessions of one process to one ensemble."""

from __future__ import annotations

import atexit
import logging
import os
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Hashable
from dataclasses import dataclass
from functools import partial

from django_zklock.zk import background, paths
from django_zklock.zk.background import BackgroundCalls, TimerThread
from django_zklock.zk.session import Session
from django_zklock.zk.wire import ConnectionOptions

logger = logging.getLogger("django_zklock.pool")

CLOSE_TIMEOUT = 2.0
# The session for inspection is closed when it was not used for this time, in seconds.
IDLE_TIMEOUT = 60.0
INSPECTION = "inspection"
# Two, because one may be busy with a connection that is slow to close.
ACTION_THREADS = 2
LISTENER_THREADS = 8


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """The options of a pool. Times are seconds; ``root`` is a path without a slash at its end."""

    connection: ConnectionOptions
    root: str = "/django_zklock"
    size: int = 1
    connect_timeout: float = 5.0
    strict: bool = False


class Pool:
    """A fixed number of lazy, multiplexed sessions; a key always goes to the same one.

    One session carries any number of locks, so ``size`` spreads load over servers and does not limit concurrency.
    Operations on the locks of others use a session of their own, see :meth:`inspection`. Any thread may use a pool. In
    a forked child it is empty, and makes new sessions at first use. It is closed when the interpreter exits, so that a
    normal end of the process frees its locks at once.
    """

    def __init__(self, name: str, options: PoolOptions, *, tree: Hashable | None = None) -> None:
        """Make a pool; ``tree`` is equal for all pools whose locks are known to be in the same tree."""
        self.name = name
        self.options = options
        self.tree = id(self) if tree is None else tree
        # By process id; after the first use in a process it has one entry. Each step that changes it is atomic, so no
        # lock is needed, which a fork could copy while it is taken.
        self._contents: dict[int, _Contents] = {}
        _pools.add(self)

    def __repr__(self) -> str:
        return f"<Pool {self.name!r} hosts={self.options.connection.hosts!r} root={self.options.root!r}>"

    def path(self, key: str) -> str:
        """Return the path of the lock of ``key``."""
        return f"{self.options.root}/{paths.escape(key)}"

    def session(self, path: str) -> Session:
        """Return the session for ``path``, and start it if necessary. Does not wait for a connection."""
        return self._session(str(zlib.crc32(path.encode()) % self.options.size))

    def inspection(self) -> Session:
        """Return a session that carries no lock, and start it if necessary. Does not wait for a connection.

        Reading ten thousand queues takes many requests. On this session they do not delay the heartbeats that keep
        locks. It is closed when it was not used for a minute.
        """
        return self._session(INSPECTION)

    def sessions(self) -> list[Session]:
        """Return the started sessions for locks."""
        return [session for slot, session in self._begun().items() if slot != INSPECTION]

    @property
    def inspecting(self) -> Session | None:
        """The session for inspection, if it is started."""
        return self._begun().get(INSPECTION)

    @property
    def actions(self) -> BackgroundCalls:
        """The threads for calls that end or interrupt a body whose lock is lost: short calls that must be prompt."""
        return self._here().actions

    @property
    def listeners(self) -> BackgroundCalls:
        """The threads that notify listeners, each of which may be slow."""
        return self._here().listeners

    def close(self, timeout: float = CLOSE_TIMEOUT) -> bool:
        """End every session, which frees every lock held through it; the pool may be used again.

        Waits at most ``timeout`` seconds for the servers. Returns ``False`` if one has not answered by then; its locks
        are freed when the session times out.
        """
        self.forget()
        contents = self._contents.pop(os.getpid(), None)
        if contents is None:
            return True
        with contents.beginning:
            contents.closed = True
            sessions = list(contents.sessions.values())
        end = time.monotonic() + timeout
        closed = [session.close(max(0.0, end - time.monotonic())) for session in sessions]
        contents.clock.stop()
        if not all(closed):
            logger.warning("event=close_unconfirmed pool=%s timeout=%s", self.name, timeout)
        return all(closed)

    def forget(self) -> None:
        """In a forked child: leave the parent's sessions alone and start with none."""
        pid = os.getpid()
        for other in [each for each in list(self._contents) if each != pid]:
            # Only one thread gets it.
            inherited = self._contents.pop(other, None)
            for session in list(inherited.sessions.values()) if inherited is not None else ():
                session.forget()

    def _begun(self) -> dict[str, Session]:
        contents = self._contents.get(os.getpid())
        return {} if contents is None else contents.sessions.copy()

    def _here(self) -> _Contents:
        """Return what belongs to this process."""
        pid = os.getpid()
        contents = self._contents.get(pid)
        if contents is None:
            # os.register_at_fork discards inherited sessions, but not in servers that fork without Python's knowledge
            # (uWSGI). Those are stored under the parent's process id, so they are not found here.
            self.forget()
            contents = self._contents.setdefault(pid, _Contents())
        return contents

    def _session(self, slot: str) -> Session:
        while True:
            contents = self._here()
            session = contents.sessions.get(slot)
            if session is None or session.ended is not None or slot == INSPECTION:
                session = self._open_session(contents, slot)
            if session is not None:
                return session

    def _open_session(self, contents: _Contents, slot: str) -> Session | None:
        """Start the session of that slot if there is none; return ``None`` if the pool was closed meanwhile."""
        with contents.beginning:
            if contents.closed:
                return None
            if slot == INSPECTION:
                contents.inspected = time.monotonic()
            session = contents.sessions.get(slot)
            if session is None or session.ended is not None:
                if session is not None:
                    # Its thread is about to end, and this closes its descriptors. In the background, because an event
                    # loop may wait for this call.
                    contents.actions.submit(partial(session.close, CLOSE_TIMEOUT))
                session = Session(
                    self.options.connection,
                    timers=contents.clock,
                    name=f"{self.name}-{slot}",
                    connect_timeout=self.options.connect_timeout,
                    # No lock depends on the connection of the session for inspection.
                    strict=self.options.strict and slot != INSPECTION,
                )
                try:
                    session.start()
                    contents.sessions[slot] = session
                except BaseException:  # raised in this thread: no other code would ever end that session
                    session.close(0)
                    raise
                if slot == INSPECTION:
                    self._end_when_idle(contents, session)
                _expect_exit()
            return session

    def _end_when_idle(self, contents: _Contents, session: Session) -> None:
        contents.clock.call_later(IDLE_TIMEOUT / 4, partial(self._close_if_idle, contents, session))

    def _close_if_idle(self, contents: _Contents, session: Session) -> None:
        # On the timer thread. Guarded, so that the session is not returned to a caller while it is closed.
        with contents.beginning:
            if contents.sessions.get(INSPECTION) is not session:
                return
            if session.in_use or time.monotonic() - contents.inspected < IDLE_TIMEOUT:
                self._end_when_idle(contents, session)
                return
            del contents.sessions[INSPECTION]
        contents.actions.submit(partial(session.close, CLOSE_TIMEOUT))


class _Contents:
    """The contents of a pool in one process, made at first use, when monkey patches are in slot."""

    def __init__(self) -> None:
        self.clock = TimerThread()
        # Guards `sessions` and `closed`. Reentrant, for a signal handler that acquires a lock.
        self.beginning = threading.RLock()
        self.closed = False
        self.sessions: dict[str, Session] = {}
        # When the session for inspection was last used, on the monotonic clock.
        self.inspected = 0.0
        self.actions = BackgroundCalls("zklock-actions", threads=ACTION_THREADS, call_later=self.clock.call_later)
        self.listeners = BackgroundCalls("zklock-listeners", threads=LISTENER_THREADS, call_later=self.clock.call_later)


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _forget_all() -> None:
    for pool in list(_pools):
        pool.forget()


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
    os.register_at_fork(after_in_child=_forget_all)
