"""``zklock migrate`` on many hosts at once."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.toolbox.databases.postgresql import PostgreSQL
from tests.toolbox.timing import scaled
from tests.toolbox.zookeeper.server import ZooKeeper

ROOT = Path(__file__).resolve().parents[3]
PODS = 4


@pytest.mark.slow
@pytest.mark.once
@pytest.mark.timeout(600)
def test_migrate__many_pods(zookeeper: ZooKeeper) -> None:
    """Of several processes that start at once one migrates, and the others wait and find nothing to do."""
    with PostgreSQL() as server:
        environment = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "ZOOKEEPER_HOSTS": zookeeper.hosts,
            # Processes that start at once may starve one of them for longer than the ten seconds of the project.
            "TESTPROJECT_SESSION_TIMEOUT": "60",
            "DATABASE": json.dumps(server.settings),
            "DJANGO_SETTINGS_MODULE": "tests.integration.databases.settings",
        }
        pods = [
            subprocess.Popen(
                [sys.executable, "manage.py", "zklock", "migrate"],
                cwd=ROOT / "testproject",
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for _ in range(PODS)
        ]
        try:
            ended = [pod.communicate(timeout=scaled(500)) for pod in pods]
        finally:
            for pod in pods:
                pod.kill()
                pod.wait()
    assert [pod.returncode for pod in pods] == [0] * PODS, ended
    assert sum("Applying billing.0001_initial... OK" in out for out, _errors in ended) == 1
    assert sum("No migrations to apply." in out for out, _errors in ended) == PODS - 1
