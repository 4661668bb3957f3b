"""Plays operations of several sessions on one server and notes what each session sees, free of chance."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING

from tests.testing.jute import Reader, Stat, TruncatedError, Value
from tests.testing.operations import (
    ANN,
    EPHEMERAL,
    MULTI_READ,
    CloseSession,
    Create,
    Home,
    Operation,
    Ping,
)
from tests.testing.rawclient import ClosedError, Event, Greeting, RawClient, Reply

if TYPE_CHECKING:
    from typing import TypeAlias

TIMES = frozenset({"ctime", "mtime"})
READ = 1
ZXIDS = frozenset({"czxid", "mzxid", "pzxid"})
# No authentication, no such request: the connection ends behind the answer.
FATAL = frozenset({-115, -6})

# What is there when an example begins.
PLANTED = (
    Create("~"),
    Create("~/a"),
    Create("~/a/a"),
    Create("~/b"),
    # Of the manager, who outlives the other sessions.
    Create("~/brief", EPHEMERAL),
    # Of who says that he is Ann.
    Create("~/mine", acl=((31, "digest", ANN), (READ, "world", "anyone"))),
    Create("~/hers", acl=((31, "digest", ANN),)),
)

# What one step showed: for each frame, in order, what it held.
Sight: TypeAlias = "tuple[Value, ...]"


@dataclass(frozen=True)
class Call:
    """One session sends requests in one piece and waits for all answers."""

    session: int
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class Close:
    """One session ends itself; the next step of that session begins a new one."""

    session: int


@dataclass(frozen=True)
class Resume:
    """One session goes on over a new connection; ``abrupt`` closes the old one before, else the server does.

    A ``wrong`` password is tried first.
    """

    session: int
    abrupt: bool = True
    wrong: bool = False


@dataclass(frozen=True)
class Settle:
    """Everybody looks for events."""


Step: TypeAlias = "Call | Close | Resume | Settle"


@dataclass
class Seat:
    """One session and its connection."""

    client: RawClient
    greeting: Greeting


class Stage:
    """One server, one example.

    The example has the folder ``name`` for itself. Of what depends on the server's past only the difference
    to the beginning is noted, of session ids only whose they are, of times only that each zxid has one.
    """

    def __init__(
        self, address: tuple[str, int], name: str, make_client: Callable[[tuple[str, int]], RawClient] = RawClient
    ) -> None:
        self._make_client = partial(make_client, address)
        self._home = Home(f"/{name}")
        self._seats: dict[int, Seat] = {}
        self._owners: dict[int, Value] = {0: 0}
        self._births = itertools.count(1)
        self._clock: dict[int, int] = {}
        manager = self._make_client()
        self._manager = Seat(manager, manager.connect())
        self._owners[self._manager.greeting.session] = "manager"
        for create in PLANTED:
            self._home.base = manager.call(create.opcode, create.encode(self._home)).zxid

    def play(self, step: Step) -> Sight:
        """Do one step and tell what was seen."""
        if isinstance(step, Settle):
            return self._settle()
        if isinstance(step, Close):
            # What dies with a session dies in the order of a hash, so what others see of it is sorted.
            before = self._settle()
            own = self._call(step.session, (CloseSession(),), in_any_order=True)
            return before, own, self._settle(in_any_order=True)
        if isinstance(step, Resume):
            return self._resume(step)
        return self._call(step.session, step.operations)

    def close(self) -> Sight:
        """Show what has not been seen yet and end all sessions."""
        return self._settle(), *(self.play(Close(session)) for session in sorted(self._seats))

    def abandon(self) -> None:
        """End all sessions without a look: one that expired later would take a zxid from a later example."""
        for seat in (*self._seats.values(), self._manager):
            seat.client.close()
            with contextlib.suppress(OSError, ClosedError, TruncatedError), self._make_client() as client:
                client.connect(session=seat.greeting.session, password=seat.greeting.password)
                client.call(CloseSession.opcode)
        self._seats.clear()

    # Sessions.

    def _seat(self, session: int) -> tuple[Seat, Sight]:
        seat = self._seats.get(session)
        if seat is not None:
            return seat, ()
        client = self._make_client()
        seat = self._seats[session] = Seat(client, client.connect())
        self._owners[seat.greeting.session] = f"session {next(self._births)}"
        return seat, (self._greeting(seat.greeting),)

    def _resume(self, step: Resume) -> Sight:
        seat, sight = self._seat(step.session)
        identity = seat.greeting
        sights: list[Value] = list(sight)
        if step.abrupt:
            seat.client.close()
        if step.wrong:
            with self._make_client() as client:
                sights.append(self._greeting(client.connect(session=identity.session, password=b"wrong")))
                sights.append(self._end(client))
        client = self._make_client()
        greeting = client.connect(session=identity.session, password=identity.password)
        sights += [self._greeting(greeting), greeting.password == identity.password]
        if not step.abrupt:
            sights.append(self._end(seat.client))
        self._seats[step.session] = Seat(client, greeting)
        return tuple(sights)

    # Requests.

    def _call(self, session: int, operations: Sequence[Operation], *, in_any_order: bool = False) -> Sight:
        seat, greeting = self._seat(session)
        client = seat.client
        client.send_all([(operation.opcode, operation.encode(self._home)) for operation in operations])
        sights: list[Value] = list(greeting)
        for operation in operations:
            try:
                reply = client.answer()
            except ClosedError:
                return self._lose(session, sights)
            sights += [self._events(client, in_any_order=in_any_order), self._reply(reply, operation)]
            if isinstance(operation, CloseSession):
                del self._seats[session]
                sights.append(self._end(client))
            elif reply.error in FATAL:
                return self._lose(session, sights)
        return tuple(sights)

    def _lose(self, session: int, sights: list[Value]) -> Sight:
        """Expect the server to close the connection, and go on over another."""
        sights.append(self._end(self._seats[session].client))
        return (*sights, *self.play(Resume(session)))

    def _end(self, client: RawClient) -> Value:
        """Wait for the end of the connection; see what comes before it."""
        try:
            while isinstance(frame := client.receive(), Event):
                client.events.append(frame)
        except ClosedError:
            return self._events(client), "closed"
        finally:
            client.close()
        return self._events(client), "answered"

    def _settle(self, *, in_any_order: bool = False) -> Sight:
        sights: list[Value] = []
        for session, seat in sorted(self._seats.items()):
            answer = self._reply(seat.client.settle(), Ping())
            sights.append((session, self._events(seat.client, in_any_order=in_any_order), answer))
        return tuple(sights)

    # What is noted.

    def _greeting(self, greeting: Greeting) -> Value:
        password = greeting.password
        return (
            greeting.protocol,
            greeting.timeout,
            self._owner(greeting.session),
            None if password is None else (len(password), "secret" if any(password) else "empty"),
            greeting.rest,
        )

    def _events(self, client: RawClient, *, in_any_order: bool = False) -> Value:
        events, client.events = client.events, []
        noted = [(event.kind, event.state, self._home.short(event.path), event.header) for event in events]
        return tuple(sorted(noted, key=repr) if in_any_order else noted)

    def _reply(self, reply: Reply, operation: Operation) -> Value:
        # The number is the client's own count, and the same for all servers.
        header = (reply.xid, self._zxid(reply.zxid), reply.error)
        if reply.error:
            # Behind the error of many reads, the real server sends what it has read before; nobody looks at it.
            return header if operation.opcode == MULTI_READ else (*header, reply.body)
        reader = Reader(reply.body)
        try:
            body = self._note(operation.decode(reader, self._home))
        except TruncatedError:
            return (*header, "cut short", reply.body)
        return (*header, body, reader.rest())

    def _note(self, value: Value) -> Value:
        if isinstance(value, Stat):
            return tuple(self._field(value, field.name) for field in fields(value) if field.name not in TIMES)
        if isinstance(value, tuple):
            return tuple(self._note(part) for part in value)
        return value

    def _field(self, stat: Stat, name: str) -> Value:
        value: int = getattr(stat, name)
        if name in ZXIDS:
            return name, self._zxid(value), self._time(stat, name)
        return name, self._owner(value) if name == "owner" else value

    def _zxid(self, zxid: int) -> Value:
        return zxid - self._home.base if zxid > 0 else str(zxid)

    def _time(self, stat: Stat, name: str) -> Value:
        """Tell whether a zxid still has the time it had when it was seen first."""
        if name == "pzxid":
            return None
        zxid, time = (stat.czxid, stat.ctime) if name == "czxid" else (stat.mzxid, stat.mtime)
        return self._clock.setdefault(zxid, time) == time

    def _owner(self, session: int) -> Value:
        return self._owners.get(session, "unknown")
