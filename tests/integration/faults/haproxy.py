"""HAProxy on the loopback interface, before one server of any protocol over TCP."""

from __future__ import annotations

import os
import shutil
import socket
from typing import ClassVar

from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.processes.process import NotInstalledError, Process

CONFIGURATION = """\
defaults
  mode tcp
  retries 0
  timeout connect 5s
  timeout client {idle}ms
  timeout server {idle}ms
listen zookeeper
  bind {here}
  server one {there}
"""
PROBE_TIMEOUT = 1.0


class HAProxy(Process):
    """Passes connections on to ``target``, and closes one that was idle for ``idle`` milliseconds."""

    name: ClassVar[str] = "HAProxy"

    def __init__(self, target: str, *, idle: int) -> None:
        """Choose a port; nothing runs yet."""
        program = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin")
        if program is None:
            msg = "HAProxy is not installed; get it with `apt-get install haproxy`"
            raise NotInstalledError(msg)
        super().__init__()
        self._program = program
        self._port = free_port()
        self.hosts = f"{LOOPBACK}:{self._port}"
        text = CONFIGURATION.format(idle=idle, here=self.hosts, there=target)
        (self.folder / "haproxy.cfg").write_text(text, encoding="ascii")

    def arguments(self) -> list[str]:
        """Run it in the foreground."""
        return [self._program, "-db", "-f", str(self.folder / "haproxy.cfg")]

    def is_ready(self) -> bool:
        """Tell whether it accepts a connection."""
        try:
            socket.create_connection((LOOPBACK, self._port), PROBE_TIMEOUT).close()
        except OSError:
            return False
        return True
