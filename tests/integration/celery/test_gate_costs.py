"""The costs of the gate: requests to ZooKeeper, and memory of the worker."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from django_zklock import LockConflict
from django_zklock.testing import ZooKeeperServer
from tests.toolbox.processes.status import status, wakeups
from tests.toolbox.timing import wait_until

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]

# Longer than any test: no heartbeat, and no watch of one, comes between what is counted.
LONG = 7200.0
# Seconds, less than the session timeout.
SOON = 20.0


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(max_session_timeout=LONG) as server:
        yield server


def test_uncontended__one_round_trip(open_workshop: Any, server: ZooKeeperServer, key: str) -> None:
    """A task with a free lock costs one request to join, with the list in the same write, and one to release."""
    with open_workshop(concurrency=2, session_timeout=LONG, server=server) as workshop:
        workshop.result(workshop.send("shared_below", key))
        server.requests.wait_for("delete")
        server.requests.clear()
        for number in range(1, 21):
            assert workshop.result(workshop.send("shared_below", key))["key"] == key
            server.requests.wait_for("delete", number)
        counts = server.requests.counts()
    assert counts == {"create2": 20, "getChildren": 20, "delete": 20}


def test_held__reads(open_workshop: Any, server: ZooKeeperServer, key: str) -> None:
    """The node of a task that runs for long is watched as any other, and written to once; later nothing is asked."""
    with open_workshop(concurrency=2, session_timeout=3, server=server) as workshop:
        task = workshop.send("hold", key, gate := f"{key}:gate")
        workshop.entered(gate)
        # The process that runs the task; the event of that leads to one more read.
        server.requests.wait_for("setData")
        server.requests.wait_for("sync", server.requests.count("sync") + 3)
        before = server.requests.count("sync")
        server.requests.wait_for("sync", before + 5)
        counts = server.requests.counts()
        assert (counts["setData"], counts["getData"]) in {(1, 2), (1, 3)}
        read = {each.path for each in server.requests.all() if each.opcode.label in {"getData", "setData"}}
        assert list(read) == server.paths(workshop.pool.path(key))
        workshop.let_go(gate)
        workshop.result(task)


@pytest.mark.slow
def test_idle_after_conflicts__sleeps(open_workshop: Any, key: str) -> None:
    """A worker with one waiting task seldom wakes up, also after many conflicts."""
    # Measured: 8 without conflicts and after them, and 400 after them while each left a timer that began itself again.
    limit = 100
    with open_workshop(concurrency=2, session_timeout=30) as workshop:
        workshop.other_client.take(key)
        workshop.other_client.take(f"{key}:other")
        workshop.send("shared_below", f"{key}:other")
        workshop.wait_count(f"{key}:other", 2)
        # Each comes back some times.
        for task in [workshop.send("come_back_for_a_while", key) for _ in range(100)]:
            assert type(workshop.outcome(task)) is LockConflict
        workshop.wait_count(key, 1)
        wait_until(lambda: wakeups(workshop.worker.pid, 2.0) < limit, SOON, "the worker sleeps")
        workshop.wait_count(f"{key}:other", 2)


@pytest.mark.slow
def test_parked__memory(open_workshop: Any, server: ZooKeeperServer, key: str) -> None:
    """A waiting task takes less than 20 kB of the main process, and no thread."""
    count = 1000
    environment = {"WORKSHOP_SETTINGS": json.dumps({"CELERY_ZKLOCK_GATE_MAX_PARKED": count})}
    with open_workshop(concurrency=4, session_timeout=30, server=server, environment=environment) as workshop:
        # Load what is loaded at the first use.
        for _ in range(20):
            workshop.result(workshop.send("shared_below", key))
        workshop.other_client.take(key)
        server.requests.clear()
        before = status(workshop.worker.pid)
        for _ in range(count):
            workshop.send("shared_below", key)
        server.requests.wait_for("create2", count, timeout=60)
        after = status(workshop.worker.pid)
        assert after["VmRSS"] - before["VmRSS"] < 20 * count
        # The thread of the log may have ended meanwhile.
        assert after["Threads"] <= before["Threads"]
