"""Distributed locks for Django and Celery on Apache ZooKeeper.

``@zk_locked("key")`` on a Celery task, a management command or any function: at most one runs at a time, across
all hosts.

PYTEST_DONT_REWRITE is a marker for pytest. The package contains a plugin, so pytest would rewrite the asserts of the
package, and warn if a test runner has imported it already.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from django_zklock.api import current_lock, zk_lock
    from django_zklock.conflict import Busy, Conflict, Skipped
    from django_zklock.decorators import zk_locked
    from django_zklock.exceptions import (
        AsyncUnsafe,
        LockCancelled,
        LockConflict,
        LockInTransaction,
        LockLost,
        LockTimeout,
        NotHeld,
        StaleToken,
        ZkLockError,
        ZooKeeperUnavailable,
    )
    from django_zklock.fencing import FencedModel, afenced_update, fenced_update
    from django_zklock.zk.held import Held
    from django_zklock.zk.lock import Lock
    from django_zklock.zk.node_data import Identity
    from django_zklock.zk.waiting import Cancellation

__all__ = [
    "AsyncUnsafe",
    "Busy",
    "Cancellation",
    "Conflict",
    "FencedModel",
    "Held",
    "Identity",
    "Lock",
    "LockCancelled",
    "LockConflict",
    "LockInTransaction",
    "LockLost",
    "LockTimeout",
    "NotHeld",
    "Skipped",
    "StaleToken",
    "ZkLockError",
    "ZooKeeperUnavailable",
    "afenced_update",
    "current_lock",
    "fenced_update",
    "zk_lock",
    "zk_locked",
]

# Each name is imported when it is first used. pytest imports the plugin of this package in every run; that must not
# import Django or kazoo, because a `conftest.py` may have to patch modules first, as for gevent.
_MODULES = {
    "Busy": "django_zklock.conflict",
    "Cancellation": "django_zklock.zk.waiting",
    "Conflict": "django_zklock.conflict",
    "FencedModel": "django_zklock.fencing",
    "Held": "django_zklock.zk.held",
    "Identity": "django_zklock.zk.node_data",
    "Lock": "django_zklock.zk.lock",
    "Skipped": "django_zklock.conflict",
    "afenced_update": "django_zklock.fencing",
    "current_lock": "django_zklock.api",
    "fenced_update": "django_zklock.fencing",
    "zk_lock": "django_zklock.api",
    "zk_locked": "django_zklock.decorators",
}

if not TYPE_CHECKING:  # a type checker would accept any name

    def __getattr__(name: str) -> object:
        if name not in __all__:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value = globals()[name] = getattr(import_module(_MODULES.get(name, "django_zklock.exceptions")), name)
        return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
