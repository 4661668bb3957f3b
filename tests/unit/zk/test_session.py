"""When a session gives up its connection, and when it tells its listeners that the lease is over."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import pytest

from django_zklock.zk.session import Session, SessionListener
from django_zklock.zk.waiting import boottime
from django_zklock.zk.wire import ConnectionOptions

TIMEOUT = 12.0


class Timers:
    """Keeps the calls, which the test makes."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], object]] = []

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


@pytest.fixture
def timers() -> Timers:
    return Timers()


def connected(timers: Timers, *, strict: bool = False) -> Session:
    """Return a session that believes to be connected; nothing is sent."""
    session = Session(
        ConnectionOptions(hosts="nowhere:1", session_timeout=TIMEOUT),
        timers=cast("Any", timers),
        name="s",
        connect_timeout=5.0,
        budget=1000,
        overflow=lambda _size: session,
        strict=strict,
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
    """A link that is silent for a quarter of the timeout is dropped, while there is time for another one."""
    session = connected(timers, strict=strict)
    drops: list[str] = []
    monkeypatch.setattr(session.wire, "unanswered_for", lambda: silence * TIMEOUT)
    monkeypatch.setattr(session.wire, "drop", drops.append)
    session._heartbeat()
    assert bool(drops) is dropped


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
    """Holders are told when the lease is over, and not before, although nobody looks."""
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
