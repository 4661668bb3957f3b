"""Sessions: their numbers, passwords and timeouts."""

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
        """Close it after all replies have been sent."""
        ...


class ServerSession:
    """One session; ``timeout`` is in seconds, ``link`` is its connection, or None."""

    def __init__(self, number: int, timeout: float) -> None:
        """Generate its password."""
        self.id = number
        self.password = secrets.token_bytes(PASSWORD_BYTES)
        self.timeout = timeout
        self.link: Link | None = None
        # By the clock of the event loop.
        self.expires_at = 0.0
        self.timer: asyncio.TimerHandle | None = None
        # Set at its end, for other threads.
        self.ended = threading.Event()


class Sessions:
    """All open sessions; belongs to the thread of the event loop."""

    def __init__(self, expire: Callable[[ServerSession], None]) -> None:
        """Keep the callback for a session that has expired."""
        self._expire = expire
        self._by_id: dict[int, ServerSession] = {}
        # Like ZooKeeper's, numbers start from the time, so that a restarted server does not repeat them.
        self._last = (time.time_ns() // 1_000_000 << 24) % 2**64 >> 8

    def __iter__(self) -> Iterator[ServerSession]:
        """Return the sessions, oldest first."""
        return iter(list(self._by_id.values()))

    def __len__(self) -> int:
        """Return the number of sessions."""
        return len(self._by_id)

    def get(self, number: int) -> ServerSession | None:
        """Return an open session, or None."""
        return self._by_id.get(number)

    def open(self, timeout: float) -> ServerSession:
        """Open a session."""
        self._last += 1
        session = self._by_id[self._last] = ServerSession(self._last, timeout)
        self.touch(session)
        return session

    def touch(self, session: ServerSession) -> None:
        """Restart the timeout of a session."""
        loop = asyncio.get_running_loop()
        session.expires_at = loop.time() + session.timeout
        # A timer that is already set starts again when it fires too early.
        if session.timer is None or session.timer.when() > session.expires_at:
            self._start_timer(session)

    def remove(self, session: ServerSession) -> None:
        """Remove a session that has ended."""
        self._by_id.pop(session.id, None)
        if session.timer is not None:
            session.timer.cancel()

    def suspend(self) -> None:
        """Stop the timers while the server is stopped; the sessions stay open."""
        for session in self:
            if session.timer is not None:
                session.timer.cancel()
                session.timer = None

    def resume(self) -> None:
        """Restart the timeout of every session after the server has started again."""
        for session in self:
            self.touch(session)

    def _start_timer(self, session: ServerSession) -> None:
        if session.timer is not None:
            session.timer.cancel()
        session.timer = asyncio.get_running_loop().call_at(session.expires_at, self._on_timer, session)

    def _on_timer(self, session: ServerSession) -> None:
        session.timer = None
        if asyncio.get_running_loop().time() < session.expires_at:
            self._start_timer(session)
        else:
            self._expire(session)
