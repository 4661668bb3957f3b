"""The network between clients and server, with delays, black holes and cuts on demand.

Everything belongs to the thread of the server's event loop, except ``Cut.wait`` and ``Hole.requests``.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from .protocol import Opcode
from .requestlog import LoggedRequest, RequestLog


class Direction(Enum):
    """A direction of a connection."""

    REQUESTS = "requests"
    REPLIES = "replies"


@dataclass(eq=False)
class Cut:
    """A reply of which only the first bytes are sent before the connection is closed."""

    opcode: Opcode
    after_bytes: int
    session: int | None
    happened: threading.Event = field(default_factory=threading.Event)

    def wait(self, timeout: float = 30.0) -> None:
        """Wait until it has happened; ``timeout`` is in seconds. Raises TimeoutError."""
        if not self.happened.wait(timeout):
            msg = f"no reply was cut: no {self.opcode.label} was answered within {timeout:g} s"
            raise TimeoutError(msg)


@dataclass(eq=False)
class Hole:
    """Directions in which nothing gets through, for one session, or for all with None."""

    directions: frozenset[Direction]
    session: int | None
    # The requests in it.
    requests: RequestLog = field(default_factory=RequestLog)


@dataclass(eq=False)
class Delay:
    """Directions in which everything is delayed."""

    directions: frozenset[Direction]
    seconds: float


class Network:
    """The faults of the network; there can be several of each kind."""

    def __init__(self) -> None:
        """Start without faults."""
        self.delays: list[Delay] = []
        self.holes: list[Hole] = []
        self.cuts: list[Cut] = []

    def delay(self, direction: Direction) -> float:
        """Return the delay in seconds."""
        return sum(each.seconds for each in self.delays if direction in each.directions)

    def is_hole(self, direction: Direction, session: int) -> bool:
        """Return whether nothing gets through."""
        return bool(self._holes(direction, session))

    def log_swallowed(self, request: LoggedRequest) -> None:
        """Log a request that is in a black hole."""
        for hole in self._holes(Direction.REQUESTS, request.session):
            hole.requests.add(request)

    def take_cut(self, opcode: Opcode, session: int) -> Cut | None:
        """Return the cut for this reply, or None, and remove it."""
        for cut in self.cuts:
            if cut.opcode is opcode and cut.session in {None, session}:
                self.cuts.remove(cut)
                return cut
        return None

    def _holes(self, direction: Direction, session: int) -> list[Hole]:
        return [hole for hole in self.holes if direction in hole.directions and hole.session in {None, session}]


class Pipe:
    """One direction of one connection: it delivers items in order, at once unless there is a fault."""

    def __init__(
        self,
        direction: Direction,
        network: Network,
        session: Callable[[], int],
        deliver: Callable[[bytes | None], None],
    ) -> None:
        """Keep the faults, and the function that gets the items; the item None is the end."""
        self._direction = direction
        self._network = network
        self._session = session
        self._deliver = deliver
        # Items with the time at which they were put.
        self._waiting: deque[tuple[float, bytes | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def blocked(self) -> bool:
        """Whether nothing gets through."""
        return bool(self._network.holes) and self._network.is_hole(self._direction, self._session())

    def put(self, item: bytes | None) -> None:
        """Deliver an item, now or after the faults."""
        if not self._waiting and not self.blocked and not self._network.delay(self._direction):
            self._deliver(item)
            return
        self._waiting.append((asyncio.get_running_loop().time(), item))
        self.pump()

    def pump(self) -> None:
        """Deliver the items that have waited long enough; to be called when a fault ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        while self._waiting and not self.blocked:
            put_at, item = self._waiting[0]
            left = put_at + self._network.delay(self._direction) - loop.time()
            if left > 0:
                self._timer = loop.call_later(left, self.pump)
                return
            self._waiting.popleft()
            self._deliver(item)

    def waiting(self) -> bytes:
        """Return the bytes that are held back."""
        return b"".join(item for _, item in self._waiting if item)

    def close(self) -> None:
        """Discard the items that are held back."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
