"""A process in which many wait for one lock: ``python -m benchmarks.peers.clients.waiters NAME HOSTS``.

It answers the command ``wait`` when all of them are in the queue.
"""

from __future__ import annotations

import asyncio
import gc
import os
import sys
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock as KazooLock

from benchmarks.peers.clients.dialogue import serve
from django_zklock.zk.listener import LockListener
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions
from tests.toolbox.processes.status import status

KEY = "waited-for"
TIMEOUT = 100.0
POLL_INTERVAL = 0.02


class Witness(LockListener):
    """Counts the waiters that are in the queue and know the holder."""

    def __init__(self) -> None:
        """Count from nought."""
        self.count = 0

    def wants(self, event: str) -> bool:
        """Want the holder to be read for that event alone, as a caller with a log does."""
        return event == "contended"

    async def anotify(self, event: str, _lock: object, /, **_facts: Any) -> None:
        """Count; all waiters are in one thread."""
        self.count += event == "contended"


class Ours:
    """Tasks of asyncio that share a session."""

    def __init__(self, hosts: str) -> None:
        """Hold the lock in another session, and connect."""
        connection = ConnectionOptions(hosts=hosts, session_timeout=30.0)
        self._witness = Witness()
        self._tasks: list[asyncio.Task[None]] = []
        options = PoolOptions(connection=connection, connect_timeout=TIMEOUT)
        self._pools = [Pool(name, options) for name in ("holder", "waiters")]
        holder, waiters = self._pools
        self._held = Lock(KEY, holder).acquire(TIMEOUT)
        Lock("warm", waiters).acquire(TIMEOUT).release(wait=True)
        self._lock = Lock(KEY, waiters, listener=self._witness)

    def start(self, count: int) -> Callable[[], int]:
        """Let ``count`` wait, and return what counts those that do."""
        loop = asyncio.new_event_loop()
        for _ in range(count):
            # The owner of a hold is the task in which the call is made.
            self._tasks.append(loop.create_task(self._wait()))
        threading.Thread(target=loop.run_forever, daemon=True).start()
        return lambda: self._witness.count

    async def _wait(self) -> None:
        await self._lock.aacquire()


class Kazoo:
    """Threads that share a session."""

    def __init__(self, hosts: str) -> None:
        """Hold the lock in another session, and connect."""
        self._clients = [KazooClient(hosts, timeout=30.0) for _ in range(2)]
        self._path = f"/kazoo/{KEY}"
        for client in self._clients:
            client.start(TIMEOUT)
        KazooLock(self._clients[0], self._path).acquire()

    def start(self, count: int) -> Callable[[], int]:
        """Let ``count`` wait, and return what counts those that do."""
        holder, waiters = self._clients
        for _ in range(count):
            threading.Thread(target=KazooLock(waiters, self._path).acquire, daemon=True).start()
        return lambda: len(holder.get_children(self._path)) - 1


WAITERS: dict[str, Callable[[str], Ours | Kazoo]] = {"ours": Ours, "kazoo": Kazoo}


def main(name: str, hosts: str) -> None:
    """Serve."""
    started: list[Ours | Kazoo] = []

    def wait(words: Mapping[str, str]) -> Mapping[str, float]:
        waiters, count = WAITERS[name](hosts), int(words["count"])
        # They wait until this process ends.
        started.append(waiters)
        gc.collect()
        before, begin = status(os.getpid()), time.monotonic()
        waiting = waiters.start(count)
        while waiting() < count:
            time.sleep(POLL_INTERVAL)
        took, after = time.monotonic() - begin, status(os.getpid())
        return {
            "time": took / count,
            "memory": (after["VmRSS"] - before["VmRSS"]) * 1024 / count,
            # The thread of the loop does not count.
            "threads": after["Threads"] - before["Threads"] - (name == "ours"),
        }

    serve({"wait": wait})


if __name__ == "__main__":
    main(*sys.argv[1:])
