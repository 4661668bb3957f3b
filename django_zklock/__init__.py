"""Distributed locks for Django and Celery on Apache ZooKeeper.

``@zk_locked("key")`` on a Celery task, a management command or any function: at most one runs at a time, across
all hosts.

PYTEST_DONT_REWRITE, a word to pytest: the package is delivered with a plugin, so pytest would wish to rewrite its
asserts, and warn where a test runner has imported it before.
"""

from __future__ import annotations

from django_zklock.decorators import zk_locked
from django_zklock.exceptions import (
    LockConflict,
    LockLost,
    LockTimeout,
    NotHeld,
    ZkLockError,
    ZooKeeperUnavailable,
)
from django_zklock.locks import current_lock, zk_lock

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
