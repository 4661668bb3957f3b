"""The functions whose calls coalesce, in a module of their own: where they are defined says which are the same."""

from __future__ import annotations

from typing import Any

from django_zklock import current_lock, zk_locked

from .client import arun, body, run


@zk_locked("{key}", on_conflict="coalesce")
def rebuild(key: str, call: str, turn: dict[str, Any]) -> None:
    """Stand for the building of an index."""
    run(body(current_lock(), call, turn))


@zk_locked("{key}", on_conflict="coalesce")
def refresh(key: str, call: str, turn: dict[str, Any]) -> None:
    """Stand for another work under the same key."""
    run(body(current_lock(), call, turn))


@zk_locked("{key}", on_conflict="coalesce")
async def arebuild(key: str, call: str, turn: dict[str, Any]) -> None:
    """Stand for the building of an index, in an event loop."""
    await arun(body(current_lock(), call, turn))


@zk_locked("{key}", on_conflict="coalesce")
async def arefresh(key: str, call: str, turn: dict[str, Any]) -> None:
    """Stand for another work under the same key, in an event loop."""
    await arun(body(current_lock(), call, turn))
