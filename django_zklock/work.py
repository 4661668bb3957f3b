"""What the calling code is a part of: a task of a worker, a management command, a function, or nothing with a name.

An integration such as Celery's appends its function to :data:`resolvers`.
"""

from __future__ import annotations

import dataclasses
import os
import sys
from collections.abc import Callable
from functools import lru_cache
from types import FrameType

from django_zklock.zk.node_data import Work

resolvers: list[Callable[[], Work | None]] = []
"""Each returns the work that runs in the calling execution context, ``None`` if it does not know it."""

_PROGRAMS = {"manage.py", "django-admin", "django-admin.py"}


def current_work(place: Work | None = None) -> Work | None:
    """Return what runs in the calling execution context, ``None`` if it has no name.

    That is what a resolver finds, or else ``place``, with the management command that is in ``sys.argv``.
    """
    for resolver in resolvers:
        if (found := resolver()) is not None:
            return found
    if len(sys.argv) > 1 and os.path.basename(sys.argv[0]) in _PROGRAMS:  # noqa: PTH119 - a Path takes ten times as long
        command = sys.argv[1]
        return dataclasses.replace(place, command=command) if place is not None else Work(kind="command", name=command)
    return place


def place_of(frame: FrameType) -> Work | None:
    """Return the function that runs in ``frame``, or the module; ``None`` for code of no module."""
    module = frame.f_globals.get("__name__")
    if not isinstance(module, str):
        return None
    return _function(module, frame.f_code.co_qualname)


# The same function mostly locks again.
@lru_cache(maxsize=1024)
def _function(module: str, qualname: str) -> Work:
    # `outer.<locals>.inner` is longer, and says no more to a reader of the code.
    name = qualname.replace("<locals>.", "")
    return Work(kind="function", name=module if name == "<module>" else f"{module}.{name}")
