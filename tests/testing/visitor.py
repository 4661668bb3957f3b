"""A session that asks one thing after the other."""

from __future__ import annotations

from dataclasses import dataclass

from tests.testing.jute import Reader, Value
from tests.testing.operations import Home, Operation
from tests.testing.rawclient import Greeting, RawClient


@dataclass(frozen=True)
class Answer:
    """What came back; without an error ``value`` is the decoded body, else its bytes."""

    error: int
    value: Value
    zxid: int


class Visitor:
    """One session; paths and events are given with ``~`` for the folder of the test."""

    def __init__(self, client: RawClient, greeting: Greeting, home: Home) -> None:
        self.client = client
        self.greeting = greeting
        self.home = home

    def ask(self, operation: Operation) -> Answer:
        """Wait for the answer to one request; events on the way are kept."""
        reply = self.client.call(operation.opcode, operation.encode(self.home))
        if reply.error:
            return Answer(reply.error, reply.body, reply.zxid)
        reader = Reader(reply.body)
        value = operation.decode(reader, self.home)
        assert reader.rest() == b"", reply
        return Answer(0, value, reply.zxid)

    def error(self, operation: Operation) -> int:
        """Ask, and keep of the answer only whether it went well."""
        return self.ask(operation).error

    def kept(self) -> list[tuple[int, str | None]]:
        """Take the events that came on the way to the answers until now, as kind and path."""
        events, self.client.events = self.client.events, []
        return [(event.kind, self.home.short(event.path)) for event in events]

    def events(self) -> list[tuple[int, str | None]]:
        """Take all events that the server has sent until now."""
        self.client.settle()
        return self.kept()

    def zxid(self) -> int:
        """Ask for the server's last zxid."""
        return self.client.call(11, xid=-2).zxid
