"""Two workers in one process, as in tests with Celery's own fixtures: each has a gate of its own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import uuid

import pytest

from tests.toolbox.brokers.redis import Redis
from tests.toolbox.celery.projects import PROJECTS
from tests.toolbox.processes.project import PROJECT
from tests.toolbox.timing import scaled
from tests.toolbox.zookeeper.server import ZooKeeper

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]


def test_two_workers__each_has_its_own_gate(zookeeper: ZooKeeper, broker: Redis, key: str) -> None:
    """A task waits at the gate of the worker that has received it, and runs under the hold of that worker."""
    environment = {
        **os.environ,
        "DJANGO_SETTINGS_MODULE": "workshop.settings",
        "PYTHONPATH": os.pathsep.join([str(PROJECTS), str(PROJECT), *filter(None, sys.path)]),
        "WORKSHOP_BOARD": broker.url,
        "WORKSHOP_ROOT": f"/two-{uuid.uuid4().hex[:8]}",
        "WORKSHOP_SESSION_TIMEOUT": "30",
        "WORKSHOP_GATE": "1",
        "ZOOKEEPER_HOSTS": zookeeper.hosts,
    }
    script = [sys.executable, str(PROJECTS / "two_workers.py"), key]
    process = subprocess.run(
        script,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=scaled(100),
        stdin=subprocess.DEVNULL,
    )
    assert process.returncode == 0, process.stderr
    notified = json.loads(process.stdout.splitlines()[-1])
    keys = {name: f"{key}:{name}" for name in ("first", "second")}
    assert notified["ran"] == keys
    assert notified["waiting"] == {name: [each] for name, each in keys.items()}
    # A task that waits when its worker ends does not run in the next test.
    assert notified["left"] == "PENDING"
    # A task that finds no hold of its worker's gate says so, and acquires for itself.
    assert "locks_for_itself" not in process.stderr
    assert "header_refused" not in process.stderr
