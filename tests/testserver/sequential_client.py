"""A session that sends one request after the other."""

from __future__ import annotations

from dataclasses import dataclass

from tests.toolbox.protocol.jute import Reader, Value
from tests.toolbox.protocol.operations import Home, Operation
from tests.toolbox.protocol.raw_client import Greeting, RawClient


@dataclass(frozen=True)
class Answer:
    """A reply; without an error ``value`` is the decoded body, otherwise its bytes."""

    error: int
    value: Value
    zxid: int


class Visitor:
    """One session; paths and events are written with ``~`` for the folder of the test."""

    def __init__(self, client: RawClient, greeting: Greeting, home: Home) -> None:
        self.client = client
        self.greeting = greeting
        self.home = home

    def ask(self, operation: Operation) -> Answer:
        """Wait for the reply to one request; events before it are kept."""
        reply = self.client.call(operation.opcode, operation.encode(self.home))
        if reply.error:
            return Answer(reply.error, reply.body, reply.zxid)
        reader = Reader(reply.body)
        value = operation.decode(reader, self.home)
        assert reader.rest() == b"", reply
        return Answer(0, value, reply.zxid)

    def error(self, operation: Operation) -> int:
        """Send a request and return only whether it succeeded."""
        return self.ask(operation).error

    def kept(self) -> list[tuple[int, str | None]]:
        """Return the events that have arrived before replies until now, as type and path."""
        events, self.client.events = self.client.events, []
        return [(event.kind, self.home.short(event.path)) for event in events]

    def events(self) -> list[tuple[int, str | None]]:
        """Return all events that the server has sent until now."""
        self.client.settle()
        return self.kept()

    def zxid(self) -> int:
        """Return the server's last zxid."""
        return self.client.call(11, xid=-2).zxid
