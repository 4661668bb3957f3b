"""A small client of ZooKeeper for asyncio: one session on one connection, cheap enough to have a thousand of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress

from tests.support.protocol.jute import INT, Reader, integer
from tests.support.protocol.operations import Create, Delete, Exists, GetChildren, Home, Operation, Sync
from tests.support.protocol.session_client import connect_frame

Address = tuple[str, int]

HOME = Home()
CLOSE = -11
NOTIFICATION = -1
NO_NODE, NODE_EXISTS = -101, -110
CHILDREN_CHANGED = 4
# The bytes before the body of a reply: xid, zxid, error.
HEADER = 16


class RequestError(Exception):
    """The server has refused a request, for a reason that no scheme expects."""


class Client(asyncio.Protocol):
    """One session, used by one task at a time. A watch is a future that ends with the notification."""

    def __init__(self) -> None:
        self.frames_received = 0
        self._transport: asyncio.Transport
        self._incoming = bytearray()
        self._xid = 0
        self._connected = asyncio.get_running_loop().create_future()
        self._closed = asyncio.get_running_loop().create_future()
        self._replies: dict[int, asyncio.Future[bytes]] = {}
        # By path, and whether the children are watched.
        self._watches: dict[tuple[str, bool], asyncio.Future[None]] = {}

    @classmethod
    async def connect(cls, address: Address, session_timeout: float) -> Client:
        """Return a client with a new session."""
        _, client = await asyncio.get_running_loop().create_connection(cls, *address)
        await client.open_session(session_timeout)
        return client

    async def open_session(self, session_timeout: float) -> None:
        """Get a new session; the timeout is in seconds."""
        self._send(connect_frame(timeout=round(session_timeout * 1000)))
        await self._connected

    async def create(self, path: str, flags: int = 0) -> str | None:
        """Create a node and return its path, or None if it exists already."""
        reply = await self._call(Create(path, flags), NODE_EXISTS)
        return None if reply is None else str(Reader(reply).text())

    async def delete(self, path: str) -> None:
        """Delete a node."""
        await self._call(Delete(path))

    async def watch(self, path: str) -> asyncio.Future[None] | None:
        """Return a watch on a node, or None if it does not exist."""
        reply = await self._call(Exists(path, watch=True), NO_NODE)
        return None if reply is None else self._watch(path, children=False)

    async def children(self, path: str) -> list[str]:
        """Return the names of the children."""
        return _names(await self._call(GetChildren(path)) or b"")

    async def watch_children(self, path: str) -> tuple[list[str], asyncio.Future[None]]:
        """Return the names of the children, and a watch on them."""
        reply = await self._call(GetChildren(path, watch=True)) or b""
        return _names(reply), self._watch(path, children=True)

    async def sync(self) -> None:
        """Wait until the client has received everything that the server had to send before."""
        await self._call(Sync("/"))

    async def close(self) -> None:
        """End the session, which deletes its nodes."""
        # The server may close the connection before it has sent the reply.
        with suppress(ConnectionError):
            await self._request(CLOSE, b"")
        self._transport.close()
        await self._closed

    # asyncio.Protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def connection_lost(self, error: Exception | None) -> None:
        self._closed.set_result(None)
        for waiting in [self._connected, *self._replies.values(), *self._watches.values()]:
            if not waiting.done():
                waiting.set_exception(error or ConnectionError("the server has closed the connection"))
                # Most of the waiting tasks are cancelled by now.
                waiting.exception()

    def data_received(self, data: bytes) -> None:
        self._incoming += data
        for frame in take_frames(self._incoming):
            self.frames_received += 1
            if not self._connected.done():
                self._connected.set_result(None)
            else:
                self._received(frame)

    # Requests and replies.

    async def _call(self, operation: Operation, *expected: int) -> bytes | None:
        """Send a request; return the body of the reply, or None for an expected error."""
        reply = await self._request(operation.opcode, operation.encode(HOME))
        (error,) = INT.unpack_from(reply, HEADER - INT.size)
        if error in expected:
            return None
        if error:
            raise RequestError(f"{operation} was refused with the error {error}")
        return reply[HEADER:]

    def _request(self, opcode: int, body: bytes) -> asyncio.Future[bytes]:
        self._xid += 1
        reply = self._replies[self._xid] = asyncio.get_running_loop().create_future()
        self._send(integer(self._xid) + integer(opcode) + body)
        return reply

    def _send(self, frame: bytes) -> None:
        self._transport.write(integer(len(frame)) + frame)

    def _received(self, frame: bytes) -> None:
        (xid,) = INT.unpack_from(frame)
        if xid == NOTIFICATION:
            reader = Reader(frame[HEADER:])
            kind, _state, path = reader.integer(), reader.integer(), str(reader.text())
            watch = self._watches.pop((path, kind == CHILDREN_CHANGED), None)
            if watch is not None and not watch.done():
                watch.set_result(None)
        else:
            reply = self._replies.pop(xid)
            if not reply.done():
                reply.set_result(frame)

    def _watch(self, path: str, *, children: bool) -> asyncio.Future[None]:
        watch = self._watches.get((path, children))
        if watch is None:
            watch = self._watches[path, children] = asyncio.get_running_loop().create_future()
        return watch


def take_frames(incoming: bytearray) -> list[bytes]:
    """Remove the complete frames from the received bytes, and return them without their lengths."""
    frames, start = [], 0
    while len(incoming) >= start + INT.size:
        end = start + INT.size + int(INT.unpack_from(incoming, start)[0])
        if len(incoming) < end:
            break
        frames.append(bytes(incoming[start + INT.size : end]))
        start = end
    del incoming[:start]
    return frames


def _names(reply: bytes) -> list[str]:
    # A thousand waiters decode a thousand names each: no method is called for a name.
    unpack: Callable[[bytes, int], tuple[int]] = INT.unpack_from
    names, start = [], INT.size
    while start < len(reply):
        end = start + INT.size + unpack(reply, start)[0]
        names.append(reply[start + INT.size : end].decode())
        start = end
    return names
