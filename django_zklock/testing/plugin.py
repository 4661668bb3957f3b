"""Fixtures for pytest: a ZooKeeper for tests, and the project's locks on it.

Every run of pytest imports this module, so it must not take in Django or kazoo: a ``conftest.py`` may have to patch
before, as for gevent.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from django_zklock.testing import Faults, Sandbox, ZooKeeperServer

WHEN = ("always", "requested")


class Always:
    """A plugin that is registered where all tests are to run in a sandbox."""

    @pytest.fixture(autouse=True)
    def _zookeeper_always(self, _zookeeper_sandbox: Sandbox) -> None:
        """Ask for the sandbox in the place of the test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Know the option of the configuration file."""
    parser.addini(
        "zklock_server",
        'which tests have their locks on a ZooKeeper for tests: "requested", those that name a fixture, or "always"',
        default="requested",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Give all tests a sandbox if the project wishes it."""
    when = config.getini("zklock_server")
    if when not in WHEN:
        msg = f"zklock_server is one of {', '.join(WHEN)}, not {when!r}"
        raise pytest.UsageError(msg)
    if when == "always":
        config.pluginmanager.register(Always(), "zklock-always")


@pytest.fixture(scope="session")
def zookeeper_server() -> Iterator[ZooKeeperServer]:
    """A ZooKeeper for tests, in memory, the same for the whole run; each worker of pytest-xdist has its own."""
    from django_zklock.testing import ZooKeeperServer

    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def zookeeper(_zookeeper_sandbox: Sandbox) -> Sandbox:
    """A ZooKeeper for tests, empty, with every alias of ZKLOCK on it."""
    return _zookeeper_sandbox


@pytest.fixture
def zk_faults(_zookeeper_sandbox: Sandbox) -> Faults:
    """What networks and operators do to that ZooKeeper, on demand; healed after the test."""
    return _zookeeper_sandbox.faults


# Under a name of its own, so that a project which has a fixture "zookeeper" already keeps that and can use the others.
@pytest.fixture
def _zookeeper_sandbox(zookeeper_server: ZooKeeperServer) -> Iterator[Sandbox]:
    from django_zklock.testing import Sandbox

    with Sandbox(zookeeper_server) as sandbox:
        yield sandbox
