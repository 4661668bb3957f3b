"""All schemes by name, and how their contenders are connected to a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass, replace

from benchmarks.schemes.client import Address, Client
from benchmarks.schemes.contenders import (
    Contender,
    OneNode,
    Ours,
    ParentWatched,
    Polling,
    PredecessorWatched,
    Queued,
)
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.queue import Kind
from django_zklock.zk.wire import ConnectionOptions

# Longer than every measurement: no session sends pings or heartbeats meanwhile.
SESSION_TIMEOUT = 600.0
CONNECT_TIMEOUT = 60.0
# Of this number of contenders for a shared lock the first is a writer.
WRITER_EVERY = 5

Make = Callable[[Address, str, Kind], Awaitable[Contender]]


@dataclass(frozen=True)
class Scheme:
    """A scheme by its name; ``make`` connects a contender to a server, for the lock of a folder.

    ``is_shared`` says that it is for readers and writers, ``polls`` that its waiters never stop to send requests.
    """

    name: str
    title: str
    make: Make
    is_shared: bool = False
    polls: bool = False

    def kind(self, number: int) -> Kind:
        """Return the kind of the contender with this number."""
        if not self.is_shared:
            return Kind.EXCLUSIVE
        return Kind.READ if number % WRITER_EVERY else Kind.WRITE


def _connecting(contender: type[OneNode | Queued]) -> Make:
    async def make(address: Address, folder: str, kind: Kind) -> Contender:
        return contender(await Client.connect(address, SESSION_TIMEOUT), folder, kind)

    return make


async def _make_ours(address: Address, folder: str, kind: Kind) -> Contender:
    host, port = address
    connection = ConnectionOptions(hosts=f"{host}:{port}", session_timeout=SESSION_TIMEOUT)
    return Ours(Pool("scheme", PoolOptions(connection=connection, root=folder, connect_timeout=CONNECT_TIMEOUT)), kind)


POLLING = Scheme("polling", "poll the queue", _connecting(Polling), polls=True)
ONE_NODE = Scheme("one-node", "one node", _connecting(OneNode))
PARENT = Scheme("parent", "watch the parent", _connecting(ParentWatched))
PREDECESSOR = Scheme("predecessor", "watch the predecessor", _connecting(PredecessorWatched))
OURS = Scheme("ours", "this package", _make_ours)
SHARED_PARENT = replace(PARENT, name="shared-parent", is_shared=True)
SHARED_PREDECESSOR = replace(PREDECESSOR, name="shared-predecessor", title="watch one blocker", is_shared=True)
SHARED_OURS = replace(OURS, name="shared-ours", is_shared=True)
SCHEMES = (POLLING, ONE_NODE, PARENT, PREDECESSOR, OURS, SHARED_PARENT, SHARED_PREDECESSOR, SHARED_OURS)
