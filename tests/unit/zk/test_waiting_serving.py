"""Threads of this package in which nothing may wait: what a finalizer that runs there may do, and what it is told."""

from __future__ import annotations

import asyncio
import gc
import logging
import subprocess
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from django_zklock.connections import Connections, connections
from django_zklock.exceptions import AsyncUnsafe, LockLost
from django_zklock.zk import held as held_module
from django_zklock.zk import waiting
from django_zklock.zk.background import DeferredLogger
from django_zklock.zk.held import Held
from django_zklock.zk.listener import LockListener
from django_zklock.zk.lock import Lock
from django_zklock.zk.ops import actions, ensemble, search, snapshots
from django_zklock.zk.pool import Pool
from django_zklock.zk.waiting import DaemonCall
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.timing import GRACE
from tests.toolbox.zookeeper.any_server import Server
from tests.toolbox.zookeeper.observer import Observer

# What would wait waits longer than a test looks for its end.
LONG = 60.0
LIMIT = 2 * GRACE


@pytest.fixture
def pool(make_pool: MakePool) -> Pool:
    return make_pool(session_timeout=40.0, connect_timeout=LONG)


# The threads, each by what lets it call something.


def by_connection(pool: Pool, call: Callable[[], object]) -> None:
    pool.session("/").post(call)


def by_timers(pool: Pool, call: Callable[[], None]) -> None:
    pool._of_this_process().timers.call_later(0, call)


def by_actions(pool: Pool, call: Callable[[], object]) -> None:
    pool.actions.submit(call)


class Calling(logging.Handler):
    """A log handler that makes one call."""

    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__()
        self._call = call

    def emit(self, _record: logging.LogRecord) -> None:
        logging.getLogger("django_zklock.test").removeHandler(self)
        self._call()


def by_log(_pool: Pool, call: Callable[[], object]) -> None:
    logging.getLogger("django_zklock.test").addHandler(Calling(call))
    DeferredLogger("django_zklock.test").warning("event=test")


def by_call(_pool: Pool, call: Callable[[], object]) -> None:
    DaemonCall(call)


Where = Callable[[Pool, Callable[[], None]], None]
EVERYWHERE = pytest.mark.parametrize("where", [by_connection, by_timers, by_actions, by_log, by_call])


def outcome(where: Where, pool: Pool, call: Callable[[], object]) -> object:
    """Return what ``call`` returns or raises in that thread."""
    found: list[object] = []
    over = threading.Event()

    def run() -> None:
        try:
            found.append(call())
        except BaseException as error:  # noqa: BLE001 - the outcome
            found.append(error)
        over.set()

    where(pool, run)
    assert over.wait(LIMIT), "the thread waits"
    return found[0]


async def aenter(lock: Lock) -> None:
    async with lock:
        pass


def enter(lock: Lock) -> None:
    with lock:
        pass


WAITS: dict[str, Callable[[Lock], object]] = {
    "acquire": lambda lock: lock.acquire(LONG),
    "acquire without a limit": lambda lock: lock.acquire(),
    "try_acquire": lambda lock: lock.try_acquire(),
    "with": enter,
    "holders": lambda lock: lock.holders(),
    "aacquire": lambda lock: asyncio.run(lock.aacquire(LONG)),
    "atry_acquire": lambda lock: asyncio.run(lock.atry_acquire()),
    "async with": lambda lock: asyncio.run(aenter(lock)),
    "aholders": lambda lock: asyncio.run(lock.aholders()),
    "show": lambda lock: snapshots.one_lock(lock.pool, lock.key, timeout=LONG),
    "find": lambda lock: search.find(lock.pool, timeout=LONG),
    "prune": lambda lock: actions.prune(lock.pool, ["k"], timeout=LONG),
    "revoke": lambda lock: actions.revoke(lock.pool, f"{lock.paths[0]}/lock-0000000000", "because", timeout=LONG),
    "servers": lambda lock: ensemble.servers(lock.pool.options.connection, timeout=LONG),
    "several ensembles": lambda _lock: search.map_parallel(threading.Event().wait, [LONG, LONG]),
    "first answer": lambda lock: Connections.wait_for_first_answer(lock.pool, LONG),
    "close": lambda lock: lock.pool.close(LONG),
    "close_all": lambda _lock: connections.close_all(LONG),
}


@pytest.mark.shows("faults#a-finalizer-takes-a-lock-in-one-of-our-threads")
@pytest.mark.parametrize(
    ("where", "name"),
    [
        *((by_connection, name) for name in WAITS),
        *((where, "acquire") for where in (by_timers, by_actions, by_log, by_call)),
    ],
)
def test_serving__refuses_to_wait(pool: Pool, observer: Observer, where: Where, name: str) -> None:
    """Whatever would wait is refused at once, says what to do instead, and has asked ZooKeeper for nothing."""
    with Lock("kept", pool).acquire(LONG) as kept:
        error = outcome(where, pool, lambda: WAITS[name](Lock("k", pool)))
        assert isinstance(error, AsyncUnsafe)
        assert "in a thread of django_zklock" in str(error)
        assert "queue.SimpleQueue" in str(error)
        # Its thread does what it is there for.
        kept.check()
        Lock("other", pool).acquire(LIMIT).release()
        assert observer.children(Lock("k", pool).paths[0]) == []


@pytest.mark.parametrize("call", [WAITS["acquire"], WAITS["aacquire"]])
def test_serving__names_the_key(pool: Pool, call: Callable[[Lock], object], monkeypatch: pytest.MonkeyPatch) -> None:
    """The error has the key, and Django's switch for event loops does not permit the wait."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")
    error = outcome(by_connection, pool, lambda: call(Lock("k", pool)))
    assert isinstance(error, AsyncUnsafe)
    assert error.key == "k"
    assert str(error).startswith("lock 'k' cannot be acquired in a thread of django_zklock")


@EVERYWHERE
def test_serving__release(pool: Pool, where: Where) -> None:
    """A release is made, as everywhere; only the wait for its confirmation is refused."""
    locks = Lock("k", pool), Lock("other", pool)
    held, other = (lock.acquire(LONG) for lock in locks)
    assert outcome(where, pool, held.release) is None
    error = outcome(where, pool, lambda: other.release(wait=True))
    assert isinstance(error, AsyncUnsafe)
    assert "is released, but the confirmation cannot be waited for" in str(error)
    assert held.released
    assert other.released
    for lock in locks:
        lock.acquire(LIMIT).release()


@pytest.mark.parametrize("is_async", [False, True])
def test_serving__reason_of_a_loss(pool: Pool, is_async: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A check that finds a loss does not wait for its reason, which that very thread reads."""
    monkeypatch.setattr(held_module, "REASON_TIMEOUT", LONG)
    held = Lock("k", pool).acquire(LONG)
    contender: Any = held._possession.contender

    def check() -> None:
        contender.loss_reason_pending = True
        contender.lost = "its node was deleted"
        try:
            asyncio.run(held._afinish(raising=True)) if is_async else held.check()
        finally:
            contender.loss_reason_pending = False

    assert isinstance(outcome(by_connection, pool, check), LockLost)
    held.release()


# How Python's garbage collector brings code of the application there.


class Cycle:
    """Garbage that only the collector finds."""

    def __init__(self) -> None:
        self.me = self


class Finalized(Cycle):
    def __init__(self, call: Callable[[], object]) -> None:
        super().__init__()
        self.call = call

    def __del__(self) -> None:
        self.call()


kept_references: list[object] = []


def finalizer(call: Callable[[], object]) -> None:
    Finalized(call)


def weak_reference(call: Callable[[], object]) -> None:
    kept_references.append(weakref.ref(Cycle(), lambda _gone: call()))


def callback(call: Callable[[], object]) -> None:
    def collected(phase: str, _facts: object) -> None:
        if phase == "stop":
            gc.callbacks.remove(collected)
            call()

    gc.callbacks.append(collected)


@pytest.fixture
def no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.shows(
    "guarantees#that-a-process-has-time-for-its-heartbeats", "faults#a-finalizer-takes-a-lock-in-one-of-our-threads"
)
@pytest.mark.usefixtures("no_collector")
@pytest.mark.parametrize("begin", [finalizer, weak_reference, callback])
def test_finalizer__takes_a_lock(pool: Pool, begin: Callable[[Callable[[], object]], None]) -> None:
    """A lock that is taken when the collector runs in a connection's thread is refused, and no lock is lost by it."""
    errors: list[Exception] = []
    over = threading.Event()

    def clean_up() -> None:
        try:
            Lock("k", pool).acquire(LONG)
        except AsyncUnsafe as error:
            errors.append(error)
        over.set()

    with Lock("kept", pool).acquire(LONG) as kept:
        begin(clean_up)
        pool.session("/").post(gc.collect)
        assert over.wait(LIMIT)
        assert len(errors) == 1
        kept.check()
        Lock("k", pool).acquire(LIMIT).release()


# Where waiting is allowed.


class Auditor(LockListener):
    """Takes another lock when one is lost."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self.over = threading.Event()
        self.held: Held | None = None

    def notify(self, event: str, _lock: object, /, **_facts: Any) -> None:
        if event == "lost":
            self.held = self._lock.acquire(LIMIT)
            self.over.set()


def test_listener__takes_a_lock(pool: Pool, make_pool: MakePool, observer: Observer) -> None:
    """A listener of losses may take another lock: its thread sends no heartbeats."""
    other = make_pool(connect_timeout=LONG)
    auditor = Auditor(Lock("audit", pool))
    Lock("k", other, listener=auditor).acquire(LONG)
    observer.end_session(other)
    assert auditor.over.wait(LIMIT)
    assert auditor.held is not None
    auditor.held.release()


def test_number_of_a_thread__given_again(pool: Pool) -> None:
    """A thread that has got the number of one of ours, or shares it, may wait: the stack decides."""
    waiting.serving_threads.append(threading.get_ident())
    try:
        with Lock("k", pool).acquire(LIMIT):
            assert not waiting.is_serving()
            assert Lock("k", pool).holders()
    finally:
        waiting.serving_threads.remove(threading.get_ident())


def test_number_of_a_thread__forgotten() -> None:
    """The number of a thread that has ended means nothing."""
    seen: list[bool] = []
    DaemonCall(lambda: seen.append(waiting.is_serving())).result(waiting.Deadline.after(LIMIT))
    assert seen == [True]
    assert not waiting.is_serving()


# Greenlets: a connection is one, in the same thread as those of the application.

GREENLETS = """
import gc, sys, threading
from django_zklock.exceptions import AsyncUnsafe
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions

options = ConnectionOptions(hosts=sys.argv[1], session_timeout=40.0)
pool = Pool("p", PoolOptions(connection=options, root=sys.argv[2], connect_timeout=60.0))
gc.disable()
held = Lock("kept", pool).acquire(120)
errors = []

class Cycle:
    def __init__(self):
        self.me = self

    def __del__(self):
        try:
            Lock("k", pool).acquire(60)
        except AsyncUnsafe as error:
            errors.append(error)

Cycle()
pool.session("/").post(gc.collect)
Lock("other", pool).acquire(120).release(wait=True)
print(len(errors), held.lost, type(pool.session("/").wire._client.handler).__name__, flush=True)
pool.close()
"""


@pytest.mark.shows("faults#a-finalizer-takes-a-lock-in-one-of-our-threads")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize(
    ("before", "handler"),
    [
        ("from gevent import monkey; monkey.patch_all()", "GeventHandler"),
        ("import django_zklock.zk.pool; from gevent import monkey; monkey.patch_all()", "GeventHandler"),
        ("import eventlet; eventlet.monkey_patch()", "EventletHandler"),
    ],
    ids=["gevent", "gevent, patched late", "eventlet"],
)
def test_greenlet__of_the_connection(server: Server, root: str, before: str, handler: str) -> None:
    """The greenlet of a connection does not wait, and those beside it in its thread do."""
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", f"{before}\n{GREENLETS}", server.hosts, root],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert child.stdout.split() == ["1", "False", handler], child.stderr
