"""What a call runs in: a plain process, a command, or a task of a worker.

The core knows only this protocol. An integration (Celery) puts its own into :data:`known`.
"""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import Protocol

from django_zklock.zk.identity import Work


class Surroundings(Protocol):
    """One kind of surroundings."""

    def work(self) -> Work | None:
        """What runs here, or ``None`` if the call does not run in these surroundings."""


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
