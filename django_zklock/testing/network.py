"""The way between clients and server: late, swallowed or cut when a test wants it so.

All of this belongs to the thread of the server's event loop, but for ``Cut.wait``.
"""

from __future__ import annotations

import asyncio
import threading
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum

from .protocol import Opcode


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


class Network:
    """What happens to bytes on their way."""

    def __init__(self) -> None:
        """Begin with a network without faults."""
        self.delays = dict.fromkeys(Direction, 0.0)
        # Directions that are holes, for one session or, with None, for all.
        self.holes: set[tuple[Direction, int | None]] = set()
        self.cuts: list[Cut] = []

    def is_hole(self, direction: Direction, session: int) -> bool:
        """Tell whether nothing gets through."""
        return (direction, None) in self.holes or (direction, session) in self.holes

    def take_cut(self, opcode: Opcode, session: int) -> Cut | None:
        """Give the cut that this reply must suffer, once."""
        for cut in self.cuts:
            if cut.opcode is opcode and cut.session in {None, session}:
                self.cuts.remove(cut)
                return cut
        return None


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
        self._waiting: deque[tuple[float, bytes | None]] = deque()
        self._timer: asyncio.TimerHandle | None = None

    @property
    def blocked(self) -> bool:
        """Whether nothing gets through."""
        return self._network.is_hole(self._direction, self._session())

    def put(self, item: bytes | None) -> None:
        """Send something on its way."""
        delay = self._network.delays[self._direction]
        if not delay and not self._waiting and not self.blocked:
            self._deliver(item)
            return
        self._waiting.append((asyncio.get_running_loop().time() + delay, item))
        self.pump()

    def pump(self) -> None:
        """Let out what has waited long enough; to be called when a fault ends."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        loop = asyncio.get_running_loop()
        while self._waiting and not self.blocked:
            due, item = self._waiting[0]
            if due > loop.time():
                self._timer = loop.call_at(due, self.pump)
                return
            self._waiting.popleft()
            self._deliver(item)

    def close(self) -> None:
        """Forget what is on its way."""
        self._waiting.clear()
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
