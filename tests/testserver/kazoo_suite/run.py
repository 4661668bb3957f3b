"""One run of kazoo's tests on one kind of server, in a child process."""

from __future__ import annotations

import os
import sys
from collections.abc import Collection, Sequence
from pathlib import Path

from tests.toolbox.suites import run
from tests.toolbox.suites.outcome import Outcome

# For one test. On a busy machine none takes half of it.
TEST_TIMEOUT = 60.0
# After this the stacks of all threads are written to the log: the process cannot be interrupted.
STUCK_TIMEOUT = 90.0


class Run(run.Run):
    """A pytest that runs ``tests``, or those that the ``options`` choose, and writes files named after the run."""

    # They take about two minutes.
    timeout = 600.0

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
        super().__init__(source, folder, f"{name}-{server}", working_folder=source)
        self._server = server
        self._arguments = [*options, *(sorted(tests) or ["kazoo/tests"])]

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "pytest"),
            # Neither our configuration nor kazoo's, which prints every line of the log.
            *("-c", os.devnull, "--rootdir", str(self.source)),
            *("-p", "no:cacheprovider", "-p", "pytest_timeout", "-p", "tests.testserver.kazoo_suite.plugin"),
            *("--kazoo-server", self._server, "--kazoo-outcomes", str(self.outcomes)),
            *("--timeout", f"{TEST_TIMEOUT:g}", "-o", f"faulthandler_timeout={STUCK_TIMEOUT:g}"),
            *("-W", "ignore", "-ra", "--tb=short", "--durations=20"),
            *self._arguments,
        ]

    def environment(self) -> dict[str, str]:
        # The harness needs this to know which lines the configuration may have.
        environment = {**super().environment(), "ZOOKEEPER_VERSION": "3.8.0"}
        # With it kazoo's tests would take the server's version from there and wait longer.
        environment.pop("CI", None)
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
