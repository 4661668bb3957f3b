"""What the calling code is a part of: a task of a worker, a management command, or nothing with a name.

An integration such as Celery's appends its resolver to :data:`resolvers`.
"""

from __future__ import annotations

import sys
from pathlib import PurePath
from typing import Protocol

from django_zklock.zk.node_data import Work


class WorkResolver(Protocol):
    """Knows one kind of work."""

    def work(self) -> Work | None:
        """Return the work that runs in the calling execution context, ``None`` if it is of another kind."""


resolvers: list[WorkResolver] = []


def current_work() -> Work | None:
    """Return what runs in the calling execution context, ``None`` if it has no name.

    Resolvers are asked in their order, then the name of a management command is read from ``sys.argv``.
    """
    for resolver in resolvers:
        found = resolver.work()
        if found is not None:
            return found
    program = PurePath(sys.argv[0]).name if sys.argv else ""
    if program in {"manage.py", "django-admin", "django-admin.py"} and len(sys.argv) > 1:
        return Work(kind="command", name=sys.argv[1])
    return None
