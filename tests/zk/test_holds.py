"""What each execution context holds."""

from __future__ import annotations

import asyncio
import threading
from types import SimpleNamespace
from typing import Any

from django_zklock.zk import holds


def hold(key: str) -> Any:
    return SimpleNamespace(key=key, keys=(key,), lock=None, covers=lambda _lock: True)


def test_current__innermost() -> None:
    """The innermost hold is the current one, the innermost of its key if a key is given."""
    first, second = hold("a"), hold("b")
    holds.stack().extend([first, second])
    try:
        assert holds.current() is second
        assert holds.current("a") is first
        assert holds.current("c") is None
    finally:
        holds.stack().clear()
    assert holds.current() is None


def test_stack__threads() -> None:
    """A thread does not see what another one holds."""
    seen: list[Any] = []
    holds.stack().append(hold("a"))
    try:
        thread = threading.Thread(target=lambda: seen.append(holds.current()))
        thread.start()
        thread.join(5)
    finally:
        holds.stack().clear()
    assert seen == [None]


def test_stack__tasks() -> None:
    """A task sees neither what its thread nor what its parent task holds, and keeps its own over an await."""

    async def child() -> Any:
        found = holds.current()
        holds.stack().append(hold("child"))
        await asyncio.sleep(0)
        return found, holds.current("child").key  # type: ignore[union-attr]

    async def parent() -> Any:
        assert holds.current() is None
        holds.stack().append(hold("parent"))
        seen = await asyncio.gather(child(), child())
        return seen, holds.current().key  # type: ignore[union-attr]

    holds.stack().append(hold("thread"))
    try:
        assert asyncio.run(parent()) == ([(None, "child"), (None, "child")], "parent")
    finally:
        holds.stack().clear()
