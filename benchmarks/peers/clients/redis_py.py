"""The lock of redis-py: one key with a time to live, and waiters that poll."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import partial

from redis import Redis

from benchmarks.peers.clients.recipe import Cycle, MakeCycle, granted, refused
from benchmarks.peers.load import Load

TIME_TO_LIVE = 30


@contextmanager
def connect(load: Load) -> Iterator[MakeCycle]:
    """Open a pool of connections."""

    def make(kind: str, keys: Sequence[str]) -> Cycle:
        lock = client.lock(keys[0], timeout=TIME_TO_LIVE)
        return refused(partial(lock.acquire, blocking=False)) if kind == "try" else granted(lock)

    with closing(Redis(load.host, load.port)) as client:
        if load.kind == "try":
            for name in load.names:
                client.lock(name, timeout=TIME_TO_LIVE).acquire()
        yield make
