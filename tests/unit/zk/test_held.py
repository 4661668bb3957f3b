"""What each execution context holds."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, Never, cast

import pytest

from django_zklock.exceptions import AsyncUnsafe, LockLost
from django_zklock.zk.contender import State
from django_zklock.zk.held import Handle, Held, Possession, held_stack
from django_zklock.zk.listener import LockListener
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.system import MACHINE
from tests.toolbox.locks.pools import timers_of
from tests.toolbox.timing import wait_until
from tests.toolbox.zookeeper.observer import Observer


def fake_contender() -> Any:
    """Return a contender that holds, and which says so when it is made to leave."""

    def leave() -> None:
        contender.state = State.LEAVING

    contender = SimpleNamespace(
        lost=None, loss_reason_pending=False, revoked=None, node_paths={"/k": "/k/n"}, token=1, rule=None,
        state=State.HELD, leave=leave,
        session=SimpleNamespace(pid=os.getpid(), lease_expired=False, post=lambda call: call()),
    )  # fmt: skip
    return contender


@contextlib.contextmanager
def lost_hold(*, pending: bool) -> Iterator[Held]:
    """Yield a hold whose node was deleted, and whose reason stays unknown while ``pending``."""
    contender = fake_contender()
    contender.lost, contender.loss_reason_pending = "its node was deleted", pending
    pool = SimpleNamespace(system=MACHINE)
    lock = SimpleNamespace(key="k", keys=("k",), paths=("/k",), listener=LockListener(), pool=pool)
    held = Held(cast("Any", lock), cast("Any", contender), waited=0.0)
    try:
        yield held
    finally:
        held.released = True
        held_stack().clear()


LATER = r"its node was deleted \(the signal `lost` will say why, if a reason was given\)"


def test_check__reason_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check does not wait for ever for the reason of a loss, and the error says where it will be."""
    monkeypatch.setattr("django_zklock.zk.held.REASON_TIMEOUT", 0.01)
    with lost_hold(pending=True) as held, pytest.raises(LockLost, match=LATER):
        held.check()


def no_event() -> Never:
    raise AssertionError("nothing is to be waited for")


def test_check__does_not_block_an_event_loop() -> None:
    """In an event loop a check raises at once, and the error says where the reason will be."""

    async def check(held: Held) -> None:
        held.lock.pool.system = replace(MACHINE, event=no_event)
        held.check()

    with lost_hold(pending=True) as held, pytest.raises(LockLost, match=LATER):
        asyncio.run(check(held))


def test_finish__waits_in_a_task() -> None:
    """The end of an asynchronous block waits for the reason, and its loop runs meanwhile."""

    async def end() -> None:
        contender: Any = held._possession.contender

        def tell() -> None:
            contender.lost, contender.loss_reason_pending = "its node was deleted: deploy", False
            held._possession._call_when_lost()

        asyncio.get_running_loop().call_later(0.05, tell)
        await held._afinish(raising=True)

    with lost_hold(pending=True) as held, pytest.raises(LockLost, match="its node was deleted: deploy; "):
        asyncio.run(end())


def test_check__without_a_reason() -> None:
    """Where no reason is pending, the error promises none."""
    with lost_hold(pending=False) as held, pytest.raises(LockLost, match="its node was deleted; another process"):
        held.check()


# The handles on one possession.


def new_handle() -> Handle:
    """Return a handle of its own."""
    return lambda: None


def possession_of(contender: Any) -> tuple[Possession, Handle]:
    """Return what ``contender`` holds, and the only handle on it."""
    handle = new_handle()
    outermost: Any = type("Outermost", (), {"_handle": staticmethod(handle), "lock": None})()
    return Possession(outermost, contender), handle


class Interrupted(frozenset[Handle]):
    """A set of handles; ``meanwhile`` is called while a change of the set is computed, as another thread may run."""

    meanwhile: Callable[[], object]

    def __or__(self, other: Any) -> Any:
        self.meanwhile()
        return super().__or__(other)

    def __sub__(self, other: Any) -> Any:
        self.meanwhile()
        return super().__sub__(other)


def interrupt(possession: Possession, meanwhile: Callable[[], object]) -> None:
    """Call ``meanwhile`` once, during the next change of the handles."""
    handles = Interrupted(possession._handles.handles)
    calls = [meanwhile]
    handles.meanwhile = lambda: calls.pop()() if calls else None
    possession._handles = possession._handles._replace(handles=handles)


@pytest.mark.shows("faults#a-hold-is-released-by-another-thread-while-its-owner-takes-the-lock-again")
def test_nest__last_handle_dropped_meanwhile() -> None:
    """Either the node goes or a handle is added, never both: here the last handle is dropped first."""
    contender = fake_contender()
    possession, outer = possession_of(contender)
    dropped: list[bool] = []
    interrupt(possession, lambda: dropped.append(possession.drop(outer)))
    assert not possession.nest(new_handle())
    assert (dropped, contender.state) == ([True], State.LEAVING)
    assert not possession.nest(new_handle())


@pytest.mark.shows("faults#a-hold-is-released-by-another-thread-while-its-owner-takes-the-lock-again")
def test_drop__nested_meanwhile() -> None:
    """Here the other handle is added first, and the node stays until that is dropped."""
    contender = fake_contender()
    possession, outer = possession_of(contender)
    inner = new_handle()
    nested: list[bool] = []
    interrupt(possession, lambda: nested.append(possession.nest(inner)))
    assert not possession.drop(outer)
    assert (nested, contender.state) == ([True], State.HELD)
    assert possession.drop(inner)
    assert contender.state is State.LEAVING


def test_drop__two_at_once() -> None:
    """Of two threads that drop the last two handles one drops the last; the same handle counts once."""
    contender = fake_contender()
    possession, outer = possession_of(contender)
    inner = new_handle()
    assert possession.nest(inner)
    dropped: list[bool] = []
    interrupt(possession, lambda: dropped.append(possession.drop(inner)))
    assert possession.drop(outer)
    assert (dropped, contender.state) == ([False], State.LEAVING)
    assert not possession.drop(outer)


@pytest.mark.shows("guarantees#a-lost-lock-is-reported")
def test_lost__contender_has_left(pool: Pool, observer: Observer) -> None:
    """A hold whose contender has left by another way than a release is lost, and stays lost; a released one is not."""
    lock = Lock("k", pool)
    held = lock.acquire(timeout=120)
    with pytest.raises(LockLost, match="this process has given it up elsewhere"), held:  # noqa: PT012
        contender = held._possession.contender
        contender.session.post(contender.leave)
        wait_until(lambda: contender.state is not State.HELD)
        assert held.lost
        held.check()
    assert held.lost
    observer.wait_empty(lock.paths[0])
    with lock.acquire(timeout=120) as released:
        contender = released._possession.contender
    wait_until(lambda: contender.state is State.GONE)
    assert not released.lost


@pytest.mark.shows("faults#blocking-code-asks-for-a-lock-in-the-thread-of-an-event-loop")
def test_release__wait_in_an_event_loop(pool: Pool, observer: Observer) -> None:
    """A release that waits is refused where an event loop runs, after the release; in a thread it may wait."""
    lock = Lock("k", pool)

    async def main() -> None:
        held = await lock.aacquire(120)
        with pytest.raises(AsyncUnsafe, match=r"is released, .* `await asyncio.to_thread\(held.release, wait=True\)`"):
            held.release(wait=True)
        assert held.released
        held = await lock.aacquire(120)
        await asyncio.to_thread(held.release, wait=True)
        assert observer.children(lock.paths[0]) == []

    asyncio.run(main())


@pytest.mark.shows("guarantees#a-release-never-fails")
def test_release__no_thread_can_be_started(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """After its pool was closed, a hold is released without a thread: at the exit of Python none can be started."""
    held = Lock("k", pool).acquire(timeout=120)
    timers = timers_of(pool.sessions()[0])
    pool.close()
    wait_until(lambda: timers._thread is None)

    def refuse(_thread: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", refuse)
        patch.setattr(pool, "system", replace(MACHINE, event=no_event))
        held.release(wait=True)
    assert held.released
    assert held_stack() == []
