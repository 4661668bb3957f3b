"""``manage.py zklock`` as a process of its own, with its output, on a terminal or a pipe."""

from __future__ import annotations

import contextlib
import os
import select
import subprocess
import sys
import time
from pathlib import Path

from tests.toolbox.timing import scaled

ROOT = Path(__file__).resolve().parents[3]


def start_program(*arguments: str, **environment: str) -> subprocess.Popen[str]:
    """Start Python with these arguments in the folder of the test project, with pipes for what it writes.

    Without ``PYTHONUNBUFFERED``, unless that is given: reading a line shows that it was flushed.
    """
    inherited = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=ROOT / "testproject",
        env=inherited | {"PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error"} | environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


class Process:
    """A running ``manage.py zklock`` that reads from ``descriptor`` and writes there; a shell may ``redirect`` that."""

    def __init__(self, hosts: str, descriptor: int, *arguments: str, redirect: str = "") -> None:
        environment = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "LINES"}}
        self.popen = subprocess.Popen(
            ["sh", "-c", f'exec "$@" {redirect}', "sh", sys.executable, "manage.py", "zklock", *arguments],
            cwd=ROOT / "testproject",
            env={**environment, "PYTHONPATH": str(ROOT), "PYTHONWARNINGS": "error", "ZOOKEEPER_HOSTS": hosts},
            stdin=descriptor,
            stdout=descriptor,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )

    def has_ended(self, within: float) -> bool:
        """Tell whether it ends within so many seconds."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.popen.wait(within)
        return self.popen.poll() is not None

    def end(self, timeout: float = 30) -> tuple[int, str]:
        """Wait for the end; return the status, and what was written to stderr."""
        _, errors = self.popen.communicate(timeout=scaled(timeout))
        return self.popen.returncode, errors.decode()


class Reader:
    """Reads what a process writes, up to something."""

    def __init__(self, descriptor: int) -> None:
        self.text = ""
        self._descriptor = descriptor

    def until(self, sign: str, timeout: float = 60.0) -> None:
        """Read until ``sign`` has come."""
        deadline = time.monotonic() + scaled(timeout)
        while sign not in self.text:
            ready, _, _ = select.select([self._descriptor], [], [], max(0.0, deadline - time.monotonic()))
            assert ready, f"{sign!r} has not come, but {self.text!r}"
            self.text += os.read(self._descriptor, 65536).decode(errors="replace")
