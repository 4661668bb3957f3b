"""One connection: bytes in, bytes out, and the frames in them."""

from __future__ import annotations

import asyncio
import logging
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
# Seconds in which a connection must have said what it wants.
PATIENCE = 10.0


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
        self._handling = False
        # Nothing is taken up any more; what was sent may still be on its way.
        self._closing = False

    # What the event loop calls.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Wait for the first frame, but not for ever."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport
        self.peer = transport.get_extra_info("peername")[:2]
        service = self._host.service
        self.client = Client(service, self.peer[0], self)
        self._requests = Pipe(Direction.REQUESTS, service.network, lambda: self.client.claimed, self._take)
        self._replies = Pipe(Direction.REPLIES, service.network, lambda: self.client.claimed, self._give)
        self._patience = asyncio.get_running_loop().call_later(PATIENCE, self.close)
        self._host.connections[self] = None

    def data_received(self, data: bytes) -> None:
        """Take what has arrived, when the network lets it."""
        self._requests.put(data)

    def connection_lost(self, error: Exception | None) -> None:  # noqa: ARG002 - asyncio's signature
        """Forget the connection."""
        self._end()
        self._requests.close()
        self._replies.close()
        self._host.connections.pop(self, None)

    def pause_writing(self) -> None:
        """Read no more from a client that does not read."""
        self._transport.pause_reading()

    def resume_writing(self) -> None:
        """Read on."""
        if not self._transport.is_closing():
            self._transport.resume_reading()

    # What the rest of the server calls.

    @property
    def descriptor(self) -> int:
        """The number of the socket, negative once it is closed."""
        sock = self._transport.get_extra_info("socket")
        return -1 if sock is None else int(sock.fileno())

    def send(self, opcode: Opcode, frame: bytes) -> None:
        """Send the reply to such a request."""
        if self._closing:
            return
        self.sent += 1
        self._host.packets_sent += 1
        data = jute.INT.pack(len(frame)) + frame
        cut = self._host.service.network.take_cut(opcode, self.client.claimed)
        self._leaving.append(data if cut is None else data[: cut.after_bytes])
        if cut is not None:
            self.close()
            cut.happened.set()
        elif not self._handling:
            self._flush()

    def heal(self) -> None:
        """Let through what a fault has held back, if it is over."""
        self._requests.pump()
        self._handle_frames()
        self._replies.pump()

    def close(self) -> None:
        """Take up nothing more, and close once everything that was sent is on its way."""
        if not self._closing:
            self._end()
            self._flush()
            self._replies.put(None)

    def abort(self) -> None:
        """End the connection at once; the client sees a reset."""
        self._end()
        self._transport.abort()

    # Bytes and frames.

    def _end(self) -> None:
        self._closing = True
        self._patience.cancel()
        self.client.leave()

    def _take(self, data: bytes | None) -> None:
        if data is not None:
            self._arrived += data
            self._handle_frames()

    def _give(self, data: bytes | None) -> None:
        if data is None:
            self._transport.close()
        elif not self._transport.is_closing():
            self._transport.write(data)

    def _flush(self) -> None:
        if self._leaving:
            data = b"".join(self._leaving)
            self._leaving.clear()
            self._replies.put(data)

    def _handle_frames(self) -> None:
        # A fault that ends while a frame is handled must not have the next one handled inside it.
        if self._handling:
            return
        self._handling = True
        place = 0
        try:
            while not self._closing and not self._requests.blocked:
                frame = self._frame(place)
                if frame is None or not self._handle(frame):
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

    def _frame(self, place: int) -> bytes | None:
        """Give the frame that begins there, None if it is not complete; raise MalformedError if it is none."""
        start = place + jute.INT.size
        if len(self._arrived) < start:
            return None
        if self.client.session is None and self._answer_word():
            return None
        (length,) = jute.INT.unpack_from(self._arrived, place)
        if not 0 < length <= MAX_FRAME:
            msg = f"a frame of {length} bytes"
            raise MalformedError(msg)
        return bytes(self._arrived[start : start + length]) if len(self._arrived) >= start + length else None

    def _answer_word(self) -> bool:
        """Answer if this is a four-letter word, which can only come first."""
        answer = words.WORDS.get(bytes(self._arrived[:4]))
        if answer is None:
            return False
        self._count()
        self._leaving.append(answer(self._host, self).encode())
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
            return False
        self._count()
        self._patience.cancel()
        self.client.connect(frame)
        return True

    def _count(self) -> None:
        self.received += 1
        self._host.packets_received += 1
