"""What the list costs ZooKeeper with ten thousand locks, on a real one."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from django.test import Client
from kazoo.client import KazooClient
from services.zookeeper import ZooKeeper

from tests.admin.conftest import LIST, text_of
from tests.crowd import hold_many
from tests.server import packets_received

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = [pytest.mark.django_db, pytest.mark.zookeeper]

LOCKS = 10_000
# So many reads share a request.
READS = 128
# More than the clients of a test send while a page is made.
PINGS = 7


@pytest.fixture
def crowd(zookeeper: ZooKeeper, zklock: str, settings: Settings) -> Iterator[ZooKeeper]:
    """Have ten thousand locks held, and time to read them all on a busy machine."""
    settings.ZKLOCK = {"default": settings.ZKLOCK["default"] | {"CONNECT_TIMEOUT": 60}}
    client = KazooClient(hosts=zookeeper.hosts, timeout=30)
    client.start(timeout=20)
    hold_many(client, zklock, LOCKS)
    yield zookeeper
    client.stop()
    client.close()


def test_costs(viewer: Client, crowd: ZooKeeper) -> None:
    """A page costs what it shows, and not what comes after it, unless it is sorted by what is in the locks."""

    def cost(**parameters: str) -> int:
        before = packets_received(crowd)
        text = text_of(viewer.get(LIST, parameters))
        assert len(re.findall(r" invoice:\d{5} held ", text)) == 100
        # Without the second question.
        return packets_received(crowd) - before - 1

    viewer.get(LIST)
    # The names, the lines of a page, the data of a hundred holders; and pings.
    assert cost() <= 3 + PINGS
    # Which locks are on a later page depends on who is idle before it; that is in the lines, and not in the data.
    assert cost(p="70", q="invoice", o="-0") <= 3 + 7_000 // READS + PINGS
    # All lines and all holders once, and those shown.
    reads = -(-LOCKS // READS)
    assert cost(kind="exclusive") <= 2 + reads + PINGS
    assert cost(o="-3") <= 2 + 2 * reads + PINGS
