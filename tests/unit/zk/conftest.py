"""Servers for the tests of the core: those of this package, where a test does not say otherwise."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_zklock.testing import ZooKeeperServer


@pytest.fixture
def kind_of_server() -> str:
    return "testserver"


@pytest.fixture
def own_server() -> Iterator[ZooKeeperServer]:
    """Return a server without other clients."""
    with ZooKeeperServer() as server:
        yield server
