"""A process in which thousands wait for one lock, and what that takes; started by ``test_many_waiters``.

Give the servers, a part of the tree, how many there are to be, and the budget of a session. What is found is written to
standard output as JSON.
"""

from __future__ import annotations

import asyncio
import gc
import json
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

from django_zklock.zk.listener import LockListener
from django_zklock.zk.lock import Lock
from django_zklock.zk.ops import search
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions
from tests.toolbox.timing import scaled

# For all of it to wait, and for all of it to be served; a machine may have other things to do.
TIMEOUT = scaled(100)


class Witness(LockListener):
    """Counts the waiters that are in the queue and know the holder."""

    def __init__(self, expected: int) -> None:
        self.all_wait = asyncio.Event()
        self._missing = expected

    def wants(self, event: str) -> bool:
        return event == "contended"

    async def anotify(self, event: str, _lock: object, /, **facts: Any) -> None:
        if event == "contended":
            assert facts["holder"] is not None
            self._missing -= 1
            if not self._missing:
                self.all_wait.set()


def memory(what: str) -> float:
    """Return what this process has in memory now (``VmRSS``), or had at most (``VmHWM``), in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(what))


def make_pool(hosts: str, root: str, budget: int) -> Pool:
    connection = ConnectionOptions(hosts=hosts, session_timeout=scaled(30))
    return Pool("multitude", PoolOptions(connection=connection, root=root, connect_timeout=TIMEOUT, budget=budget))


async def wait_in_queue(first: Pool, pool: Pool, count: int) -> dict[str, object]:
    """Let ``count`` tasks wait behind another holder, and acquire in turn."""
    witness, order = Witness(count), list[int]()
    lock = Lock("k", pool, listener=witness)

    async def take_a_turn() -> None:
        async with lock as held:
            # By their nodes: they come at once, and in two sessions.
            order.append(held.token)

    # Whatever there is for one waiter is there before the counting begins.
    await asyncio.to_thread((await Lock("warm", pool).aacquire(timeout=TIMEOUT)).release, wait=True)
    held = await Lock("k", first).aacquire(timeout=TIMEOUT)
    gc.collect()
    start, threads = memory("VmRSS"), threading.active_count()
    tasks = [asyncio.create_task(take_a_turn()) for _ in range(count)]
    await asyncio.wait_for(witness.all_wait.wait(), TIMEOUT)
    found: dict[str, object] = {"threads": threading.active_count() - threads, "waiting": memory("VmRSS") - start}
    held.release()
    await asyncio.wait_for(asyncio.gather(*tasks), TIMEOUT)
    found |= {"most": memory("VmHWM") - start, "in order": order == sorted(order), "served": len(order)}
    # The last release is answered before this one, and those before it too.
    await asyncio.to_thread((await Lock("warm", pool).aacquire(timeout=TIMEOUT)).release, wait=True)
    return found | {"left": [queue.path for queue in search.find(first, timeout=TIMEOUT)]}


def main(hosts: str, root: str, count: str, budget: str) -> None:
    first, pool = (make_pool(hosts, root, int(budget)) for _ in range(2))
    with closing(first), closing(pool):
        sys.stdout.write(json.dumps(asyncio.run(wait_in_queue(first, pool, int(count)))))


if __name__ == "__main__":
    main(*sys.argv[1:])
