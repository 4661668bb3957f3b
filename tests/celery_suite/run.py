"""One run of a part of Celery's tests, without the gate or with it, in a child process."""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from tests.toolbox.brokers.redis import Redis
from tests.toolbox.processes.folder import make_folder, remove_folder
from tests.toolbox.suites import run
from tests.toolbox.suites.outcome import Outcome
from tests.toolbox.zookeeper.server import ZooKeeper

MODES = ("without", "with")
# For one test, in seconds; many of the integration tests wait for a minute.
TEST_TIMEOUT = 180.0


@dataclass(frozen=True, kw_only=True)
class Part:
    """Some of the tests, which may need a worker; ``timeout`` is in seconds, for all of them."""

    name: str
    paths: Sequence[str]
    needs_worker: bool
    timeout: float
    left_out: Mapping[str, str] = field(default_factory=dict)


class Run(run.Run):
    """A pytest that runs ``tests``, or those of the part that the ``options`` choose."""

    def __init__(
        self,
        part: Part,
        mode: str,
        source: Path,
        folder: Path,
        *,
        working_folder: Path,
        name: str = "",
        tests: Collection[str] = (),
        options: Sequence[str] = (),
        servers: Mapping[str, str],
    ) -> None:
        super().__init__(source, folder, f"{part.name}{name}-{mode}", working_folder=working_folder)
        self.timeout = part.timeout
        self._part, self._mode, self._servers = part, mode, servers
        left_out = [f"--deselect={test}" for test in part.left_out]
        self._arguments = [*options, *left_out, *(f"{source}/{each}" for each in sorted(tests) or part.paths)]

    def command(self) -> list[str]:
        return [
            *(sys.executable, "-m", "pytest"),
            # Celery's configuration, without the options that need further plugins.
            *("-c", str(self.source / "pyproject.toml"), "--rootdir", str(self.source), "-o", "addopts="),
            *("-p", "no:cacheprovider", "-p", "pytest_timeout", "-p", "tests.celery_suite.plugin"),
            *("--celery-outcomes", str(self.outcomes), "--timeout", f"{TEST_TIMEOUT:g}"),
            *("-W", "ignore", "-q", "-rfE", "--tb=short", "--durations=20"),
            # After ours, which changes it. The unit tests import what they use.
            *(["-p", "celery.contrib.pytest"] if self._part.needs_worker else []),
            *self._arguments,
        ]

    def environment(self) -> dict[str, str]:
        environment = {
            **super().environment(),
            **self._servers,
            "CELERY_SUITE": "integration" if self._part.needs_worker else "unit",
            "CELERY_SUITE_GATE": "1" if self._mode == "with" else "0",
            "CELERY_SUITE_WORKER_LOG": str(self.log.with_suffix(".worker.log")),
            "C_FORCE_ROOT": "1",
        }
        environment.pop("DJANGO_SETTINGS_MODULE", None)
        return environment


def run_both(
    part: Part,
    source: Path,
    folder: Path,
    *,
    name: str = "",
    tests: Collection[str] = (),
    options: Sequence[str] = (),
) -> tuple[dict[str, Outcome], dict[str, Outcome]]:
    """Run the tests in both ways at the same time; return the outcomes without the gate and with it."""
    with ExitStack() as stack:
        runs = []
        for mode in MODES:
            servers = {}
            if part.needs_worker:
                # Each has its own: the tests count keys and channels.
                redis = stack.enter_context(Redis())
                servers = {
                    "TEST_BROKER": redis.url,
                    "TEST_BACKEND": redis.url,
                    "REDIS_HOST": "127.0.0.1",
                    "REDIS_PORT": str(redis.port),
                }
                if mode == "with":
                    servers["CELERY_SUITE_ZOOKEEPER"] = stack.enter_context(ZooKeeper()).hosts
            # The tests write files where they are run.
            working_folder = make_folder("celery-suite")
            stack.callback(remove_folder, working_folder)
            each = Run(
                part, mode, source, folder,
                working_folder=working_folder, name=name, tests=tests, options=options, servers=servers,
            )  # fmt: skip
            runs.append(stack.enter_context(each))
        reference, ours = (each.finish() for each in runs)
        return reference, ours
