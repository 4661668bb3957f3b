"""Fixtures for tests of the command: locks to look at, and an operator; a test module names this as a plugin."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient

from django_zklock import operations
from django_zklock.api import zk_lock
from django_zklock.exceptions import LockCancelled
from django_zklock.zk.held import Held
from django_zklock.zk.node_data import Work
from django_zklock.zk.ops import search, snapshots
from django_zklock.zk.ops.snapshots import LockSnapshot
from django_zklock.zk.pool import Pool
from django_zklock.zk.waiting import Cancellation
from tests.toolbox.django.command import GUID, Hold, Join, Screen, Type, Wait
from tests.toolbox.threads import Runner
from tests.toolbox.timing import scaled, wait_until
from tests.toolbox.zookeeper.server import ZooKeeper

if TYPE_CHECKING:
    from pytest_django import Settings


@pytest.fixture
def hold(zklock: str) -> Iterator[Hold]:
    """Return a function that acquires a lock until the end of the test."""
    taken: list[Held] = []

    def take(key: str, work: Work | None = None, **options: object) -> Held:
        lock = zk_lock(key, **options)  # type: ignore[arg-type]
        lock._work = lambda: work
        taken.append(lock.acquire(60))
        return taken[-1]

    yield take
    for held in taken:
        held.release()


@pytest.fixture
def wait_for(zklock: str) -> Iterator[Wait]:
    """Return a function that waits for locks, of which one is taken, until the end of the test."""
    cancellation = Cancellation()
    waiters: list[Runner] = []

    def join(*keys: str, **options: object) -> None:
        lock = zk_lock(list(keys), **options)  # type: ignore[arg-type]

        def wait() -> None:
            with suppress(LockCancelled):
                lock.acquire(cancellation=cancellation).release()

        waiters.append(Runner(wait))
        wait_until(lambda: any(operations.show_lock(key).waiter_count for key in keys))

    yield join
    cancellation.cancel()
    for each in waiters:
        each.result()


@pytest.fixture
def join(kazoo_client: KazooClient, zklock: str) -> Join:
    """Return a function that adds a contender of another client to a queue, and returns the path of its node."""

    def create(queue: Held | str, data: bytes = b"", *, label: str = "lock-") -> str:
        folder = queue.lock.paths[0] if isinstance(queue, Held) else f"{zklock}/{queue}"
        path: str = kazoo_client.create(
            f"{folder}/_c_{GUID}-{label}", data, ephemeral=True, sequence=True, makepath=True
        )
        return path

    return create


@pytest.fixture
def operator(monkeypatch: pytest.MonkeyPatch) -> Type:
    """Return a function that makes a terminal with these lines as its input."""

    def type_in(*lines: str) -> None:
        stdin = Screen("".join(f"{line}\n" for line in lines))
        monkeypatch.setattr("sys.stdin", stdin)

    return type_in


@pytest.fixture
def shared_hosts(zookeeper: ZooKeeper, settings: Settings) -> str:
    """Configure this process for the same locks as its child processes, and return its servers."""
    settings.ZKLOCK = {"default": {"HOSTS": zookeeper.hosts, "SESSION_TIMEOUT": scaled(6)}}
    return zookeeper.hosts


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Return a list that gets the name of each queue that is read, two at once."""
    names_read: list[str] = []
    list_queues = snapshots.list_queues

    def count(pool: Pool, names: list[str], *, timeout: float) -> list[LockSnapshot]:
        names_read.extend(names)
        return list_queues(pool, names, timeout=timeout)

    monkeypatch.setattr(snapshots, "list_queues", count)
    monkeypatch.setattr(search, "BATCH_SIZE", 2)
    return names_read
