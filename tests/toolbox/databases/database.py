"""What database servers have in common: a user other than root, and an alias in Django."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, ClassVar

from django.db import connections

from tests.toolbox.network.port import free_port
from tests.toolbox.processes.process import NotInstalledError, Process, StartError

# Root starts servers as this user: these refuse to run as root.
USER = "nobody"
SETUP_TIMEOUT = 120.0


class DatabaseServer(Process):
    """One server on the loopback interface, with its data in its folder and without regard for power failures."""

    package: ClassVar[str]
    start_timeout = 60.0

    def __init__(self) -> None:
        """Choose a port and make the data; nothing runs yet."""
        super().__init__()
        self.port = free_port()
        self.data = self.folder / "data"
        self.data.mkdir(mode=0o700)
        if os.geteuid() == 0:
            for folder in (self.folder, self.data):
                shutil.chown(folder, USER)

    @property
    def settings(self) -> dict[str, Any]:
        """The value for ``DATABASES``."""
        raise NotImplementedError

    def find(self, program: str, *folders: Path) -> str:
        """Return the path of a program of the server."""
        places = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", *map(str, folders)])
        found = shutil.which(program, path=places)
        if found is None:
            msg = f"{self.name} is not installed; get it with `apt-get install {self.package}`"
            raise NotInstalledError(msg)
        return found

    def as_user(self, *command: str) -> list[str]:
        """Return the command line that runs a program as a user other than root."""
        if os.geteuid() != 0:
            return list(command)
        return ["setpriv", f"--reuid={USER}", "--regid=nogroup", "--clear-groups", "--", *command]

    def set_up(self, *command: str) -> None:
        """Run the program that makes the data."""
        made = subprocess.run(
            self.as_user(*command),
            cwd=self.folder,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SETUP_TIMEOUT * self.slowness,
            check=False,
        )
        if made.returncode:
            msg = f"{self.name} could not make its data"
            raise StartError(msg, made.stdout + made.stderr)


@contextmanager
def as_alias(alias: str, settings: dict[str, Any]) -> Iterator[str]:
    """Add a database to those of the project."""
    whole = connections.configure_settings({"default": {"ENGINE": ""}, alias: settings})
    connections.settings[alias] = whole[alias]
    try:
        yield alias
    finally:
        connections[alias].close()
        del connections[alias]
        del connections.settings[alias]
