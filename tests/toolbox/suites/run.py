"""One run of another project's tests, in a child process."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from tests.toolbox.suites.outcome import Outcome, read_outcomes

if TYPE_CHECKING:
    from typing import Self

REPOSITORY = Path(__file__).resolve().parents[3]
# pytest's exit codes: all passed, some failed.
OVER = (0, 1)


class RunError(Exception):
    """The tests could not be run to their end; the message has the last output of pytest."""


class Run:
    """A pytest of ``source`` in ``working_folder`` that writes files named ``name`` into ``folder``.

    A subclass says what it runs.
    ``timeout`` is in seconds, for all tests.
    """

    timeout: float

    def __init__(self, source: Path, folder: Path, name: str, *, working_folder: Path) -> None:
        self.source = source
        self.name = name
        self.outcomes = folder / f"{name}.jsonl"
        self.log = folder / f"{name}.log"
        self._working_folder = working_folder

    def command(self) -> Sequence[str]:
        """Return the command line."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Return the environment, in which Python finds the tests and, behind them, what is ours."""
        path = [self.source, REPOSITORY, REPOSITORY / "testproject"]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(folder) for folder in path),
            # Of pytest's plugins only those named in the command: ours would need Django and a random order.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
        }
        environment.pop("PYTEST_ADDOPTS", None)
        return environment

    def __enter__(self) -> Self:
        self.outcomes.unlink(missing_ok=True)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self.command(),
                cwd=self._working_folder,
                env=self.environment(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        # The process has ended, unless there was an error here.
        self._process.terminate()
        self._process.wait()

    def finish(self) -> dict[str, Outcome]:
        """Wait for the end and return the outcomes by test."""
        try:
            status = self._process.wait(self.timeout)
        except subprocess.TimeoutExpired:
            status = None
        if status not in OVER:
            tail = "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
            how = f"was not over after {self.timeout:g} s" if status is None else f"ended with status {status}"
            raise RunError(f"the run {self.name} {how}; the end of {self.log} is\n{tail}")
        return read_outcomes(self.outcomes)
