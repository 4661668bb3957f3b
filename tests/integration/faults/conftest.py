"""Fixtures of tests with faults."""

from __future__ import annotations

import pytest

from django_zklock.testing import ZooKeeperServer
from tests.integration.refusing_server import Refusals


@pytest.fixture
def refusals(server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> Refusals:
    """Return what has the server for tests refuse requests."""
    return Refusals(server, monkeypatch)
