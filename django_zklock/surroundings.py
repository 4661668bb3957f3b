"""What a call runs in: a plain process, or a task of a worker that knows how to give up and come back later.

The core knows only this protocol. An integration (Celery) puts its own into :data:`known`.
"""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import Protocol

from django_zklock.exceptions import ZkLockError
from django_zklock.zk.identity import Work


class Surroundings(Protocol):
    """One kind of surroundings. All methods are about the calling execution context."""

    def work(self) -> Work | None:
        """What runs here, or ``None`` if the call does not run in these surroundings."""

    def raising(self, error: ZkLockError, /) -> None:
        """Be told that a conflict is about to leave the body as ``error``."""


known: list[Surroundings] = []


def work() -> Work | None:
    """Say what runs in the calling execution context, for whoever asks who holds a lock."""
    for surroundings in known:
        found = surroundings.work()
        if found is not None:
            return found
    program = PurePath(sys.argv[0]).name if sys.argv else ""
    if program in {"manage.py", "django-admin", "django-admin.py"} and len(sys.argv) > 1:
        return Work(kind="command", name=sys.argv[1])
    return None


def raising(error: ZkLockError) -> None:
    """Tell the surroundings that a conflict leaves the body as ``error``."""
    for surroundings in known:
        if surroundings.work() is not None:
            surroundings.raising(error)
