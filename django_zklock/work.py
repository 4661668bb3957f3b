"""What the calling code is a part of: a task of a worker, a management command, or nothing with a name.

An integration such as Celery's appends its function to :data:`resolvers`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import PurePath

from django_zklock.zk.node_data import Work

resolvers: list[Callable[[], Work | None]] = []
"""Each returns the work that runs in the calling execution context, ``None`` if it does not know it."""


def current_work() -> Work | None:
    """Return what runs in the calling execution context, ``None`` if it has no name.

    The resolvers are called in their order, then the name of a management command is read from ``sys.argv``.
    """
    for resolver in resolvers:
        if (found := resolver()) is not None:
            return found
    program = PurePath(sys.argv[0]).name if sys.argv else ""
    if program in {"manage.py", "django-admin", "django-admin.py"} and len(sys.argv) > 1:
        return Work(kind="command", name=sys.argv[1])
    return None
