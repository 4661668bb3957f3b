"""Faults of nodes: sequences near their end, and containers that are removed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from django_zklock.testing import ZooKeeperServer
from tests.toolbox.protocol.operations import (
    CONTAINER,
    CREATE_CONTAINER,
    CREATE_TTL,
    EPHEMERAL,
    SEQUENCE,
    Create,
    Delete,
    Exists,
    GetChildren,
)
from tests.toolbox.protocol.session_client import Talker

LAST = 2**31 - 1
DELETED, CHILD = 2, 4
NO_NODE, NODE_EXISTS = -101, -110
TTL = 5


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


@pytest.fixture
def client(server: ZooKeeperServer) -> Iterator[Talker]:
    with Talker(server.address) as client:
        client.ask(Create("/q"))
        yield client


def numbered(client: Talker, name: str = "n-") -> str:
    """Create a sequential child of /q, and return the number in its name."""
    path = client.ask(Create(f"/q/{name}", SEQUENCE))
    assert isinstance(path, str)
    return path.removeprefix(f"/q/{name}")


# Sequences.


@pytest.mark.parametrize(
    ("value", "first", "second"),
    [
        (0, "0000000000", "0000000001"),
        (41, "0000000041", "0000000042"),
        (999_999_999, "0999999999", "1000000000"),
        (-3, "-000000003", "-000000002"),
        (-(2**31), "-2147483648", "-2147483647"),
    ],
)
def test_set_sequence(server: ZooKeeperServer, client: Talker, value: int, first: str, second: str) -> None:
    """The next child gets the number, and later ones count on from it."""
    numbered(client)
    server.faults.set_sequence("/q", value)
    assert numbered(client, "m-") == first
    assert numbered(client, "m-") == second


def test_set_sequence__is_a_transaction(server: ZooKeeperServer, client: Talker) -> None:
    """It takes a zxid, fires no watch, and changes only cversion."""
    client.ask(GetChildren("/q", watch=True))
    client.ask(Exists("/q", watch=True))
    before = client.do(Exists("/")).zxid
    _, stat = client.read("/q")
    server.faults.set_sequence("/q", 7)
    assert client.news() == []
    assert client.do(Exists("/")).zxid == before + 1
    _, later = client.read("/q")
    assert (later.pzxid, later.mzxid, later.version, later.children) == (stat.pzxid, stat.mzxid, 0, 0)
    assert later.cversion == 14


def test_set_sequence__no_such_node(server: ZooKeeperServer, client: Talker) -> None:
    """A missing node is a LookupError, and takes no zxid."""
    before = client.do(Exists("/")).zxid
    with pytest.raises(LookupError, match="node /nowhere does not exist"):
        server.faults.set_sequence("/nowhere", 1)
    assert client.do(Exists("/")).zxid == before


# Containers and nodes with a time to live.


@pytest.mark.parametrize(
    "create", [Create("/c", CONTAINER, opcode=CREATE_CONTAINER), Create("/c", TTL, opcode=CREATE_TTL)]
)
def test_reap(server: ZooKeeperServer, client: Talker, create: Create) -> None:
    """An empty container is removed, and so is a TTL node of any age; watches fire."""
    client.ask(create)
    client.ask(Exists("/c", watch=True))
    client.ask(GetChildren("/", watch=True))
    assert server.faults.reap("/c") is True
    assert client.news() == [(DELETED, "/c"), (CHILD, "/")]
    assert client.do(Exists("/c")).error == NO_NODE


def test_reap__has_children(server: ZooKeeperServer, client: Talker) -> None:
    """A container with children stays, until the last one is deleted."""
    client.ask(Create("/c", CONTAINER, opcode=CREATE_CONTAINER))
    client.ask(Create("/c/held", EPHEMERAL))
    assert server.faults.reap("/c") is False
    client.ask(Exists("/c"))
    client.ask(Delete("/c/held"))
    assert server.faults.reap("/c") is True


def test_reap__while_somebody_creates_in_it(server: ZooKeeperServer, client: Talker) -> None:
    """A create in a container that was just removed fails, because its parent does not exist."""
    client.ask(Create("/c", CONTAINER, opcode=CREATE_CONTAINER))
    server.faults.reap("/c")
    assert client.do(Create("/c/late", EPHEMERAL)).error == NO_NODE


def test_reap__no_container(server: ZooKeeperServer, client: Talker) -> None:
    """The server removes no other node by itself, so neither does this fault."""
    with pytest.raises(ValueError, match="/q is neither a container nor a TTL node"):
        server.faults.reap("/q")
    client.ask(Create("/held", EPHEMERAL))
    with pytest.raises(ValueError, match="/held is neither"):
        server.faults.reap("/held")
    with pytest.raises(LookupError, match="node /nowhere does not exist"):
        server.faults.reap("/nowhere")
    client.ask(Exists("/q"))
