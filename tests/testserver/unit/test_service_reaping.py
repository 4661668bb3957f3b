"""Nodes that the server removes by itself: empty containers, and expired TTL nodes."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator

import pytest

from django_zklock.testing import ZooKeeperServer
from tests.toolbox.protocol.operations import (
    CONTAINER,
    CREATE_CONTAINER,
    CREATE_TTL,
    Create,
    Delete,
    Exists,
    SetData,
)
from tests.toolbox.protocol.session_client import Talker

DELETED = 2
TTL, TTL_SEQUENCE = 5, 6
HOUR = 3_600_000


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer(reap_interval=0.05) as server:
        yield server


@pytest.fixture
def client(server: ZooKeeperServer) -> Iterator[Talker]:
    with Talker(server.address) as client:
        yield client


def container(path: str) -> Create:
    return Create(path, CONTAINER, opcode=CREATE_CONTAINER)


def mortal(path: str, milliseconds: int, flags: int = TTL) -> Create:
    return Create(path, flags, opcode=CREATE_TTL, ttl=milliseconds)


def wait_until_gone(client: Talker, path: str) -> None:
    if client.do(Exists(path, watch=True)).error == 0:
        assert client.event() == (DELETED, path)


def test_container__has_lost_its_last_child(client: Talker, server: ZooKeeperServer) -> None:
    """It is removed in one transaction; containers that never had a child, or still have one, stay."""
    client.ask(container("/new"))
    client.ask(container("/used"))
    client.ask(Create("/used/child"))
    client.ask(container("/empty"))
    client.ask(Create("/empty/child"))
    # The server checks them in the order of their creation: after the removal of this one it has checked the others.
    client.ask(Delete("/empty/child"))
    wait_until_gone(client, "/empty")
    assert server.paths() == ["/new", "/used", "/used/child", "/zookeeper", "/zookeeper/config", "/zookeeper/quota"]


def test_container__in_a_container(client: Talker) -> None:
    """The removal of the inner one makes the outer one empty."""
    client.ask(container("/outer"))
    client.ask(container("/outer/inner"))
    client.ask(Create("/outer/inner/child"))
    client.ask(Delete("/outer/inner/child"))
    wait_until_gone(client, "/outer/inner")
    wait_until_gone(client, "/outer")


def test_ttl__too_old(client: Talker, server: ZooKeeperServer) -> None:
    """It is removed when it has not changed for its time to live, unless it has children."""
    client.ask(mortal("/old", HOUR))
    client.ask(mortal("/parent", 1))
    client.ask(Create("/parent/child"))
    client.ask(mortal("/young", 1))
    wait_until_gone(client, "/young")
    assert {"/old", "/parent"} < set(server.paths())
    client.ask(Delete("/parent/child"))
    wait_until_gone(client, "/parent")


def test_ttl__changes(client: Talker) -> None:
    """Each change of its data restarts its time to live."""
    pause = math.inf
    # On a busy machine it may not be changed in time.
    while pause > 0.9:
        client.ask(mortal("/changing", 1000))
        client.ask(mortal("/left", 1000))
        changed, pause = time.monotonic(), 0.0
        while client.do(Exists("/left")).error == 0:
            client.do(SetData("/changing"))
            pause = max(pause, time.monotonic() - changed)
            changed = time.monotonic()
        is_left = client.do(Exists("/changing")).error == 0
        pause = max(pause, time.monotonic() - changed)
        wait_until_gone(client, "/changing")
    assert is_left


def test_ttl__sequence(client: Talker) -> None:
    """Sequential ones are removed too."""
    reply = client.ask(mortal("/n-", 1, TTL_SEQUENCE))
    assert isinstance(reply, tuple)
    assert reply[0] == "/n-0000000000"
    wait_until_gone(client, "/n-0000000000")


def test_reaping__goes_on_after_a_restart(client: Talker, server: ZooKeeperServer) -> None:
    """The server checks again after a restart."""
    client.ask(mortal("/young", 1))
    server.stop()
    server.start()
    with Talker(server.address) as again:
        wait_until_gone(again, "/young")
