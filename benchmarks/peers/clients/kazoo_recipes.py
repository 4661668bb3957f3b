"""kazoo's own recipes: Lock, ReadLock, WriteLock, Semaphore."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial

from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock, ReadLock, Semaphore, WriteLock

from benchmarks.peers.clients.recipe import Cycle, MakeCycle, granted, refused
from benchmarks.peers.load import Load

SESSION_TIMEOUT = 30.0
ROOT = "/kazoo"


@contextmanager
def connect(load: Load) -> Iterator[MakeCycle]:
    """Open a session, and one for the holder that is in the way of a try."""

    def make(kind: str, keys: Sequence[str]) -> Cycle:
        path = f"{ROOT}/{keys[0]}"
        match kind:
            case "try":
                return refused(partial(Lock(client, path).acquire, blocking=False))
            case "read":
                return granted(ReadLock(client, path))
            case "write":
                return granted(WriteLock(client, path))
            case "semaphore":
                return granted(Semaphore(client, path, max_leases=load.limit))
            case _:
                return granted(Lock(client, path))

    with ExitStack() as stack:
        client = stack.enter_context(session(load))
        if load.kind == "try":
            other = stack.enter_context(session(load))
            for name in load.names:
                Lock(other, f"{ROOT}/{name}").acquire()
        yield make


@contextmanager
def session(load: Load) -> Iterator[KazooClient]:
    """Open a session and close it at the end."""
    client = KazooClient(hosts=load.hosts, timeout=SESSION_TIMEOUT)
    client.start(timeout=SESSION_TIMEOUT)
    try:
        yield client
    finally:
        client.stop()
        client.close()
