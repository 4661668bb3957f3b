"""Real workers on a real broker, and an outside client that observes and disturbs them."""

from __future__ import annotations

import importlib.util
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from django_zklock.testing import ZooKeeperServer
from tests.toolbox.brokers.rabbitmq import RabbitMQ
from tests.toolbox.brokers.redis import Redis
from tests.toolbox.celery.workshop import OpenWorkshop, Workshop
from tests.toolbox.zookeeper.observer import Observer
from tests.toolbox.zookeeper.server import ZooKeeper

# Without Celery these tests cannot run.
if importlib.util.find_spec("celery") is None:
    collect_ignore_glob = ["test_*.py"]

HERE = Path(__file__).resolve().parent


# Runs before pytest-xdist reads the groups.
@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run tests that share a worker in one process of pytest-xdist: to start one takes seconds, and RabbitMQ more."""
    for item in items:
        if isinstance(item, pytest.Function) and HERE in item.path.parents and "workshop" in item.fixturenames:
            which = item.callspec.indices.get("workshop", 0) if hasattr(item, "callspec") else 0
            if item.get_closest_marker("xdist_group") is None:
                item.add_marker(pytest.mark.xdist_group(f"{item.path.stem}-{which}"))
        group = item.get_closest_marker("xdist_group")
        # The first of them starts the server, which takes a minute and more on a busy machine.
        if group and group.args == ("rabbitmq",) and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(120 + RabbitMQ.start_timeout))


@pytest.fixture(scope="session")
def broker() -> Iterator[Redis]:
    """Return one broker for all workers."""
    with Redis() as redis:
        yield redis


@pytest.fixture(scope="session")
def notes() -> Iterator[Redis]:
    """Return the server of the notes and results of tasks."""
    with Redis() as redis:
        yield redis


@pytest.fixture(scope="session")
def rabbitmq() -> Iterator[RabbitMQ]:
    """Return a broker that returns unacknowledged messages to the queue when the connection ends."""
    with RabbitMQ() as server:
        yield server


@pytest.fixture(scope="session")
def workshop_observer(zookeeper: ZooKeeper) -> Iterator[Observer]:
    observer = Observer(zookeeper.hosts)
    yield observer
    observer.close()


@pytest.fixture(scope="session")
def open_workshop(zookeeper: ZooKeeper, broker: Redis, notes: Redis, workshop_observer: Observer) -> OpenWorkshop:
    """Return a context manager that starts a worker, and kills it at the end."""

    @contextmanager
    def open_one(
        *,
        session_timeout: float = 4.0,
        gate: bool = True,
        server: ZooKeeperServer | None = None,
        folder: Path | None = None,
        rabbitmq: RabbitMQ | None = None,
        own_broker: Redis | None = None,
        **options: Any,
    ) -> Iterator[Workshop]:
        workshop = Workshop(
            zookeeper,
            own_broker or broker,
            notes,
            workshop_observer,
            session_timeout=session_timeout,
            gate=gate,
            server=server,
            folder=folder,
            rabbitmq=rabbitmq,
        )
        try:
            workshop.start(**options)
            yield workshop
        finally:
            workshop.close()

    return open_one


@pytest.fixture
def key(request: pytest.FixtureRequest) -> Iterator[str]:
    """Return a key that no other test uses; locks that a failed test has left are released."""
    workshop = request.getfixturevalue("workshop") if "workshop" in request.fixturenames else None
    yield f"key-{uuid.uuid4().hex[:8]}"
    if workshop is not None:
        workshop.other_client.release_all()
