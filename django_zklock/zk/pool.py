"""The sessions of one process to one ensemble."""

from __future__ import annotations

import atexit
import logging
import os
import threading
import time
import weakref
import zlib
from dataclasses import dataclass

from django_zklock.zk import keys
from django_zklock.zk.clock import Clock
from django_zklock.zk.session import Session
from django_zklock.zk.wire import ConnectionOptions

logger = logging.getLogger("django_zklock.pool")

CLOSE_TIMEOUT = 2.0


@dataclass(frozen=True, kw_only=True)
class PoolOptions:
    """What a pool needs to know. Times are seconds; ``root`` is a path without a slash at its end."""

    connection: ConnectionOptions
    root: str = "/django_zklock"
    size: int = 1
    connect_timeout: float = 5.0
    strict: bool = False


class Pool:
    """A fixed number of lazy, multiplexed sessions; a key always goes to the same one.

    One session carries any number of locks, so ``size`` is about spreading load over servers, not about
    concurrency. Any thread may use a pool. It is emptied in a forked child, which makes sessions of its own
    at first use, and closed when the interpreter exits, so that a normal end of the process frees its locks at
    once.
    """

    def __init__(self, name: str, options: PoolOptions) -> None:
        self.name = name
        self.options = options
        self._making = threading.RLock()
        self._sessions: dict[int, Session] = {}
        self._clock = Clock()
        self._pid = os.getpid()
        _pools.add(self)

    def __repr__(self) -> str:
        return f"<Pool {self.name!r} hosts={self.options.connection.hosts!r} root={self.options.root!r}>"

    def path(self, key: str) -> str:
        """Give the path of the line for ``key``."""
        return f"{self.options.root}/{keys.escape(key)}"

    def session(self, path: str) -> Session:
        """Give the session for ``path``, begun if it was not. Does not wait for a connection."""
        self._mind_the_fork()
        place = zlib.crc32(path.encode()) % self.options.size
        session = self._sessions.get(place)
        if session is None or session.ended is not None:
            session = self._begin(place)
        return session

    def sessions(self) -> list[Session]:
        """Give the sessions begun so far."""
        return list(self._sessions.values())

    def close(self, timeout: float = CLOSE_TIMEOUT) -> bool:
        """End every session, which frees every lock held through it; the pool may be used again.

        Waits at most ``timeout`` seconds for the servers; ``False`` if one has not answered by then, and its
        locks go when the session times out.
        """
        self._mind_the_fork()
        with self._making:
            sessions, clock = self.sessions(), self._clock
            self._sessions, self._clock = {}, Clock()
        end = time.monotonic() + timeout
        closed = [session.close(max(0.0, end - time.monotonic())) for session in sessions]
        clock.stop()
        if not all(closed):
            logger.warning("event=close_unconfirmed pool=%s timeout=%s", self.name, timeout)
        return all(closed)

    def forget(self) -> None:
        """In a forked child: leave the parent's sessions alone and start with none."""
        sessions, self._pid = self.sessions(), os.getpid()
        # A new lock too: the old one may have been held by a thread that is not in the child.
        self._making, self._sessions, self._clock = threading.RLock(), {}, Clock()
        for session in sessions:
            session.forget()

    def _mind_the_fork(self) -> None:
        # os.register_at_fork sees to this, but not in servers that fork without Python's knowledge (uWSGI).
        if self._pid != os.getpid():
            self.forget()

    def _begin(self, place: int) -> Session:
        with self._making:
            session = self._sessions.get(place)
            if session is None or session.ended is not None:
                if session is not None:
                    # Its thread has ended; this lets go of its descriptors.
                    session.close(CLOSE_TIMEOUT)
                session = Session(
                    self.options.connection,
                    clock=self._clock,
                    name=f"{self.name}-{place}",
                    patience=self.options.connect_timeout,
                    strict=self.options.strict,
                )
                try:
                    session.start()
                    self._sessions[place] = session
                except BaseException:  # thrown into this thread: nobody else would ever end that session
                    session.close(0)
                    raise
            return session


_pools: weakref.WeakSet[Pool] = weakref.WeakSet()


def _forget_all() -> None:
    for pool in list(_pools):
        pool.forget()


def close_all(timeout: float = CLOSE_TIMEOUT) -> None:
    """Close every pool of this process, within ``timeout`` seconds each."""
    for pool in list(_pools):
        pool.close(timeout)


atexit.register(close_all)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget_all)
