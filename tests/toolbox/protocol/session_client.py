"""A raw client with a session, which sends operations and returns their decoded replies."""

from __future__ import annotations

from tests.toolbox.protocol import jute
from tests.toolbox.protocol.jute import Reader, Stat, Value
from tests.toolbox.protocol.operations import GetData, Home, Operation
from tests.toolbox.protocol.raw_client import NO_PASSWORD, TIMEOUT, Event, Greeting, RawClient, Reply

HOME = Home()


def connect_frame(
    session: int = 0, password: bytes | None = NO_PASSWORD, *, timeout: int = 30_000, last_zxid: int = 0
) -> bytes:
    """Encode the first frame of a client."""
    first = jute.integer(0) + jute.long(last_zxid) + jute.integer(timeout)
    return first + jute.long(session) + jute.buffer(password) + jute.boolean(False)


class Talker(RawClient):
    """A raw client with a session: a new one, or the session ``of`` another client.

    With ``greet=False`` the method ``greet`` must be called later.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        of: Talker | None = None,
        timeout: int = 30_000,
        last_zxid: int = 0,
        greet: bool = True,
        wait_timeout: float = TIMEOUT,
    ) -> None:
        super().__init__(address, wait_timeout=wait_timeout)
        identity = (0, NO_PASSWORD) if of is None else (of.greeting.session, of.greeting.password)
        self.send_frame(connect_frame(*identity, timeout=timeout, last_zxid=last_zxid))
        if greet:
            try:
                self.greet()
            except BaseException:
                self.close()
                raise

    def greet(self) -> Greeting:
        """Wait for the reply to the first frame, and keep it in ``greeting``."""
        reader = Reader(self.receive_frame())
        self.greeting = Greeting(reader.integer(), reader.integer(), reader.long(), reader.buffer(), reader.rest())
        return self.greeting

    @property
    def session(self) -> int:
        """The number of the session."""
        return self.greeting.session

    def start(self, *operations: Operation) -> None:
        """Send operations in one packet, without waiting."""
        self.send_all([(operation.opcode, operation.encode(HOME)) for operation in operations])

    def do(self, operation: Operation) -> Reply:
        """Send an operation and return its raw reply."""
        return self.call(operation.opcode, operation.encode(HOME))

    def ask(self, operation: Operation) -> Value:
        """Send an operation and return the decoded reply, which must not be an error."""
        return self.finish(operation, self.do(operation))

    def finish(self, operation: Operation, reply: Reply) -> Value:
        """Return the decoded content of a reply, which must not be an error."""
        assert reply.error == 0, (operation, reply)
        return operation.decode(Reader(reply.body), HOME)

    def read(self, path: str) -> tuple[bytes | None, Stat]:
        """Return data and Stat of a node."""
        reader = Reader(self.call(GetData.opcode, GetData(path).encode(HOME)).body)
        return reader.buffer(), reader.stat()

    def event(self) -> tuple[int, str | None]:
        """Wait for a watch event and return its type and path; no reply may come before it."""
        event = self.events.pop(0) if self.events else self.receive()
        assert isinstance(event, Event), event
        return event.kind, event.path

    def news(self) -> list[tuple[int, str | None]]:
        """Return type and path of all watch events until now."""
        self.settle()
        events, self.events = self.events, []
        return [(event.kind, event.path) for event in events]
