"""A pytest plugin: run kazoo's tests on the given servers, and write the outcome of each test."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Generator
from pathlib import Path
from types import ModuleType

import pytest

from tests.toolbox.suites.outcome import Recorder

from .cluster import Cluster
from .ours import make_ours
from .real import make_real

CLUSTERS: dict[str, Callable[..., Cluster]] = {"real": make_real, "ours": make_ours}


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("kazoo's suite")
    group.addoption("--kazoo-server", choices=sorted(CLUSTERS), required=True, help="which servers to run on")
    group.addoption("--kazoo-outcomes", type=Path, required=True, help="the file for one line of JSON for each test")


def pytest_configure(config: pytest.Config) -> None:
    # In kazoo this module needs two libraries for certificates. The harness, which takes the class from here, is not
    # imported yet.
    stand_in = ModuleType("kazoo.testing.common")
    stand_in.ZookeeperCluster = CLUSTERS[config.getoption("kazoo_server")]  # type: ignore[attr-defined]
    sys.modules[stand_in.__name__] = stand_in
    config.pluginmanager.register(Recorder(config.getoption("kazoo_outcomes")))


def pytest_unconfigure() -> None:
    Cluster.close()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol() -> Generator[None, object, object]:
    # With variables a test requests other servers. It removes them at its end, but not if it fails at the start.
    wishes = {name: value for name, value in os.environ.items() if name.startswith("ZOOKEEPER_")}
    try:
        return (yield)
    finally:
        for name in [name for name in os.environ if name.startswith("ZOOKEEPER_")]:
            del os.environ[name]
        os.environ.update(wishes)
