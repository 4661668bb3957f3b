"""Fixtures for the whole suite."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from services.process import NotInstalledError
from services.zookeeper import ZooKeeper


@pytest.fixture(scope="session")
def zookeeper() -> Iterator[ZooKeeper]:
    """Give one real server for all tests that neither stop nor pause it."""
    try:
        server = ZooKeeper(
            tick_time=0.2,
            min_session_timeout=0.8,
            # Empty parents go at once and not after a minute, so that every test meets that.
            properties={"znode.container.checkIntervalMs": "500"},
        )
    except NotInstalledError as error:
        pytest.skip(str(error))
    with server:
        yield server
