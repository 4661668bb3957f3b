"""The port that a server listens at, kept while nothing listens there."""

from __future__ import annotations

import socket
import sys

# There a second socket may be bound to a port as long as the first one does not listen. Elsewhere a port is only
# ours while we listen.
CAN_RESERVE = sys.platform == "linux"


class Port:
    """A port of this machine; number 0 becomes the one that is free when it is used first."""

    def __init__(self, host: str, number: int) -> None:
        """Choose; nothing is bound yet."""
        self.host = host
        self.number = number
        # Bound and never listening.
        self._reservation: socket.socket | None = None

    def __str__(self) -> str:
        """Write it as clients do, ``host:port``."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.number}"

    @property
    def descriptor(self) -> int:
        """The number of the file that keeps the port, negative if there is none."""
        return -1 if self._reservation is None else self._reservation.fileno()

    def reserve(self) -> None:
        """Keep the port, as far as the system can; raise OSError if somebody else has it."""
        if CAN_RESERVE and self._reservation is None:
            self._reservation = self.bind()

    def release(self) -> None:
        """Let others have the port."""
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None

    def bind(self) -> socket.socket:
        """Give a socket at the port, to listen with; raise OSError if somebody else has it."""
        family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
        sock = socket.socket(family, socket.SOCK_STREAM)
        try:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            sock.bind((self.host, self.number))
        except BaseException:
            sock.close()
            raise
        self.number = sock.getsockname()[1]
        return sock
