"""An agent that lets a proxy run in a task's place: gate and errors are the same as without it."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from django_zklock import LockConflict, LockTimeout
from tests.toolbox.celery.projects import PROJECTS
from tests.toolbox.processes.project import PROJECT

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]

# Longer than every wait here: a lock is free before that only if the gate has held it.
SESSION_TIMEOUT = 50.0
# Seconds, enough for a busy machine.
SOON = 25.0


def new_relic() -> dict[str, str]:
    """Return the environment in which Python starts New Relic's agent, as `newrelic-admin run-program` does it."""
    spec = importlib.util.find_spec("newrelic")
    assert spec is not None
    assert spec.origin is not None
    bootstrap = str(Path(spec.origin).parent / "bootstrap")
    return {
        "PYTHONPATH": os.pathsep.join([bootstrap, str(PROJECTS), str(PROJECT), *filter(None, sys.path)]),
        "NEW_RELIC_PYTHON_PREFIX": str(Path(sys.prefix).resolve()),
        "NEW_RELIC_PYTHON_VERSION": ".".join(map(str, sys.version_info[:2])),
        "NEW_RELIC_CONFIG_FILE": str(PROJECTS / "workshop" / "newrelic.ini"),
    }


@pytest.fixture(scope="module")
def workshop(open_workshop: Any) -> Iterator[Any]:
    environment = new_relic() | {"WORKSHOP_LOST_WAIT": "0.5"}
    with open_workshop(concurrency=1, session_timeout=SESSION_TIMEOUT, environment=environment) as workshop:
        yield workshop
        assert "instrument_celery_app_trace" in workshop.worker.log.read_text(), "the agent was there"


@pytest.mark.shows("faults#an-agent-puts-a-proxy-in-a-tasks-place")
@pytest.mark.parametrize("name", ["shared_below", "app_bound_retrying_above", "class_based_run"])
def test_gate__has_the_task(workshop: Any, key: str, name: str) -> None:
    """A task that waits takes no slot, and runs under the hold of the main process."""
    workshop.other_client.take(key)
    task = workshop.send(name, key)
    workshop.wait_count(key, 2)
    workshop.result(workshop.send("idle"))
    workshop.other_client.release(key)
    assert workshop.result(task)["key"] == key
    assert f"event=header_refused task={task.id}" not in workshop.worker.log.read_text()


@pytest.mark.shows("faults#an-agent-puts-a-proxy-in-a-tasks-place")
def test_killed_child__lock_is_free(workshop: Any, key: str) -> None:
    """The lock of a killed child is free when the child has ended, and not when a session has."""
    workshop.send("hold", key, f"{key}:gate")
    facts = workshop.entered(f"{key}:gate")
    (holder,) = workshop.holders(key)
    assert holder.pid == workshop.worker.pid != facts["pid"]
    os.kill(facts["pid"], signal.SIGKILL)
    workshop.wait_empty(key, SOON)


@pytest.mark.shows("faults#an-agent-puts-a-proxy-in-a-tasks-place")
@pytest.mark.parametrize(("name", "kind"), [("refuse_below", LockConflict), ("time_out", LockTimeout)])
def test_autoretry__conflict_is_no_failed_attempt(workshop: Any, key: str, name: str, kind: type[Exception]) -> None:
    """`autoretry_for=(Exception,)` does not retry a conflict."""
    workshop.other_client.take(key)
    task = workshop.send(name, key, f"{key}:run")
    assert type(workshop.outcome(task)) is kind
    log = workshop.worker.log.read_text()
    assert "event=autoretry_unknown" not in log
    assert f"{name}[{task.id}] retry" not in log
