"""What clients have asked for: a log that a test can count in and wait on."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from dataclasses import dataclass

from .protocol import Opcode

# Requests kept; the counts go on beyond that.
KEPT = 10_000


@dataclass(frozen=True)
class LoggedRequest:
    """One request: its session, its number there, what it asked for, and of which node if it named one."""

    session: int
    xid: int
    opcode: Opcode
    path: str | None


class RequestLog:
    """The requests in the order in which the server has taken them up.

    Any thread may call any method. A request is logged before it is answered.
    """

    def __init__(self) -> None:
        """Begin with none."""
        self._requests: deque[LoggedRequest] = deque(maxlen=KEPT)
        self._counts: Counter[Opcode] = Counter()
        # Guards the two above, and wakes those who wait.
        self._changed = threading.Condition()

    def add(self, request: LoggedRequest) -> None:
        """Log a request."""
        with self._changed:
            self._requests.append(request)
            self._counts[request.opcode] += 1
            self._changed.notify_all()

    def clear(self) -> None:
        """Forget all requests, and count from nought."""
        with self._changed:
            self._requests.clear()
            self._counts.clear()

    def counts(self) -> dict[str, int]:
        """Give how many requests there were of each kind, by the names of the protocol such as ``"getData"``."""
        with self._changed:
            return {opcode.label: count for opcode, count in self._counts.items()}

    def count(self, opcode: str | Opcode) -> int:
        """Give how many requests there were of one kind; raise ValueError for a kind that does not exist."""
        wanted = Opcode.named(opcode)
        with self._changed:
            return self._counts[wanted]

    def all(self) -> list[LoggedRequest]:
        """Give the last ten thousand requests, oldest first."""
        with self._changed:
            return list(self._requests)

    def wait_for(self, opcode: str | Opcode, count: int = 1, *, path: str | None = None, timeout: float = 5.0) -> None:
        """Wait until there were ``count`` requests of a kind; with ``path``, for that node among the last ten thousand.

        ``timeout`` is in seconds. Raises TimeoutError with the requests there were, and ValueError for a kind
        that does not exist.
        """
        wanted = Opcode.named(opcode)

        def seen() -> int:
            if path is None:
                return self._counts[wanted]
            return sum(1 for each in self._requests if each.opcode is wanted and each.path == path)

        deadline = time.monotonic() + timeout
        with self._changed:
            while seen() < count:
                left = deadline - time.monotonic()
                if left <= 0:
                    what = f"{wanted.label} requests" + ("" if path is None else f" for {path}")
                    msg = f"{seen()} of {count} {what} in {timeout:g} s, and in all {self.counts()}"
                    raise TimeoutError(msg)
                self._changed.wait(left)
