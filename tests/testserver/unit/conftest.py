"""A test server whose faults end with the test, and a kazoo client of it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from django_zklock.testing import ZooKeeperServer
from tests.toolbox.timing import scaled


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server
        server.faults.heal()


@pytest.fixture
def kazoo(server: ZooKeeperServer) -> Iterator[KazooClient]:
    client = KazooClient(server.hosts, timeout=scaled(10))
    client.start(timeout=scaled(10))
    yield client
    server.faults.heal()
    client.stop()
    client.close()
