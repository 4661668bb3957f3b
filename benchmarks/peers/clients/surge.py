"""A load on ZooKeeper by many raw connections: ``python -m benchmarks.peers.clients.surge PORT...``.

One thread serves all of them, so that as much as possible of the machine is left to the server. The connections are
spread over the servers at the ports.
"""

from __future__ import annotations

import resource
import select
import statistics
import struct
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, closing

from benchmarks.peers.clients.dialogue import serve
from benchmarks.peers.clients.raw_socket import REPLY, TIMEOUT, Wire, frame
from tests.toolbox.protocol.jute import buffer, integer
from tests.toolbox.protocol.operations import EPHEMERAL, SEQUENCE, Create, Delete, GetChildren

LOOPBACK = "127.0.0.1"
ROOT = "/surge"
SEQUENCE_DIGITS = 10
CHUNK = 65536
PINGS = 10
# Below the length of the queue in which the system keeps connections for a server.
MAX_HANDSHAKES = 40
PING = buffer(struct.pack("!ii", -2, 11))
VERSION = integer(-1)


class Locker:
    """A client that releases its lock and acquires it again, with three requests in one piece."""

    def __init__(self, wire: Wire, parent: str) -> None:
        """Acquire for the first time."""
        self.socket = wire.socket
        wire.send(frame(Create(parent)))
        wire.receive()
        self._join = frame(Create(f"{parent}/lock-", EPHEMERAL | SEQUENCE)) + frame(GetChildren(parent))
        wire.send(self._join)
        path, names = wire.expect(), wire.expect()
        self._delete = frame(Delete(path[4:].decode()))[: -SEQUENCE_DIGITS - len(VERSION)]
        self._number = path[-SEQUENCE_DIGITS:]
        # The replies to delete, create and list are always as long.
        self._path_end = 2 * REPLY.size + len(path)
        self._length = self._path_end + REPLY.size + len(names)
        self._received = b""
        self._sent = 0.0
        self.socket.setblocking(False)

    def send(self) -> None:
        """Send the next requests."""
        # Before the bytes are sent: the server may run before this thread does again.
        self._sent = time.perf_counter()
        self.socket.sendall(self._delete + self._number + VERSION + self._join)

    def receive(self) -> float | None:
        """Read, and return how long the replies took if this was the last piece of them."""
        piece = self.socket.recv(CHUNK)
        if not piece:
            raise ConnectionError("the server has closed the connection")
        self._received += piece
        if len(self._received) < self._length:
            return None
        assert len(self._received) == self._length, self._received
        took = time.perf_counter() - self._sent
        self._number = self._received[self._path_end - SEQUENCE_DIGITS : self._path_end]
        self._received = b""
        return took


class Surge:
    """The commands; each opens its own connections."""

    def __init__(self, ports: Sequence[int]) -> None:
        """Remember the servers."""
        self._ports = ports
        self._sessions = ExitStack()
        self._wires: list[Wire] = []

    def _connect(self, stack: ExitStack, count: int) -> list[Wire]:
        addresses = [(LOOPBACK, self._ports[number % len(self._ports)]) for number in range(count)]
        wires: list[Wire] = []
        for begin in range(0, count, MAX_HANDSHAKES):
            some = addresses[begin : begin + MAX_HANDSHAKES]
            new = [stack.enter_context(closing(Wire(address, greet=False))) for address in some]
            for wire in new:
                wire.receive()
            wires += new
        return wires

    def cycle(self, words: Mapping[str, str]) -> Mapping[str, float]:
        """Let ``clients`` acquire and release for some seconds."""
        seconds = float(words["seconds"])
        with ExitStack() as stack:
            wires = self._connect(stack, int(words["clients"]))
            wires[0].send(frame(Create(ROOT)))
            wires[0].receive()
            lockers = [Locker(wire, f"{ROOT}/{number:05}") for number, wire in enumerate(wires)]
            took, cpu = _cycle(stack, lockers, seconds)
            for wire in wires:
                wire.socket.settimeout(TIMEOUT)
                wire.start_end()
            for wire in wires:
                wire.wait_end()
        return {"rate": len(took) / seconds, "latency": statistics.median(took), "cpu": cpu / seconds}

    def connect(self, words: Mapping[str, str]) -> Mapping[str, float]:
        """Open ``sessions``, as fast as the server accepts them."""
        begin = time.perf_counter()
        self._wires = self._connect(self._sessions, int(words["sessions"]))
        return {"elapsed": time.perf_counter() - begin}

    def ping(self, _words: Mapping[str, str]) -> Mapping[str, float]:
        """Ping in each session, some times."""
        for _ in range(PINGS):
            for wire in self._wires:
                wire.send(PING)
            for wire in self._wires:
                wire.receive()
        return {"pings": PINGS * len(self._wires)}

    def disconnect(self, _words: Mapping[str, str]) -> Mapping[str, float]:
        """Close the sessions."""
        begin = time.perf_counter()
        for wire in self._wires:
            wire.start_end()
        for wire in self._wires:
            wire.wait_end()
        self._sessions.close()
        return {"elapsed": time.perf_counter() - begin}


def _cycle(stack: ExitStack, lockers: Sequence[Locker], seconds: float) -> tuple[list[float], float]:
    """Return how long each cycle took, and the CPU time of this process."""
    poll = stack.enter_context(closing(select.epoll()))
    by_descriptor = {locker.socket.fileno(): locker for locker in lockers}
    for descriptor in by_descriptor:
        poll.register(descriptor, select.EPOLLIN)
    took: list[float] = []
    cpu = time.process_time()
    end = time.perf_counter() + seconds
    for locker in lockers:
        locker.send()
    busy = len(lockers)
    while busy:
        for descriptor, _ in poll.poll(10):
            locker = by_descriptor[descriptor]
            one = locker.receive()
            if one is None:
                continue
            if time.perf_counter() < end:
                took.append(one)
                locker.send()
            else:
                busy -= 1
    return took, time.process_time() - cpu


def main(*ports: str) -> None:
    """Serve."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    surge = Surge([int(port) for port in ports])
    serve({"cycle": surge.cycle, "connect": surge.connect, "ping": surge.ping, "disconnect": surge.disconnect})


if __name__ == "__main__":
    main(*sys.argv[1:])
