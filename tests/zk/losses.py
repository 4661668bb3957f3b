"""An observer of locks that keeps what it is told of losses."""

from __future__ import annotations

from django_zklock.zk.held import Held
from django_zklock.zk.lock import Silent


class Losses(Silent):
    """Keeps what it is told of losses."""

    def __init__(self) -> None:
        self.told: list[tuple[Held, str]] = []

    def lost(self, held: Held, reason: str) -> None:
        self.told.append((held, reason))
