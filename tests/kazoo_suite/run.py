"""One run of kazoo's tests on one kind of server, in a child process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Collection, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING

from .outcome import Outcome, read_outcomes

if TYPE_CHECKING:
    from typing import Self

REPOSITORY = Path(__file__).resolve().parents[2]
# For one test. On a busy machine none takes half of it.
TEST_TIMEOUT = 60.0
# After this the stacks of all threads are written to the log: the process cannot be interrupted.
STUCK_TIMEOUT = 90.0
# For all tests. They take about two minutes.
RUN_TIMEOUT = 600.0
# pytest's exit codes: all passed, some failed.
OVER = (0, 1)


class RunError(Exception):
    """The tests could not be run to their end; the message has the last output of pytest."""


class Run:
    """A pytest that runs ``tests``, or those that the ``options`` choose, and writes files named after the run."""

    def __init__(
        self,
        server: str,
        source: Path,
        folder: Path,
        *,
        name: str,
        tests: Collection[str] = (),
        options: Sequence[str] = (),
    ) -> None:
        self.server = server
        self._outcomes = folder / f"{name}-{server}.jsonl"
        self.log = folder / f"{name}-{server}.log"
        self._source = source
        self._arguments = [*options, *(sorted(tests) or ["kazoo/tests"])]

    def __enter__(self) -> Self:
        self._outcomes.unlink(missing_ok=True)
        with self.log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command(), cwd=self._source, env=self._environment(), stdout=log, stderr=subprocess.STDOUT
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
            status = self._process.wait(RUN_TIMEOUT)
        except subprocess.TimeoutExpired:
            status = None
        if status not in OVER:
            tail = "\n".join(self.log.read_text(encoding="utf-8", errors="replace").splitlines()[-20:])
            how = f"was not over after {RUN_TIMEOUT:g} s" if status is None else f"ended with status {status}"
            raise RunError(f"the run on the {self.server} server {how}; the end of {self.log} is\n{tail}")
        return read_outcomes(self._outcomes)

    def _command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "pytest"),
            # Neither our configuration nor kazoo's, which prints every line of the log.
            *("-c", os.devnull, "--rootdir", str(self._source)),
            *("-p", "no:cacheprovider", "-p", "pytest_timeout", "-p", "tests.kazoo_suite.plugin"),
            *("--kazoo-server", self.server, "--kazoo-outcomes", str(self._outcomes)),
            *("--timeout", f"{TEST_TIMEOUT:g}", "-o", f"faulthandler_timeout={STUCK_TIMEOUT:g}"),
            *("-W", "ignore", "-ra", "--tb=short", "--durations=20"),
            *self._arguments,
        ]

    def _environment(self) -> dict[str, str]:
        path = [self._source, REPOSITORY, REPOSITORY / "testproject"]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(str(folder) for folder in path),
            # Of pytest's plugins only those named in the command: ours would need Django and a random order.
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            # The harness needs this to know which lines the configuration may have.
            "ZOOKEEPER_VERSION": "3.8.0",
        }
        # With it kazoo's tests would take the server's version from there and wait longer.
        environment.pop("CI", None)
        environment.pop("PYTEST_ADDOPTS", None)
        return environment


def run_both(
    source: Path, folder: Path, *, name: str, tests: Collection[str] = (), options: Sequence[str] = ()
) -> tuple[dict[str, Outcome], dict[str, Outcome]]:
    """Run the tests on both servers at the same time; return the outcomes on the real one and on the test server."""
    with (
        Run("real", source, folder, name=name, tests=tests, options=options) as real,
        Run("ours", source, folder, name=name, tests=tests, options=options) as ours,
    ):
        return real.finish(), ours.finish()
