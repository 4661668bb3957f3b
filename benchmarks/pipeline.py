"""A client that sends without waiting: how many requests a server answers in a second."""

from __future__ import annotations

import socket
import struct
import threading
import time
from contextlib import ExitStack, closing

from tests.toolbox.protocol.jute import INT, integer
from tests.toolbox.protocol.operations import Create, GetChildren, GetData, Home, Operation
from tests.toolbox.protocol.session_client import connect_frame

Address = tuple[str, int]

HOME = Home()
HEADER = struct.Struct("!ii")
CHUNK = 1 << 18
# For a server that has stopped answering.
TIMEOUT = 60.0
SESSIONS = 1000


def connect(address: Address) -> socket.socket:
    """Connect and ask for a session; the answer is still to be read."""
    sock = socket.create_connection(address, TIMEOUT)
    sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    frame = connect_frame()
    sock.sendall(integer(len(frame)) + frame)
    return sock


def read_frames(sock: socket.socket, count: int) -> None:
    """Read so many frames."""
    received = bytearray()
    while count:
        piece = sock.recv(CHUNK)
        if not piece:
            msg = f"the server has closed the connection, and {count} replies are missing"
            raise ConnectionError(msg)
        received += piece
        place = 0
        while len(received) - place >= INT.size:
            end = place + INT.size + int(INT.unpack_from(received, place)[0])
            if len(received) < end:
                break
            place = end
            count -= 1
        del received[:place]


def encode(operations: list[Operation]) -> bytes:
    """Return the requests in one piece."""
    frames = []
    for number, operation in enumerate(operations, 1):
        frame = HEADER.pack(number, operation.opcode) + operation.encode(HOME)
        frames.append(integer(len(frame)) + frame)
    return b"".join(frames)


def rate(address: Address, operations: list[Operation]) -> float:
    """Send all requests over one connection and read all replies; give requests per second."""
    said = encode(operations)
    with closing(connect(address)) as sock:
        read_frames(sock, 1)
        sending = threading.Thread(target=sock.sendall, args=(said,))
        start = time.perf_counter()
        sending.start()
        read_frames(sock, len(operations))
        took = time.perf_counter() - start
        sending.join()
    return len(operations) / took


def prepare(address: Address) -> None:
    """Make the nodes that the requests of ``mixed`` read."""
    operations: list[Operation] = [Create("/read", data=bytes(100))]
    operations += [Create(f"/read/child-{number}") for number in range(10)]
    rate(address, operations)


def mixed(count: int, name: str) -> list[Operation]:
    """Return creates, reads and lists of children, a third of each."""
    operations: list[Operation] = []
    for number in range(count // 3):
        operations += [Create(f"/{name}-{number}", data=bytes(100)), GetData("/read"), GetChildren("/read")]
    return operations


def set_up_sessions(address: Address) -> float:
    """Open a thousand sessions, all of them at once; return the seconds until the last one is there."""
    with ExitStack() as stack:
        start = time.perf_counter()
        socks = [stack.enter_context(closing(connect(address))) for _ in range(SESSIONS)]
        for sock in socks:
            read_frames(sock, 1)
        return time.perf_counter() - start
