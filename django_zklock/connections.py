"""The pools of this process by alias."""

from __future__ import annotations

import time
import warnings
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager, suppress
from inspect import iscoroutinefunction, signature
from typing import Any

from django.apps import apps
from django.core.signals import setting_changed
from django.dispatch import receiver

from django_zklock import conf
from django_zklock.conf import DEFAULT_ALIAS
from django_zklock.zk import background, owners
from django_zklock.zk.lock import check_keys
from django_zklock.zk.paths import check_key
from django_zklock.zk.pool import CLOSE_TIMEOUT, Pool, PoolOptions
from django_zklock.zk.waiting import Deadline

APP = "django_zklock"
DEFAULT_PORT = 2181
# Seconds.
POLL_INTERVAL = 0.01

Using = str | Callable[[str], str]
"""The alias of an ensemble, or a function that returns the alias of the ensemble that has the lock of a key."""


def check_using(using: object) -> None:
    """Raise ``TypeError`` for what is neither an alias nor a plain function that can be called with a key."""
    if isinstance(using, str):
        return
    if not callable(using):
        raise TypeError(f"using must be the name of an alias in ZKLOCK, or a function of the key, got {using!r}")
    if iscoroutinefunction(using) or iscoroutinefunction(type(using).__call__):
        raise TypeError(f"using={using!r} is async: it would never be awaited")
    # Some builtins have no signature.
    with suppress(ValueError):
        shape = signature(using)
        try:
            shape.bind("key")
        except TypeError as error:
            raise TypeError(f"using={using!r} is called with the key alone: {error}") from error


def alias_of(key: str | Sequence[str], using: Using) -> str:
    """Return the alias of the ensemble that has the lock ``key``, which ``using`` is or returns.

    Raise ``ValueError`` for keys on different ensembles and what no lock can have as a key, and ``TypeError`` for what
    is no alias or no key.
    """
    if isinstance(using, str):
        return using
    # Before the user's function has them.
    keys = check_keys(key) if isinstance(key, (list, tuple)) else (check_key(key),)
    keys_of: dict[str, str] = {}
    for each in keys:
        alias = using(each)
        if not isinstance(alias, str):
            raise TypeError(f"using must return the name of an alias in ZKLOCK, and {using!r} has returned {alias!r}")
        keys_of[alias] = each
    if len(keys_of) > 1:
        where = ", ".join([f"{each!r} is on {alias!r}" for alias, each in keys_of.items()])
        raise ValueError(f"the keys of one lock must be on one ensemble: {where}")
    return next(iter(keys_of), DEFAULT_ALIAS)


class Connections:
    """Pools by alias, as in ``connections["reports"]``; a pool is made at its first use, without connecting."""

    def __init__(self) -> None:
        # No lock guards it, because a fork could copy a taken lock. Only atomic operations change the dict.
        self._pools: dict[str, Pool] = {}

    def __getitem__(self, alias: str) -> Pool:
        pool = self._pools.get(alias)
        if pool is None:
            options = conf.options(alias)
            _warn_if_not_installed()
            # If two threads make a pool at the same time, the second pool is dropped; it has no session yet.
            pool = self._pools.setdefault(alias, Pool(alias, options, tree=_tree(options)))
        return pool

    def __iter__(self) -> Iterator[str]:
        return iter(conf.aliases())

    def pools(self) -> list[Pool]:
        """Return the pools that were used in this process."""
        return list(self._pools.values())

    def close_all(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """End every session of this process and so release its locks, in at most ``timeout`` seconds for each pool.

        Pending log records are written, and the threads have ended; that takes at most ``timeout`` seconds too.
        """
        owners.check_may_wait("the sessions cannot be closed")
        for pool in self.pools():
            pool.close(timeout)
        background.end_threads(timeout)

    def reset(self) -> None:
        """Close all pools, so that the next use reads the settings again."""
        for alias in list(self._pools):
            pool = self._pools.pop(alias, None)
            if pool is not None:
                pool.close()

    @staticmethod
    def wait_for_first_answer(pool: Pool, timeout: float) -> bool:
        """Connect to read, and wait until that has succeeded or has failed once, in at most ``timeout`` seconds.

        Return whether there is a connection. A server that is down refuses at once, and one that is cut off is silent.
        """
        owners.check_may_wait("ZooKeeper's answer cannot be waited for")
        session = pool.inspection()
        deadline = Deadline.after(timeout)
        while not (session.connected or deadline.passed or session.wire.failure):
            time.sleep(POLL_INTERVAL)
        return session.connected

    @contextmanager
    def set_aside(self, pools: Collection[Pool]) -> Iterator[None]:
        """Keep these pools open and out of use inside of the context, whatever happens to the setting."""
        aside = {alias: pool for alias, pool in self._pools.items() if pool in pools}
        for alias in aside:
            self._pools.pop(alias, None)
        try:
            yield
        finally:
            self._pools |= aside


def _warn_if_not_installed() -> None:
    if apps.ready and not apps.is_installed(APP):
        warnings.warn(
            f'"{APP}" is not in INSTALLED_APPS: locks work, but the system checks, the admin, `manage.py zklock` and '
            "the gate of Celery's workers are missing",
            RuntimeWarning,
            stacklevel=2,
        )


def _tree(options: PoolOptions) -> tuple[frozenset[str], str]:
    """Return what identifies the tree of locks: the servers in any order, and the path above all nodes."""
    servers, _, chroot = options.connection.hosts.partition("/")
    names = (server.strip().lower() for server in servers.split(","))
    # An IPv6 address without a port ends with a bracket, so what follows its last colon is no number.
    full = frozenset(name if name.rpartition(":")[2].isdigit() else f"{name}:{DEFAULT_PORT}" for name in names)
    return full, f"/{chroot}".rstrip("/") + options.root


connections = Connections()


@receiver(setting_changed, dispatch_uid="django_zklock.connections")
def _reset_on_change(*, setting: str, **_kwargs: Any) -> None:
    if setting == "ZKLOCK":
        connections.reset()
    elif setting == "ZKLOCK_COMMAND":
        conf.name_command()
