"""Fixtures for the whole suite."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from kazoo.client import KazooClient
from services.zookeeper import ZooKeeper

from django_zklock.zk import holds

if TYPE_CHECKING:
    from pytest_django import Settings

_roots = itertools.count(1)


@pytest.fixture(autouse=True)
def _empty_hands() -> Iterator[None]:
    """Have no test begin with what an earlier one has left held in this thread."""
    yield
    for held in reversed(holds.stack()[:]):
        held.release()
    # What is left are the stand-ins of unit tests.
    holds.stack().clear()


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeper]:
    """Give one real server for all tests that neither stop nor pause it."""
    with ZooKeeper(
        tick_time=0.2,
        min_session_timeout=0.8,
        # Empty parents go at once and not after a minute, so that every test meets that.
        properties={"znode.container.checkIntervalMs": "500"},
    ) as server:
        yield server


@pytest.fixture
def zklock(settings: Settings, zookeeper: ZooKeeper) -> str:
    """Have the alias "default" use the shared server, in a part of the tree of its own; give its path."""
    root = f"/django-{next(_roots)}"
    settings.ZKLOCK = {"default": {"HOSTS": zookeeper.hosts, "ROOT": root, "SESSION_TIMEOUT": 6, "CONNECT_TIMEOUT": 5}}
    return root


@pytest.fixture
def outsider(zookeeper: ZooKeeper) -> Iterator[KazooClient]:
    """Give a client that is none of ours, to stand in line, to write nonsense and to break locks."""
    client = KazooClient(hosts=zookeeper.hosts)
    client.start(timeout=20)
    yield client
    client.stop()
    client.close()
