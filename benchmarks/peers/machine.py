"""The facts about the machine and the versions that figures depend on. No name of a host is among them."""

from __future__ import annotations

import os
import platform
import re
import shutil
import subprocess
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path

from benchmarks.peers.results import DATE
from tests.toolbox.curator.installation import HOW_TO_GET_CURATOR, curator_version
from tests.toolbox.processes.java import find_java
from tests.toolbox.zookeeper.server import ZooKeeper

PACKAGES = {
    "django-zklock": "django_zklock",
    "Django": "Django",
    "celery": "Celery",
    "kazoo": "kazoo",
    "redis": "redis-py",
    "python-redis-lock": "python-redis-lock",
}


def facts(server: ZooKeeper) -> dict[str, str]:
    """Return the facts by what a reader calls them."""
    return {
        DATE: f"{datetime.now(UTC):%Y-%m-%d}",
        "CPUs": f"{os.cpu_count()}, {_processor()}",
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GB",
        "system": f"{platform.system()} {'.'.join(platform.release().split('.')[:2])}",
        "Python": platform.python_version(),
        **{label: version(package) for package, label in PACKAGES.items()},
        "ZooKeeper": server.description().removeprefix("ZooKeeper "),
        "Curator": ".".join(map(str, curator_version())),
        "Java": _first_match(r'version "([^"]+)"', [find_java(HOW_TO_GET_CURATOR), "-version"]),
        "Redis": _first_match(r"v=(\S+)", [shutil.which("redis-server") or "redis-server", "--version"]),
    }


def _processor() -> str:
    """Return the model of the first CPU."""
    text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    found = re.search(r"^model name\s*: (.+)$", text, flags=re.MULTILINE)
    return found[1].strip() if found else platform.machine()


def _first_match(pattern: str, command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found = re.search(pattern, done.stdout + done.stderr)
    assert found is not None, done
    return found[1]
