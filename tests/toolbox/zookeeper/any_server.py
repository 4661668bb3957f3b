"""What a test may ask of any server, of whatever kind."""

from __future__ import annotations

import socket
from typing import Protocol


class Server(Protocol):
    """A server that clients can talk to."""

    @property
    def address(self) -> tuple[str, int]:
        """Host and port."""
        ...

    @property
    def hosts(self) -> str:
        """The address as clients write it."""
        ...


def packets_received(server: Server) -> int:
    """Ask how many packets have come in, this question included."""
    with socket.create_connection(server.address, 5.0) as connection:
        connection.sendall(b"mntr")
        answer = b"".join(iter(lambda: connection.recv(65536), b"")).decode()
    counters = dict(line.split("\t", 1) for line in answer.splitlines())
    return int(counters["zk_packets_received"])
