"""The connection of one client: bytes in, bytes out, and the frames in them."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import struct
import time
from typing import Protocol

from . import four_letter, jute
from .client import Client
from .four_letter import ServerState
from .jute import MalformedError
from .network import Direction, Pipe
from .protocol import Opcode

logger = logging.getLogger("django_zklock.testing")

# ZooKeeper's jute.maxbuffer.
MAX_FRAME = 0xFFFFF
# Seconds in which buffered replies must be sent when the connection is closed.
CLOSE_TIMEOUT = 10.0
# Bytes of replies that are collected for one write.
BATCH = 1 << 16
# Bytes of events that a client may leave unread. Replies need no limit: while a client does not read them, its
# requests wait.
MAX_UNREAD = 1 << 24
# SO_LINGER with a time of zero: the socket sends a reset when it is closed.
RESET = struct.pack("ii", 1, 0)


class Host(ServerState, Protocol):
    """The server that a connection belongs to."""

    connections: dict[ClientConnection, None]


class ClientConnection(asyncio.Protocol):
    """A connection, from its first byte to its last; belongs to the thread of the event loop.

    The replies to requests that arrive together are sent together. An event is queued between them when it happens,
    so a client gets it before every reply that shows the change.
    """

    def __init__(self, host: Host, address: tuple[str, int]) -> None:
        """Keep the server and the address of the client."""
        self._host = host
        self.peer = (_java_address(address[0]), address[1])
        self.received = self.sent = 0
        self.since = time.time()
        self._incoming = bytearray()
        self._outgoing: list[bytes] = []
        self._outgoing_bytes = 0
        self._handling = False
        # The client does not read its replies.
        self._write_paused = False
        # The client has sent its last byte.
        self._ended = False
        # The number of bytes in a black hole whose requests have been logged.
        self._logged_bytes = 0
        # No more requests are handled; replies may still be under way.
        self._closing = False
        self._aborted = False

    # Called by the event loop.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first frame, with a timeout."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._socket: socket.socket = transport.get_extra_info("socket")
        service = self._host.service
        self.client = Client(service, self.peer[0], self)
        self._requests = Pipe(Direction.REQUESTS, service.network, lambda: self.client.requested_session, self._receive)
        self._replies = Pipe(Direction.REPLIES, service.network, lambda: self.client.requested_session, self._write)
        timeout = service.options.sessionless_timeout
        self._timer = asyncio.get_running_loop().call_later(timeout, self.close)
        self._host.connections[self] = None

    def data_received(self, data: bytes) -> None:
        """Handle received bytes, when the network lets them through."""
        self._requests.put(data)
        if self._requests.blocked:
            self._log_swallowed()

    def eof_received(self) -> bool:
        """Close after everything before has been handled; return True to keep the transport open until then."""
        self._requests.put(None)
        return True

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Remove the connection."""
        if not self._aborted:
            # A process that was forked in C still has the socket open: closing it here alone would not end it.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._end()
        self._requests.close()
        self._replies.close()
        self._host.connections.pop(self, None)

    def pause_writing(self) -> None:
        """Stop reading from a client that does not read its replies."""
        self._write_paused = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Resume reading and handle what has been read."""
        self._write_paused = False
        if not self._transport.is_closing():
            self._transport.resume_reading()
            self._handle_frames()

    # Called by the rest of the server.

    @property
    def descriptor(self) -> int:
        """The file descriptor of the socket; negative after it is closed."""
        return self._socket.fileno()

    @property
    def closing(self) -> bool:
        """Whether it handles no more requests."""
        return self._closing

    def send(self, opcode: Opcode, frame: bytes) -> None:
        """Send the reply to a request of this kind."""
        if self._closing:
            return
        self.sent += 1
        self._host.packets_sent += 1
        data = jute.INT.pack(len(frame)) + frame
        cut = self._host.service.network.take_cut(opcode, self.client.requested_session)
        self._buffer(data if cut is None else data[: cut.after_bytes])
        if cut is not None:
            self.close()
            cut.happened.set()
        elif not self._handling or self._outgoing_bytes > BATCH:
            self._flush()

    def heal(self) -> None:
        """Let through what a fault has held back, unless another fault still does."""
        self._handle_frames()
        self._requests.pump()
        self._replies.pump()
        if not self._requests.blocked:
            self._logged_bytes = 0

    def close(self) -> None:
        """Handle no more requests, and close after all replies have been sent."""
        if not self._closing:
            self._end()
            self._flush()
            self._replies.put(None)

    def abort(self) -> None:
        """Reset the connection."""
        self._end()
        self._aborted = True
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._transport.abort()

    # Bytes and frames.

    def _end(self) -> None:
        self._closing = True
        self._timer.cancel()
        self.client.disconnect()

    def _receive(self, data: bytes | None) -> None:
        if data is None:
            self._ended = True
        elif not self._closing:
            self._incoming += data
        self._handle_frames()

    def _write(self, data: bytes | None) -> None:
        if self._transport.is_closing():
            return
        if data is None:
            self._transport.close()
            # The transport waits until everything is sent: for ever if the client does not read.
            self._timer = asyncio.get_running_loop().call_later(CLOSE_TIMEOUT, self.abort)
        elif self._transport.get_write_buffer_size() > MAX_UNREAD:
            self.abort()
        else:
            self._transport.write(data)

    def _buffer(self, data: bytes) -> None:
        self._outgoing.append(data)
        self._outgoing_bytes += len(data)

    def _flush(self) -> None:
        if self._outgoing:
            data = b"".join(self._outgoing)
            self._outgoing.clear()
            self._outgoing_bytes = 0
            self._replies.put(data)

    def _handle_frames(self) -> None:
        self._handling = True
        offset = 0
        try:
            while not self._closing and not self._write_paused and not self._requests.blocked:
                if self.client.session is None and self._answer_command():
                    break
                frame = _frame(self._incoming, offset)
                if frame is None:
                    if self._ended:
                        self.close()
                    break
                if not self._handle(frame):
                    break
                offset += jute.INT.size + len(frame)
        except MalformedError:
            self.close()
        except Exception:  # a bug in one reply must not end the server
            logger.exception("error while answering peer=%s:%s", *self.peer)
            self.close()
        finally:
            del self._incoming[:offset]
            self._handling = False
            self._flush()

    def _answer_command(self) -> bool:
        """Answer a four-letter command, which can only come first; return whether it was one."""
        answer = four_letter.COMMANDS.get(bytes(self._incoming[: jute.INT.size]))
        if answer is None:
            return False
        self._count()
        self._buffer(answer(self._host, self).encode())
        self.close()
        return True

    def _handle(self, frame: bytes) -> bool:
        """Return whether the frame was handled; otherwise it waits for the end of a fault."""
        if self.client.session is not None:
            self._count()
            self.client.handle(frame)
            return True
        self.client.read_session(frame)
        # Now the session is known, and it may be in a black hole.
        if self._requests.blocked:
            self._log_swallowed()
            return False
        self._count()
        self._timer.cancel()
        self.client.connect(frame)
        return True

    def _log_swallowed(self) -> None:
        """Log the requests that wait in a black hole."""
        waiting = bytes(self._incoming) + self._requests.waiting()
        with contextlib.suppress(MalformedError):
            # Without a session only the first frame is known: it is the connect request.
            while self.client.session is not None or not self._logged_bytes:
                frame = _frame(waiting, self._logged_bytes)
                if frame is None:
                    break
                self._logged_bytes += jute.INT.size + len(frame)
                self.client.log_swallowed(frame)

    def _count(self) -> None:
        self.received += 1
        self._host.packets_received += 1


def _java_address(host: str) -> str:
    """Return an address in Java's format: an IPv6 address has all eight groups."""
    if ":" not in host:
        return host
    address, scope, name = host.partition("%")
    groups = ipaddress.IPv6Address(address).exploded.split(":")
    return ":".join(f"{int(group, 16):x}" for group in groups) + scope + name


def _frame(data: bytes | bytearray, offset: int) -> bytes | None:
    """Return the frame at ``offset``, or None if it is incomplete; raise MalformedError for a wrong length."""
    start = offset + jute.INT.size
    if len(data) < start:
        return None
    (length,) = jute.INT.unpack_from(data, offset)
    if not 0 < length <= MAX_FRAME:
        msg = f"a frame of {length} bytes"
        raise MalformedError(msg)
    return bytes(data[start : start + length]) if len(data) >= start + length else None
