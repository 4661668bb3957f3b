"""A listener of locks that records losses."""

from __future__ import annotations

from typing import Any

from django_zklock.zk.held import Held
from django_zklock.zk.listener import LockListener, LockValue


class Losses(LockListener):
    """Records which holds were lost, and why."""

    def __init__(self) -> None:
        self.notified: list[tuple[Held, str]] = []

    def notify(self, event: str, _lock: LockValue, /, **facts: Any) -> None:
        if event == "lost":
            self.notified.append((facts["held"], facts["reason"]))
