"""Fixtures for what goes through the setting; a test module names this one in `pytest_plugins`."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from services.port import LOOPBACK, free_port
from services.zookeeper import ZooKeeper

from django_zklock.zk.pool import Pool
from tests.bystanders import Ensemble, Recorder, Stranger
from tests.zk.onlooker import Onlooker

if TYPE_CHECKING:
    from pytest_django import Settings

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def configured_onlooker(zookeeper: ZooKeeper) -> Iterator[Onlooker]:
    onlooker = Onlooker(zookeeper.hosts)
    yield onlooker
    onlooker.close()


@pytest.fixture
def ensemble(zookeeper: ZooKeeper, settings: Settings, configured_onlooker: Onlooker) -> Ensemble:
    """Configure the shared server, under a root of the test's own."""
    root = f"/configured-{next(_numbers)}"
    settings.ZKLOCK = {
        "default": {"HOSTS": zookeeper.hosts, "ROOT": root, "SESSION_TIMEOUT": 6},
        "absent": {"HOSTS": f"{LOOPBACK}:{free_port()}", "CONNECT_TIMEOUT": 0.3},
    }
    return Ensemble(zookeeper, root, configured_onlooker)


@pytest.fixture
def stranger(ensemble: Ensemble) -> Iterator[Stranger]:
    """Give somebody else at the same locks."""
    pool = Pool("stranger", ensemble.pool.options)
    yield Stranger(pool)
    pool.close()


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """Give a receiver of every signal."""
    recorder = Recorder()
    recorder.connect()
    yield recorder
    recorder.disconnect()
