"""The pools of this process by alias: the only global state of the package."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any

from django.core.signals import setting_changed

from django_zklock import conf
from django_zklock.zk.pool import CLOSE_TIMEOUT, Pool


class Connections:
    """``connections["reports"]`` gives the pool of an alias; made at first use, without connecting."""

    def __init__(self) -> None:
        self._making = threading.RLock()
        self._pools: dict[str, Pool] = {}

    def __getitem__(self, alias: str) -> Pool:
        pool = self._pools.get(alias)
        if pool is None:
            with self._making:
                pool = self._pools.get(alias)
                if pool is None:
                    pool = self._pools[alias] = Pool(alias, conf.options(alias))
        return pool

    def __iter__(self) -> Iterator[str]:
        return iter(conf.aliases())

    def close_all(self, timeout: float = CLOSE_TIMEOUT) -> None:
        """End every session of this process, which frees its locks; takes at most ``timeout`` seconds a pool."""
        for pool in list(self._pools.values()):
            pool.close(timeout)

    def reset(self) -> None:
        """Close everything and read the settings anew at the next use."""
        with self._making:
            pools, self._pools = self._pools, {}
        for pool in pools.values():
            pool.close()


connections = Connections()


def _reset_on_change(*, setting: str, **_kwargs: Any) -> None:
    if setting == "ZKLOCK":
        connections.reset()


setting_changed.connect(_reset_on_change, dispatch_uid="django_zklock.connections")
