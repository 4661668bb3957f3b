"""A child process with a folder of its own, which never outlives the program that started it."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from typing import TYPE_CHECKING, ClassVar

from tests.toolbox.processes.folder import make_folder, remove_folder
from tests.toolbox.processes.interruption import postponed
from tests.toolbox.processes.reaper import Reaper
from tests.toolbox.processes.started import Started

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path
    from typing import Self

# How long one look at a process lasts; the wait ends earlier when the process does.
POLL_INTERVAL = 0.02


class NotInstalledError(Exception):
    """The program to be run is not on this machine; the message says in one line how to get it."""


class StartError(Exception):
    """A process ended or stayed silent instead of getting ready.

    ``message`` is one line, ``log`` the end of what the process wrote.
    """

    def __init__(self, message: str, log: str = "") -> None:
        """Keep the message apart from the log."""
        super().__init__(message, log)
        self.message = message
        self.log = log

    def __str__(self) -> str:
        """Return the message and the indented log."""
        return "\n".join([self.message, *(f"  | {line}" for line in self.log.splitlines())])


class Process(Started):
    """Start, stop, pause and kill one program; a subclass says what to run and how to see that it is ready.

    The program runs in a process group of its own, so Ctrl-C at the terminal does not reach it and its
    children can be ended with it. ``stop`` and ``kill`` leave the folder, so that the program can be
    started again on the same data; ``close``, the end of a ``with`` block, or the end of this program by
    any means removes it.
    """

    name: ClassVar[str] = "process"
    start_timeout: float = 30.0
    stop_timeout: float = 10.0
    # How many times longer than that programs take on this machine; the program that has measured it sets this.
    slowness: ClassVar[float] = 1.0

    def __init__(self) -> None:
        """Make the folder."""
        self.folder = make_folder(self.name.lower().replace(" ", "-"))
        self.log = self.folder / "log"
        self._process: subprocess.Popen[bytes] | None = None

    # What a subclass says.

    def arguments(self) -> list[str]:
        """Return the command line."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """Return the environment of the program."""
        return os.environ

    def working_folder(self) -> Path:
        """Return the folder in which the program starts."""
        return self.folder

    def descriptors(self) -> tuple[int, ...]:
        """Return the file descriptors that the program inherits."""
        return ()

    def is_ready(self) -> bool:
        """Look once whether the program does its work now."""
        raise NotImplementedError

    # Starting.

    def start(self) -> Self:
        """Start the program and wait until it is ready, or raise :class:`StartError`."""
        self.launch()
        self.wait_ready()
        return self

    def launch(self) -> None:
        """Start the program and do not wait."""
        if self.is_running():
            msg = f"{self.name} is already running with pid {self.pid}"
            raise RuntimeError(msg)
        with self.log.open("ab") as log, postponed():
            self._process = subprocess.Popen(
                self.arguments(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=self.working_folder(),
                env=self.environment(),
                pass_fds=self.descriptors(),
                start_new_session=True,
            )
            Reaper.current().watch_group(self.pid)

    def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until the program is ready; end it and raise :class:`StartError` if it does not get there."""
        try:
            self._wait_ready(self.start_timeout * self.slowness if timeout is None else timeout)
        except StartError:
            self.kill()
            raise

    def _wait_ready(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while not self.is_ready():
            status = self.wait(POLL_INTERVAL)
            if status is not None:
                msg = f"{self.name} ended with status {status} instead of starting"
                raise StartError(msg, self.log_tail())
            if time.monotonic() > deadline:
                msg = f"{self.name} was not ready after {seconds:g} s"
                raise StartError(msg, self.log_tail())

    # Looking.

    @property
    def pid(self) -> int:
        """The number of the process, which is also that of its group."""
        if self._process is None:
            msg = f"{self.name} has not been started"
            raise RuntimeError(msg)
        return self._process.pid

    def is_running(self) -> bool:
        """Tell whether the process is there (paused counts)."""
        return self._process is not None and self._process.poll() is None

    def wait(self, timeout: float) -> int | None:
        """Wait until the process ends by itself; return its status, or None if it outlasts ``timeout``."""
        if self._process is None:
            return None
        try:
            return self._process.wait(timeout)
        except subprocess.TimeoutExpired:
            return None

    def log_tail(self, lines: int = 20) -> str:
        """Return the last lines that the program wrote."""
        try:
            return "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:])
        except OSError:
            return ""

    # Ending and disturbing.

    def stop(self, timeout: float | None = None) -> None:
        """Ask the process to end, then end by force what is left of its group; fine if it is not running."""
        if self._process is None:
            return
        if self.is_running():
            # A paused process would sit on the request for as long as it is paused.
            self.resume()
            self.signal(signal.SIGTERM)
            self.wait(self.stop_timeout * self.slowness if timeout is None else timeout)
        self.kill()

    def kill(self) -> None:
        """End the whole group at once, as if its host had died."""
        if self._process is None:
            return
        self.signal(signal.SIGKILL, group=True)
        self._process.wait()
        Reaper.current().forget_group(self._process.pid)
        self._process = None

    def pause(self) -> None:
        """Freeze the whole group: connections stay open, nothing answers from here on."""
        self.signal(signal.SIGSTOP, group=True)
        # The signal is only on its way; a program of many threads stands still when its parent is told so.
        os.waitid(os.P_PID, self.pid, os.WSTOPPED)

    def resume(self) -> None:
        """Let the group run again."""
        self.signal(signal.SIGCONT, group=True)

    def restart(self) -> None:
        """Stop the program and start it again on the same folder."""
        self.stop()
        self.start()

    def signal(self, number: signal.Signals, *, group: bool = False) -> None:
        """Send a signal to the process, or to its group; one that is gone already is no error."""
        with contextlib.suppress(ProcessLookupError):
            (os.killpg if group else os.kill)(self.pid, number)

    def close(self) -> None:
        """Stop the program and remove its folder."""
        self.stop()
        remove_folder(self.folder)

    def __repr__(self) -> str:
        """Name the program and its process."""
        state = f"pid={self._process.pid}" if self._process is not None else "not running"
        return f"<{type(self).__name__} {state}>"
