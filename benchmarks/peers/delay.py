"""A proxy that delays every byte by the same time, each way: ``python -m benchmarks.peers.delay PORT SECONDS``.

It answers the command ``listen`` with its own port. One thread does everything, with ``select``, whose timeout is exact
to microseconds; that of epoll is in whole milliseconds.
"""

from __future__ import annotations

import select
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Mapping
from contextlib import suppress

from benchmarks.peers.clients.dialogue import serve

LOOPBACK = "127.0.0.1"
CHUNK = 65536


class Delay:
    """Passes on what it reads after ``seconds``; both directions of a connection are closed together."""

    def __init__(self, target: tuple[str, int], seconds: float) -> None:
        """Listen."""
        self._target = target
        self._seconds = seconds
        self._listener = socket.create_server((LOOPBACK, 0), backlog=128)
        self.port: int = self._listener.getsockname()[1]
        self._peers: dict[socket.socket, socket.socket] = {}
        # When to pass on what, from which socket to which; the delay is the same for all, so the order is that of
        # arrival.
        self._pending: deque[tuple[float, socket.socket, socket.socket, bytes]] = deque()

    def run(self) -> None:
        """Work for ever."""
        while True:
            timeout = max(0.0, self._pending[0][0] - time.monotonic()) if self._pending else None
            readable, _, _ = select.select([self._listener, *self._peers], [], [], timeout)
            for sock in readable:
                if sock is self._listener:
                    self._accept()
                elif sock in self._peers:
                    self._read(sock)
            while self._pending and self._pending[0][0] <= time.monotonic():
                _, source, target, piece = self._pending.popleft()
                self._write(source, target, piece)

    def _accept(self) -> None:
        client, _ = self._listener.accept()
        server = socket.create_connection(self._target)
        for sock in (client, server):
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._peers |= {client: server, server: client}

    def _read(self, sock: socket.socket) -> None:
        piece = b""
        with suppress(OSError):
            piece = sock.recv(CHUNK)
        peer = self._peers[sock]
        if not piece:
            # No more to read here; what is under way, and the end after it, arrives later.
            del self._peers[sock]
        self._pending.append((time.monotonic() + self._seconds, sock, peer, piece))

    def _write(self, source: socket.socket, target: socket.socket, piece: bytes) -> None:
        with suppress(OSError):
            if piece:
                target.sendall(piece)
            else:
                target.shutdown(socket.SHUT_WR)
        if not piece and target not in self._peers:
            # Both directions have ended.
            source.close()
            target.close()


def main(port: str, seconds: str) -> None:
    """Start, and say where."""
    delay = Delay((LOOPBACK, int(port)), float(seconds))
    threading.Thread(target=delay.run, daemon=True).start()

    def listen(_words: Mapping[str, str]) -> Mapping[str, float]:
        return {"port": delay.port}

    serve({"listen": listen})


if __name__ == "__main__":
    main(*sys.argv[1:])
