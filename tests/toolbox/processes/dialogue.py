"""A child process that is controlled line by line, so that tests order events without sleeping."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import threading
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NoReturn

import pytest

from tests.toolbox.processes.interruption import postponed
from tests.toolbox.processes.reaper import Reaper
from tests.toolbox.processes.started import Started
from tests.toolbox.timing import scaled

if TYPE_CHECKING:
    from typing import Self


class Lines:
    """The received values of one kind; ``get`` waits for the next."""

    def __init__(self, speaker: Dialogue) -> None:
        self._speaker = speaker
        # None is the end of the program.
        self._lines: queue.Queue[str | None] = queue.Queue()

    def put(self, line: str | None) -> None:
        self._lines.put(line)

    # On a busy machine Java takes a quarter of a minute for its first connection.
    def get(self, timeout: float = 60.0) -> str:
        """Return the next value, or fail with the last output of the program."""
        try:
            line = self._lines.get(timeout=scaled(timeout))
        except queue.Empty:
            self._speaker.fail(f"nothing more within {scaled(timeout):g} s")
        if line is None:
            self._speaker.fail("the program has ended")
        return line

    def empty(self) -> bool:
        return self._lines.empty()


class Dialogue(Started):
    """Run a program with pipes for stdin and stdout; a subclass chooses the program and sorts its output.

    A separate thread calls ``on_line`` with each line. The program ends when its stdin is closed; otherwise it is
    killed, at the latest at the end of the tests.
    """

    def __init__(self) -> None:
        self.output: list[str] = []
        self._kinds: list[Lines] = []
        self._process: subprocess.Popen[str] | None = None
        self._thread = threading.Thread(target=self._listen, name="dialogue", daemon=True)

    def arguments(self) -> Sequence[str]:
        """Return the command line."""
        raise NotImplementedError

    def environment(self) -> Mapping[str, str]:
        """Return additional environment variables."""
        return {}

    def on_line(self, line: str) -> None:
        """Sort one line; called in the reading thread."""
        raise NotImplementedError

    def lines(self) -> Lines:
        """Return an inbox for the values of one kind."""
        self._kinds.append(Lines(self))
        return self._kinds[-1]

    def send(self, line: str) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(f"{line}\n")
        except BrokenPipeError:
            self.fail("the program has ended")

    def fail(self, reason: str) -> NoReturn:
        output = "\n".join(f"  | {line}" for line in self.output[-30:])
        pytest.fail(f"{reason}; the last that was said:\n{output}")

    def start(self) -> Self:
        with postponed():
            self._process = subprocess.Popen(
                self.arguments(),
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**os.environ, **self.environment()},
                text=True,
                bufsize=1,
                start_new_session=True,
            )
            Reaper.current().watch_group(self._process.pid)
        self._thread.start()
        return self

    def _listen(self) -> None:
        assert self._process is not None
        assert self._process.stdout is not None
        for line in self._process.stdout:
            self.output.append(line.rstrip("\n"))
            self.on_line(self.output[-1])
        for kind in self._kinds:
            kind.put(None)

    def close(self, timeout: float = 10.0) -> None:
        process = self._process
        if process is None:
            return
        assert process.stdin is not None
        assert process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            process.stdin.close()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(timeout)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        Reaper.current().forget_group(process.pid)
        self._thread.join(timeout)
        process.stdout.close()
