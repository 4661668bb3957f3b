"""A proxy between clients and a server that counts what passes: requests, notifications and bytes."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from statistics import fmean
from typing import TYPE_CHECKING

from benchmarks.schemes.client import NOTIFICATION, Address, take_frames
from tests.toolbox.protocol.jute import INT

if TYPE_CHECKING:
    from typing import Self

LOOPBACK = "127.0.0.1"
CHUNK = 1 << 18
PING_XID = -2
# What keeps or ends a session belongs to no hand-over: sync (a heartbeat), ping, close.
SESSION_OPCODES = frozenset({9, 11, -11})


@dataclass(frozen=True)
class Traffic:
    """Requests, notifications, and the bytes of both and of the replies."""

    requests: float = 0
    notifications: float = 0
    bytes: float = 0

    def __sub__(self, other: Traffic) -> Traffic:
        return Traffic(
            self.requests - other.requests, self.notifications - other.notifications, self.bytes - other.bytes
        )


def mean(several: Sequence[Traffic]) -> Traffic:
    """Return the mean of several."""
    return Traffic(
        fmean(each.requests for each in several),
        fmean(each.notifications for each in several),
        fmean(each.bytes for each in several),
    )


class Tap:
    """Listens at ``address``, and connects each client to the server; used as an async context manager."""

    def __init__(self, server: Address) -> None:
        self.traffic = Traffic()
        self._server = server
        self._connections: set[asyncio.Task[None]] = set()

    async def __aenter__(self) -> Self:
        self._listener = await asyncio.start_server(self._connect, LOOPBACK, 0, backlog=1024)
        self.address: Address = self._listener.sockets[0].getsockname()
        return self

    async def __aexit__(self, *_error: object) -> None:
        self._listener.close()
        for each in self._connections:
            each.cancel()
        await asyncio.gather(*self._connections, return_exceptions=True)

    def count(self, size: int, *, requests: int = 0, notifications: int = 0) -> None:
        """Count a frame of this number of bytes."""
        now = self.traffic
        self.traffic = Traffic(now.requests + requests, now.notifications + notifications, now.bytes + size)

    async def _connect(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None, "asyncio runs this in a task"
        self._connections.add(task)
        task.add_done_callback(self._connections.discard)
        server_reader, server_writer = await asyncio.open_connection(*self._server)
        counter = _Counter(self)
        # Either side may be closed while the other still sends.
        with suppress(OSError, asyncio.CancelledError):
            await asyncio.gather(
                _forward(reader, server_writer, counter.count_requests),
                _forward(server_reader, writer, counter.count_replies),
            )
        writer.close()
        server_writer.close()


class _Counter:
    """Counts the frames of one connection. The first frame of each direction opens the session."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._requests, self._replies = bytearray(), bytearray()
        self._opened_requests = self._opened_replies = False
        # The replies to requests that are not counted.
        self._uncounted = {PING_XID}

    def count_requests(self, data: bytes) -> None:
        self._requests += data
        for frame in take_frames(self._requests):
            if not self._opened_requests:
                self._opened_requests = True
                continue
            (xid,), (opcode,) = INT.unpack_from(frame), INT.unpack_from(frame, INT.size)
            if opcode in SESSION_OPCODES:
                self._uncounted.add(xid)
            else:
                self._tap.count(INT.size + len(frame), requests=1)

    def count_replies(self, data: bytes) -> None:
        self._replies += data
        for frame in take_frames(self._replies):
            if not self._opened_replies:
                self._opened_replies = True
                continue
            (xid,) = INT.unpack_from(frame)
            if xid not in self._uncounted:
                self._tap.count(INT.size + len(frame), notifications=int(xid == NOTIFICATION))


async def _forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, count: Callable[[bytes], None]) -> None:
    while data := await reader.read(CHUNK):
        # Counted first: what a client has received is in the figures.
        count(data)
        writer.write(data)
        await writer.drain()
    writer.write_eof()
