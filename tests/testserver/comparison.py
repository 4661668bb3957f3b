"""Runs operations of several sessions on one server and records what each session receives, without random parts."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial
from typing import TYPE_CHECKING

from tests.toolbox.protocol.jute import Reader, Stat, TruncatedError, Value
from tests.toolbox.protocol.operations import (
    ANN,
    EPHEMERAL,
    MULTI_READ,
    CloseSession,
    Create,
    Home,
    Operation,
    Ping,
)
from tests.toolbox.protocol.raw_client import ClosedError, Event, Greeting, RawClient, Reply

if TYPE_CHECKING:
    from typing import TypeAlias

TIMES = frozenset({"ctime", "mtime"})
READ = 1
ZXIDS = frozenset({"czxid", "mzxid", "pzxid"})
# Authentication failed or unknown request: the connection ends after the reply.
FATAL = frozenset({-115, -6})

# The nodes at the start of an example.
PLANTED = (
    Create("~"),
    Create("~/a"),
    Create("~/a/a"),
    Create("~/b"),
    # The session timeout of the manager, which outlives the other sessions.
    Create("~/brief", EPHEMERAL),
    # The identity of the client that authenticates as Ann.
    Create("~/mine", acl=((31, "digest", ANN), (READ, "world", "anyone"))),
    Create("~/hers", acl=((31, "digest", ANN),)),
)

# The record of one step: the content of each frame, in order.
Observed: TypeAlias = "tuple[Value, ...]"


@dataclass(frozen=True)
class Call:
    """One session sends requests in one packet and waits for all replies."""

    session: int
    operations: tuple[Operation, ...]


@dataclass(frozen=True)
class Close:
    """One session ends itself; the next step of that session opens a new one."""

    session: int


@dataclass(frozen=True)
class Resume:
    """One session continues over a new connection; ``abrupt`` closes the old one first, otherwise the server does.

    With ``wrong`` it tries a wrong password first.
    """

    session: int
    abrupt: bool = True
    wrong: bool = False


@dataclass(frozen=True)
class Settle:
    """All sessions receive their events."""


Step: TypeAlias = "Call | Close | Resume | Settle"


@dataclass
class Seat:
    """One session and its connection."""

    client: RawClient
    greeting: Greeting


class Stage:
    """One server, one example.

    The example has its own folder ``name``. Values that depend on the server's past are recorded relative to the start,
    session ids as the name of their session, and times only as one time for each zxid.
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

    def play(self, step: Step) -> Observed:
        """Run one step and return its record."""
        if isinstance(step, Settle):
            return self._settle()
        if isinstance(step, Close):
            # The nodes of a session are deleted in the order of a hash, so events about them are sorted.
            before = self._settle()
            own = self._call(step.session, (CloseSession(),), in_any_order=True)
            return before, own, self._settle(in_any_order=True)
        if isinstance(step, Resume):
            return self._resume(step)
        return self._call(step.session, step.operations)

    def close(self) -> Observed:
        """Record the remaining events and end all sessions."""
        return self._settle(), *(self.play(Close(session)) for session in sorted(self._seats))

    def abandon(self) -> None:
        """End all sessions without a record: one that expired later would take a zxid from a later example."""
        for seat in (*self._seats.values(), self._manager):
            seat.client.close()
            with contextlib.suppress(OSError, ClosedError, TruncatedError), self._make_client() as client:
                client.connect(session=seat.greeting.session, password=seat.greeting.password)
                client.call(CloseSession.opcode)
        self._seats.clear()

    # Sessions.

    def _seat(self, session: int) -> tuple[Seat, Observed]:
        seat = self._seats.get(session)
        if seat is not None:
            return seat, ()
        client = self._make_client()
        seat = self._seats[session] = Seat(client, client.connect())
        self._owners[seat.greeting.session] = f"session {next(self._births)}"
        return seat, (self._greeting(seat.greeting),)

    def _resume(self, step: Resume) -> Observed:
        seat, before = self._seat(step.session)
        identity = seat.greeting
        observed: list[Value] = list(before)
        if step.abrupt:
            seat.client.close()
        if step.wrong:
            with self._make_client() as client:
                observed.append(self._greeting(client.connect(session=identity.session, password=b"wrong")))
                observed.append(self._end(client))
        client = self._make_client()
        greeting = client.connect(session=identity.session, password=identity.password)
        observed += [self._greeting(greeting), greeting.password == identity.password]
        if not step.abrupt:
            observed.append(self._end(seat.client))
        self._seats[step.session] = Seat(client, greeting)
        return tuple(observed)

    # Requests.

    def _call(self, session: int, operations: Sequence[Operation], *, in_any_order: bool = False) -> Observed:
        seat, greeting = self._seat(session)
        client = seat.client
        client.send_all([(operation.opcode, operation.encode(self._home)) for operation in operations])
        observed: list[Value] = list(greeting)
        for operation in operations:
            try:
                reply = client.answer()
            except ClosedError:
                return self._lose(session, observed)
            observed += [self._events(client, in_any_order=in_any_order), self._reply(reply, operation)]
            if isinstance(operation, CloseSession):
                del self._seats[session]
                observed.append(self._end(client))
            elif reply.error in FATAL:
                return self._lose(session, observed)
        return tuple(observed)

    def _lose(self, session: int, observed: list[Value]) -> Observed:
        """Expect the server to close the connection, and continue over another."""
        observed.append(self._end(self._seats[session].client))
        return (*observed, *self.play(Resume(session)))

    def _end(self, client: RawClient) -> Value:
        """Wait for the end of the connection; record what comes before it."""
        try:
            while isinstance(frame := client.receive(), Event):
                client.events.append(frame)
        except ClosedError:
            return self._events(client), "closed"
        finally:
            client.close()
        return self._events(client), "answered"

    def _settle(self, *, in_any_order: bool = False) -> Observed:
        observed: list[Value] = []
        for session, seat in sorted(self._seats.items()):
            answer = self._reply(seat.client.settle(), Ping())
            observed.append((session, self._events(seat.client, in_any_order=in_any_order), answer))
        return tuple(observed)

    # The record.

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
        # The xid is the client's own counter, and the same for all servers.
        header = (reply.xid, self._zxid(reply.zxid), reply.error)
        if reply.error:
            # After an error of multiRead the real server sends results that no client reads.
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
        """Return whether a zxid still has the time that it had at first."""
        if name == "pzxid":
            return None
        zxid, time = (stat.czxid, stat.ctime) if name == "czxid" else (stat.mzxid, stat.mtime)
        return self._clock.setdefault(zxid, time) == time

    def _owner(self, session: int) -> Value:
        return self._owners.get(session, "unknown")
