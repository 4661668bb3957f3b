"""When a session gives up its connection, and when it tells its listeners that the lease is over."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, cast

import pytest
from kazoo.exceptions import NoAuthError, OperationTimeoutError

from django_zklock.zk.session import (
    HEARTBEATS_PER_SESSION,
    MAX_WATCHES_PER_WRITE,
    STOOD_STILL,
    Session,
    SessionListener,
)
from django_zklock.zk.system import System
from django_zklock.zk.waiting import boottime
from django_zklock.zk.wire import ConnectionOptions

TIMEOUT = 12.0


class Timers:
    """Keeps the calls, which the test makes."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []

    def start(self) -> None: ...

    def call_later(self, _delay: float, call: Callable[[], object]) -> Timers:
        self.calls.append(call)
        return self

    def cancel(self) -> None: ...


class Holder(SessionListener):
    """Records why its hold is lost."""

    def __init__(self) -> None:
        self.losses: list[str] = []

    def lose(self, reason: str, /) -> None:
        self.losses.append(reason)


class Many(Holder):
    """Holds that many locks, each of which is to be watched once."""

    needs_lease = is_held = True

    def __init__(self, session: Session, count: int) -> None:
        super().__init__()
        self.watched: list[int] = []
        self._session = session
        self._calls = [partial(self.watched.append, number) for number in range(count)]

    def heartbeat(self) -> None:
        self._session.to_watch.update(dict.fromkeys(self._calls[len(self.watched) :]))


class Requests:
    """Takes the requests of a heartbeat in place of the wire; the first one is answered first."""

    def __init__(self, session: Session, patch: pytest.MonkeyPatch) -> None:
        self.sent: list[tuple[str, Callable[[Any, Any], None] | None]] = []
        patch.setattr(session.wire, "sync", lambda _path, reply=None: self.sent.append(("sync", reply)))
        patch.setattr(session.wire, "write_nothing", lambda reply: self.sent.append(("write", reply)))

    @property
    def names(self) -> list[str]:
        return [name for name, _reply in self.sent]

    def answer(self, name: str, error: Exception | None = None) -> None:
        """Answer the first request, which is that one."""
        kind, reply = self.sent.pop(0)
        assert kind == name
        if reply is not None:
            reply(None, error)


@pytest.fixture
def timers() -> Timers:
    return Timers()


def connected(timers: Timers, *, strict: bool = False, clock: Callable[[], float] = boottime) -> Session:
    """Return a session that believes to be connected; nothing is sent."""
    session = Session(
        ConnectionOptions(hosts="nowhere:1", session_timeout=TIMEOUT),
        timers=cast("Any", timers),
        name="s",
        connect_timeout=5.0,
        budget=1000,
        overflow=lambda _size: session,
        strict=strict,
        system=System(boottime=clock),
    )
    session.connected, session.id = True, 77
    return session


@pytest.mark.parametrize(
    ("strict", "silence", "dropped"),
    [(False, 0.24, False), (False, 0.26, True), (True, 0.39, False), (True, 0.41, True)],
)
def test_heartbeat__silence(
    timers: Timers, monkeypatch: pytest.MonkeyPatch, strict: bool, silence: float, dropped: bool
) -> None:
    """A link that is silent for a quarter of the timeout is dropped for another server, while there is time."""
    session = connected(timers, strict=strict)
    drops: list[bool] = []
    monkeypatch.setattr(session.wire, "unanswered_for", lambda: silence * TIMEOUT)
    monkeypatch.setattr(session.wire, "drop", lambda _reason, *, avoid: drops.append(avoid))
    session._heartbeat()
    assert drops == [True] * dropped


@pytest.mark.shows("guarantees#a-lost-connection-costs-no-lock-while-the-lease-runs")
@pytest.mark.parametrize(("left", "renewed"), [(0.5, True), (0.9, False)])
def test_prove__a_short_lease(timers: Timers, monkeypatch: pytest.MonkeyPatch, left: float, renewed: bool) -> None:
    """A lease that may not last until the next heartbeat is renewed by one write at a time, and only if it is short."""
    session = connected(timers)
    writes: list[Callable[[Any, Any], None]] = []
    monkeypatch.setattr(session.wire, "write_nothing", writes.append)
    session.prove()
    assert writes == []
    session.wire.lease.connected(TIMEOUT, boottime(), boottime(), moved=False)
    session.wire.lease.end = boottime() + left * TIMEOUT
    session.connected = False
    session.prove()
    assert writes == []
    session.connected = True
    session.prove()
    session.prove()
    assert len(writes) == renewed
    for write in writes[:]:
        write(None, None)
        session.prove()
    assert len(writes) == 2 * renewed


def test_lease__over_in_an_outage(timers: Timers) -> None:
    """Holders are told when the lease is over, and not before, although no caller looks."""
    session, holder = connected(timers), Holder()
    session.add_listener(holder)
    session.wire.lease.connected(TIMEOUT, boottime(), boottime(), moved=False)
    session.on_suspended()
    for call in timers.calls:
        call()
    assert holder.losses == []
    session.wire.lease.end = boottime()
    for call in timers.calls:
        call()
    assert holder.losses == ["the lease ran out while ZooKeeper could not be reached"]


@pytest.mark.shows("guarantees#a-lost-lock-is-reported")
def test_heartbeat__lease_over_on_an_open_connection(timers: Timers) -> None:
    """Holders are told when the lease is over although the connection lives, on which an answer is still coming."""
    session, holder = connected(timers), Holder()
    session.add_listener(holder)
    session.wire.lease.connected(TIMEOUT, boottime(), boottime(), moved=False)
    session._heartbeat()
    assert holder.losses == []
    session.wire.lease.end = boottime()
    session._heartbeat()
    assert holder.losses == [STOOD_STILL]


# The heartbeat of a session that holds many locks, and what it sends on a link on which answers are late.


@pytest.fixture(name="session")
def long_leased(timers: Timers) -> Session:
    """Return a session whose lease is long."""
    session = connected(timers)
    session.wire.lease.connected(TIMEOUT, boottime(), boottime(), moved=False)
    return session


def holding(session: Session, monkeypatch: pytest.MonkeyPatch, count: int) -> tuple[Requests, Many]:
    """Let the session hold that many locks; return its requests, and what it holds."""
    many = Many(session, count)
    session.add_listener(many)
    return Requests(session, monkeypatch), many


def test_beat__one_at_a_time(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as a heartbeat is unanswered, the next ones only show the server that the client lives."""
    requests, many = holding(session, monkeypatch, MAX_WATCHES_PER_WRITE)
    for _ in range(3):
        session._beat()
    assert (requests.names, many.watched) == (["sync"] * 3, [])
    for left in (2, 1, 0):
        requests.answer("sync")
        assert (requests.names, len(many.watched)) == (["sync"] * left, MAX_WATCHES_PER_WRITE)
    session._beat()
    requests.answer("sync")
    # Each is watched once.
    assert many.watched == list(range(MAX_WATCHES_PER_WRITE))


def test_beat__some_after_the_other(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """Held nodes are watched in small portions, and the lease is renewed before a portion if that is due."""
    requests, many = holding(session, monkeypatch, 2 * MAX_WATCHES_PER_WRITE + 1)
    session._beat()
    requests.answer("sync")
    assert (len(many.watched), requests.names) == (MAX_WATCHES_PER_WRITE, ["sync"])
    # The next heartbeat comes before this portion is answered.
    session._beat()
    session.wire.lease.end = boottime() + 0.5 * TIMEOUT
    requests.answer("sync")
    assert (len(many.watched), requests.names) == (MAX_WATCHES_PER_WRITE, ["sync", "write"])
    requests.answer("sync")
    session.wire.lease.end = boottime() + 0.9 * TIMEOUT
    requests.answer("write")
    assert (len(many.watched), requests.names) == (2 * MAX_WATCHES_PER_WRITE, ["sync"])
    requests.answer("sync")
    assert (many.watched, requests.names) == (list(range(2 * MAX_WATCHES_PER_WRITE + 1)), [])


def test_beat__refused(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat that is refused, for now or for good, is over: the next one is a whole one."""
    requests, many = holding(session, monkeypatch, 1)
    for error in (OperationTimeoutError(), NoAuthError()):
        session._beat()
        requests.answer("sync", error)
    assert many.watched == []
    session._beat()
    requests.answer("sync")
    assert many.watched == [0]


def test_beat__connection_lost(session: Session, monkeypatch: pytest.MonkeyPatch) -> None:
    """A heartbeat ends with its connection, and what was to be watched is found anew."""
    requests, many = holding(session, monkeypatch, 2 * MAX_WATCHES_PER_WRITE)
    session._beat()
    requests.answer("sync")
    session.on_suspended()
    assert session.to_watch == {}
    requests.sent.clear()
    # One that was due meanwhile.
    session._beat()
    assert requests.sent == []
    session.connected = True
    session._beat()
    requests.answer("sync")
    assert len(many.watched) == 2 * MAX_WATCHES_PER_WRITE


@pytest.mark.shows("faults#the-link-is-thin")
def test_beat__late_answers(timers: Timers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Answers that take longer than a heartbeat are warned of, while the locks are held, and once."""
    now = boottime()
    session = connected(timers, clock=lambda: now)
    requests = Requests(session, monkeypatch)
    session.wire.lease.end = now + 10.0
    session._beat()
    # Of a process that was stopped: several heartbeats at one moment.
    session._beat()
    assert caplog.records == []
    for _ in range(3):
        now += TIMEOUT / HEARTBEATS_PER_SESSION
        session._beat()
    (record,) = (each for each in caplog.records if each.levelname == "WARNING")
    assert record.message == "event=slow_answers session=s server=nowhere:1 unanswered_for=1.7 lease_left=8.3"
    # It has been over for a session timeout.
    requests.answer("sync")
    now += 2 * TIMEOUT
    session._beat()
    now += TIMEOUT / HEARTBEATS_PER_SESSION
    session._beat()
    assert [each.levelname for each in caplog.records] == ["WARNING", "WARNING"]


# A node that only the server of this connection has.


class Next(Holder):
    """Waits, and will hold when its predecessor is gone."""

    needs_lease = True


@pytest.mark.parametrize(
    ("strict", "listener", "leaves"),
    [(False, "holder", True), (True, "holder", False), (True, "waiter", True), (True, "next", True)],
)
def test_leave_server(
    timers: Timers, monkeypatch: pytest.MonkeyPatch, strict: bool, listener: str, leaves: bool
) -> None:
    """A session leaves a server that has such a node, as soon as that costs no lock that is held."""
    session = connected(timers, strict=strict)
    drops: list[bool] = []
    monkeypatch.setattr(session.wire, "drop", lambda _reason, *, avoid: drops.append(avoid))
    held = Many(session, 0)
    session.add_listener({"holder": held, "waiter": Holder(), "next": Next()}[listener])
    session._check_nodes()
    session.strays._read(["/k/n"], [[]], None, is_missing=True)
    assert drops == [True] * leaves
    if not leaves:
        session._check_nodes()
        assert drops == []
        session.listeners.pop(held)
        session._check_nodes()
        assert drops == [True]
        # On the next connection nothing is known.
        session.on_suspended()
        session.on_connected()
        session._check_nodes()
        assert drops == [True]
