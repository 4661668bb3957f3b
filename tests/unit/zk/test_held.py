"""What each execution context holds."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from django_zklock.exceptions import LockLost
from django_zklock.zk.held import Held, current, held_stack
from django_zklock.zk.listener import LockListener


def hold(key: str) -> Any:
    return SimpleNamespace(key=key, keys=(key,), lock=None, _covers=lambda _lock: True)


def test_current__innermost() -> None:
    """The innermost hold is the current one, the innermost of its key if a key is given."""
    first, second = hold("a"), hold("b")
    held_stack().extend([first, second])
    try:
        assert current() is second
        assert current("a") is first
        assert current("c") is None
    finally:
        held_stack().clear()
    assert current() is None


def test_stack__threads() -> None:
    """A thread does not see what another one holds."""
    seen: list[Any] = []
    held_stack().append(hold("a"))
    try:
        thread = threading.Thread(target=lambda: seen.append(current()))
        thread.start()
        thread.join(5)
    finally:
        held_stack().clear()
    assert seen == [None]


def test_stack__tasks() -> None:
    """A task sees neither what its thread nor what its parent task holds, and keeps its own over an await."""

    async def child() -> Any:
        found = current()
        held_stack().append(hold("child"))
        await asyncio.sleep(0)
        return found, current("child").key  # type: ignore[union-attr]

    async def parent() -> Any:
        assert current() is None
        held_stack().append(hold("parent"))
        seen = await asyncio.gather(child(), child())
        return seen, current().key  # type: ignore[union-attr]

    held_stack().append(hold("thread"))
    try:
        assert asyncio.run(parent()) == ([(None, "child"), (None, "child")], "parent")
    finally:
        held_stack().clear()


@contextlib.contextmanager
def lost_hold(*, pending: bool) -> Iterator[Held]:
    """Yield a hold whose node was deleted, and whose reason stays unknown while ``pending``."""
    contender = SimpleNamespace(
        lost="its node was deleted", loss_reason_pending=pending, node_paths={"/k": "/k/n"}, token=1, rule=None,
        session=SimpleNamespace(lease_expired=False, post=lambda _call: None), leave=None,
    )  # fmt: skip
    lock = SimpleNamespace(key="k", keys=("k",), paths=("/k",), listener=LockListener())
    held = Held(cast("Any", lock), cast("Any", contender), waited=0.0)
    try:
        yield held
    finally:
        held.released = True
        held_stack().clear()


LATER = r"its node was deleted \(the signal `lost` will say why, if a reason was given\)"


def test_check__reason_not_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """A check does not wait for ever for the reason of a loss, and the error says where it will be."""
    monkeypatch.setattr("django_zklock.zk.loss.REASON_TIMEOUT", 0.01)
    with lost_hold(pending=True) as held, pytest.raises(LockLost, match=LATER):
        held.check()


def test_check__does_not_block_an_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """In an event loop a check raises at once, and the error says where the reason will be."""
    monkeypatch.setattr("django_zklock.zk.loss.AutoResetEvent", None)

    async def check() -> None:
        held.check()

    with lost_hold(pending=True) as held, pytest.raises(LockLost, match=LATER):
        asyncio.run(check())


def test_finish__waits_in_a_task() -> None:
    """The end of an asynchronous block waits for the reason, and its loop runs meanwhile."""

    async def end() -> None:
        def tell() -> None:
            held._contender.lost, held._contender.loss_reason_pending = "its node was deleted: deploy", False
            held._call_when_lost()

        asyncio.get_running_loop().call_later(0.05, tell)
        await held._afinish(raising=True)

    with lost_hold(pending=True) as held, pytest.raises(LockLost, match="its node was deleted: deploy; "):
        asyncio.run(end())


def test_check__without_a_reason() -> None:
    """Where no reason is pending, the error promises none."""
    with lost_hold(pending=False) as held, pytest.raises(LockLost, match="its node was deleted; another process"):
        held.check()
