"""The number of requests of the list with ten thousand locks, on a real ZooKeeper."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest
from django.test import Client
from kazoo.client import KazooClient

from tests.toolbox.django.command import Join
from tests.toolbox.locks.many_locks import hold_many
from tests.toolbox.zookeeper.any_server import packets_received
from tests.toolbox.zookeeper.server import ZooKeeper
from tests.unit.admin.pages import LIST, text_of

if TYPE_CHECKING:
    from pytest_django import Settings

pytestmark = [pytest.mark.django_db, pytest.mark.zookeeper, pytest.mark.oldest]

LOCKS = 10_000
# Reads in one request.
READS = 128
# One before the names and one before the queues: the server catches up with the leader.
SYNCS = 2
# More than the clients of a test send during a request on a busy machine; fewer than the requests to read all locks.
PINGS = 40


@pytest.fixture
def full_server(zookeeper: ZooKeeper, zklock: str, settings: Settings) -> Iterator[ZooKeeper]:
    """Hold ten thousand locks, with timeouts long enough to read them all on a busy machine."""
    settings.ZKLOCK = {"default": settings.ZKLOCK["default"] | {"CONNECT_TIMEOUT": 60, "SESSION_TIMEOUT": 60}}
    client = KazooClient(hosts=zookeeper.hosts, timeout=30)
    client.start(timeout=20)
    hold_many(client, zklock, LOCKS)
    yield zookeeper
    client.stop()
    client.close()


def test_costs(viewer: Client, full_server: ZooKeeper) -> None:
    """A page reads what it shows and nothing after it, unless it is sorted or filtered by the data of the locks."""

    def cost(**parameters: str) -> int:
        before = packets_received(full_server)
        text = text_of(viewer.get(LIST, parameters))
        assert len(re.findall(r" invoice:\d{5} exclusive ", text)) == 100
        # Without the request that counts.
        return packets_received(full_server) - before - 1

    viewer.get(LIST)
    # The names, the queues of a page, the data of a hundred holders; and pings.
    assert cost(o="0") <= 3 + SYNCS + PINGS
    # A later page needs the queues before it, because free locks are skipped, but not the data in them.
    assert cost(p="70", q="invoice", o="-0") <= 3 + SYNCS + 7_000 // READS + PINGS
    # All queues and all holders once, and those shown.
    reads = -(-LOCKS // READS)
    assert cost(kind="exclusive", o="0") <= 2 + SYNCS + reads + PINGS
    assert cost() <= 2 + SYNCS + 2 * reads + PINGS
    assert cost(o="-3") <= 2 + SYNCS + 2 * reads + PINGS


def test_costs__of_urgency(viewer: Client, full_server: ZooKeeper, join: Join) -> None:
    """If a page is full of locks with waiters, the holders of the others are not read."""
    for number in range(100):
        join(f"invoice:{number * 97:05}")
    viewer.get(LIST)
    before = packets_received(full_server)
    text = text_of(viewer.get(LIST))
    assert packets_received(full_server) - before - 1 <= 3 + SYNCS + -(-LOCKS // READS) + PINGS
    assert len(re.findall(r" 1 waiting ", text)) == 100
