"""A process that ends the processes and removes the folders of a program that is gone, however it went.

``atexit`` and signal handlers do not run when a program is killed with SIGKILL, and ``PR_SET_PDEATHSIG``
needs a ``preexec_fn`` (unsafe with threads) and fires when the *thread* that started the child ends. So the
program starts one small process in a session of its own, which is told about each process group and folder,
and acts when the program has died.

This file is both sides: the program imports :class:`Reaper`, the reaping process runs the file with ``python -I
-S``, so this file imports nothing outside the standard library.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import ClassVar


class Reaper:
    """The program's side: one reaping process for each, started when it is first needed.

    Any thread may call any method. ``_lock`` guards ``_instance`` and keeps each order one line on the pipe.
    """

    _instance: ClassVar[Reaper | None] = None
    _lock: ClassVar[threading.Lock] = threading.Lock()

    def __init__(self) -> None:
        """Start the process."""
        self.owner = os.getpid()
        # Not Popen's own pipe: its file object would be closed, with a warning, by each forked child that
        # ends.
        orders, self._orders = os.pipe()
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(self.owner)],
            stdin=orders,
            # Neither Ctrl-C at the terminal nor a signal to the program's group may reach it.
            start_new_session=True,
            cwd="/",
        )
        os.close(orders)
        atexit.register(self.end)

    @property
    def pid(self) -> int:
        """The number of the reaping process."""
        return self._process.pid

    def end(self, timeout: float = 10.0) -> None:
        """End and remove everything now, so that nothing is left when the program exits."""
        if self.owner == os.getpid():  # a forked child runs its parent's exit functions
            with contextlib.suppress(OSError):
                self._send("end", 0)
            self._process.wait(timeout)
            os.close(self._orders)

    @classmethod
    def current(cls) -> Reaper:
        """Return the reaper of this process; a forked child gets one of its own."""
        with cls._lock:
            if cls._instance is None or cls._instance.owner != os.getpid():
                cls._instance = cls()
            return cls._instance

    def watch_group(self, group: int) -> None:
        """Kill the process group when this program is gone."""
        self._send("watch_group", group)

    def forget_group(self, group: int) -> None:
        """Take back :meth:`watch_group`, since the number may soon belong to another group."""
        self._send("forget_group", group)

    def watch_folder(self, folder: str) -> None:
        """Remove the folder when this program is gone."""
        self._send("watch_folder", folder)

    def forget_folder(self, folder: str) -> None:
        """Take back :meth:`watch_folder`."""
        self._send("forget_folder", folder)

    def _send(self, order: str, value: int | str) -> None:
        line = json.dumps([order, value]).encode() + b"\n"
        with self._lock:
            os.write(self._orders, line)


def watch(owner: int) -> None:
    """Follow the orders on standard input until the owner is gone, then end and remove what is left of it."""
    groups: set[int] = set()
    folders: set[str] = set()
    ended = False
    waiting_for: list[int] = [sys.stdin.fileno()]
    # The pipe's end is not enough: a child that the owner has forked keeps the pipe open after the owner
    # died.
    with contextlib.suppress(AttributeError, OSError):
        waiting_for.append(os.pidfd_open(owner))
    pending = b""
    while not ended:
        readable, _, _ = select.select(waiting_for, [], [])
        # What the owner said before it died comes before its death.
        chunk = os.read(sys.stdin.fileno(), 65536) if sys.stdin.fileno() in readable else b""
        *lines, pending = (pending + chunk).split(b"\n")
        ended = not chunk
        for line in lines:
            order, value = json.loads(line)
            if order == "end":
                ended = True
            elif order.endswith("group"):
                (groups.add if order == "watch_group" else groups.discard)(value)
            else:
                (folders.add if order == "watch_folder" else folders.discard)(value)
    for group in groups:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(group, signal.SIGKILL)
    for folder in folders:
        remove(folder)


def remove(folder: str, timeout: float = 5.0) -> None:
    """Remove a folder in which a dying process may still be writing."""
    deadline = time.monotonic() + timeout
    while Path(folder).is_dir():
        shutil.rmtree(folder, ignore_errors=True)
        if time.monotonic() > deadline:
            return
        time.sleep(0.02)


if __name__ == "__main__":
    watch(int(sys.argv[1]))
