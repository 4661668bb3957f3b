"""What the gate costs: requests of ZooKeeper, and memory of the worker."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from django_zklock.testing import ZooKeeperServer

pytestmark = [pytest.mark.celery, pytest.mark.zookeeper]

# What a client asks on its own account.
UPKEEP = {"ping", "getData"}


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


def test_uncontended__one_round_trip(open_workshop: Any, server: ZooKeeperServer, key: str) -> None:
    """A task whose lock is free costs one request to join, with the list in the same write, and one to leave."""
    with open_workshop(concurrency=2, session_timeout=30, server=server) as workshop:
        workshop.result(workshop.send("shared_below", key))
        server.requests.wait_for("delete")
        server.requests.clear()
        for number in range(1, 21):
            assert workshop.result(workshop.send("shared_below", key))["key"] == key
            server.requests.wait_for("delete", number)
        counts = server.requests.counts()
    assert {what: count for what, count in counts.items() if what not in UPKEEP} == {
        "create2": 20,
        "getChildren": 20,
        "delete": 20,
    }


@pytest.mark.slow
def test_parked__memory(open_workshop: Any, server: ZooKeeperServer, key: str) -> None:
    """A waiting task takes less than 20 kB of the main process, and no thread."""
    count = 1500
    with open_workshop(concurrency=4, session_timeout=30, server=server) as workshop:
        # Whatever is loaded at the first use.
        for _ in range(20):
            workshop.result(workshop.send("shared_below", key))
        workshop.stranger.take(key)
        server.requests.clear()
        before = status(workshop.worker.pid)
        for _ in range(count):
            workshop.send("shared_below", key)
        server.requests.wait_for("create2", count, timeout=60)
        after = status(workshop.worker.pid)
        assert after["VmRSS"] - before["VmRSS"] < 20 * count
        assert after["Threads"] == before["Threads"]


def status(pid: int) -> dict[str, int]:
    """Give what the system says of a process, in kB and in numbers."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    found = dict(line.split(":", 1) for line in lines)
    return {name: int(found[name].split()[0]) for name in ("VmRSS", "Threads")}
