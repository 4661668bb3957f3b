"""What each execution context holds."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

from django_zklock.zk.held import current, held_stack


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
