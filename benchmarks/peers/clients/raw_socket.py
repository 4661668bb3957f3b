"""The floor: a socket, and the bytes of the fewest requests that make a lock.

A cycle is one create and one list, sent together, and one delete when both are answered. Its reply is read with those
of the next cycle, as a release need not wait. A try is one list.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress

from benchmarks.peers.clients.recipe import Cycle, MakeCycle
from benchmarks.peers.load import Load
from tests.toolbox.protocol.jute import buffer, integer
from tests.toolbox.protocol.operations import EPHEMERAL, SEQUENCE, Create, Delete, GetChildren, Home, Operation
from tests.toolbox.protocol.session_client import connect_frame

HOME = Home()
TIMEOUT = 30.0
LENGTH = struct.Struct("!i")
# Of a reply: length, xid, zxid, error.
REPLY = struct.Struct("!iiqi")
ERROR = slice(16, 20)
ROOT = "/raw"
CLOSE = -11


class Wire:
    """A session whose requests all have the same number: the server does not mind."""

    def __init__(self, address: tuple[str, int], *, greet: bool = True) -> None:
        """Connect and get a session; without ``greet`` the reply is still to be received."""
        self.socket = socket.create_connection(address, TIMEOUT)
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._received = b""
        self.send = self.socket.sendall
        self.send(buffer(connect_frame()))
        if greet:
            self.receive()

    def receive(self) -> bytes:
        """Wait for the next frame and return it, with its length."""
        while True:
            received = self._received
            if len(received) >= LENGTH.size:
                end = LENGTH.size + LENGTH.unpack_from(received)[0]
                if len(received) >= end:
                    self._received = received[end:]
                    return received[:end]
            piece = self.socket.recv(65536)
            if not piece:
                raise ConnectionError("the server has closed the connection")
            self._received += piece

    def expect(self) -> bytes:
        """Wait for the next reply, which must not be an error, and return what follows its header."""
        reply = self.receive()
        assert not any(reply[ERROR]), reply
        return reply[REPLY.size :]

    def start_end(self) -> None:
        """Ask the server to end the session, which deletes its nodes."""
        self.send(buffer(integer(1) + integer(CLOSE)))

    def wait_end(self) -> None:
        """Wait until the server has closed the connection."""
        with suppress(ConnectionError):
            while True:
                self.receive()

    def close(self) -> None:
        """Close the connection; the server ends the session later."""
        self.socket.close()


def frame(operation: Operation) -> bytes:
    """Return the bytes of a request."""
    return buffer(integer(1) + integer(operation.opcode) + operation.encode(HOME))


@contextmanager
def connect(load: Load) -> Iterator[MakeCycle]:
    """Open a connection, and make the parents of the nodes."""

    def make(kind: str, keys: Sequence[str]) -> Cycle:
        parent = f"{ROOT}/{keys[0]}"
        return list_only(wire, parent) if kind == "try" else whole(wire, parent)

    with closing(Wire((load.host, load.port))) as wire:
        for path in (ROOT, *(f"{ROOT}/{name}" for name in load.names)):
            wire.send(frame(Create(path)))
            # It may exist.
            wire.receive()
        yield make
        wire.start_end()
        wire.wait_end()


def whole(wire: Wire, parent: str) -> Cycle:
    """Return a cycle of three requests."""
    join = frame(Create(f"{parent}/lock-", EPHEMERAL | SEQUENCE)) + frame(GetChildren(parent))
    sample = frame(Delete(f"{parent}/lock-0000000000"))
    head, tail = sample[:-14], sample[-4:]
    send, expect = wire.send, wire.expect
    unread = 0

    def cycle() -> None:
        nonlocal unread
        send(join)
        if unread:
            expect()
        path = expect()
        names = expect()
        assert LENGTH.unpack_from(names)[0] == 1
        send(head + path[-10:] + tail)
        unread = 1

    return cycle


def list_only(wire: Wire, parent: str) -> Cycle:
    """Return a cycle of one request."""
    question = frame(GetChildren(parent))

    def cycle() -> None:
        wire.send(question)
        wire.expect()

    return cycle
