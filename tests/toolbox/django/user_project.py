"""A small user project in its own folder; its tests run in a separate pytest process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import pytest

from tests.toolbox.timing import scaled

# A name that is never resolved: a test that uses the project's own ZooKeeper fails. On a busy machine the connection to
# the server for tests may take as long as the grace of tests.toolbox.timing.
SETTINGS = """
    SECRET_KEY = "shop"
    INSTALLED_APPS = ["django.contrib.auth", "django.contrib.contenttypes", "django_zklock", "shop"]
    DATABASES = {"default": {"ENGINE": "django.db.backends.sqlite3", "NAME": ":memory:"}}
    ZKLOCK = {
        "default": {"HOSTS": "zk1.invalid:2181,zk2.invalid:2181", "SESSION_TIMEOUT": 6, "CONNECT_TIMEOUT": 15},
        "reports": {"HOSTS": "zk9.invalid:2181", "TLS": {"CHECK_HOSTNAME": False}},
    }
"""
CONFIGURATION = """
    [pytest]
    DJANGO_SETTINGS_MODULE = shop.settings
    pythonpath = .
    timeout = 60
    filterwarnings = error
"""
TASKS = """
    from django_zklock import current_lock, zk_locked


    @zk_locked("invoice:{number}", on_conflict="skip")
    def bill(number):
        return f"{number} billed"


    @zk_locked("export", template="export")
    def export(rows):
        for row in rows:
            current_lock().check()
"""


@dataclass
class Shop:
    """The project, and a way to run its tests."""

    pytester: pytest.Pytester
    # Against plugins of the tests' own environment that take long to import, hypothesis at the end of each run.
    UNUSED: ClassVar = ("-pno:hypothesispytest", "-pno:pytest_cov", "-pno:randomly")

    def write(self, name: str, text: str) -> None:
        """Write a file without the common indentation."""
        path = self.pytester.path / name
        path.parent.mkdir(exist_ok=True)
        lines = text.strip("\n").splitlines()
        depth = min((len(line) - len(line.lstrip()) for line in lines if line.strip()), default=0)
        path.write_text("".join(line[depth:] + "\n" for line in lines), encoding="utf-8")

    def write_all(self, files: Mapping[str, str]) -> None:
        """Write several files."""
        for name, text in files.items():
            self.write(name, text)

    def configure(self, line: str) -> None:
        """Append a line to the configuration of pytest."""
        with (self.pytester.path / "pytest.ini").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def test(self, *arguments: str, passed: int, **outcomes: int) -> pytest.RunResult:
        """Run the project's tests and check their outcomes."""
        unused = [each for each in self.UNUSED if not any(each.partition(":")[2] in argument for argument in arguments)]
        result = self.pytester.runpytest_subprocess(*unused, *arguments, timeout=scaled(90))
        result.assert_outcomes(passed=passed, **outcomes)
        return result


@pytest.fixture
def shop(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> Shop:
    """Return a project with two locked functions, pytest-django, and an unreachable ZooKeeper."""
    # Variables of this test run, and those of its caller.
    for name in [*os.environ]:
        if name.startswith(("DJANGO_", "PYTEST_")):
            monkeypatch.delenv(name)
    shop = Shop(pytester)
    shop.write("shop/__init__.py", "")
    shop.write("shop/settings.py", SETTINGS)
    shop.write("shop/tasks.py", TASKS)
    shop.write("pytest.ini", CONFIGURATION)
    return shop
