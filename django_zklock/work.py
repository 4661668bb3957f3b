"""What the calling code is a part of: a task of a worker, a management command, or nothing with a name.

An integration such as Celery's appends its function to :data:`resolvers`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable

from django_zklock.zk.node_data import Work

resolvers: list[Callable[[], Work | None]] = []
"""Each returns the work that runs in the calling execution context, ``None`` if it does not know it."""

_PROGRAMS = {"manage.py", "django-admin", "django-admin.py"}


def current_work() -> Work | None:
    """Return what runs in the calling execution context, ``None`` if it has no name.

    The resolvers are called in their order, then the name of a management command is read from ``sys.argv``.
    """
    for resolver in resolvers:
        if (found := resolver()) is not None:
            return found
    if len(sys.argv) > 1 and os.path.basename(sys.argv[0]) in _PROGRAMS:  # noqa: PTH119 - a Path takes ten times as long
        return Work(kind="command", name=sys.argv[1])
    return None
