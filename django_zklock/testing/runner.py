"""A runner for ``manage.py test`` that puts the locks of all tests on a ZooKeeper for tests.

The module keeps the sandbox of a process of ``manage.py test --parallel``.
"""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from django.test.runner import DiscoverRunner, ParallelTestSuite

from .sandbox import Sandbox

# The sandbox of a process for `--parallel`, open until the process ends.
_open = ExitStack()


def _init_worker(*args: Any, **options: Any) -> None:
    """Do what Django does at the start of a process for ``--parallel``, and open a sandbox that ends with it."""
    ParallelTestSuite.init_worker(*args, **options)
    _open.enter_context(Sandbox())


class _ParallelTestSuite(ParallelTestSuite):
    init_worker = _init_worker


class SandboxRunner(DiscoverRunner):
    """Django's test runner, which puts every alias of ``ZKLOCK`` into a :class:`Sandbox` for the whole run.

    With ``--parallel`` each process has a sandbox of its own, as it has a database of its own.
    """

    parallel_test_suite = _ParallelTestSuite

    def run_tests(self, test_labels: list[str], **options: Any) -> int:
        """Run the tests; the databases are created in the sandbox too."""
        with Sandbox():
            return super().run_tests(test_labels, **options)
