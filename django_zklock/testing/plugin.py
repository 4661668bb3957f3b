"""Fixtures for pytest: a ZooKeeper for tests, and the project's locks on it.

Every run of pytest imports this module, so it must not import Django or kazoo: a ``conftest.py`` may have to apply
patches first, for example gevent's.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from django_zklock.testing import Faults, Sandbox, ZooKeeperServer

WHEN = ("always", "requested")


class Always:
    """The plugin that is registered if all tests run in a sandbox."""

    @pytest.fixture(scope="session", autouse=True)
    def _zookeeper_around_tests(self) -> Iterator[None]:
        """Put fixtures with a wider scope than one test into a sandbox, with a server that no test sees."""
        from django_zklock.testing import Sandbox

        with Sandbox():
            yield

    @pytest.fixture(autouse=True)
    def _zookeeper_always(self, _zookeeper_sandbox: Sandbox) -> None:
        """Request the sandbox for the test."""


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the option of the configuration file."""
    parser.addini(
        "zklock_server",
        'which tests have their locks on a ZooKeeper for tests: "requested", those that name a fixture, or "always"',
        default="requested",
    )


def pytest_configure(config: pytest.Config) -> None:
    """Put all tests into a sandbox if the option says so."""
    when = config.getini("zklock_server")
    if when not in WHEN:
        msg = f"zklock_server must be one of {', '.join(WHEN)}, not {when!r}"
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
    """Faults of networks, servers and operators on that ZooKeeper; they are healed after the test."""
    return _zookeeper_sandbox.faults


# A separate fixture: a project with its own fixture "zookeeper" keeps that one and can use the others.
@pytest.fixture
def _zookeeper_sandbox(zookeeper_server: ZooKeeperServer) -> Iterator[Sandbox]:
    from django_zklock.testing import Sandbox

    with Sandbox(zookeeper_server) as sandbox:
        yield sandbox
