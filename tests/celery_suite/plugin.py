"""A pytest plugin for Celery's own tests: it writes the outcome of each, and puts the gate into every app.

The variable ``CELERY_SUITE`` says what is run, ``unit`` or ``integration``, and ``CELERY_SUITE_GATE`` whether with the
gate. Integration tests have a real worker, a process, instead of Celery's one in a thread of the tests, which can have
no prefork pool beside their connections.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import celery.app.base
import celery.contrib.pytest
import pytest
from celery.utils.nodenames import anon_nodename

from tests.celery_suite import project
from tests.toolbox.processes.process import Process
from tests.toolbox.suites.outcome import Recorder

GATE = os.environ["CELERY_SUITE_GATE"] == "1"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.getgroup("Celery's suite").addoption("--celery-outcomes", type=Path, required=True, help="a file")


def pytest_configure(config: pytest.Config) -> None:
    config.pluginmanager.register(Recorder(config.getoption("celery_outcomes")))


def _put_gate_into_apps() -> None:
    """Let each app have the gate from its beginning, and not from the start of a worker: tests make parts of one."""
    # A worker that begins imports the second one.
    from django_zklock.contrib.celery import inspect  # noqa: F401
    from django_zklock.contrib.celery.gate import gate

    init = celery.app.base.Celery.__init__

    @functools.wraps(init)
    def init_with_gate(self: Any, *args: Any, **kwargs: Any) -> None:
        init(self, *args, **kwargs)
        gate.install(self)

    patched: Any = celery.app.base.Celery
    patched.__init__ = init_with_gate


class Worker(Process):
    """The worker of the integration tests, with the name that they expect."""

    name = "Celery worker"
    start_timeout = 60.0

    def arguments(self) -> list[str]:
        return [
            *(sys.executable, "-m", "celery", "--app", "tests.celery_suite.app", "worker"),
            *("--pool", "prefork", "--concurrency", "2", "--loglevel", "INFO", "--hostname", anon_nodename()),
        ]

    def working_folder(self) -> Path:
        return Path.cwd()

    def is_ready(self) -> bool:
        return " ready." in self.log.read_text(encoding="utf-8", errors="replace")


@pytest.fixture(scope="session")
def celery_session_worker(celery_session_app: Any) -> Iterator[Any]:
    """Start the worker; its log stays beside the outcomes."""
    with Worker() as worker:
        try:
            yield celery_session_app
        finally:
            log = Path(os.environ["CELERY_SUITE_WORKER_LOG"])
            log.write_bytes(worker.log.read_bytes())


if os.environ["CELERY_SUITE"] == "integration":
    # Where their conftest takes it from.
    theirs: Any = celery.contrib.pytest
    theirs.celery_session_worker = celery_session_worker
project.set_up(with_package=GATE)
if os.environ["CELERY_SUITE"] == "unit" and GATE:
    _put_gate_into_apps()
