"""A TCP proxy between a client and its server that can hold bytes back, count them, and cut."""

from __future__ import annotations

import contextlib
import math
import select
import socket
import struct
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Self

UP = "up"
DOWN = "down"
INT = struct.Struct("!i")
# Bytes that a throttled direction passes on together.
PACKET = 1400


@dataclass(eq=False)
class Link:
    """One connection through the proxy; ``held`` is what a paused direction has swallowed and not passed on."""

    client: socket.socket
    server: socket.socket
    held: dict[str, bytearray] = field(default_factory=lambda: {UP: bytearray(), DOWN: bytearray()})
    passed: dict[str, int] = field(default_factory=lambda: {UP: 0, DOWN: 0})
    # What is still under way, with the time at which it arrives, oldest first.
    under_way: dict[str, deque[tuple[float, bytes]]] = field(default_factory=lambda: {UP: deque(), DOWN: deque()})
    # When a throttled direction has passed on what it has read.
    free_at: dict[str, float] = field(default_factory=lambda: {UP: 0.0, DOWN: 0.0})
    # The directions whose sender has closed the connection, which the other end does not know yet.
    ended: set[str] = field(default_factory=set)

    def close(self) -> None:
        self.client.close()
        self.server.close()


class Proxy:
    """Listens on a loopback port and passes everything on to ``target``; a thread does the work.

    ``pause(UP)`` holds back what clients send, ``pause(DOWN)`` what the server answers; the connections stay open
    and the proxy goes on reading, so neither end sees a full buffer. ``lag[UP]`` and ``lag[DOWN]`` are how many seconds
    everything takes that is read from then on, ``rate[UP]`` and ``rate[DOWN]`` how many bytes pass in a second. With
    ``holds_ends`` a paused direction also holds back that its sender has closed the connection, as a network does that
    delivers nothing; else both ends are closed. ``on_chunk`` hears of each piece before it is passed on and may return
    ``True`` to cut the connection instead; ``edit`` may replace it. ``chunks`` are the pieces as they were read, unless
    ``keeps_chunks`` is false, for a proxy that lives long.
    """

    def __init__(self, target: tuple[str, int], *, holds_ends: bool = False, keeps_chunks: bool = True) -> None:
        self.target = target
        self._holds_ends = holds_ends
        self._keeps_chunks = keeps_chunks
        self.chunks: list[tuple[str, bytes]] = []
        self.on_chunk: Callable[[str, bytes], bool] | None = None
        self.edit: Callable[[str, bytes], bytes] | None = None
        self.refusing = False
        self.lag = {UP: 0.0, DOWN: 0.0}
        self.rate = {UP: math.inf, DOWN: math.inf}
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.hosts = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._paused: set[str] = set()
        self._links: list[Link] = []
        # Guards the two above, and keeps what is passed on in order.
        self._lock = threading.RLock()
        self._waker, self._woken = socket.socketpair()
        self._closing = False
        self._thread = threading.Thread(target=self._run, name="proxy", daemon=True)
        self._thread.start()

    def pause(self, *directions: str) -> None:
        with self._lock:
            self._paused |= set(directions)

    def resume(self, *directions: str, drop: bool = False) -> None:
        """Pass on what was held back in these directions, or in both, and what follows.

        With ``drop``, forget what was held back.
        """
        with self._lock:
            self._paused -= set(directions or (UP, DOWN))
            for link in list(self._links):
                for direction, target in ((UP, link.server), (DOWN, link.client)):
                    if direction in self._paused:
                        continue
                    pending, link.held[direction] = link.held[direction], bytearray()
                    if pending and not drop:
                        with contextlib.suppress(OSError):
                            target.sendall(pending)
                if link.ended - self._paused:
                    link.close()
                    self._links.remove(link)

    @property
    def connected(self) -> bool:
        """Whether a connection goes through."""
        return bool(self._links)

    def holds_back(self, direction: str) -> bool:
        """Whether a connection has something that is held back."""
        with self._lock:
            return any(link.held[direction] for link in self._links)

    def cut(self) -> int:
        """Close every connection; how many there were."""
        with self._lock:
            count = len(self._links)
            for link in self._links:
                link.close()
            self._links.clear()
        self._waker.send(b"\0")
        return count

    def close(self) -> None:
        self._closing = True
        self._waker.send(b"\0")
        self._thread.join(5)
        self.cut()
        for sock in (self._listener, self._waker, self._woken):
            sock.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _run(self) -> None:
        while not self._closing:
            with self._lock:
                links = {
                    sock: link
                    for link in self._links
                    for sock, direction in ((link.client, UP), (link.server, DOWN))
                    if direction not in link.ended
                }
            try:
                readable, _, _ = select.select([self._listener, self._woken, *links], [], [], self._deliver())
            except (OSError, ValueError):  # cut meanwhile
                continue
            for sock in readable:
                if sock is self._woken:
                    sock.recv(64)
                elif sock is self._listener:
                    self._accept()
                elif sock in links:
                    self._pass_on(links[sock], sock)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        try:
            if self.refusing:
                raise ConnectionRefusedError
            server = socket.create_connection(self.target, 2.0)
        except OSError:
            client.close()
            return
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with self._lock:
            self._links.append(Link(client, server))

    def _pass_on(self, link: Link, sock: socket.socket) -> None:
        with self._lock:
            if link not in self._links:
                return
            direction = UP if sock is link.client else DOWN
            try:
                chunk = sock.recv(65536)
                if not chunk and self._holds_ends and direction in self._paused:
                    link.ended.add(direction)
                    return
                if not chunk or (self.on_chunk is not None and self.on_chunk(direction, chunk)):
                    raise ConnectionResetError
                if self._keeps_chunks:
                    self.chunks.append((direction, chunk))
                if self.edit is not None:
                    chunk = self.edit(direction, chunk)
                now = time.monotonic()
                due = now + self.lag[direction]
                if self.rate[direction] < math.inf:
                    for start in range(0, len(chunk), PACKET):
                        packet = chunk[start : start + PACKET]
                        due = max(due, link.free_at[direction]) + len(packet) / self.rate[direction]
                        link.free_at[direction] = due
                        link.under_way[direction].append((due, packet))
                elif due > now or link.under_way[direction]:
                    link.under_way[direction].append((due, chunk))
                else:
                    self._arrive(link, direction, chunk)
            except OSError:
                link.close()
                self._links.remove(link)

    def _arrive(self, link: Link, direction: str, chunk: bytes) -> None:
        if direction in self._paused:
            link.held[direction] += chunk
        else:
            (link.server if direction == UP else link.client).sendall(chunk)

    def _deliver(self) -> float:
        """Let arrive what is due; return the seconds until the next is due, at most one.

        What is under way when a direction is no longer slow arrives at once.
        """
        now, wait = time.monotonic(), 1.0
        with self._lock:
            for link in list(self._links):
                try:
                    for direction, pieces in link.under_way.items():
                        slow = self.lag[direction] or self.rate[direction] < math.inf
                        while pieces and (pieces[0][0] <= now or not slow):
                            self._arrive(link, direction, pieces.popleft()[1])
                        wait = min(wait, pieces[0][0] - now) if pieces else wait
                except OSError:
                    link.close()
                    self._links.remove(link)
        return wait


def requests(chunk: bytes) -> Iterator[int]:
    """Return the opcodes in one whole write of a client, after its handshake."""
    while chunk:
        (length,) = INT.unpack_from(chunk)
        yield INT.unpack_from(chunk, 8)[0]
        chunk = chunk[4 + length :]
