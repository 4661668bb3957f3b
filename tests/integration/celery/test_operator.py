"""What an operator sees of a task that holds a lock, and types to end it: with the real programs."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from celery.app import app_or_default

from django_zklock import serializers
from django_zklock.doctor import celery as celery_findings
from django_zklock.zk.ops import actions, snapshots
from django_zklock.zk.ops.snapshots import QueueEntry
from tests.integration.celery import broker_audit
from tests.toolbox.celery.program import run_in_shell
from tests.toolbox.django.findings import by_id
from tests.toolbox.timing import wait_until

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]

# Long before the session ends.
SESSION_TIMEOUT = 60.0
SOON = 40.0

Shell = Callable[[str], "subprocess.CompletedProcess[str]"]


# Without an event loop the gate has a thread of its own.
WITHOUT_LOOP_TOO = pytest.mark.parametrize("workshop", ["redis", "filesystem"], indirect=True)


@pytest.fixture(scope="module", params=["redis"])
def workshop(
    request: pytest.FixtureRequest, open_workshop: Any, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("broker") if request.param == "filesystem" else None
    with open_workshop(
        concurrency=2, session_timeout=SESSION_TIMEOUT, folder=folder, options=["--time-limit", "300"]
    ) as workshop:
        yield workshop


@pytest.fixture
def shell(workshop: Any, tmp_path: Path) -> Shell:
    """Return a function that runs a line of shell where the project is."""

    def run(line: str) -> subprocess.CompletedProcess[str]:
        (folder := tmp_path / str(len([*tmp_path.iterdir()]))).mkdir()
        return run_in_shell(line, workshop._environment, folder)

    return run


def holder(workshop: Any, key: str) -> QueueEntry:
    (entry,) = snapshots.one_lock(workshop.pool, key, timeout=20).holders
    return entry


def work_of(workshop: Any, key: str) -> Any:
    identity = holder(workshop, key).identity
    assert identity is not None
    return identity.work


def test_inspect__from_a_shell(workshop: Any, shell: Shell, key: str) -> None:
    """Celery's program knows the commands of the gate in a project whose `celery.py` is as Celery documents it."""
    workshop.send("hold", key, f"{key}:gate")
    note = workshop.entered(f"{key}:gate")
    inspected, listed = (
        shell("celery -A workshop inspect --timeout 5 --json zklocks"),
        shell("celery -A workshop zklocks"),
    )
    workshop.let_go(f"{key}:gate")
    assert inspected.returncode == 0, inspected.stdout + inspected.stderr
    (answer,) = json.loads(inspected.stdout.splitlines()[0]).values()
    (task,) = [each for each in answer if each["key"] == key]
    assert (task["pid"], task["state"], task["token"]) == (note["pid"], "held", note["token"])
    assert listed.returncode == 0, listed.stdout + listed.stderr
    assert key in listed.stdout
    gate = broker_audit.ask(workshop, "zklock_gate")
    assert (gate["gate"], gate["pool"]) == (True, "prefork")
    workshop.wait_empty(key)


@WITHOUT_LOOP_TOO
def test_node__names_worker_and_child(workshop: Any, key: str) -> None:
    """The node names worker and time limit at once, and the child when the task has run for a while."""
    task = workshop.send("hold", key, f"{key}:gate")
    note = workshop.entered(f"{key}:gate")
    first = work_of(workshop, key)
    assert (first.name, first.id, first.time_limit) == ("workshop.tasks.hold", task.id, 300)
    assert f"main pid {workshop.worker.pid} on " in holder(workshop, key).owner_text or first.child
    wait_until(lambda: work_of(workshop, key).child, SOON, "the node names the child")
    assert work_of(workshop, key).child == note["pid"] != workshop.worker.pid
    assert f"(pid {note['pid']} on {os.uname().nodename}, worker {first.worker})" in holder(workshop, key).owner_text
    workshop.let_go(f"{key}:gate")
    assert workshop.result(task)["token"] == note["token"]


def test_node__keeps_a_request_to_release(workshop: Any, key: str) -> None:
    """The child is written into a node whose release was requested before, and the request stays."""
    workshop.send("hold", key, f"{key}:gate")
    note = workshop.entered(f"{key}:gate")
    actions.revoke(workshop.pool, holder(workshop, key).path, "deploy", timeout=20)
    wait_until(lambda: work_of(workshop, key).child == note["pid"], SOON, "the node names the child")
    assert holder(workshop, key).revoked == "deploy"
    workshop.let_go(f"{key}:gate")
    workshop.wait_empty(key)


@WITHOUT_LOOP_TOO
def test_end_command__ends_the_task_alone(workshop: Any, shell: Shell, key: str) -> None:
    """The line that `show` prints ends the task, frees its lock long before its session ends, and spares the worker."""
    workshop.send("hold", key, f"{key}:gate")
    workshop.entered(f"{key}:gate")
    line = serializers.end_command(holder(workshop, key))
    assert line is not None
    # This process has another app.
    app = line.split()[2]
    finished = shell(line.replace(f"-A {app} ", "-A workshop ", 1))
    assert finished.returncode == 0, finished.stdout + finished.stderr
    workshop.wait_empty(key, SOON)
    assert workshop.result(workshop.send("idle"))["key"] is None


def test_end_command__stopped_child(workshop: Any, shell: Shell, key: str) -> None:
    """A stopped child that the first line of `show` does not end is ended by the second, which stands alone then."""
    workshop.send("hold", key, f"{key}:gate")
    child = workshop.entered(f"{key}:gate")["pid"]
    wait_until(lambda: work_of(workshop, key).child == child, SOON, "the node names the child")
    end, kill = serializers.end_command(holder(workshop, key)), serializers.kill_command(holder(workshop, key))
    assert end is not None
    assert kill is not None
    os.kill(child, signal.SIGSTOP)
    end = end.replace(f"-A {end.split()[2]} ", "-A workshop ", 1)
    assert shell(end).returncode == 0
    # As the page says: the worker has forgotten the task.
    assert "tasks unknown" in shell(end.replace("SIGTERM", "SIGKILL")).stdout
    wait_until(lambda: work_of(workshop, key).forgotten, SOON, "the node says that the worker cannot end it")
    assert (serializers.end_command(holder(workshop, key)), work_of(workshop, key).child) == (None, child)
    assert shell(kill).returncode == 0
    workshop.wait_empty(key, SOON)
    assert workshop.result(workshop.send("idle"))["key"] is None


@WITHOUT_LOOP_TOO
def test_doctor__finds_the_worker(workshop: Any, key: str) -> None:
    """The doctor finds the worker while it works, with its gate and its pool."""
    workshop.send("idle", f"{key}:gate")
    workshop.entered(f"{key}:gate")
    before = app_or_default()
    workshop.sender.set_current()
    try:
        found = by_id(celery_findings.examine("default", 15.0))
    finally:
        before.set_current()
        workshop.let_go(f"{key}:gate")
    assert found["celery.broker"][0].level == "ok"
    (worker,) = [each for each in found["celery.workers"] if each.subject == workshop.worker.node_name]
    assert (worker.level, "prefork" in worker.found) == ("ok", True)


# With an event loop a worker acquires no lock without a slot.
@pytest.mark.parametrize("workshop", ["filesystem"], indirect=True)
def test_holder__waits_for_a_slot(workshop: Any, key: str) -> None:
    """A task that was granted its lock and waits for a slot is shown so, by the command and by `inspect` alike."""
    gates = [f"{key}:{number}" for number in range(3)]
    for gate in gates[:2]:
        workshop.send("hold", gate, gate)
        workshop.entered(gate)
    workshop.send("hold", gates[2], gates[2])
    workshop.wait_count(gates[2], 1)
    wait_until(lambda: holder(workshop, gates[2]).state == "granted", SOON, "the node says that there is no slot")
    assert [each["state"] for each in broker_audit.ask(workshop, "zklocks")] == ["held", "held", "granted"]
    workshop.let_go(gates[0])
    child = workshop.entered(gates[2])["pid"]
    wait_until(lambda: work_of(workshop, gates[2]).child == child, SOON, "the node names the child")
    assert holder(workshop, gates[2]).state == "held"
    for gate in gates[1:]:
        workshop.let_go(gate)
        workshop.wait_empty(gate)


def test_end_command__without_the_gate(workshop: Any, shell: Shell, key: str) -> None:
    """A task that acquires its lock in its child is ended by the same line."""
    workshop.send("past_the_gate", key, f"{key}:gate")
    note = workshop.entered(f"{key}:gate")
    work = work_of(workshop, key)
    assert (work.child, bool(work.worker), work.time_limit) == (note["pid"], True, None)
    line = serializers.end_command(holder(workshop, key))
    assert line is not None
    assert f" -d {work.worker} terminate SIGTERM {work.id}" in line
    workshop.let_go(f"{key}:gate")
    workshop.wait_empty(key)
