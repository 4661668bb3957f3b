"""Django's test runner with the locks of all tests on a ZooKeeper for tests."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import pytest

from tests.toolbox.timing import scaled

if TYPE_CHECKING:
    from tests.toolbox.django.user_project import Shop

pytest_plugins = ["pytester", "tests.toolbox.django.user_project"]

# Each process of the run adds a line with the server that its locks are on.
PROCESS = """
    import os
    from pathlib import Path

    from django.db.models.signals import post_migrate
    from django_zklock import zk_lock
    from django_zklock.connections import connections


    def note(kind):
        with Path("servers.txt").open("a") as file:
            file.write(f"{kind} {os.getpid()} {connections['default'].options.connection.hosts}\\n")


    def migrated(**facts):
        with zk_lock("migrated").acquire(timeout=60):
            note("migrated")


    post_migrate.connect(migrated, dispatch_uid="shop")
"""
# Two classes, each of which keeps its lock until the other one has it too, which a shared tree makes impossible.
TESTS = """
    import time
    from pathlib import Path

    from django.test import TestCase

    from django_zklock import zk_lock
    from shop.process import note


    class Base:
        @classmethod
        def setUpTestData(cls):
            zk_lock("data").acquire(timeout=60).release(wait=True)

        def test_lock(self):
            with zk_lock("key").acquire(timeout=0):
                note("tested")
                end = time.monotonic() + WAIT
                while time.monotonic() < end and Path("servers.txt").read_text().count("tested") < 2:
                    time.sleep(0.01)


    class First(Base, TestCase):
        pass


    class Second(Base, TestCase):
        pass
"""
MAIN = """
    import multiprocessing
    import sys

    from django.core.management import execute_from_command_line

    if __name__ == "__main__":
        multiprocessing.set_start_method(sys.argv.pop(1))
        execute_from_command_line(sys.argv)
"""


def run(shop: Shop, *options: str, method: str = "fork", wait: float = 0.0) -> list[tuple[str, str, str]]:
    """Run the tests; return what each process has noted: what it did, its id and its server."""
    shop.write("shop/process.py", PROCESS)
    shop.write("shop/__init__.py", "")
    shop.write("shop/apps.py", APP)
    shop.write("shop/tests.py", TESTS.replace("WAIT", str(wait)))
    shop.write("main.py", MAIN)
    command = [sys.executable, "main.py", method, "test", "shop.tests", "--settings=shop.settings"]
    runner = "--testrunner=django_zklock.testing.runner.SandboxRunner"
    result = shop.pytester.run(*command, runner, *options, timeout=scaled(90))
    result.stderr.fnmatch_lines(["Ran 2 tests*", "OK"])
    lines = (shop.pytester.path / "servers.txt").read_text("utf-8").splitlines()
    return [(kind, pid, hosts) for kind, pid, hosts in map(str.split, lines)]


APP = """
    from django.apps import AppConfig


    class ShopConfig(AppConfig):
        name = "shop"

        def ready(self):
            import shop.process
"""


def test_runner__one_process(shop: Shop) -> None:
    """All tests, test data and migrations use one server, and never the ZooKeeper of the project's settings."""
    notes = run(shop)
    assert [kind for kind, _pid, _hosts in notes].count("tested") == 2
    assert notes[0][0] == "migrated"
    assert len({(pid, hosts) for _kind, pid, hosts in notes}) == 1


@pytest.mark.parametrize("method", ["fork", "spawn"])
def test_runner__parallel(shop: Shop, method: str) -> None:
    """Each process of --parallel has its own server, so that two tests can hold the same lock at the same time."""
    tested = [note for note in run(shop, "--parallel=2", method=method, wait=30.0) if note[0] == "tested"]
    assert len({pid for _kind, pid, _hosts in tested}) == 2
    assert len({hosts for _kind, _pid, hosts in tested}) == 2
