"""Pools: what begins and ends in them, in which thread, and what a fork may find half-made."""

from __future__ import annotations

import asyncio
import os
import signal
import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from django_zklock import conf
from django_zklock.connections import Connections
from django_zklock.exceptions import LockConflict, LockLost, ZooKeeperUnavailable
from django_zklock.testing import ZooKeeperServer
from django_zklock.zk import background, owners
from django_zklock.zk import pool as pool_module
from django_zklock.zk.acquire import Acquisition
from django_zklock.zk.background import TimerThread
from django_zklock.zk.held import current
from django_zklock.zk.lock import Lock
from django_zklock.zk.nesting import check_wait
from django_zklock.zk.ops import actions, search, snapshots
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.session import Session
from django_zklock.zk.system import MACHINE
from django_zklock.zk.wire import ConnectionOptions
from django_zklock.zk.wire.requests import MultiRead
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.processes import forked_child
from tests.toolbox.threads import Runner
from tests.toolbox.timing import wait_until

UNKNOWN_OPCODE = 77


# A session for inspection.


@pytest.mark.shows("guarantees#a-lost-connection-costs-no-lock-while-the-lease-runs")
def test_inspection__apart_from_locks(own_server: ZooKeeperServer, make_pool: MakePool) -> None:
    """What looks at locks, breaks and asks has a session of its own, begun when it is needed."""
    pool = make_pool(own_server.hosts)
    with Lock("k", pool).acquire(timeout=120) as held:
        (session,) = pool.sessions()
        assert [each.id for each in own_server.sessions()] == [session.id]
        own_server.requests.clear()
        (queue,) = search.find(pool, timeout=10)
        assert queue.holders[0].session_id == session.id
        assert pool.inspecting is not None
        assert actions.last_break(pool, queue.path, timeout=10) is None
        reads = {
            each.session for each in own_server.requests.all() if each.opcode.label in {"multiRead", "getChildren"}
        }
        assert reads == {pool.inspecting.id}
        assert pool.sessions() == [session]
        assert not held.lost


def test_inspection__server_too_old(
    own_server: ZooKeeperServer, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server older than ZooKeeper 3.6 ends the session for inspection, and costs no lock."""
    monkeypatch.setattr(MultiRead, "type", UNKNOWN_OPCODE)
    pool = make_pool(own_server.hosts, strict=True)
    with Lock("k", pool).acquire(timeout=120) as held:
        for _ in range(2):
            with pytest.raises(ZooKeeperUnavailable, match=r"ZooKeeper 3\.6 or newer is required"):
                search.find(pool, timeout=10)
        assert not held.lost


def test_inspection__sees_what_was_just_done(own_server: ZooKeeperServer, make_pool: MakePool) -> None:
    """The server catches up with the leader before it answers: the lock may have been taken at another one."""
    pool = make_pool(own_server.hosts)
    snapshots.list_names(pool, timeout=10)
    assert pool.inspecting is not None
    asked = [each.opcode.label for each in own_server.requests.all() if each.session == pool.inspecting.id]
    assert asked.index("sync") < asked.index("getChildren")


def test_inspection__ends_when_idle(
    own_server: ZooKeeperServer, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The session for inspection ends when it was not used for a while, and the next inspection begins another."""
    monkeypatch.setattr(pool_module, "IDLE_TIMEOUT", 0.2)
    pool = make_pool(own_server.hosts)
    for _ in range(2):
        assert search.find(pool, timeout=10) == []
        wait_until(lambda: pool.inspecting is None)
        wait_until(lambda: own_server.sessions() == [])


# Ended sessions.


def test_ended_session__closed_in_the_background(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """An event loop does not wait until what is left of an ended session is closed."""
    pool = make_pool()
    Lock("k", pool).acquire(timeout=120).release(wait=True)
    (session,) = pool.sessions()
    assert session.close(10)
    assert session.ended is not None
    closing, go_on, threads = threading.Event(), threading.Event(), []

    def close(self: Session, timeout: float) -> bool:
        threads.append(threading.get_ident())
        closing.set()
        return go_on.wait(60)

    monkeypatch.setattr(session, "close", close.__get__(session))

    async def lock_again() -> None:
        await (await Lock("k", pool).aacquire(timeout=120)).arelease()

    try:
        asyncio.run(lock_again())
        assert closing.wait(10)
        assert threading.get_ident() not in threads
    finally:
        go_on.set()


def test_session__begun_while_the_pool_closes(make_pool: MakePool) -> None:
    """A session that is asked for while the pool is closed is one that the pool knows, and closes later."""
    pool = make_pool()
    state = pool._of_this_process()
    with state.home_guard:
        asking = Runner(lambda: pool.session("/"))
        closing = Runner(pool.close)
        wait_until(lambda: not pool._states)
        state.closed = True
    closing.result()
    assert asking.result() in pool.sessions()


def test_close__all_at_once(own_server: ZooKeeperServer, make_pool: MakePool) -> None:
    """The end of every session is requested before the answer to the first: a server that is slow delays them once."""
    pool = make_pool(own_server.hosts, budget=1, session_timeout=30.0)
    for key in "abc":
        Lock(key, pool).acquire(timeout=120)
    with own_server.faults.black_hole("replies"):
        closing = Runner(lambda: pool.close(60))
        wait_until(lambda: own_server.sessions() == [])
        assert closing.running
    assert closing.result() is True


@pytest.mark.shows("guarantees#a-lost-lock-is-reported")
@pytest.mark.parametrize("by", ["close_all", "pool", "session"])
def test_close__lost_before_the_server_knows(own_server: ZooKeeperServer, make_pool: MakePool, by: str) -> None:
    """What a session holds is lost before the request for its end is sent: another process may hold right after it."""
    pool = make_pool(own_server.hosts, session_timeout=30.0)
    held = Lock("k", pool).acquire(timeout=120)
    (session,) = pool.sessions()
    held.check()
    close = {"close_all": lambda: pool_module.close_all(60), "pool": lambda: pool.close(60)}
    with own_server.faults.black_hole("replies"):
        closing = Runner(close.get(by, lambda: session.close(60)))
        wait_until(lambda: own_server.sessions() == [])
        assert held.lost
        with pytest.raises(LockLost, match="the session was closed"):
            held.check()
        assert closing.running
    closing.result()


# Forks, without Python's knowledge: a process that has another number. Nothing is connected here.


class Stub:
    """A session that is none."""

    def __init__(self, *_arguments: Any, **_options: Any) -> None:
        self.ended: str | None = None
        self.closing = False
        self.start_failure: Exception | None = None
        self.forgotten = 0

    def start(self) -> None: ...

    def begin_close(self) -> None: ...

    def close(self, timeout: float) -> bool:
        return timeout >= 0

    def abandon(self) -> None:
        self.forgotten += 1
        self.ended = "it belongs to the parent process"


@pytest.fixture
def stubbed(monkeypatch: pytest.MonkeyPatch) -> Pool:
    monkeypatch.setattr(pool_module, "Session", Stub)
    return Pool("stubbed", PoolOptions(connection=ConnectionOptions(hosts="nowhere")))


def test_session__begun_by_a_signal_handler_meanwhile(stubbed: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal handler that takes a lock while its thread begins the same session leaves one session."""
    begun: list[Any] = []
    closed: list[Any] = []

    def start(self: Any) -> None:
        if not begun:
            begun.append(self)
            begun.append(stubbed.session("/"))

    monkeypatch.setattr(Stub, "start", start)
    monkeypatch.setattr(Stub, "close", lambda self, _timeout: closed.append(self))
    interrupted = stubbed.session("/")
    assert interrupted is begun[1]
    assert stubbed.sessions() == [interrupted]
    assert closed == [begun[0]]


@pytest.mark.shows("guarantees#forked-children-hold-nothing", "faults#it-forks-while-another-thread-makes-a-connection")
@pytest.mark.parametrize("hook", [True, False], ids=["hook", "no hook"])
def test_fork__two_threads_at_once(stubbed: Pool, monkeypatch: pytest.MonkeyPatch, hook: bool) -> None:
    """Of two threads of a child that use a pool first at once, neither has the parent's session, and both the same."""
    inherited: Any = stubbed.session("/")
    pid = os.getpid()
    arrived, go_on = threading.Event(), threading.Event()

    class SlowClock(TimerThread):
        def __init__(self) -> None:
            first = not arrived.is_set()
            arrived.set()
            if first:
                assert go_on.wait(60)
            super().__init__()

    stubbed.system = replace(MACHINE, timers=SlowClock)
    monkeypatch.setattr(os, "getpid", lambda: pid + 1)

    def use() -> Session:
        if hook:
            stubbed.abandon_inherited()
        return stubbed.session("/")

    first = Runner(use)
    assert arrived.wait(10)
    # The other is half-way.
    second = Runner(lambda: stubbed.session("/"))
    mine = second.result()
    go_on.set()
    assert mine is not inherited
    assert first.result() is mine is stubbed.session("/")
    assert (inherited.forgotten, mine.ended) == (1, None)


@pytest.mark.shows("faults#it-forks-inside-of-a-block")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork__with_the_number_of_the_parent(pool: Pool) -> None:
    """A child holds nothing, also if it has the number of its grandparent, or is the first in a container."""
    held = Lock("k", pool).acquire(timeout=120)
    acquisition = Acquisition(Lock("other", pool), None, lambda: None, owners.caller())
    acquisition.start()
    with pytest.raises(LockConflict):
        check_wait(acquisition.lock, owners.caller())
    writer, pid = background._writer(), os.getpid()

    def look(report: Callable[[object], None]) -> None:
        os.getpid = lambda: pid
        # What its parent acquires is in no caller's way.
        check_wait(acquisition.lock, owners.caller())
        report([held.lost, current("k") is None, pool.sessions(), background._writer() is writer])

    with forked_child.fork(look) as child:
        assert child.receive() == [True, True, [], False]
    held.check()
    acquisition.end()


@pytest.mark.shows("faults#it-forks-while-another-thread-makes-a-connection")
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork__during_the_first_use_of_an_alias(monkeypatch: pytest.MonkeyPatch) -> None:
    """A fork while another thread makes the pool of an alias leaves the alias usable in the child."""
    connections = Connections()
    making, go_on = threading.Event(), threading.Event()
    main = threading.get_ident()

    def options(_alias: str) -> PoolOptions:
        if threading.get_ident() != main:
            making.set()
            assert go_on.wait(60)
        return PoolOptions(connection=ConnectionOptions(hosts="nowhere"))

    monkeypatch.setattr(conf, "options", options)
    other = Runner(lambda: connections["default"])
    assert making.wait(10)
    child = os.fork()
    if child == 0:
        # Ends a child that waits for ever.
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
        signal.alarm(20)
        os._exit(0 if connections["default"].name == "default" else 1)
    go_on.set()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert other.result() is connections["default"]
