"""A client that sends any bytes, valid or not, and returns every frame in its order."""

from __future__ import annotations

import contextlib
import socket
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tests.toolbox.protocol.jute import INT, Reader, boolean, buffer, integer, long
from tests.toolbox.timing import scaled

if TYPE_CHECKING:
    from types import TracebackType
    from typing import Self

PING = 11
PING_XID = -2
EVENT_XID = -1
NO_PASSWORD = bytes(16)
# For one reply: a silent server must fail the test, not block it.
TIMEOUT = scaled(10)


class ClosedError(Exception):
    """The server has closed the connection."""


@dataclass(frozen=True)
class Event:
    """A watch event; ``header`` is xid, zxid and error of its frame."""

    kind: int
    state: int
    path: str | None
    header: tuple[int, int, int] = (-1, -1, 0)


@dataclass(frozen=True)
class Reply:
    """A reply; ``body`` is not decoded."""

    xid: int
    zxid: int
    error: int
    body: bytes


@dataclass(frozen=True)
class Greeting:
    """The reply to the first frame; ``rest`` is what follows the password."""

    protocol: int
    timeout: int
    session: int
    password: bytes | None
    rest: bytes


class RawClient:
    """One blocking connection; every wait has a timeout of ``wait_timeout`` seconds.

    ``events`` are the watch events that arrived before replies and have not been consumed.
    """

    def __init__(self, address: tuple[str, int], *, wait_timeout: float = TIMEOUT) -> None:
        self.wait_timeout = wait_timeout
        self.events: list[Event] = []
        self._xid = 0
        self._received = bytearray()
        self._socket = socket.create_connection(address, wait_timeout)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    # Frames.

    def send_bytes(self, piece: bytes) -> None:
        """Send the bytes; a closed connection is noticed when reading."""
        self._socket.settimeout(self.wait_timeout)
        with contextlib.suppress(ConnectionError):
            self._socket.sendall(piece)

    def send_frame(self, *frames: bytes) -> None:
        self.send_bytes(b"".join(integer(len(frame)) + frame for frame in frames))

    def receive_frame(self) -> bytes:
        """Wait for the next frame, or raise ClosedError or TimeoutError."""
        deadline = time.monotonic() + self.wait_timeout
        while True:
            if len(self._received) >= INT.size:
                end = INT.size + int(INT.unpack_from(self._received)[0])
                if len(self._received) >= end:
                    frame = bytes(self._received[INT.size : end])
                    del self._received[:end]
                    return frame
            self._socket.settimeout(max(deadline - time.monotonic(), 0.001))
            try:
                piece = self._socket.recv(1 << 20)
            except ConnectionError as error:
                raise ClosedError(str(error)) from error
            if not piece:
                raise ClosedError(f"{len(self._received)} bytes of a frame left")
            self._received += piece

    def receive_all(self) -> bytes:
        """Wait for the end of the connection; return the frames before it."""
        self._socket.settimeout(self.wait_timeout)
        while piece := self._socket.recv(1 << 20):
            self._received += piece
        return bytes(self._received)

    # The protocol.

    def connect(
        self,
        *,
        session: int = 0,
        password: bytes | None = NO_PASSWORD,
        timeout: int = 30_000,
        last_zxid: int = 0,
        protocol: int = 0,
        tail: bytes = boolean(False),
    ) -> Greeting:
        """Open or resume a session; ``tail`` is the flag "read only", which old clients do not send."""
        self.send_frame(
            integer(protocol) + long(last_zxid) + integer(timeout) + long(session) + buffer(password) + tail
        )
        reader = Reader(self.receive_frame())
        return Greeting(reader.integer(), reader.integer(), reader.long(), reader.buffer(), reader.rest())

    def send(self, opcode: int, body: bytes = b"", xid: int | None = None) -> int:
        """Send one request and return its number."""
        return self.send_all([(opcode, body)], xid)[0]

    def send_all(self, requests: list[tuple[int, bytes]], xid: int | None = None) -> list[int]:
        """Send requests in one packet and return their numbers."""
        numbers, frames = [], []
        for opcode, body in requests:
            if xid is None:
                self._xid += 1
            number = self._xid if xid is None else xid
            numbers.append(number)
            frames.append(integer(number) + integer(opcode) + body)
        self.send_frame(*frames)
        return numbers

    def receive(self) -> Reply | Event:
        """Wait for the next reply or event."""
        reader = Reader(self.receive_frame())
        header = (reader.integer(), reader.long(), reader.integer())
        if header[0] == EVENT_XID and header[2] == 0:
            event = Event(reader.integer(), reader.integer(), reader.text(), header)
            assert reader.rest() == b"", event
            return event
        return Reply(*header, reader.rest())

    def answer(self) -> Reply:
        """Wait for the next reply; events before it go to ``events``."""
        while isinstance(frame := self.receive(), Event):
            self.events.append(frame)
        return frame

    def call(self, opcode: int, body: bytes = b"", xid: int | None = None) -> Reply:
        """Send one request and wait for its reply."""
        self.send(opcode, body, xid)
        return self.answer()

    def settle(self) -> Reply:
        """Receive all events that the server has sent until now: the reply to a ping comes after them."""
        return self.call(PING, xid=PING_XID)

    def is_closed(self) -> bool:
        """Return whether the connection ends; a frame, or silence, is False."""
        try:
            self.receive_frame()
        except ClosedError:
            return True
        except TimeoutError:
            pass
        return False

    def close(self) -> None:
        """Close the connection and keep the session."""
        self._socket.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()
