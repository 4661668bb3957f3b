"""Django's development server in a process of its own."""

from __future__ import annotations

import http.client
import sys
from typing import ClassVar

from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.processes.project import ProjectProcess

PROBE_TIMEOUT = 5.0


class WebServer(ProjectProcess):
    """The project's pages, on ``preferred_port`` if nothing else uses it."""

    name: ClassVar[str] = "Django server"

    def __init__(self, *, preferred_port: int | None = 8000) -> None:
        """Choose a port; nothing runs yet."""
        super().__init__()
        self.port = free_port(preferred=preferred_port)

    @property
    def url(self) -> str:
        """The address of the site, without a slash at the end."""
        return f"http://{LOOPBACK}:{self.port}"

    def arguments(self) -> list[str]:
        """Run the server without the second process that watches for changed files."""
        return [sys.executable, "manage.py", "runserver", "--noreload", f"{LOOPBACK}:{self.port}"]

    def is_ready(self) -> bool:
        """Tell whether the server gives a page."""
        connection = http.client.HTTPConnection(LOOPBACK, self.port, timeout=PROBE_TIMEOUT * self.slowness)
        try:
            connection.request("GET", "/admin/login/")
            return connection.getresponse().status == http.client.OK
        except (OSError, http.client.HTTPException):
            return False
        finally:
            connection.close()
