"""Fixtures with the setting ZKLOCK; a test module names this module in `pytest_plugins`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from django_zklock.zk.pool import Pool
from tests.toolbox.django.layer import Ensemble, OtherClient, Recorder
from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.timing import scaled
from tests.toolbox.zookeeper.any_server import Server
from tests.toolbox.zookeeper.observer import Observer

if TYPE_CHECKING:
    from pytest_django import Settings


@pytest.fixture
def ensemble(server: Server, settings: Settings, observer: Observer, root: str) -> Ensemble:
    """Configure the server of the test, under a root of the test's own."""
    settings.ZKLOCK = {
        "default": {"HOSTS": server.hosts, "ROOT": root, "SESSION_TIMEOUT": scaled(6)},
        "absent": {"HOSTS": f"{LOOPBACK}:{free_port()}", "CONNECT_TIMEOUT": 0.3},
    }
    return Ensemble(root, observer)


@pytest.fixture
def other_client(ensemble: Ensemble) -> Iterator[OtherClient]:
    """Return another owner of the same locks."""
    pool = Pool("other_client", ensemble.pool.options)
    yield OtherClient(pool)
    pool.close()


@pytest.fixture
def recorder() -> Iterator[Recorder]:
    """Return a receiver of every signal."""
    recorder = Recorder()
    recorder.connect()
    yield recorder
    recorder.disconnect()
