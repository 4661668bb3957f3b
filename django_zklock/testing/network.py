"""The way between clients and server: late, swallowed or cut when a test wants it so.

All of this belongs to the thread of the server's event loop, but for ``Cut.wait`` and ``Hole.requests``.
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
    """Which way."""

    REQUESTS = "requests"
    REPLIES = "replies"


@dataclass(eq=False)
class Cut:
    """A reply of which only some bytes get through before the connection ends."""

    opcode: Opcode
    after_bytes: int
    session: int | None
    happened: threading.Event = field(default_factory=threading.Event)

    def wait(self, timeout: float = 5.0) -> None:
        """Wait until it has happened, for seconds; raise TimeoutError."""
        if not self.happened.wait(timeout):
            msg = f"no {self.opcode.label} was answered in {timeout:g} s, so no reply was cut"
            raise TimeoutError(msg)


@dataclass(eq=False)
class Hole:
    """Directions in which nothing gets through, for one session or, with None, for all."""

    directions: frozenset[Direction]
    session: int | None
    # What is in it.
    requests: RequestLog = field(default_factory=RequestLog)


@dataclass(eq=False)
class Delay:
    """Directions in which everything takes seconds longer."""

    directions: frozenset[Direction]
    seconds: float


class Network:
    """What happens to bytes on their way; faults of the same kind can be there at once."""

    def __init__(self) -> None:
        """Begin with a network without faults."""
        self.delays: list[Delay] = []
        self.holes: list[Hole] = []
        self.cuts: list[Cut] = []

    def delay(self, direction: Direction) -> float:
        """Give the seconds that the way takes."""
        return sum(each.seconds for each in self.delays if direction in each.directions)

    def is_hole(self, direction: Direction, session: int) -> bool:
        """Tell whether nothing gets through."""
        return bool(self._holes(direction, session))

    def lose(self, request: LoggedRequest) -> None:
        """Log a request that is in a hole."""
        for hole in self._holes(Direction.REQUESTS, request.session):
            hole.requests.add(request)

    def take_cut(self, opcode: Opcode, session: int) -> Cut | None:
        """Give the cut that this reply must suffer, once."""
        for cut in self.cuts:
            if cut.opcode is opcode and cut.session in {None, session}:
                self.cuts.remove(cut)
                return cut
        return None

    def _holes(self, direction: Direction, session: int) -> list[Hole]:
        return [hole for hole in self.holes if direction in hole.directions and hole.session in {None, session}]


class Pipe:
    """One direction of one connection: what goes in comes out in order, at once unless there is a fault."""

    def __init__(
        self,
        direction: Direction,
        network: Network,
        session: Callable[[], int],
        deliver: Callable[[bytes | None], None],
    ) -> None:
        """Take where to ask for faults, and where things come out; None is the end."""
        self._direction = direction
        self._network = network
        self._session = session
        self._deliver = deliver
        # With the time at which it was put in.
        self._waiting: deque[tuple[float, bytes | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def blocked(self) -> bool:
        """Whether nothing gets through."""
        return bool(self._network.holes) and self._network.is_hole(self._direction, self._session())

    def put(self, item: bytes | None) -> None:
        """Send something on its way."""
        if not self._waiting and not self.blocked and not self._network.delay(self._direction):
            self._deliver(item)
            return
        self._waiting.append((asyncio.get_running_loop().time(), item))
        self.pump()

    def pump(self) -> None:
        """Let out what has waited long enough; to be called when a fault ends."""
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
        """Give what is on its way."""
        return b"".join(item for _, item in self._waiting if item)

    def close(self) -> None:
        """Forget what is on its way."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
