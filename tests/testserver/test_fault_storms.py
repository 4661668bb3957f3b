"""Overlapping faults of all kinds while clients send any requests: after healing no trace of them is left."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from django_zklock.testing import Fault, ZooKeeperServer
from tests.toolbox.protocol.operations import (
    EPHEMERAL,
    SEQUENCE,
    AddWatch,
    CloseSession,
    Create,
    Delete,
    Exists,
    GetChildren,
    GetData,
    Multi,
    Operation,
    Ping,
    SetData,
    SetWatches,
    Sync,
)
from tests.toolbox.protocol.raw_client import ClosedError
from tests.toolbox.protocol.session_client import Talker

CLIENTS = 3
OPERATIONS: list[Operation] = [
    Create("/a"),
    Create("/a/e", EPHEMERAL),
    Create("/a/s-", SEQUENCE),
    Delete("/a"),
    SetData("/a"),
    Exists("/a", watch=True),
    GetData("/a", watch=True),
    GetChildren("/a", watch=True),
    AddWatch("/", 1),
    SetWatches(0, data=("/a",), exist=("/a/e",), child=("/a",)),
    Multi((Create("/m"), Delete("/m"))),
    Sync("/"),
    Ping(),
    CloseSession(),
]


@dataclass
class Storm:
    """One example on one server."""

    server: ZooKeeperServer
    clients: list[Talker | None] = field(default_factory=lambda: [None] * CLIENTS)
    lasting: list[Fault] = field(default_factory=list)

    def session(self, number: int) -> int | None:
        """Return the session of a client, None for all sessions."""
        client = self.clients[number]
        return client.session if client is not None and hasattr(client, "greeting") else None

    def connect(self, number: int) -> None:
        """Resume a session, or open one; the server may be unreachable."""
        before = self.clients[number]
        with suppress(ClosedError, OSError):
            of = before if self.session(number) is not None else None
            client = Talker(self.server.address, of=of, greet=False, wait_timeout=0.05)
            if before is not None:
                before.close()
            self.clients[number] = client
            client.greet()

    def ask(self, number: int, operation: Operation) -> None:
        """Send without waiting."""
        client = self.clients[number]
        if client is None:
            self.connect(number)
        else:
            client.start(operation)

    def begin(self, fault: Callable[[ZooKeeperServer, int | None], Fault | object], number: int) -> None:
        """Start a fault."""
        begun = fault(self.server, self.session(number))
        if isinstance(begun, Fault):
            self.lasting.append(begun)

    def end(self, number: int) -> None:
        """End one of the faults."""
        if self.lasting:
            self.lasting.pop(number % len(self.lasting)).end()

    def restart(self) -> None:
        self.server.stop()
        self.server.start()


def lag(server: ZooKeeperServer, _session: int | None) -> Fault | None:
    """Let reads lag, unless they do."""
    with suppress(RuntimeError):
        return server.faults.lag_reads(2)
    return None


FAULTS: list[Callable[[ZooKeeperServer, int | None], object]] = [
    lag,
    lambda server, session: server.faults.black_hole("requests", session=session),
    lambda server, session: server.faults.black_hole("replies", session=session),
    lambda server, _: server.faults.black_hole(),
    lambda server, _: server.faults.delay(0.002, direction="requests"),
    lambda server, _: server.faults.delay(0.002, direction="replies"),
    lambda server, _: server.faults.refuse(),
    lambda server, session: server.faults.cut_reply("create", after_bytes=7, session=session),
    lambda server, session: server.faults.cut_reply("notification", after_bytes=7, session=session),
    lambda server, session: server.faults.cut_reply("connect", after_bytes=7),
    lambda server, session: server.faults.cut_reply("setWatches", session=session),
    lambda server, session: server.faults.expire(session),
    lambda server, session: server.faults.drop(session),
]

numbers = st.integers(0, CLIENTS - 1)
steps: st.SearchStrategy[Callable[[Storm], None]] = st.one_of(
    st.builds(
        lambda number, operation: lambda storm: storm.ask(number, operation), numbers, st.sampled_from(OPERATIONS)
    ),
    st.builds(
        lambda number, operation: lambda storm: storm.ask(number, operation), numbers, st.sampled_from(OPERATIONS)
    ),
    st.builds(lambda fault, number: lambda storm: storm.begin(fault, number), st.sampled_from(FAULTS), numbers),
    st.builds(lambda number: lambda storm: storm.end(number), st.integers(0, 9)),
    st.builds(lambda number: lambda storm: storm.connect(number), numbers),
    st.just(Storm.restart),
)


@pytest.fixture(scope="module")
def server() -> Iterator[ZooKeeperServer]:
    with ZooKeeperServer() as server:
        yield server


class Complaints(logging.Handler):
    """Collects the errors of the server and of its event loop."""

    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(self.format(record))


@pytest.fixture(scope="module")
def complaints() -> Iterator[Complaints]:
    handler = Complaints()
    loggers = [logging.getLogger(name) for name in ("asyncio", "django_zklock.testing")]
    for logger in loggers:
        logger.addHandler(handler)
    yield handler
    for logger in loggers:
        logger.removeHandler(handler)


@given(played=st.lists(steps, max_size=40))
def test_storm(server: ZooKeeperServer, complaints: Complaints, played: list[Callable[[Storm], None]]) -> None:
    """In any order of events the server has no error, and after healing it behaves like a new one."""
    storm = Storm(server)
    for step in played:
        step(storm)
    for client in storm.clients:
        if client is not None:
            client.close()
    server.faults.heal()
    network, service = server.service.network, server.service
    assert (network.holes, network.delays, network.cuts) == ([], [], [])
    with Talker(server.address) as one, Talker(server.address) as other:
        path = one.ask(Create("/s-", SEQUENCE))
        assert isinstance(path, str)
        other.ask(Exists(path))
        # Connections of closed clients are gone or about to be.
        while server.call(lambda: len(server.connections)) > 2:
            other.do(Ping())
        assert (service.template, service.followers) == (None, [])
        assert server.call(lambda: service.newest.watches.data.total) == 0
        assert server.call(lambda: service.newest.watches.children.total) == 0
        server.faults.expire()
    assert complaints.heard == []
