"""Exceptions thrown into a thread at any instant: time limits, Ctrl-C, gevent's timeouts."""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import gc
import sys
import threading
from collections import Counter, deque
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from types import CodeType, FunctionType
from typing import Any

import pytest
from django.db import transaction

from django_zklock import transactions
from django_zklock.exceptions import LockCancelled, LockLost, LockTimeout, ZooKeeperUnavailable
from django_zklock.transactions import CommitLock
from django_zklock.zk import acquire as acquire_module
from django_zklock.zk import held as held_module
from django_zklock.zk import jobs, nesting, owners
from django_zklock.zk import lock as lock_module
from django_zklock.zk.acquire import Acquisition
from django_zklock.zk.contender import Contender, State
from django_zklock.zk.held import Held, Possession, held_stack
from django_zklock.zk.lock import Lock
from django_zklock.zk.place import Place as PlaceInQueue
from django_zklock.zk.pool import Pool
from django_zklock.zk.session import Session
from django_zklock.zk.waiting import AutoResetEvent, Cancellation
from tests.contract.exception_injection import Injected, Injector, Place
from tests.toolbox.locks.pools import MakePool, is_idle
from tests.toolbox.threads import Runner
from tests.toolbox.timing import scaled, wait_until
from tests.toolbox.zookeeper.observer import Observer

pytest_plugins = ["tests.toolbox.slow_deadlines"]

pytestmark = [
    # What strikes in a finalizer goes no further.
    pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning"),
]

# CPython cannot protect the first instruction of an __exit__, __aenter__ or __aexit__ in Python (bpo-29988), and
# what was thrown before a release has begun is for the caller's `finally`.
SPARED = tuple(
    method.__code__
    for method in (Lock.__exit__, Held.release, Lock.__aexit__, Held.__aenter__, Held.__aexit__, Held.arelease)
)


# Two tracers in one thread make the interpreter crash, so coverage is measured without these: see the Makefile.
def by_instant(test: Callable[..., None]) -> Callable[..., None]:
    old = pytest.mark.skipif(sys.version_info < (3, 12), reason="written for the instructions of Python 3.12 on")
    # Hundreds of runs, which take ten seconds, beside everything else that the machine does. The instants are of this
    # process, whatever server it asks.
    one = pytest.mark.parametrize("kind_of_server", [pytest.param("zookeeper", marks=pytest.mark.zookeeper)])
    patient = pytest.mark.timeout(600)(one(old(test)))
    marked: Callable[..., None] = pytest.mark.asynchronous(patient)
    return marked


class SoftTimeLimitExceeded(Exception):  # noqa: N818
    """As billiard's."""


class Custom(BaseException):
    """As gevent.Timeout: no Exception."""


@pytest.mark.shows("guarantees#no-way-out-leaves-a-node")
@pytest.mark.parametrize("error", [KeyboardInterrupt, SystemExit, Custom, TimeoutError, GeneratorExit])
def test_waiting__exception(pool: Pool, make_pool: MakePool, observer: Observer, error: type[BaseException]) -> None:
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
        observer.wait_count(lock.paths[0], 2)
        waiter.throw(error)
        assert isinstance(waiter.outcome(), error)
        observer.wait_count(lock.paths[0], 1)
    observer.wait_empty(lock.paths[0])


# Seconds; nothing here takes nearly as long unless it hangs.
LONG = scaled(20)
# A place that only some runs come to, because an answer of the server was late or early there, is tried this often.
TRIES = 6
# And of a place in a loop this many times are visited.
TIMES = 2


def probe(pool: Pool, other: Pool, key: str = "k") -> None:
    """Make sure that no node is left in the queue and that the session still works."""
    Lock(key, other).acquire(timeout=LONG).release(wait=True)
    Runner(lambda: Lock(key, pool).acquire(timeout=LONG).release(wait=True)).result(2 * LONG)


@pytest.fixture
def other(make_pool: MakePool) -> Pool:
    """Return the pool of another process."""
    return make_pool()


@pytest.fixture
def lock(pool: Pool) -> Lock:
    """Return a lock whose session and queue are there."""
    lock = Lock("k", pool)
    lock.acquire(timeout=LONG).release()
    return lock


@pytest.fixture
def check(lock: Lock, other: Pool) -> Callable[[], None]:
    """Return what fails unless nothing is held, and the lock can be had."""

    def check() -> None:
        assert held_stack() == list(lock._blocks) == []
        probe(lock.pool, other)

    return check


def take_block(lock: Lock) -> None:
    with lock:
        pass


def take_and_release(acquire: Callable[[], Held | None]) -> None:
    held = None
    try:
        held = acquire()
    finally:
        if held is not None:
            held.release()


def lose(held: Held) -> None:
    """Lose the lock while its node is there, as at the end of a lease."""
    contender: Any = held._possession.contender
    with contender.session.monitor:
        contender.lose("a test")


def visit_all(
    cycle: Callable[[], Any],
    check: Callable[[], None],
    *,
    expected: tuple[type[BaseException], ...] = (),
    around: Callable[[], contextlib.AbstractContextManager[None]] = contextlib.nullcontext,
    near: str = "",
) -> set[CodeType]:
    """Interrupt ``cycle`` at each of its places in turn; return the functions that were interrupted.

    Each run starts inside of ``around``. ``check`` is called after each interruption. With ``near``, a file, only its
    functions are interrupted, and those that they call themselves.
    """
    struck: set[CodeType] = set()
    failures: list[str] = []
    tries: Counter[Place] = Counter()
    # The first run is not interrupted. Each run tells of the places that it comes to.
    left: deque[Place | None] = deque([None])
    known: set[Place] = set()
    while left and len(failures) < 3:
        target = left.popleft()
        injector = Injector(target, spared=SPARED)
        with around():
            try:
                injector.run(cycle)
            except Injected:
                assert injector.struck
            except expected:
                pass
            except RuntimeError as error:
                # threading's own: it gives back a lock that it was interrupted in taking.
                if not is_of_injected(error):
                    raise
        for place in injector.places:
            if place not in known and place.times <= TIMES and place.is_near(near):
                known.add(place)
                left.append(place)
        if injector.struck:
            assert target is not None
            struck.add(target.code)
            try:
                check()
            except Exception as error:  # noqa: BLE001 - all of them are shown together
                failures.append(f"{target}: {error!r}")
        elif target is not None:
            tries[target] += 1
            if tries[target] < TRIES:
                left.append(target)
    assert not failures, "\n".join(failures)
    return struck


def is_of_injected(error: BaseException | None) -> bool:
    """Tell whether ``error`` was raised while :class:`Injected` was handled."""
    while error is not None:
        if isinstance(error, Injected):
            return True
        error = error.__context__
    return False


def codes(*functions: object) -> set[CodeType]:
    """Return the code of functions that every run comes to, whatever the version of Python."""
    return {function.__code__ for function in functions if isinstance(function, FunctionType)}


ACQUIRING = codes(Lock._acquire, Acquisition.__init__, Acquisition.start, Acquisition.poll, Contender.__init__)
HOLDING = codes(Held.__init__, Held._let_go)
BLOCK = codes(Lock.__enter__, Lock._find_block, Possession.loss)


@pytest.mark.shows("faults#an-exception-is-raised-at-any-instruction")
@by_instant
def test_every_instant__uncontended(lock: Lock, check: Callable[[], None]) -> None:
    """Wherever an exception strikes between the start of `with lock` and its end, the lock is free afterwards."""
    assert visit_all(lambda: take_block(lock), check) >= ACQUIRING | HOLDING | BLOCK


@by_instant
def test_every_instant__lost(lock: Lock, check: Callable[[], None]) -> None:
    """The same at the end of a block whose lock is lost, whose end raises an error of its own."""

    def cycle() -> None:
        with lock as held:
            lose(held)

    assert visit_all(cycle, check, expected=(LockLost,), near=lock_module.__file__) >= codes(Lock._find_block)


@pytest.mark.shows("faults#a-hold-is-lost-and-never-released")
@by_instant
def test_every_instant__lost_and_forgotten(pool: Pool, other: Pool) -> None:
    """Wherever an exception strikes while a lost hold is replaced, its node and the new one go."""
    lock = Lock("k", pool, timeout=LONG)

    @contextlib.contextmanager
    def one_is_lost() -> Iterator[None]:
        # Without the release of its node the next one waits for ever.
        lose(lock.acquire(timeout=LONG))
        yield

    def check() -> None:
        # One that was interrupted before it was forgotten is forgotten now.
        with lock as held:
            assert held_stack() == [held]
        probe(pool, other)

    struck = visit_all(lambda: take_block(lock), check, around=one_is_lost, near=held_module.__file__)
    assert struck >= codes(Held._forget, Possession.drop)


@pytest.mark.shows("faults#an-exception-is-raised-at-any-instruction")
@by_instant
def test_every_instant__nested(lock: Lock, check: Callable[[], None]) -> None:
    """The same for a nested hold: none is left on the node, which goes with the outer one."""

    def cycle() -> None:
        held = inner = None
        try:
            held = lock.acquire()
            inner = lock.acquire()
        finally:
            try:
                if held is not None:
                    held.release()
            finally:
                if inner is not None:
                    inner.release()

    assert visit_all(cycle, check) >= ACQUIRING | HOLDING | codes(Held._nest, Possession.nest, Possession.drop)


@pytest.mark.shows("guarantees#the-lock-outlives-the-commit-where-that-is-asked-for")
@pytest.mark.django_db(transaction=True)
@by_instant
def test_every_instant__until_the_commit(pool: Pool, other: Pool) -> None:
    """The same for a lock that is kept until the end of a transaction, which is over by then.

    What is acquired twice for it, once for the transaction, is interrupted everywhere in the tests above.
    """
    lock = CommitLock("k", pool)
    lock.acquire().release()

    @contextlib.contextmanager
    def in_transaction() -> Iterator[None]:
        with transaction.atomic():
            yield
            transaction.set_rollback(True)

    def check() -> None:
        assert held_stack() == list(lock._blocks) == []
        probe(pool, other)

    struck = visit_all(lambda: take_block(lock), check, around=in_transaction, near=transactions.__file__)
    assert struck >= codes(
        CommitLock.__enter__, CommitLock._keep, Lock.__enter__, Lock.acquire, transactions._release_at_end
    )


@by_instant
def test_every_instant__in_a_job(lock: Lock, check: Callable[[], None]) -> None:
    """The same in a job of an executor, where it takes longer to find out which owner asks.

    The rest, which is the same for every owner, is interrupted everywhere in the first test.
    """
    with ThreadPoolExecutor(1) as executor:
        struck = executor.submit(visit_all, lambda: take_block(lock), check, near=owners.__file__).result(500)
    assert struck >= codes(owners.caller, owners._of, owners._served)


@by_instant
@pytest.mark.parametrize("form", ["block", "hold", "call", "nested", "try"])
def test_every_instant__async(lock: Lock, check: Callable[[], None], form: str) -> None:
    """The same in a coroutine: at each instant between the beginning of its acquisition and the end of its block."""

    async def body() -> None:
        if form in {"block", "nested"}:
            async with lock:
                if form == "nested":
                    async with lock:
                        pass
        elif form == "hold":
            async with await lock.aacquire():
                pass
        else:
            held = None
            try:
                held = await (lock.atry_acquire() if form == "try" else lock.aacquire())
            finally:
                if held is not None:
                    await held.arelease()

    with contextlib.closing(asyncio.new_event_loop()) as loop:

        def cycle() -> None:
            loop.run_until_complete(body())

        files = [lock_module.__file__, held_module.__file__, nesting.__file__]
        struck = set().union(*(visit_all(cycle, check, near=file) for file in files))
    assert struck >= codes(Held.__init__, Held._let_go, lock_module._settle)
    # In the place of a coroutine that was not awaited.
    gc.collect()


@by_instant
def test_every_instant__kept_for_a_job(
    lock: Lock, check: Callable[[], None], other: Pool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever an exception strikes the release, the lock stays for a job that goes on, and goes at its end."""
    # It is seen in its thread, and the instants of looking at thousands of objects are all the same.
    monkeypatch.setattr(jobs, "_recent", lambda: iter(()))
    holds: list[Held] = []

    @contextlib.contextmanager
    def with_a_job() -> Iterator[None]:
        begun, may_end = threading.Event(), threading.Event()

        def work() -> None:
            begun.set()
            assert may_end.wait(LONG)

        holds.append(lock.acquire(timeout=LONG))
        scope = jobs.begin(holds[0])
        with jobs.within(scope):
            call = executor.submit(contextvars.copy_context().run, work)
        assert begun.wait(LONG)
        yield
        holds.pop()
        assert Lock("k", other).try_acquire() is None
        may_end.set()
        call.result(LONG)

    def cycle() -> None:
        holds[0].release()

    with ThreadPoolExecutor(1) as executor:
        struck = visit_all(cycle, check, around=with_a_job, near=held_module.__file__)
    assert struck >= codes(Held._keep_for_jobs, Held._let_go, Held.__init__)


def test_time_limit_among_jobs(lock: Lock, other: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A time limit that strikes while the jobs of a block are looked for reaches the caller, and the lock is free."""
    limits = [SoftTimeLimitExceeded()]

    def look(*_args: object) -> list[Any]:
        while limits:
            raise limits.pop()
        return []

    monkeypatch.setattr(jobs, "started_in", look)
    held = lock.acquire(timeout=LONG)
    scope = jobs.begin(held)
    with pytest.raises(SoftTimeLimitExceeded):
        held.release()
    assert scope.of() is None
    Lock("k", other).acquire(timeout=LONG).release()


@pytest.mark.shows("faults#an-exception-is-raised-at-any-instruction")
@by_instant
def test_every_instant__try(lock: Lock, check: Callable[[], None]) -> None:
    """The same for a try and the release of its hold."""
    visited = visit_all(lambda: take_and_release(lock.try_acquire), check)
    assert visited >= ACQUIRING - codes(Lock._acquire) | codes(Lock.try_acquire) | HOLDING


@pytest.mark.shows("faults#an-exception-is-raised-at-any-instruction")
@by_instant
@pytest.mark.usefixtures("unhurried")
def test_every_instant__waiting(lock: Lock, other: Pool, observer: Observer) -> None:
    """The same for a wait that ends without the lock."""

    def check() -> None:
        assert held_stack() == [blocker]
        wait_until(lambda: is_idle(lock.pool), LONG)

    with Lock("k", other).acquire(timeout=LONG) as blocker:

        def run_out() -> None:
            with lock.acquire(timeout=0.01):
                pass

        assert visit_all(run_out, check, expected=(LockTimeout,)) >= ACQUIRING | codes(AutoResetEvent.wait)
        observer.wait_count(lock.paths[0], 1)
        blocker.check()
    probe(lock.pool, other)


@pytest.mark.shows("faults#a-wait-is-cancelled-at-any-instant")
@by_instant
@pytest.mark.usefixtures("unhurried")
def test_every_instant__cancellable(pool: Pool, lock: Lock, other: Pool) -> None:
    """The same for waits that could be cancelled, and for one that was: nothing of them stays in what could cancel."""
    open_, cancelled = Cancellation(), Cancellation()
    cancelled.cancel()

    def check() -> None:
        assert held_stack() == [blocker]
        assert not open_._wakes
        assert not cancelled._wakes
        wait_until(lambda: is_idle(pool), LONG)

    with Lock("k", other).acquire(timeout=LONG) as blocker:
        for cancellation in (open_, cancelled):

            def run_out(cancellation: Cancellation = cancellation) -> None:
                with lock.acquire(timeout=0.01, cancellation=cancellation):
                    pass

            struck = visit_all(run_out, check, expected=(LockTimeout, LockCancelled), near=acquire_module.__file__)
            assert struck >= codes(Acquisition.__init__, Acquisition.start, Cancellation._add, Cancellation._remove)
        blocker.check()
    free = Lock("free", pool)
    free.acquire().release()

    def cycle() -> None:
        take_and_release(lambda: free.acquire(timeout=LONG, cancellation=open_))

    def check_free() -> None:
        assert held_stack() == []
        assert not open_._wakes
        probe(pool, other, "free")

    struck = visit_all(cycle, check_free, near=acquire_module.__file__)
    assert struck >= codes(Acquisition.poll, Cancellation._add, Cancellation._remove)


def has_waiter(pool: Pool) -> bool:
    return any(getattr(listener, "state", None) is State.WAITING for listener in list(pool.sessions()[0].listeners))


@pytest.fixture
def handed_over(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Return a list that grows with each lock that goes from one contender of a session to the next."""
    calls: list[bool] = []
    go_on = PlaceInQueue.go_on

    def counted(self: PlaceInQueue, *, is_clear: bool) -> None:
        if is_clear:
            calls.append(is_clear)
        go_on(self, is_clear=is_clear)

    monkeypatch.setattr(PlaceInQueue, "go_on", counted)
    return calls


@pytest.mark.shows("faults#an-exception-is-raised-at-any-instruction")
@pytest.mark.parametrize("holder", ["another session", "the same session"])
@by_instant
def test_every_instant__waiting_and_granted(
    pool: Pool, other: Pool, lock: Lock, check: Callable[[], None], handed_over: list[bool], holder: str
) -> None:
    """The same for a wait that ends with the lock."""
    blocking = other if holder == "another session" else pool

    @contextlib.contextmanager
    def taken_until_waited_for() -> Iterator[None]:
        taken, over = threading.Event(), threading.Event()

        def block() -> None:
            with Lock("k", blocking).acquire(timeout=LONG):
                taken.set()
                wait_until(lambda: has_waiter(pool) or over.is_set(), LONG)

        blocker = Runner(block)
        assert taken.wait(LONG)
        try:
            yield
        finally:
            over.set()
            blocker.result(LONG)

    visited = visit_all(lambda: take_block(lock), check, around=taken_until_waited_for)
    assert visited >= ACQUIRING | HOLDING | BLOCK | codes(AutoResetEvent.wait)
    assert bool(handed_over) == (blocking is pool)


@pytest.mark.shows("faults#an-exception-is-raised-at-any-instruction")
@by_instant
def test_every_instant__handing_over(
    pool: Pool, lock: Lock, check: Callable[[], None], handed_over: list[bool]
) -> None:
    """Wherever an exception strikes a release, the waiter right behind, of the same session, is granted the lock."""
    taken, busy = threading.Event(), threading.Event()

    def follow() -> None:
        assert taken.wait(LONG)
        with Lock("k", pool).acquire(timeout=LONG):
            assert not busy.is_set()

    @contextlib.contextmanager
    def followed() -> Iterator[None]:
        taken.clear()
        follower = Runner(follow)
        try:
            yield
        finally:
            taken.set()
            follower.result(LONG)

    def cycle() -> None:
        with lock:
            busy.set()
            taken.set()
            wait_until(lambda: has_waiter(pool), LONG)
            busy.clear()

    assert visit_all(cycle, check, around=followed, near=held_module.__file__) >= HOLDING | codes(Possession.drop)
    assert handed_over


@pytest.mark.shows("faults#an-exception-is-raised-at-any-instruction")
@by_instant
def test_every_instant__first_use(make_pool: MakePool, other: Pool) -> None:
    """The same for the first use of a pool, which begins its session."""
    pools: list[Pool] = []

    @contextlib.contextmanager
    def with_a_new_pool() -> Iterator[None]:
        while pools:
            pools.pop().close()
        pools.append(make_pool())
        yield

    def cycle() -> None:
        take_and_release(lambda: Lock("k", pools[0]).acquire())

    def connections() -> list[threading.Thread]:
        return [thread for thread in threading.enumerate() if "zk_loop" in thread.name and thread.is_alive()]

    def check() -> None:
        assert held_stack() == []
        probe(pools[0], other)
        # No session that is never closed was begun.
        wait_until(lambda: len(connections()) == before + len(pools[0].sessions()), LONG)

    other.session("/")
    before = len(connections())
    visited = visit_all(cycle, check, around=with_a_new_pool)
    assert visited >= ACQUIRING | HOLDING | codes(Pool.session, Session.__init__)
    # What was interrupted before it could be closed is complained about here, and not in another test.
    gc.collect()


@pytest.mark.shows("faults#an-exception-is-raised-at-any-instruction")
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
        assert rung.wait(LONG)
        wait_until(lambda: is_idle(pool), LONG)

    assert visit_all(cycle, check, expected=(ZooKeeperUnavailable,)) >= ACQUIRING | codes(Acquisition.end)
