"""The package's own ZooKeeper server, in memory, as a process: Python is all that it needs."""

from __future__ import annotations

import socket
import sys
from typing import ClassVar

from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.processes.project import ProjectProcess

PROBE_TIMEOUT = 1.0


class DevServer(ProjectProcess):
    """One server; what it held is gone when it stops."""

    name: ClassVar[str] = "Development server"

    def __init__(self) -> None:
        """Choose a port; nothing runs yet."""
        super().__init__()
        self.port = free_port()

    @property
    def hosts(self) -> str:
        """The address as clients write it, ``host:port``."""
        return f"{LOOPBACK}:{self.port}"

    def arguments(self) -> list[str]:
        """Run the server as ``manage.py zklock devserver`` does, without Django, which takes longer to start."""
        return [sys.executable, "-m", "django_zklock.testing", "--port", str(self.port)]

    def is_ready(self) -> bool:
        """Tell whether the server says that it is."""
        try:
            with socket.create_connection((LOOPBACK, self.port), PROBE_TIMEOUT * self.slowness) as connection:
                connection.sendall(b"ruok")
                return connection.recv(4) == b"imok"
        except OSError:
            return False
