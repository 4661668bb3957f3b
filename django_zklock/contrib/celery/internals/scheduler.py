"""The schedulers of ``celery beat``."""

from __future__ import annotations

from typing import Any


def plan_again(scheduler: Any) -> None:
    """Let a scheduler make its plan again, at its next tick."""
    scheduler._heap = None  # noqa: SLF001


def store_schedule(scheduler: Any) -> None:
    """Let a scheduler store when its entries were sent."""
    scheduler._do_sync()  # noqa: SLF001
