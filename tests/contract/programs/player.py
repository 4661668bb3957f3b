"""The test's side of a process that runs :mod:`tests.contract.programs.scripted_child`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from queue import Empty, Queue

import pytest

from tests.toolbox.timing import scaled

REPOSITORY = Path(__file__).resolve().parents[3]


class Player:
    """A process of :mod:`tests.contract.programs.scripted_child`."""

    def __init__(self, hosts: str, root: str, part: str, *arguments: object, timeout: float, before: str = "") -> None:
        start = f"{before}\nfrom tests.contract.programs.scripted_child import main; main()"
        self.process = subprocess.Popen(
            [sys.executable, "-c", start, hosts, root, str(scaled(timeout)), part, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            cwd=REPOSITORY,
        )
        self._lines: Queue[str] = Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line.strip())

    def receive(self, timeout: float = 20.0) -> str:
        try:
            return self._lines.get(timeout=scaled(timeout))
        except Empty:
            pytest.fail(f"the player said nothing: {self.end()[1]}")

    def send(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def stop(self) -> None:
        """Stop the process, and return when all its threads stand still."""
        self.process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, self.process.pid, os.WSTOPPED | os.WNOWAIT)

    def resume(self) -> None:
        self.process.send_signal(signal.SIGCONT)

    def wait(self, timeout: float = 20.0) -> tuple[int, str]:
        """Wait for the end; return the status and what went to standard error."""
        assert self.process.stderr is not None
        errors = self.process.stderr.read()
        return self.process.wait(scaled(timeout)), errors

    def end(self) -> tuple[int, str]:
        self.process.kill()
        outcome = self.wait()
        self._reader.join(5)
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream is not None:
                stream.close()
        return outcome
