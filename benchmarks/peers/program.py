"""A child process that answers each line with a line of figures."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tests.toolbox.processes.interruption import postponed
from tests.toolbox.processes.reaper import Reaper

if TYPE_CHECKING:
    from typing import Self

# For a command that takes no time of its own.
TIMEOUT = 60.0
CLOSE_TIMEOUT = 5.0

ROOT = Path(__file__).resolve().parents[2]

Figures = dict[str, float]


class ProgramError(Exception):
    """A program has ended, or has not answered in time."""


class Program:
    """Run a program in a process group of its own, which ends with this one.

    What it writes to stderr goes where this process writes. A program that has failed is killed, and starts again with
    the next command.
    """

    def __init__(self, arguments: Sequence[str]) -> None:
        """Take the command line; nothing runs yet."""
        self._arguments = arguments
        self._environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, (ROOT, ROOT / "testproject")))}
        self._process: subprocess.Popen[bytes] | None = None
        self._received = b""

    @property
    def is_started(self) -> bool:
        """Whether there was a command, and no failure since."""
        return self._process is not None

    def ask(self, command: str, timeout: float = TIMEOUT, **words: object) -> Figures:
        """Send a command and return the figures of the answer; raise ProgramError if there is none in time."""
        process = self._started()
        assert process.stdin is not None
        line = " ".join([command, *(f"{name}={value}" for name, value in words.items())])
        try:
            process.stdin.write(line.encode() + b"\n")
            process.stdin.flush()
            answer = self._read_line(process, time.monotonic() + timeout)
        except (OSError, ProgramError) as error:
            self.kill()
            raise ProgramError(f"{' '.join(self._arguments[-2:])}: {error} after {line!r}") from error
        words_of_answer = answer.decode().split()
        assert words_of_answer[0] == "ok", answer
        return {name: float(value) for name, value in (word.split("=") for word in words_of_answer[1:])}

    def _started(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            with postponed():
                self._process = subprocess.Popen(
                    self._arguments,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    cwd=ROOT,
                    env=self._environment,
                    start_new_session=True,
                )
                Reaper.current().watch_group(self._process.pid)
        return self._process

    def _read_line(self, process: subprocess.Popen[bytes], deadline: float) -> bytes:
        assert process.stdout is not None
        descriptor = process.stdout.fileno()
        while b"\n" not in self._received:
            readable, _, _ = select.select([descriptor], [], [], max(0.0, deadline - time.monotonic()))
            if not readable:
                raise ProgramError("no answer")
            piece = os.read(descriptor, 65536)
            if not piece:
                raise ProgramError("the program has ended")
            self._received += piece
        line, _, self._received = self._received.partition(b"\n")
        return line

    def kill(self) -> None:
        """End the program at once, with its children."""
        process, self._process, self._received = self._process, None, b""
        if process is None:
            return
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        Reaper.current().forget_group(process.pid)
        for pipe in (process.stdin, process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()

    def close(self) -> None:
        """Let the program end by itself, and kill what is left."""
        if self._process is not None:
            assert self._process.stdin is not None
            with suppress(OSError):
                self._process.stdin.close()
            with suppress(subprocess.TimeoutExpired):
                self._process.wait(CLOSE_TIMEOUT)
        self.kill()

    def __enter__(self) -> Self:
        """Return the program, which starts with its first command."""
        return self

    def __exit__(self, *_: object) -> None:
        """End the program."""
        self.close()
