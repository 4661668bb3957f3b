"""A small client of ZooKeeper for asyncio: one session on one connection, cheap enough to have a thousand of them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import NamedTuple

from tests.toolbox.protocol.jute import INT, Reader, integer
from tests.toolbox.protocol.operations import Create, Delete, Exists, GetChildren, Home, Operation, Sync
from tests.toolbox.protocol.session_client import connect_frame

Address = tuple[str, int]

HOME = Home()
CLOSE = -11
NOTIFICATION = -1
NO_NODE, NODE_EXISTS = -101, -110
CHILDREN_CHANGED = 4
# The bytes before the body of a reply: xid, zxid, error.
HEADER = 16


class WatchKey(NamedTuple):
    """What a watch is on: a node, or its children."""

    path: str
    children: bool


class Reply(NamedTuple):
    """An answer of the server; ``watch`` is the watch that the request has set."""

    error: int
    body: bytes
    watch: asyncio.Future[None] | None


class RequestError(Exception):
    """The server has refused a request, for a reason that no scheme expects."""


class Client(asyncio.Protocol):
    """One session, used by one task at a time. A watch is a future that ends with the notification."""

    def __init__(self) -> None:
        self._transport: asyncio.Transport
        self._incoming = bytearray()
        self._xid = 0
        self._connected = asyncio.get_running_loop().create_future()
        self._closed = asyncio.get_running_loop().create_future()
        # By the number of the request, each with the watch that the request sets.
        self._replies: dict[int, tuple[asyncio.Future[Reply], WatchKey | None]] = {}
        self._watches: dict[WatchKey, asyncio.Future[None]] = {}

    @classmethod
    async def connect(cls, address: Address, session_timeout: float) -> Client:
        """Return a client with a new session."""
        transport, client = await asyncio.get_running_loop().create_connection(cls, *address)
        try:
            await client.open_session(session_timeout)
        except BaseException:
            # Cancelled, for example: nothing else knows of the connection.
            transport.close()
            raise
        return client

    async def open_session(self, session_timeout: float) -> None:
        """Get a new session; the timeout is in seconds."""
        self._send(connect_frame(timeout=round(session_timeout * 1000)))
        await self._connected

    async def create(self, path: str, flags: int = 0) -> str | None:
        """Create a node and return its path, or None if it exists already."""
        reply = await self._call(Create(path, flags), expected=NODE_EXISTS)
        return None if reply is None else str(Reader(reply.body).text())

    async def delete(self, path: str) -> None:
        """Delete a node."""
        await self._call(Delete(path))

    async def watch(self, path: str) -> asyncio.Future[None] | None:
        """Return a watch on a node, or None if it does not exist."""
        reply = await self._call(Exists(path, watch=True), expected=NO_NODE, watch=WatchKey(path, children=False))
        return None if reply is None else reply.watch

    async def children(self, path: str) -> list[str]:
        """Return the names of the children."""
        reply = await self._call(GetChildren(path))
        assert reply is not None, "no error is expected"
        return _names(reply.body)

    async def watch_children(self, path: str) -> tuple[list[str], asyncio.Future[None]]:
        """Return the names of the children, and a watch on them."""
        reply = await self._call(GetChildren(path, watch=True), watch=WatchKey(path, children=True))
        assert reply is not None, "no error is expected"
        assert reply.watch is not None, "the request has set it"
        return _names(reply.body), reply.watch

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
        replies = [reply for reply, _watch in self._replies.values()]
        for waiting in [self._connected, *replies, *self._watches.values()]:
            if not waiting.done():
                waiting.set_exception(error or ConnectionError("the server has closed the connection"))
                # Most of the waiting tasks are cancelled by now.
                waiting.exception()

    def data_received(self, data: bytes) -> None:
        self._incoming += data
        for frame in take_frames(self._incoming):
            if not self._connected.done():
                self._connected.set_result(None)
            else:
                self._received(frame)

    # Requests and replies.

    async def _call(
        self, operation: Operation, *, expected: int | None = None, watch: WatchKey | None = None
    ) -> Reply | None:
        """Send a request; return the reply, or None for the expected error."""
        reply = await self._request(operation.opcode, operation.encode(HOME), watch)
        if reply.error == expected:
            return None
        if reply.error:
            raise RequestError(f"{operation} was refused with the error {reply.error}")
        return reply

    def _request(self, opcode: int, body: bytes, watch: WatchKey | None = None) -> asyncio.Future[Reply]:
        self._xid += 1
        reply = asyncio.get_running_loop().create_future()
        self._replies[self._xid] = reply, watch
        self._send(integer(self._xid) + integer(opcode) + body)
        return reply

    def _send(self, frame: bytes) -> None:
        self._transport.write(integer(len(frame)) + frame)

    def _received(self, frame: bytes) -> None:
        (xid,), (error,) = INT.unpack_from(frame), INT.unpack_from(frame, HEADER - INT.size)
        if xid == NOTIFICATION:
            reader = Reader(frame[HEADER:])
            kind, _state, path = reader.integer(), reader.integer(), str(reader.text())
            watch = self._watches.pop(WatchKey(path, kind == CHILDREN_CHANGED), None)
            if watch is not None and not watch.done():
                watch.set_result(None)
        else:
            reply, key = self._replies.pop(xid)
            # Here and not in the task that waits: the notification may come right behind the reply.
            watch = self._watch(key) if key is not None and not error else None
            if not reply.done():
                reply.set_result(Reply(error, frame[HEADER:], watch))

    def _watch(self, key: WatchKey) -> asyncio.Future[None]:
        if key not in self._watches:
            self._watches[key] = asyncio.get_running_loop().create_future()
        return self._watches[key]


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
