"""The lock of python-redis-lock: one key with a time to live, and waiters that block in Redis until it is deleted."""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

from redis import Redis
from redis_lock import Lock

from benchmarks.peers.clients.recipe import Cycle, MakeCycle, granted, refused
from benchmarks.peers.load import Load

TIME_TO_LIVE = 30
# It writes a warning at each refusal.
logging.getLogger("redis_lock").setLevel(logging.ERROR)


@contextmanager
def connect(load: Load) -> Iterator[MakeCycle]:
    """Open a pool of connections."""

    def make(kind: str, keys: Sequence[str]) -> Cycle:
        lock = Lock(client, keys[0], expire=TIME_TO_LIVE)
        return refused(partial(lock.acquire, blocking=False)) if kind == "try" else granted(lock)

    # A waiter blocks for the whole time to live.
    with closing(Redis(load.host, load.port, socket_timeout=None)) as client:
        if load.kind == "try":
            for name in load.names:
                Lock(client, name, expire=TIME_TO_LIVE).acquire()
        yield make
