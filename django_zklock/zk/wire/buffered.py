"""kazoo's connection with a buffer: one read takes all that has arrived, and a write waits only if it must.

kazoo waits before each read and each write, and reads each message in two pieces.
"""

from __future__ import annotations

import ssl
from struct import Struct
from typing import Any

from kazoo.exceptions import ConnectionDropped
from kazoo.protocol.connection import ConnectionHandler

from django_zklock.zk.waiting import boottime
from django_zklock.zk.wire.options import explain_answer

# A non-blocking socket has nothing to read, or no room to write; a TLS socket may need either for both.
_WOULD_BLOCK = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)

_SIZE = Struct(">i")
# No answer to a handshake is that long. The length of an answer of other programs is a text: "HTTP" is a gigabyte.
_MAX_ANSWER = 0xFFFFFF


class StrangeAnswerError(ConnectionDropped):
    """The answer to the handshake is none of ZooKeeper."""


class BufferedConnection(ConnectionHandler):
    """The socket of a connection; all methods run on its thread."""

    _socket: Any

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        # When the last message was complete, by the boot-time clock, and when anything was read last.
        self.received = self._read_at = float("-inf")
        self._clear_buffer()

    def _clear_buffer(self) -> None:
        # What was received, and how much of it was handled.
        self._buffer = b""
        self._position = 0

    # Why the last connect failed; None if it succeeded.
    failure: str | None

    def _expand_client_hosts(self) -> Any:
        found = super()._expand_client_hosts()
        if not found:
            # kazoo then connects to no server, and only logs why.
            names = ", ".join(host for host, _port in self.client.hosts)
            self.failure = f"the host name cannot be resolved: {names}"
        return found

    def _write(self, message: bytes | bytearray, timeout: float) -> None:
        left = memoryview(message)
        while left:
            try:
                sent = self._socket.send(left)
                if not sent:  # gevent returns 0 where ssl raises SSLWantWriteError
                    self._wait(ssl.SSLWantWriteError(), timeout)
                left = left[sent:]
            except _WOULD_BLOCK as error:
                self._wait(error, timeout)
            except OSError as error:
                raise ConnectionDropped(f"socket connection error: {error.strerror or error}") from error

    def _read(self, length: int, timeout: float) -> bytes:
        # Of the handshake. It reads no more than that: kazoo's loop waits for the socket next, and not for the buffer.
        if not 0 <= length <= _MAX_ANSWER:
            raise StrangeAnswerError(explain_answer(self._buffer[self._position - _SIZE.size : self._position]))
        with self._socket_error_handling():
            while (missing := self._position + length - len(self._buffer)) > 0:
                if not self._receive(missing):
                    self._wait(None, timeout)
        start = self._position
        self._position += length
        return self._buffer[start : self._position]

    def _receive(self, size: int) -> bool:
        """Read at most ``size`` bytes into the buffer; return ``False`` if there are none yet."""
        try:
            received = self._socket.recv(size)
        except _WOULD_BLOCK:
            return False
        if not received:
            raise ConnectionDropped("socket connection broken")
        self._read_at = boottime()
        self._buffer = self._buffer[self._position :] + received
        self._position = 0
        return True

    def _next_message(self) -> bytes | None:
        """Take a message out of the buffer; return ``None`` if there is no complete one."""
        buffer, start = self._buffer, self._position + _SIZE.size
        if len(buffer) < start:
            return None
        end = start + _SIZE.unpack_from(buffer, self._position)[0]
        if len(buffer) < end:
            return None
        self._position = end
        self.received = self._read_at
        return buffer[start:end]

    def _wait(self, error: OSError | None, timeout: float) -> None:
        """Wait until the socket is readable, or writable after an error of a write that does not want to read."""
        reads = error is None or isinstance(error, ssl.SSLWantReadError)
        sockets = [self._socket]
        if not any(self.handler.select(sockets if reads else [], [] if reads else sockets, [], timeout)):
            raise self.handler.timeout_exception(f"socket time-out during {'read' if error is None else 'write'}")
