"""A server of their own for tests of the recipe that do it harm."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from services.zookeeper import ZooKeeper

from tests.zk.onlooker import Onlooker


@pytest.fixture
def own_zookeeper() -> Iterator[ZooKeeper]:
    """Give a real server that the test may stop, pause and restart."""
    with ZooKeeper(tick_time=0.2, min_session_timeout=0.8) as server:
        yield server
        server.resume()


@pytest.fixture
def own_onlooker(own_zookeeper: ZooKeeper) -> Iterator[Onlooker]:
    """Give a look at the tree of the test's own server."""
    with contextlib.closing(Onlooker(own_zookeeper.hosts)) as onlooker:
        yield onlooker
        own_zookeeper.resume()
