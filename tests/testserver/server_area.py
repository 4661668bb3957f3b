"""One server and a part of its tree for one test."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from tests.testserver.sequential_client import Visitor
from tests.toolbox.protocol.operations import CloseSession, Create, Home
from tests.toolbox.protocol.raw_client import ClosedError, Greeting, RawClient


class Scene:
    """Opens sessions on the server at ``address`` and ends them all with ``close``.

    ``count`` returns an unused folder whose next sequential child gets the requested number.
    """

    def __init__(self, address: tuple[str, int], folder: str, count: Callable[[int], str]) -> None:
        self.address = address
        self.home = Home(folder)
        self.count = count
        self._visitors: list[Visitor] = []
        assert self.visitor().error(Create("~")) == 0

    def client(self, wait_timeout: float = 10.0) -> RawClient:
        """Open a connection without a session."""
        return RawClient(self.address, wait_timeout=wait_timeout)

    def visitor(self, *, timeout: int = 30_000) -> Visitor:
        """Open a session."""
        client = self.client()
        return self._seat(client, client.connect(timeout=timeout))

    def resume(self, visitor: Visitor) -> Visitor:
        """Resume a session over a new connection."""
        client = self.client()
        greeting = visitor.greeting
        return self._seat(client, client.connect(session=greeting.session, password=greeting.password))

    def close(self) -> None:
        """End all sessions: one that expired later would take a zxid from a later test."""
        for visitor in self._visitors:
            visitor.client.close()
            with contextlib.suppress(ClosedError), self.client() as client:
                client.connect(session=visitor.greeting.session, password=visitor.greeting.password)
                client.call(CloseSession.opcode)

    def _seat(self, client: RawClient, greeting: Greeting) -> Visitor:
        visitor = Visitor(client, greeting, self.home)
        self._visitors.append(visitor)
        return visitor
