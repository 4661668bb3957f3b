"""The port of a server, reserved even while the server is stopped."""

from __future__ import annotations

import socket
import sys

# On Linux a second socket may be bound to a port while the first one does not listen. On other systems a port can
# only be kept by listening.
CAN_RESERVE = sys.platform == "linux"


class Port:
    """A port of this machine; number 0 is replaced by a free one at the first use."""

    def __init__(self, host: str, number: int) -> None:
        """Keep host and number; nothing is bound yet."""
        self.host = host
        self.number = number
        # Bound, but never listening.
        self._reservation: socket.socket | None = None

    def __str__(self) -> str:
        """Return ``host:port``, as clients write it."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{host}:{self.number}"

    @property
    def descriptor(self) -> int:
        """The file descriptor of the reservation; negative if there is none."""
        return -1 if self._reservation is None else self._reservation.fileno()

    def reserve(self) -> None:
        """Reserve the port if the system supports it; raise OSError if it is in use."""
        if CAN_RESERVE and self._reservation is None:
            self._reservation = self.bind()

    def release(self) -> None:
        """Release the reservation."""
        if self._reservation is not None:
            self._reservation.close()
            self._reservation = None

    def bind(self) -> socket.socket:
        """Return a socket bound to the port, to listen with; raise OSError if it is in use."""
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
