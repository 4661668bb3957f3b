"""Nested holds, while another thread releases what the caller holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from django_zklock.zk.held import Held, held_stack
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.threads import Runner
from tests.toolbox.timing import scaled

LONG = scaled(20)


@pytest.fixture
def just_before_nesting(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], object]]:
    """Return a list; its first call is made in another thread after the caller's holds are read, before it nests."""
    calls: list[Callable[[], object]] = []
    nest = Held._nest

    def nest_later(held: Held, *arguments: Any, **options: Any) -> Held | None:
        if calls:
            Runner(calls.pop(0)).result(LONG)
        return nest(held, *arguments, **options)

    monkeypatch.setattr(Held, "_nest", nest_later)
    return calls


@pytest.mark.shows("faults#a-hold-is-released-by-another-thread-while-its-owner-takes-the-lock-again")
def test_nested__outer_released_by_another_thread(
    pool: Pool, make_pool: MakePool, just_before_nesting: list[Callable[[], object]]
) -> None:
    """Whose hold is released by another thread while it nests acquires the lock anew, and holds it alone."""
    lock, other = Lock("k", pool), Lock("k", make_pool())
    outer = lock.acquire(timeout=LONG)
    just_before_nesting.append(outer.release)
    inner = lock.acquire(timeout=LONG)
    assert just_before_nesting == []
    assert inner.token > outer.token
    assert held_stack() == [inner]
    assert other.try_acquire() is None
    inner.check()
    inner.release(wait=True)
    with other.acquire(timeout=LONG):
        pass


@pytest.mark.shows("faults#a-hold-is-released-by-another-thread-while-its-owner-takes-the-lock-again")
def test_nested__middle_released_by_another_thread(pool: Pool, just_before_nesting: list[Callable[[], object]]) -> None:
    """While another hold of the caller is on the node, the nested one shares it."""
    lock = Lock("k", pool)
    with lock.acquire(timeout=LONG) as outer:
        middle = lock.acquire()
        just_before_nesting.append(middle.release)
        with lock.acquire() as inner:
            assert inner.token == outer.token
            outer.release(wait=True)
            inner.check()


@pytest.mark.shows("faults#a-hold-is-released-by-another-thread-while-its-owner-takes-the-lock-again")
def test_nested__released_between_two_looks(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whose hold is released while it asks for the lock meets no conflict with that hold."""
    lock = Lock("k", pool)
    outer = lock.acquire(timeout=LONG)
    overlaps = Held._overlaps

    def look(held: Held, wanted: Lock) -> bool:
        found = overlaps(held, wanted)
        if held is outer:
            Runner(outer.release).result(LONG)
        return found

    monkeypatch.setattr(Held, "_overlaps", look)
    with lock.acquire(timeout=LONG) as inner:
        assert inner.token > outer.token
