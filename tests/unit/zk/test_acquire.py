"""An acquisition: when it reads the holder, and what it reports when nothing else has the hold any more."""

from __future__ import annotations

import gc
import threading
import time
from collections.abc import Callable

import pytest

from django_zklock.exceptions import LockCancelled, LockTimeout
from django_zklock.zk import acquire, owners
from django_zklock.zk.acquire import Acquisition
from django_zklock.zk.contender import Contender, State
from django_zklock.zk.listener import LockListener
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.session import Session
from django_zklock.zk.waiting import Cancellation
from tests.toolbox.locks.contenders import is_watching
from tests.toolbox.locks.losses import Losses
from tests.toolbox.locks.pools import MakePool, is_idle
from tests.toolbox.threads import Runner
from tests.toolbox.timing import GRACE, wait_until

pytest_plugins = ["tests.toolbox.slow_deadlines"]


class Contentions(LockListener):
    """Records the holders that "contended" names."""

    def __init__(self) -> None:
        self.holders: list[object] = []

    def wants(self, event: str) -> bool:
        return event == "contended"

    def notify(self, event: str, _lock: object, /, **facts: object) -> None:
        if event == "contended":
            self.holders.append(facts["holder"])


def granted(lock: Lock) -> Acquisition:
    attempt = Acquisition(lock, None, lambda: None, owners.caller())
    attempt.start()
    wait_until(lambda: attempt.contender.state is State.HELD)
    assert attempt.poll()
    return attempt


@pytest.mark.shows("guarantees#no-way-out-leaves-a-node")
@pytest.mark.parametrize("state", [State.JOINING, State.WAITING, State.HELD])
def test_cancel__in_each_state(pool: Pool, make_pool: MakePool, state: State) -> None:
    """Whatever its contender has got by then, a cancelled acquisition has no hold, and leaves no node."""
    lock, cancellation, other = Lock("k", pool), Cancellation(), Lock("k", make_pool())
    blocker = other.acquire() if state is State.WAITING else None
    woken = threading.Event()
    attempt = Acquisition(lock, None, woken.set, owners.caller(), cancellation=cancellation)
    if state is State.JOINING:
        # Nothing is answered meanwhile.
        with pool.session(lock.paths[0]).monitor:
            attempt.start()
            cancellation.cancel()
    else:
        attempt.start()
        wait_until(lambda: attempt.contender.state is state)
        woken.clear()
        cancellation.cancel()
    assert woken.is_set()
    with pytest.raises(LockCancelled):
        attempt.poll()
    attempt.end()
    assert attempt.held() is None
    assert owners.caller().owner.holds == [blocker] * (blocker is not None)
    if blocker is not None:
        blocker.release()
    with other.acquire(timeout=120):
        pass
    wait_until(lambda: is_idle(pool))


def test_loss__told_when_the_reason_is_known(pool: Pool) -> None:
    """A hold that is lost and released before the reason is known is told of all the same."""
    losses = Losses()
    attempt = granted(Lock("k", pool, listener=losses))
    contender, session = attempt.contender, attempt.contender.session
    # Nothing goes on in the session meanwhile.
    with session.monitor:
        contender.loss_reason_pending = True
        contender.lose("its node was deleted")
        held = attempt.held()
        assert held is not None
        held.release()
        del held
        gc.collect()
        contender.lost = "broken by an operator"
        contender.loss_reason_pending = False
        attempt._changed()
        # Nothing is kept for longer.
        assert attempt._possession is not None
        assert attempt._possession._kept is None
    wait_until(lambda: losses.notified)
    assert [(held.key, reason) for held, reason in losses.notified] == [("k", "broken by an operator")]


def test_loss__seen_by_the_holder(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A hold whose end of the lease is noticed by its holder, which releases it at once, is told of all the same."""
    losses = Losses()
    attempt = granted(Lock("k", pool, listener=losses))
    session = attempt.contender.session
    posted: list[Callable[[], object]] = []
    with monkeypatch.context() as patch:
        patch.setattr(Session, "lease_expired", True)
        patch.setattr(Session, "post", lambda _session, call: posted.append(call))
        held = attempt.held()
        assert held is not None
        assert held.lost
        held.release()
        del held
        gc.collect()
    while posted:
        session.post(posted.pop(0))
    wait_until(lambda: losses.notified)
    assert "the lease ran out" in losses.notified[0][1]


@pytest.mark.shows("guarantees#that-only-the-holder-writes")
def test_poll__lease_over(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A caller that slept between the grant and its return gets no hold whose lease is over: it acquires anew."""
    attempt = Acquisition(Lock("k", pool), None, lambda: None, owners.caller())
    attempt.start()
    wait_until(lambda: attempt.contender.state is State.HELD)
    first = attempt.contender
    with monkeypatch.context() as patch:
        patch.setattr(Session, "lease_expired", True)
        assert not attempt.poll()
    wait_until(attempt.poll)
    assert attempt.contender is not first
    wait_until(lambda: first.state is State.GONE)
    held = attempt.held()
    assert held is not None
    held.check()
    assert held.token == attempt.contender.token
    held.release()


@pytest.mark.parametrize("is_wanted", [True, False])
def test_holder__read_if_wanted(make_pool: MakePool, *, is_wanted: bool) -> None:
    """The fourth waiter does not watch the holder: it reads the first node only for a listener."""
    pool, listener = make_pool(), Contentions()
    held = Lock("k", pool, reentrant=False).acquire()
    waiters = []
    for number in range(4):
        lock = Lock("k", pool, reentrant=False, listener=listener if is_wanted and number == 3 else None)
        waiters.append(Runner(lambda lock=lock: lock.acquire().release(wait=True)))  # type: ignore[misc]
        contenders = wait_for_waiters(pool, number + 1)
    last = contenders[-1]
    assert (last.holder is not None) is is_wanted
    wait_until(lambda: len(listener.holders) == is_wanted)
    held.release()
    for waiter in waiters:
        waiter.result(30)


@pytest.mark.parametrize("keys", ["k", ["k", "l"]])
@pytest.mark.usefixtures("unhurried")
def test_holder__named_by_the_error(make_pool: MakePool, keys: str | list[str]) -> None:
    """The error of a timeout names the holder, though nothing has read it before."""
    with Lock("k", make_pool()):
        waiters = [Runner(lambda: Lock("k", make_pool()).acquire(timeout=60).release(wait=True)) for _ in range(3)]
        wait_until(lambda: all(waiter.running for waiter in waiters))
        with pytest.raises(LockTimeout) as caught:
            Lock(keys, make_pool()).acquire(timeout=0.5)
        assert caught.value.holder is not None
    for waiter in waiters:
        waiter.result(30)


def test_refused__as_soon_as_the_holder_is_read(make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that does not wait is told of the holder's answer, though its contender has gone by then."""
    monkeypatch.setattr(acquire, "HOLDER_READ_GRACE", 4 * GRACE)
    pool = make_pool()
    with Lock("k", make_pool()):
        for _ in range(10):
            began = time.monotonic()
            with pytest.raises(LockTimeout) as caught:
                Lock("k", pool).acquire(timeout=0)
            assert caught.value.holder is not None
            assert time.monotonic() - began < 2 * GRACE


def wait_for_waiters(pool: Pool, count: int) -> list[Contender]:
    """Return the waiters of the pool in the order of their nodes, once ``count`` of them wait and request nothing."""
    (session,) = pool.sessions()

    def waiting() -> list[Contender]:
        contenders = [each for each in list(session.listeners) if isinstance(each, Contender)]
        settled = [each for each in contenders if is_watching(each)]
        return sorted(settled, key=lambda each: each.token or 0) if len(settled) == count else []

    found: list[Contender] = wait_until(waiting)
    return found
