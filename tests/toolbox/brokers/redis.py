"""A Redis server on the loopback interface that keeps everything in memory."""

from __future__ import annotations

import shutil
import socket
from typing import ClassVar

from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.processes.process import NotInstalledError, Process

PROBE_TIMEOUT = 1.0


class Redis(Process):
    """One server, without persistence: what it held is gone when it stops."""

    name: ClassVar[str] = "Redis"

    def __init__(self) -> None:
        """Choose a port; nothing runs yet."""
        program = shutil.which("redis-server")
        if program is None:
            msg = "redis-server is not installed; get it with `apt-get install redis-server`"
            raise NotInstalledError(msg)
        super().__init__()
        self._program = program
        self.port = free_port()

    @property
    def url(self) -> str:
        """The address as a Celery broker URL."""
        return f"redis://{LOOPBACK}:{self.port}/0"

    def arguments(self) -> list[str]:
        """Run the server without a configuration file."""
        return [
            self._program,
            *("--bind", LOOPBACK),
            *("--port", str(self.port)),
            *("--dir", str(self.folder)),
            *("--save", ""),
            *("--appendonly", "no"),
        ]

    def is_ready(self) -> bool:
        """Tell whether the server answers a ping."""
        try:
            with socket.create_connection((LOOPBACK, self.port), PROBE_TIMEOUT * self.slowness) as connection:
                connection.sendall(b"PING\r\n")
                return connection.recv(64).startswith(b"+PONG")
        except OSError:
            return False
