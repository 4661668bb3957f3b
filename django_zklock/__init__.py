"""Distributed locks for Django and Celery on Apache ZooKeeper.

``@zk_locked("key")`` on a Celery task, a management command or any function: at most one runs at a time, across
all hosts.

PYTEST_DONT_REWRITE, a word to pytest: the package is delivered with a plugin, so pytest would wish to rewrite its
asserts, and warn where a test runner has imported it before.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .decorators import zk_locked
    from .exceptions import LockConflict, LockLost, LockTimeout, NotHeld, ZkLockError, ZooKeeperUnavailable
    from .locks import current_lock, zk_lock

# The module of each name, which is imported when the name is first asked for. pytest imports the plugin in here in
# every run, and with this package neither Django nor kazoo: a ``conftest.py`` may have to patch before, as for gevent.
_HOMES = {
    "LockConflict": "exceptions",
    "LockLost": "exceptions",
    "LockTimeout": "exceptions",
    "NotHeld": "exceptions",
    "ZkLockError": "exceptions",
    "ZooKeeperUnavailable": "exceptions",
    "current_lock": "locks",
    "zk_lock": "locks",
    "zk_locked": "decorators",
}

__all__ = [
    "LockConflict",
    "LockLost",
    "LockTimeout",
    "NotHeld",
    "ZkLockError",
    "ZooKeeperUnavailable",
    "current_lock",
    "zk_lock",
    "zk_locked",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f".{_HOMES[name]}", __name__), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
