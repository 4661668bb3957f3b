"""`@zk_locked` on both servers."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Literal

import pytest
from asgiref.sync import sync_to_async

from django_zklock import LockConflict, LockLost, LockTimeout, current_lock, zk_locked
from tests.toolbox.django.layer import Ensemble, OtherClient
from tests.toolbox.threads import Runner
from tests.toolbox.timing import wait_until

pytest_plugins = ["tests.toolbox.django.settings_fixtures"]


def test_zk_locked__one_at_a_time(ensemble: Ensemble) -> None:
    """Calls with the same key take turns, and each has a larger token than the one before."""
    inside = threading.Lock()
    tokens: list[int] = []

    @zk_locked("account:{number}")
    def book(number: int) -> None:
        held = current_lock()
        assert held is not None
        assert inside.acquire(blocking=False), "two at once"
        tokens.append(held.token)
        inside.release()

    for runner in [Runner(lambda: [book(7) for _ in range(5)]) for _ in range(6)]:
        runner.result(30)
    assert len(tokens) == 30
    assert tokens == sorted(set(tokens))
    ensemble.wait_empty("account:7")


def test_zk_locked__other_key(ensemble: Ensemble, other_client: OtherClient) -> None:
    """Calls with another key do not wait."""

    @zk_locked("account:{number}", timeout=0)
    def book(number: int) -> int:
        return number

    other_client.take("account:7")
    assert book(8) == 8
    with pytest.raises(LockTimeout, match="held by label the other client"):
        book(7)


def test_zk_locked__conflict(ensemble: Ensemble, other_client: OtherClient) -> None:
    """While another owner holds the lock, a call is skipped or refused by its policy, and leaves no node."""
    calls: list[str] = []

    @zk_locked("k", on_conflict="skip")
    def skip() -> object:
        calls.append("skip")
        return None

    @zk_locked("k", on_conflict="raise")
    def refuse() -> None:
        calls.append("raise")

    held = other_client.take("k")
    skipped = skip()
    assert isinstance(skipped, dict)
    assert skipped["zklock"] == "skipped"
    assert "the other client" in skipped["holder"]
    with pytest.raises(LockConflict):
        refuse()
    assert ensemble.nodes("k") == [held.node.rpartition("/")[2]]
    other_client.release("k")
    skip()
    refuse()
    assert calls == ["skip", "raise"]


def test_zk_locked__waits(ensemble: Ensemble, other_client: OtherClient) -> None:
    """A coroutine waits in the queue without blocking its event loop."""
    turns: list[int] = []

    @zk_locked("k", timeout=30)
    async def work() -> int:
        turns.append(len(turns))
        return len(ensemble.nodes("k"))

    other_client.take("k")
    waiting = Runner(lambda: asyncio.run(work()))
    ensemble.wait_count("k", 2)
    assert turns == []
    other_client.release("k")
    assert waiting.result() == 1
    ensemble.wait_empty("k")


def test_zk_locked__lost(ensemble: Ensemble) -> None:
    """A call whose session ends while it runs raises at its end, and the next call gets the lock."""

    @zk_locked("k", template="k")
    def work(*, lose: bool) -> None:
        held = current_lock()
        assert held is not None
        if lose:
            ensemble.end_session()
            wait_until(lambda: held.lost)

    with pytest.raises(LockLost):
        work(lose=True)
    work(lose=False)
    ensemble.wait_empty("k")


@pytest.mark.shows("ownership#holds-that-are-lost")
@pytest.mark.parametrize("on_lost", ["raise", "ignore"])
def test_zk_locked__lost_and_called_again(ensemble: Ensemble, on_lost: Literal["raise", "ignore"]) -> None:
    """Inside of a call whose lock is lost nothing takes that lock, whatever becomes of the errors; after it all do."""

    @zk_locked("k", template="k")
    def inner() -> None: ...

    @zk_locked("k", template="k", on_lost=on_lost)
    def work() -> None:
        held = current_lock()
        assert held is not None
        ensemble.end_session()
        wait_until(lambda: held.lost)
        for _ in range(2):
            with pytest.raises(LockLost):
                inner()

    @zk_locked("k", template="k", on_lost=on_lost)
    async def awork() -> None:
        work_sync = sync_to_async(work)
        held = current_lock()
        assert held is not None
        await asyncio.to_thread(ensemble.end_session)
        await asyncio.to_thread(wait_until, lambda: held.lost)
        with pytest.raises(LockLost):
            await work_sync()

    for call in (work, lambda: asyncio.run(awork())):
        with contextlib.nullcontext() if on_lost == "ignore" else pytest.raises(LockLost):
            call()
        inner()
    ensemble.wait_empty("k")
