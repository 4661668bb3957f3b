"""The log of requests, in which a test can count and for which it can wait."""

from __future__ import annotations

import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from .protocol import Opcode

# The log keeps this number of requests; the counts have no limit.
MAX_REQUESTS = 10_000


@dataclass(frozen=True)
class LoggedRequest:
    """One request: its session, its xid, its opcode, and the path of its node, or None."""

    session: int
    xid: int
    opcode: Opcode
    path: str | None


class RequestLog:
    """The requests in the order in which the server has handled them.

    Any thread may call any method. A request is logged before its reply is sent.
    """

    def __init__(self) -> None:
        """Start with an empty log."""
        self._requests: deque[LoggedRequest] = deque(maxlen=MAX_REQUESTS)
        self._counts: Counter[Opcode] = Counter()
        self._copies: list[RequestLog] = []
        # Guards all of this, and wakes the threads that wait.
        self._changed = threading.Condition()

    def add(self, request: LoggedRequest) -> None:
        """Log a request."""
        with self._changed:
            self._requests.append(request)
            self._counts[request.opcode] += 1
            self._changed.notify_all()
            copies = self._copies[:]
        for copy in copies:
            copy.add(request)

    @contextmanager
    def copied_to(self, copy: RequestLog) -> Iterator[None]:
        """Log every request in ``copy`` too, inside of the context."""
        with self._changed:
            self._copies.append(copy)
        try:
            yield
        finally:
            with self._changed:
                self._copies.remove(copy)

    def clear(self) -> None:
        """Remove all requests, and count from zero."""
        with self._changed:
            self._requests.clear()
            self._counts.clear()

    def counts(self) -> dict[str, int]:
        """Return the number of requests of each kind, by the names of the protocol such as ``"getData"``."""
        with self._changed:
            return {opcode.label: count for opcode, count in self._counts.items()}

    def count(self, opcode: str | Opcode) -> int:
        """Return the number of requests of one kind; raise ValueError for a kind that does not exist."""
        wanted = Opcode.named(opcode)
        with self._changed:
            return self._counts[wanted]

    def all(self) -> list[LoggedRequest]:
        """Return the last ten thousand requests, oldest first."""
        with self._changed:
            return list(self._requests)

    def wait_for(self, opcode: str | Opcode, count: int = 1, *, path: str | None = None, timeout: float = 30.0) -> None:
        """Wait for ``count`` requests of a kind; with ``path`` only those for this node, of the last ten thousand.

        ``timeout`` is in seconds. Raises TimeoutError, which lists the requests so far, and ValueError for a kind
        that does not exist.
        """
        wanted = Opcode.named(opcode)

        def seen() -> int:
            if path is None:
                return self._counts[wanted]
            return sum(1 for each in self._requests if each.opcode is wanted and each.path == path)

        with self._changed:
            # Its clock is that of threading, which no tool freezes.
            if not self._changed.wait_for(lambda: seen() >= count, timeout):
                what = f"{wanted.label} requests" + ("" if path is None else f" for {path}")
                msg = f"{seen()} of {count} {what} within {timeout:g} s; all requests: {self.counts()}"
                raise TimeoutError(msg)
