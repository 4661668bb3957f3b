"""A WSGI application whose requests come together, and each keep a lock that no request releases.

Each answers with the process, with the thread that it ran in, by its number in the system and by its ident in Python,
and with those locks of other threads that it could take again.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterable

from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions

REQUESTS = 4
# Seconds.
TIMEOUT = 60.0

pool = Pool("hoard", PoolOptions(connection=ConnectionOptions(hosts=os.environ["HOSTS"]), root=os.environ["ROOT"]))
together = threading.Barrier(REQUESTS)
# By the number of the thread.
hoard: dict[int, list[Held]] = {}


def application(_environ: object, start_response: Callable[[str, list[tuple[str, str]]], object]) -> Iterable[bytes]:
    number = threading.get_native_id()
    together.wait(TIMEOUT)
    others = [held.lock for owner, kept in hoard.items() if owner != number for held in kept]
    again = [lock.key for lock in others if isinstance(lock, Lock) and lock.try_acquire() is not None]
    together.wait(TIMEOUT)
    kept = hoard.setdefault(number, [])
    kept.append(Lock(f"{number}-{len(kept)}", pool).acquire(timeout=TIMEOUT))
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [" ".join(map(str, [os.getpid(), number, threading.get_ident(), *again])).encode()]
