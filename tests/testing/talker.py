"""A raw client with a session, that asks with operations and gives what they decode."""

from __future__ import annotations

from tests.testing import jute
from tests.testing.jute import Reader, Stat, Value
from tests.testing.operations import GetData, Home, Operation
from tests.testing.rawclient import NO_PASSWORD, PATIENCE, Event, Greeting, RawClient, Reply

HOME = Home()


def connect_frame(
    session: int = 0, password: bytes | None = NO_PASSWORD, *, timeout: int = 30_000, last_zxid: int = 0
) -> bytes:
    """Encode the first frame of a client."""
    first = jute.integer(0) + jute.long(last_zxid) + jute.integer(timeout)
    return first + jute.long(session) + jute.buffer(password) + jute.boolean(False)


class Talker(RawClient):
    """A raw client with a session, a new one unless it resumes that ``of`` another client.

    Unless ``greet`` is done at once, it must be done later.
    """

    def __init__(
        self,
        address: tuple[str, int],
        *,
        of: Talker | None = None,
        timeout: int = 30_000,
        last_zxid: int = 0,
        greet: bool = True,
        patience: float = PATIENCE,
    ) -> None:
        super().__init__(address, patience=patience)
        identity = (0, NO_PASSWORD) if of is None else (of.greeting.session, of.greeting.password)
        self.send_frame(connect_frame(*identity, timeout=timeout, last_zxid=last_zxid))
        if greet:
            try:
                self.greet()
            except BaseException:
                self.close()
                raise

    def greet(self) -> Greeting:
        """Wait for the answer to the first frame, and keep it in ``greeting``."""
        reader = Reader(self.receive_frame())
        self.greeting = Greeting(reader.integer(), reader.integer(), reader.long(), reader.buffer(), reader.rest())
        return self.greeting

    @property
    def session(self) -> int:
        """The number of the session."""
        return self.greeting.session

    def start(self, *operations: Operation) -> None:
        """Ask, in one piece, and do not wait."""
        self.send_all([(operation.opcode, operation.encode(HOME)) for operation in operations])

    def do(self, operation: Operation) -> Reply:
        """Ask, and give the answer as it came."""
        return self.call(operation.opcode, operation.encode(HOME))

    def ask(self, operation: Operation) -> Value:
        """Ask, and give what the answer holds; it must not be an error."""
        return self.finish(operation, self.do(operation))

    def finish(self, operation: Operation, reply: Reply) -> Value:
        """Give what an answer holds that must not be an error."""
        assert reply.error == 0, (operation, reply)
        return operation.decode(Reader(reply.body), HOME)

    def read(self, path: str) -> tuple[bytes | None, Stat]:
        """Read data and Stat of a node."""
        reader = Reader(self.call(GetData.opcode, GetData(path).encode(HOME)).body)
        return reader.buffer(), reader.stat()

    def event(self) -> tuple[int, str | None]:
        """Wait for a watch event, and give its kind and path; there must be no answer before it."""
        event = self.events.pop(0) if self.events else self.receive()
        assert isinstance(event, Event), event
        return event.kind, event.path

    def news(self) -> list[tuple[int, str | None]]:
        """Give kind and path of all watch events that the server has sent until now."""
        self.settle()
        events, self.events = self.events, []
        return [(event.kind, event.path) for event in events]
