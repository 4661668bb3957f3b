"""The port mapper by which Erlang programs find each other."""

from __future__ import annotations

import shutil
import socket
from typing import TYPE_CHECKING, ClassVar

from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.processes.process import NotInstalledError, Process

if TYPE_CHECKING:
    from collections.abc import Mapping

PROBE_TIMEOUT = 1.0


class Epmd(Process):
    """A port mapper for one program alone.

    An Erlang program starts one by itself, as a daemon that everybody on the machine shares and that stays for ever,
    unless one answers already.
    """

    name: ClassVar[str] = "epmd"

    def __init__(self) -> None:
        """Choose a port; nothing runs yet."""
        program = shutil.which("epmd")
        if program is None:
            msg = "epmd is not installed; get it with `apt-get install erlang-base`"
            raise NotInstalledError(msg)
        super().__init__()
        self._program = program
        self.port = free_port()

    @property
    def settings(self) -> Mapping[str, str]:
        """What an Erlang program finds in its environment to use this one."""
        return {"ERL_EPMD_PORT": str(self.port), "ERL_EPMD_ADDRESS": LOOPBACK}

    def arguments(self) -> list[str]:
        """Run it in the foreground."""
        return [self._program, "-port", str(self.port), "-address", LOOPBACK]

    def is_ready(self) -> bool:
        """Tell whether it takes connections."""
        try:
            socket.create_connection((LOOPBACK, self.port), PROBE_TIMEOUT * self.slowness).close()
        except OSError:
            return False
        return True
