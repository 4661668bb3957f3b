"""Fixtures of tests with faults."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_zklock.testing import ZooKeeperServer
from tests.integration.refusing_server import Refusals

# Longer than any test: no heartbeat of such a session comes between what is counted.
MAX_SESSION_TIMEOUT = 7200.0


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    """Return a server of the test's own, which removes no empty queue by itself: its numbers would begin anew."""
    with ZooKeeperServer(max_session_timeout=MAX_SESSION_TIMEOUT, reap_interval=3600) as server:
        yield server


@pytest.fixture
def refusals(server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> Refusals:
    """Return what has the server for tests refuse requests."""
    return Refusals(server, monkeypatch)
