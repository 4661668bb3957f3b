"""Processes of the last release and of this checkout share locks, as they do during a rollout.

The last release is the newest tag ``v…``, or the commit in ``ZKLOCK_RELEASE``. Before the first release it is a copy of
this checkout, so that the tests themselves are tested.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from django_zklock import zk_lock
from django_zklock.testing import ZooKeeperServer
from tests.toolbox.timing import scaled

if TYPE_CHECKING:
    from pytest_django import Settings

ROOT = Path(__file__).resolve().parents[2]
TURNS = 25
# In seconds; each program takes a few.
DEADLINE = scaled(90)
SETTINGS = """
import os
SECRET_KEY = "shop"
INSTALLED_APPS = ["django_zklock"]
ZKLOCK = {"default": {"HOSTS": os.environ["ZOOKEEPER_HOSTS"]}}
"""
# Adds one to a number in a file, in two steps between which another process would be in the way.
BOOKS = """
import os, time
from pathlib import Path

def add_one(token):
    books = Path(os.environ["BOOKS"])
    lines = books.read_text()
    time.sleep(0.002)
    books.write_text(f"{lines}{token} {os.environ['PYTHONPATH']}\\n")
"""
COUNTER = """
import sys
import django
django.setup()
import books
from django_zklock import zk_lock
for _ in range(int(sys.argv[1])):
    with zk_lock("shared").acquire(timeout=60) as held:
        books.add_one(held.token)
"""
HOLDER = """
import sys
import django
django.setup()
from django_zklock import LockTimeout, zk_lock
try:
    zk_lock("held-here").acquire(timeout=0)
except LockTimeout as error:
    print(error, flush=True)
with zk_lock("held-there"):
    print("held", flush=True)
    sys.stdin.read()
"""


def release() -> str:
    """Return the commit of the last release, or nothing."""
    if named := os.environ.get("ZKLOCK_RELEASE"):
        return named
    arguments = ["git", "describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"]
    return subprocess.run(arguments, cwd=ROOT, capture_output=True, text=True, check=False).stdout.strip()


@pytest.fixture(scope="module")
def releases(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """Return the folders of both packages, the released one first."""
    folder = tmp_path_factory.mktemp("release")
    if commit := release():
        archive = subprocess.run(
            ["git", "archive", commit, "django_zklock"], cwd=ROOT, capture_output=True, check=True
        ).stdout
        with tarfile.open(fileobj=BytesIO(archive)) as tar:
            tar.extractall(folder, filter="data")
    else:
        (folder / "django_zklock").symlink_to(ROOT / "django_zklock")
    return [folder, ROOT]


class Shop:
    """A project whose processes use one package or the other."""

    def __init__(self, folder: Path, hosts: str) -> None:
        self.folder = folder
        self.books = folder / "books.txt"
        self.books.touch()
        self.environment = {
            **{name: value for name, value in os.environ.items() if not name.startswith(("COV", "PYTEST"))},
            "BOOKS": str(self.books), "ZOOKEEPER_HOSTS": hosts,
            "DJANGO_SETTINGS_MODULE": "shop_settings",
        }  # fmt: skip
        self.processes: list[subprocess.Popen[str]] = []
        for name, text in {"shop_settings": SETTINGS, "books": BOOKS}.items():
            (folder / f"{name}.py").write_text(text, encoding="utf-8")

    def start(self, release: Path, *arguments: str) -> subprocess.Popen[str]:
        """Start a Python program with the package of a release."""
        process = subprocess.Popen(
            [sys.executable, *arguments], cwd=self.folder, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            env={**self.environment, "PYTHONPATH": f"{release}:{self.folder}"},
        )  # fmt: skip
        self.processes.append(process)
        return process

    def entries(self) -> list[tuple[int, str]]:
        """Return the token and the release of each entry, in the order of the books."""
        lines = (line.split() for line in self.books.read_text(encoding="utf-8").splitlines())
        return [(int(token), path.partition(":")[0]) for token, path in lines]

    def check(self, releases: list[Path], number: int) -> None:
        """Fail unless each release has made its entries, one after the other."""
        entries = self.entries()
        assert [release for _token, release in sorted(entries, key=lambda each: each[1])] == sorted(
            [str(release) for release in releases] * number
        )
        tokens = [token for token, _release in entries]
        assert tokens == sorted(set(tokens))

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
            try:
                process.communicate(timeout=DEADLINE)
            finally:
                process.kill()


@pytest.fixture
def shop(tmp_path: Path) -> Iterator[Shop]:
    with ZooKeeperServer() as server:
        shop = Shop(tmp_path, server.hosts)
        try:
            yield shop
        finally:
            shop.stop()


@pytest.mark.shows("versions#old-and-new-processes-side-by-side")
def test_processes(shop: Shop, releases: list[Path]) -> None:
    """Two processes of each release write into one file, and no entry is lost."""
    processes = [shop.start(release, "-c", COUNTER, str(TURNS)) for release in releases * 2]
    assert [process.wait(DEADLINE) for process in processes] == [0] * 4
    shop.check(releases, 2 * TURNS)


@pytest.mark.shows("versions#old-and-new-processes-side-by-side")
def test_holders(shop: Shop, releases: list[Path], settings: Settings) -> None:
    """Each release names the process of the other one that holds a lock."""
    settings.ZKLOCK = {"default": {"HOSTS": shop.environment["ZOOKEEPER_HOSTS"]}}
    with zk_lock("held-here"):
        process = shop.start(releases[0], "-c", HOLDER)
        assert process.stdout is not None
        assert f"pid {os.getpid()} on " in process.stdout.readline()
        assert process.stdout.readline() == "held\n"
    (holder,) = zk_lock("held-there").holders()
    assert holder is not None
    assert holder.pid == process.pid
