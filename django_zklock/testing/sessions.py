"""Sessions: numbers, passwords, and how long a silent one lives."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Callable, Iterator
from typing import Protocol

PASSWORD_BYTES = 16


class Link(Protocol):
    """What a session needs of its connection."""

    def close(self) -> None:
        """Close it once everything that was sent is on its way."""
        ...


class Session:
    """One session; ``timeout`` is in seconds, ``link`` the connection that it has, if it has one."""

    def __init__(self, number: int, timeout: float) -> None:
        """Make a password for it."""
        self.id = number
        self.password = secrets.token_bytes(PASSWORD_BYTES)
        self.timeout = timeout
        self.link: Link | None = None
        # In the time of the event loop.
        self.expires_at = 0.0
        self.timer: asyncio.TimerHandle | None = None
        # For other threads that wait for its end.
        self.ended = threading.Event()


class Sessions:
    """All sessions that live; belongs to the thread of the event loop."""

    def __init__(self, expire: Callable[[Session], None]) -> None:
        """Take what to do with a session that has been silent for too long."""
        self._expire = expire
        self._by_id: dict[int, Session] = {}
        # As ZooKeeper makes them: from the time, so that a server started anew gives out no number twice.
        self._last = (time.time_ns() // 1_000_000 << 24) % 2**64 >> 8

    def __iter__(self) -> Iterator[Session]:
        """Give the sessions, oldest first."""
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        """How many there are."""
        return len(self._by_id)

    def get(self, number: int) -> Session | None:
        """Find a session that lives."""
        return self._by_id.get(number)

    def open(self, timeout: float) -> Session:
        """Begin a session."""
        self._last += 1
        session = self._by_id[self._last] = Session(self._last, timeout)
        self.touch(session)
        return session

    def touch(self, session: Session) -> None:
        """Have a session live for another timeout from now."""
        loop = asyncio.get_running_loop()
        session.expires_at = loop.time() + session.timeout
        # A timer that is set already finds out by itself that it is early.
        if session.timer is None or session.timer.when() > session.expires_at:
            self._arm(session)

    def remove(self, session: Session) -> None:
        """Forget a session that has ended."""
        self._by_id.pop(session.id, None)
        if session.timer is not None:
            session.timer.cancel()

    def suspend(self) -> None:
        """Stop the timers, because the server stops; its sessions do not."""
        for session in self:
            if session.timer is not None:
                session.timer.cancel()
                session.timer = None

    def resume(self) -> None:
        """Have every session live for another timeout, because the server has started again."""
        for session in self:
            self.touch(session)

    def _arm(self, session: Session) -> None:
        if session.timer is not None:
            session.timer.cancel()
        session.timer = asyncio.get_running_loop().call_at(session.expires_at, self._look, session)

    def _look(self, session: Session) -> None:
        session.timer = None
        if asyncio.get_running_loop().time() < session.expires_at:
            self._arm(session)
        else:
            self._expire(session)
