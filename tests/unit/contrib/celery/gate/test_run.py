"""Who waits behind a hold that no body has."""

from __future__ import annotations

import pytest

from django_zklock.contrib.celery.gate.run import waiting_behind
from django_zklock.zk import queue as zk_queue
from django_zklock.zk.queue import Kind, Queue

pytestmark = pytest.mark.celery


def queue(*kinds: Kind) -> tuple[list[str], Queue]:
    """Return a queue of nodes of these kinds, and their names."""
    names = [f"{zk_queue.name_prefix(zk_queue.new_guid(), kind)}{number:010d}" for number, kind in enumerate(kinds)]
    return names, Queue([node for node in map(zk_queue.parse_name, names) if node is not None])


def test_waiting_behind__readers() -> None:
    """Readers hold beside a reader, except readers behind a writer."""
    names, found = queue(Kind.READ, Kind.READ, Kind.WRITE, Kind.READ)
    assert [node.name for node in waiting_behind(names[0], found)] == names[2:]
    assert waiting_behind(names[3], found) == []


def test_waiting_behind__writers_and_leases() -> None:
    """All nodes wait behind a writer; behind a lease those above the limit wait."""
    names, found = queue(Kind.WRITE, Kind.READ, Kind.WRITE)
    assert [node.name for node in waiting_behind(names[0], found)] == names[1:]
    leases = [f"{zk_queue.name_prefix(zk_queue.new_guid(), Kind.LEASE, 2)}{number:010d}" for number in range(3)]
    found = Queue([node for node in map(zk_queue.parse_name, leases) if node is not None])
    assert [node.name for node in waiting_behind(leases[0], found)] == leases[2:]
