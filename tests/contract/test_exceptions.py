"""Exceptions thrown into a thread at any instant: time limits, Ctrl-C, gevent's timeouts."""

from __future__ import annotations

import contextlib
import gc
import sys
import threading
from collections.abc import Callable
from typing import Any

import pytest

from django_zklock.exceptions import LockTimeout, ZooKeeperUnavailable
from django_zklock.zk import holds
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from tests.zk.injection import Injected, Injector
from tests.zk.onlooker import MakePool, Onlooker, wait_until
from tests.zk.runner import Runner

pytestmark = [
    # What strikes in a finalizer goes no further.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# CPython cannot protect the first instruction of an __exit__ that is written in Python (bpo-29988), and what was
# thrown before a release has begun is for the caller's `finally`.
SPARED = (Lock.__exit__.__code__, Held.release.__code__)


# Two tracers in one thread make the interpreter crash, so coverage is measured without these: see the Makefile.
def by_instant(test: Callable[..., None]) -> Callable[..., None]:
    old = pytest.mark.skipif(sys.version_info < (3, 12), reason="written for the instructions of Python 3.12 on")
    marked: Callable[..., None] = pytest.mark.asynchronous(old(test))
    return marked


class Custom(BaseException):
    """As gevent.Timeout: no Exception."""


@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, Custom, TimeoutError, GeneratorExit])
def test_waiting__exception(pool: Pool, make_pool: MakePool, onlooker: Onlooker, error: type[BaseException]) -> None:
    """An exception thrown into a waiting thread leaves no node of it."""
    lock = Lock("k", pool)

    def wait_on_and_on() -> None:
        # CPython delivers what is thrown into a thread when its system call has returned.
        while True:
            # On a busy machine an answer may take longer than that.
            with contextlib.suppress(LockTimeout, ZooKeeperUnavailable):
                lock.acquire(timeout=0.05)

    with Lock("k", make_pool()):
        waiter = Runner(wait_on_and_on)
        onlooker.wait_count(lock.paths[0], 2)
        waiter.throw(error)
        assert isinstance(waiter.outcome(), error)
        onlooker.wait_count(lock.paths[0], 1)
    onlooker.wait_empty(lock.paths[0])


def probe(pool: Pool, other: Pool, key: str) -> None:
    """Make sure that nobody is left in the line and that the session still works."""
    Lock(key, other).acquire(timeout=1).release(wait=True)
    Runner(lambda: Lock(key, pool).acquire(timeout=1).release(wait=True)).result()


def visit_all(
    cycle: Callable[[], Any], check: Callable[[], None], *, expected: tuple[type[BaseException], ...] = ()
) -> int:
    """Interrupt ``cycle`` at each of its places in turn; give how many there were."""
    target = 0
    failures = []
    while True:
        target += 1
        injector = Injector(target, spared=SPARED)
        with contextlib.suppress(Injected, *expected):
            injector.run(cycle)
        if injector.place is None:
            break
        try:
            check()
        except Exception as error:  # noqa: BLE001 - all of them are shown together
            failures.append(f"{injector.place}: {error!r}")
            if len(failures) > 8:
                break
    assert not failures, "\n".join(failures)
    return target - 1


@by_instant
def test_every_instant__uncontended(pool: Pool, make_pool: MakePool) -> None:
    """Wherever an exception strikes between the start of `with lock` and its end, the lock is free afterwards."""
    other = make_pool()
    lock = Lock("k", pool)
    with lock:
        pass

    def cycle() -> None:
        with lock:
            pass

    def check() -> None:
        assert holds.stack() == []
        probe(pool, other, "k")

    assert visit_all(cycle, check) > 100


@by_instant
def test_every_instant__try(pool: Pool, make_pool: MakePool) -> None:
    """The same for a try and the release of its hold."""
    other = make_pool()
    lock = Lock("k", pool)

    def cycle() -> None:
        held = None
        try:
            held = lock.try_acquire()
        finally:
            if held is not None:
                held.release()

    def check() -> None:
        assert holds.stack() == []
        probe(pool, other, "k")

    assert visit_all(cycle, check) > 50


@by_instant
def test_every_instant__waiting(pool: Pool, make_pool: MakePool, onlooker: Onlooker) -> None:
    """The same for a wait that ends with the lock and for one that ends without."""
    other = make_pool()
    lock = Lock("k", pool)
    lock.acquire().release()

    def check() -> None:
        assert holds.stack() == [blocker]
        wait_until(lambda: not pool.sessions()[0]._tenants, 0.5)

    with Lock("k", other).acquire(timeout=5) as blocker:

        def run_out() -> None:
            with lock.acquire(timeout=0.01):
                pass

        # Tracing is slow: a deadline may pass before the server's answer is looked at.
        assert visit_all(run_out, check, expected=(LockTimeout, ZooKeeperUnavailable)) > 100
        onlooker.wait_count(lock.paths[0], 1)
        blocker.check()
    probe(pool, other, "k")


@by_instant
def test_every_instant__first_use(make_pool: MakePool, onlooker: Onlooker) -> None:
    """The same for the first use of a pool, which begins its session."""
    other = make_pool()
    target = 0
    place: str | None = ""
    while place is not None:
        target += 1
        pool = make_pool()
        injector = Injector(target, spared=SPARED)
        # RuntimeError is what threading makes of it while a thread is being started.
        with contextlib.suppress(Injected, RuntimeError):
            injector.run(lambda pool=pool: Lock("k", pool).acquire().release())  # type: ignore[misc]
        place = injector.place
        for held in list(holds.stack()):
            held.release()
        probe(pool, other, "k")
        pool.close()
    # What was interrupted before it could be closed is complained about here, and not in another test.
    gc.collect()


@by_instant
def test_every_instant__unreachable(make_pool: MakePool) -> None:
    """The same while ZooKeeper is away: neither the clock nor the session's machine is left locked."""
    pool = make_pool("127.0.0.1:1", connect_timeout=0.5)
    lock = Lock("k", pool)

    def cycle() -> None:
        lock.acquire(timeout=0.005)

    with pytest.raises(ZooKeeperUnavailable):
        cycle()

    def check() -> None:
        rung = threading.Event()
        pool.sessions()[0].post(rung.set)
        assert rung.wait(0.5)
        wait_until(lambda: not pool.sessions()[0]._tenants, 0.5)

    assert visit_all(cycle, check, expected=(ZooKeeperUnavailable,)) > 50
