"""Locks in tests that freeze the time: waits end, leases are renewed, and the server for tests ends sessions."""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from typing import Any

import freezegun
import pytest
import time_machine

from django_zklock.exceptions import LockTimeout
from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.lock import Lock
from django_zklock.zk.session import Session
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.timing import GRACE, wait_until

pytest_plugins = ["tests.toolbox.slow_deadlines"]

MOMENT = dt.datetime(2020, 2, 29, tzinfo=dt.UTC)


def renews(session: Session, before: float) -> bool:
    return session.lease_end > before


Freeze = Callable[[], AbstractContextManager[Any]]

tools = pytest.mark.parametrize(
    "freeze",
    [
        pytest.param(lambda: freezegun.freeze_time(MOMENT, real_asyncio=True), id="freezegun"),
        pytest.param(lambda: time_machine.travel(MOMENT, tick=False), id="time-machine"),
    ],
)


@tools
@pytest.mark.usefixtures("unhurried")
def test_wait__ends(make_pool: MakePool, freeze: Freeze) -> None:
    """A wait with a timeout ends, in async code too, where the tool leaves asyncio its clock."""
    held = Lock("k", make_pool()).acquire(timeout=GRACE)
    waiting = Lock("k", make_pool())
    with freeze():
        with pytest.raises(LockTimeout, match=r"was not granted within 0\.2 s"):
            waiting.acquire(timeout=0.2)
        with pytest.raises(LockTimeout, match=r"was not granted within 0\.2 s"):
            asyncio.run(waiting.aacquire(timeout=0.2))
        held.check()


@tools
def test_lease__is_renewed(make_pool: MakePool, freeze: Freeze) -> None:
    """A session that begins while the time is frozen, and one that has begun before, renew their leases."""
    early, late = make_pool(), make_pool()
    first = Lock("a", early).acquire(timeout=GRACE)
    with freeze():
        second = Lock("b", late).acquire(timeout=GRACE)
        for pool in (early, late):
            wait_until(partial(renews, pool.sessions()[0], pool.sessions()[0].lease_end), GRACE)
        first.check()
        second.check()


@tools
@pytest.mark.parametrize("started", ["before", "meanwhile"])
def test_testserver__ends_sessions(make_pool: MakePool, freeze: Freeze, started: str) -> None:
    """The server for tests ends the session of a process that is silent, whenever it was started."""
    server = ZooKeeperServer()
    if started == "before":
        server.start()
    with freeze():
        if started == "meanwhile":
            server.start()
        try:
            held = Lock("k", make_pool(server.hosts, session_timeout=1.0)).acquire(timeout=GRACE)
            session = server.owner(held.node)
            assert session is not None
            with server.faults.black_hole(session=session):
                server.wait_for_end(session, GRACE)
            wait_until(lambda: held.lost, GRACE)
        finally:
            server.close()
