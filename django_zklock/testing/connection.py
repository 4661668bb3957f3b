"""One connection: bytes in, bytes out, and the frames in them."""

from __future__ import annotations

import asyncio
import contextlib
import ipaddress
import logging
import socket
import struct
import time
from typing import Protocol

from . import jute, words
from .client import Client
from .jute import MalformedError
from .network import Direction, Pipe
from .protocol import Opcode
from .service import Service

logger = logging.getLogger("django_zklock.testing")

# ZooKeeper's jute.maxbuffer.
MAX_FRAME = 0xFFFFF
# Seconds for what was sent to leave once the connection is to be closed.
LAST_WORDS = 10.0
# Bytes of replies that are collected before they leave.
BATCH = 1 << 16
# Bytes of events that a client may leave unread. Of replies there are never many: while a client does not read
# them, its requests wait.
MAX_UNREAD = 1 << 24
# SO_LINGER: on, for no time, which has the socket send a reset when it is closed.
RESET = struct.pack("ii", 1, 0)


class Host(Protocol):
    """The server that a connection belongs to."""

    service: Service
    connections: dict[Connection, None]
    started_at: float
    packets_received: int
    packets_sent: int


class Connection(asyncio.Protocol):
    """A connection, from its first byte to its last; belongs to the thread of the event loop.

    Replies to what has arrived together leave together. An event is put among them where it happens, so it comes
    before every reply that shows what it tells.
    """

    def __init__(self, host: Host) -> None:
        """Take the server; there is nothing yet."""
        self._host = host
        self.peer = ("", 0)
        self.received = self.sent = 0
        self.since = time.time()
        self._arrived = bytearray()
        self._leaving: list[bytes] = []
        self._leaving_bytes = 0
        self._handling = False
        # The client does not read.
        self._choked = False
        # The client has sent its last byte.
        self._ended = False
        # How many bytes of what waits in a hole have been logged.
        self._lost = 0
        # Nothing is taken up any more; what was sent may still be on its way.
        self._closing = False
        self._aborted = False

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first frame, but not for ever."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self._socket: socket.socket = transport.get_extra_info("socket")
        host, port = transport.get_extra_info("peername")[:2]
        self.peer = (_in_full(host), port)
        service = self._host.service
        self.client = Client(service, self.peer[0], self)
        self._requests = Pipe(Direction.REQUESTS, service.network, lambda: self.client.claimed, self._take)
        self._replies = Pipe(Direction.REPLIES, service.network, lambda: self.client.claimed, self._give)
        patience = service.options.sessionless_timeout
        self._patience = asyncio.get_running_loop().call_later(patience, self.close)
        self._host.connections[self] = None

    def data_received(self, data: bytes) -> None:
        """Take what has arrived, when the network lets it."""
        self._requests.put(data)
        if self._requests.blocked:
            self._log_lost()

    def eof_received(self) -> bool:
        """Close when all that came before has arrived; whether to keep the other direction open until then."""
        self._requests.put(None)
        return True

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Forget the connection."""
        if not self._aborted:
            # A process that was forked in C still has the socket: closing it here alone would not end anything.
            with contextlib.suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)
        self._end()
        self._requests.close()
        self._replies.close()
        self._host.connections.pop(self, None)

    def pause_writing(self) -> None:
        """Read no more from a client that does not read, and do no more for it."""
        self._choked = True
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Go on."""
        self._choked = False
        if not self._transport.is_closing():
            self._transport.resume_reading()
            self._handle_frames()

    # What the rest of the server calls.

    @property
    def descriptor(self) -> int:
        """The number of the socket, negative once it is closed."""
        return self._socket.fileno()

    @property
    def closing(self) -> bool:
        """Whether it takes up nothing more."""
        return self._closing

    def send(self, opcode: Opcode, frame: bytes) -> None:
        """Send the reply to such a request."""
        if self._closing:
            return
        self.sent += 1
        self._host.packets_sent += 1
        data = jute.INT.pack(len(frame)) + frame
        cut = self._host.service.network.take_cut(opcode, self.client.claimed)
        self._leave(data if cut is None else data[: cut.after_bytes])
        if cut is not None:
            self.close()
            cut.happened.set()
        elif not self._handling or self._leaving_bytes > BATCH:
            self._flush()

    def heal(self) -> None:
        """Let through what a fault has held back, if it is over."""
        self._handle_frames()
        self._requests.pump()
        self._replies.pump()
        if not self._requests.blocked:
            self._lost = 0

    def close(self) -> None:
        """Take up nothing more, and close once everything that was sent is on its way."""
        if not self._closing:
            self._end()
            self._flush()
            self._replies.put(None)

    def abort(self) -> None:
        """End the connection at once; the client sees a reset."""
        self._end()
        self._aborted = True
        with contextlib.suppress(OSError):
            self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET)
        self._transport.abort()

    # Bytes and frames.

    def _end(self) -> None:
        self._closing = True
        self._patience.cancel()
        self.client.leave()

    def _take(self, data: bytes | None) -> None:
        if data is None:
            self._ended = True
        elif not self._closing:
            self._arrived += data
        self._handle_frames()

    def _give(self, data: bytes | None) -> None:
        if self._transport.is_closing():
            return
        if data is None:
            self._transport.close()
            # It waits for what was written to leave, for ever if the client does not read.
            self._patience = asyncio.get_running_loop().call_later(LAST_WORDS, self.abort)
        elif self._transport.get_write_buffer_size() > MAX_UNREAD:
            self.abort()
        else:
            self._transport.write(data)

    def _leave(self, data: bytes) -> None:
        self._leaving.append(data)
        self._leaving_bytes += len(data)

    def _flush(self) -> None:
        if self._leaving:
            data = b"".join(self._leaving)
            self._leaving.clear()
            self._leaving_bytes = 0
            self._replies.put(data)

    def _handle_frames(self) -> None:
        self._handling = True
        place = 0
        try:
            while not self._closing and not self._choked and not self._requests.blocked:
                if self.client.session is None and self._answer_word():
                    break
                frame = _frame(self._arrived, place)
                if frame is None:
                    if self._ended:
                        self.close()
                    break
                if not self._handle(frame):
                    break
                place += jute.INT.size + len(frame)
        except MalformedError:
            self.close()
        except Exception:  # a mistake of this server must not end it
            logger.exception("error while answering peer=%s:%s", *self.peer)
            self.close()
        finally:
            del self._arrived[:place]
            self._handling = False
            self._flush()

    def _answer_word(self) -> bool:
        """Answer if this is a four-letter word, which can only come first."""
        answer = words.WORDS.get(bytes(self._arrived[: jute.INT.size]))
        if answer is None:
            return False
        self._count()
        self._leave(answer(self._host, self).encode())
        self.close()
        return True

    def _handle(self, frame: bytes) -> bool:
        """Handle a frame; whether that was possible, and is not to be done again when a fault ends."""
        if self.client.session is not None:
            self._count()
            self.client.handle(frame)
            return True
        self.client.claim(frame)
        # Only now it is known that this session's requests get lost.
        if self._requests.blocked:
            self._log_lost()
            return False
        self._count()
        self._patience.cancel()
        self.client.connect(frame)
        return True

    def _log_lost(self) -> None:
        """Log what waits in a hole."""
        waiting = bytes(self._arrived) + self._requests.waiting()
        with contextlib.suppress(MalformedError):
            # Without a session only the first frame says what it is.
            while self.client.session is not None or not self._lost:
                frame = _frame(waiting, self._lost)
                if frame is None:
                    break
                self._lost += jute.INT.size + len(frame)
                self.client.lose(frame)

    def _count(self) -> None:
        self.received += 1
        self._host.packets_received += 1


def _in_full(host: str) -> str:
    """Write an address as Java does: of IPv6 all eight numbers."""
    if ":" not in host:
        return host
    address, scope, name = host.partition("%")
    groups = ipaddress.IPv6Address(address).exploded.split(":")
    return ":".join(f"{int(group, 16):x}" for group in groups) + scope + name


def _frame(data: bytes | bytearray, place: int) -> bytes | None:
    """Give the frame that begins there, None if it is not complete; raise MalformedError if it is none."""
    start = place + jute.INT.size
    if len(data) < start:
        return None
    (length,) = jute.INT.unpack_from(data, place)
    if not 0 < length <= MAX_FRAME:
        msg = f"a frame of {length} bytes"
        raise MalformedError(msg)
    return bytes(data[start : start + length]) if len(data) >= start + length else None
