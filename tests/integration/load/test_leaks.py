"""Five thousand locks, and five hundred waits in vain, after which everything is as it was before.

``make soak WHAT=leaks`` does twenty times as many, and shows what it has counted.
"""

from __future__ import annotations

import asyncio
import gc
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest
from kazoo.client import KazooClient

from django_zklock.exceptions import LockTimeout, ZooKeeperUnavailable
from django_zklock.zk import node_data
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import EXCLUSIVE, READ, WRITE, Rule, semaphore
from tests.toolbox.locks.pools import MakePool, wire_of
from tests.toolbox.threads import Runner
from tests.toolbox.timing import wait_until
from tests.toolbox.zookeeper.server import ZooKeeper

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

CYCLES = int(os.environ.get("ZKLOCK_LEAK_CYCLES", "5000"))
WAITS = CYCLES // 10
THREADS, TASKS = 6, 4
# Hanging is all that these are against: a minute is too little for seven seconds of computing at a load of thirty.
TIMEOUT = max(240.0, CYCLES / 100)
LIMIT = max(600.0, CYCLES / 50)

RULES: list[Rule] = [EXCLUSIVE, READ, WRITE, semaphore(2)]
# Some are over before there is a place in the queue, some in the middle of the joining, some when that is long done.
TIMEOUTS = (0.0001, 0.001, 0.02)
# How many may be on their way out before a thread waits for them: what thousands take at once is given back to Python
# and not to the system, and would hide a leak.
MAX_LEAVING = 50

# What may be there in the end beyond what was there before, because threads and allocators are never quite at rest.
OBJECTS_OF_A_TYPE = CYCLES // 1000
BLOCKS = CYCLES // 5
RESIDENT = 16 * 2**20
PROCESS = Path("/proc/self")


@pytest.fixture
def server() -> Iterator[ZooKeeper]:
    """Return a server of the test's own, which removes empty queues as fast as they come."""
    properties = {"znode.container.checkIntervalMs": "300", "znode.container.maxPerMinute": "60000"}
    with ZooKeeper(tick_time=0.2, properties=properties) as server:
        yield server


def counters(server: ZooKeeper) -> dict[str, int]:
    """Return what the server has of everybody."""
    words = server.mntr()
    names = ("zk_znode_count", "zk_ephemerals_count", "zk_watch_count", "zk_num_alive_connections")
    return {name: int(words[name]) for name in names}


def tables(pool: Pool) -> dict[str, int]:
    """Return how much is entered wherever a session and its connection keep what is under way."""
    (session,) = pool.sessions()
    wire, client = wire_of(session), wire_of(session)._client
    return {
        "listeners": len(session.listeners),
        "inbox": len(session._inbox),
        "deleting": len(session.deleting),
        "watches": len(list(wire.watches)),
        "watches to restore": len(wire.watches.lost),
        "requests": len(client._queue) + len(client._pending) + len(wire._connection.sent),
    }


@dataclass
class Traces:
    """What locks may leave behind: at the server, in the system, in the process."""

    server: dict[str, int]
    threads: set[threading.Thread]
    descriptors: int
    # Of ours and of kazoo's, by type; servers of other tests may live in this process, and be talked to.
    objects: Counter[str]
    # Of Python's memory, and bytes of all memory.
    blocks: int
    resident: int

    @classmethod
    def find(cls, server: ZooKeeper) -> Traces:
        for _ in range(3):
            gc.collect()
        types = Counter(map(type, gc.get_objects()))
        return cls(
            server=counters(server),
            threads=set(threading.enumerate()),
            descriptors=len(list((PROCESS / "fd").iterdir())),
            objects=Counter(
                {
                    f"{each.__module__}.{each.__qualname__}": count
                    for each, count in types.items()
                    if str(each.__module__).startswith(("django_zklock", "kazoo"))
                    and not str(each.__module__).startswith("django_zklock.testing")
                }
            ),
            blocks=sys.getallocatedblocks(),
            resident=int((PROCESS / "statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE"),
        )


def wait_for_rest(server: ZooKeeper, pools: list[Pool], nodes: int) -> None:
    """Wait until everybody has left, and the server has removed the queues; what stays for ever is found by that."""
    for pool in pools:
        wait_until(lambda pool=pool: not any(tables(pool).values()), 30, f"{tables(pool)} at rest")  # type: ignore[misc]
    # It keeps the last identities, a limited number.
    node_data.encode_identity.cache_clear()
    wait_until(lambda: counters(server)["zk_znode_count"] == nodes, 60, f"{nodes} nodes and not {counters(server)}")


def finish(calls: list[Callable[[], None]]) -> None:
    """Run each call in a thread; raise the first error."""
    runners = [Runner(call) for call in calls]
    wait_until(
        lambda: any(runner.error for runner in runners) or not any(runner.running for runner in runners), TIMEOUT
    )
    for runner in runners:
        if runner.error is not None:
            raise runner.error


def in_loop(task: Callable[[int], Awaitable[None]]) -> None:
    """Run that in several tasks of a loop."""

    async def main() -> None:
        await asyncio.gather(*(task(number) for number in range(TASKS)))

    asyncio.run(main())


def pick(chance: random.Random, pool: Pool, who: str) -> Lock:
    """Return a lock of any kind, on a key that is wanted by others too, one that is not, or both."""
    shared, own = f"shared-{chance.randrange(3)}", f"{who}-{chance.randrange(50)}"
    return Lock(chance.choice([shared, own, own, [own, shared]]), pool, rule=chance.choice(RULES))


def take(pools: list[Pool], count: int) -> None:
    """Take that many locks, and let go of them."""
    share = count // (THREADS + TASKS)

    def thread(number: int) -> None:
        chance, pool = random.Random(number), pools[number % len(pools)]
        for _ in range(share):
            lock = pick(chance, pool, f"thread-{number}")
            held = lock.try_acquire() if chance.random() < 0.2 else lock.acquire(timeout=TIMEOUT)
            if held is not None:
                held.check()
                held.release()

    async def task(number: int) -> None:
        chance = random.Random(-1 - number)
        for _ in range(share):
            async with pick(chance, pools[0], f"task-{number}") as held:
                held.check()

    finish([*(partial(thread, number) for number in range(THREADS)), partial(in_loop, task)])


def wait_in_vain(server: ZooKeeper, pools: list[Pool], count: int) -> None:
    """Wait that often for what another contender holds, and goes on holding; tasks are cancelled instead."""
    share = count // (THREADS + TASKS)

    def thread(number: int) -> None:
        chance, pool = random.Random(number), pools[number % len(pools)]
        for _ in range(share):
            wait_until(lambda: len(pool.session("/").listeners) < MAX_LEAVING, TIMEOUT, "the others have left")
            lock = Lock(chance.choice(["x", ["x", "y"], ["y", f"free-{number}"]]), pool, rule=chance.choice(RULES))
            # The other one if there was no time for an answer.
            with pytest.raises((LockTimeout, ZooKeeperUnavailable)):
                lock.acquire(timeout=chance.choice(TIMEOUTS))

    async def task(number: int) -> None:
        chance = random.Random(-1 - number)
        for _ in range(share):
            waiting = asyncio.ensure_future(Lock("x", pools[0], rule=chance.choice(RULES)).aacquire())
            await asyncio.wait([waiting], timeout=chance.choice(TIMEOUTS))
            waiting.cancel()
            with pytest.raises(asyncio.CancelledError):
                await waiting

    with Lock(["x", "y"], pools[-1]).acquire(timeout=10):
        finish([*(partial(thread, number) for number in range(THREADS)), partial(in_loop, task)])
        # The nodes that were watched are still there, and so would be the watches. But a holder that is followed in
        # its own session watches its own two nodes, as long as it has them.
        wait_until(lambda: counters(server)["zk_watch_count"] <= 2, 30, "nobody watches any more")


@pytest.mark.shows("faults#something-is-left-behind")
@pytest.mark.timeout(LIMIT)
def test_leaks(server: ZooKeeper, make_pool: MakePool, root: str, kazoo_client: KazooClient) -> None:
    """Locks of every kind, had or not, leave no node, watch, connection, thread, descriptor, object or memory."""
    # These queues stay, and with them what is left there; the others are to be removed.
    for key in ("shared-0", "shared-1", "shared-2", "x", "y"):
        kazoo_client.create(f"{root}/{key}", makepath=True)
    nodes = counters(server)["zk_znode_count"]
    # The last one is for the holder that is in the way of the others.
    pools = [make_pool(server.hosts, session_timeout=20.0) for _ in range(3)]
    # What comes with the first use is to stay.
    take(pools[:2], 700)
    wait_in_vain(server, pools, 140)
    wait_for_rest(server, pools, nodes)
    before = Traces.find(server)
    take(pools[:2], CYCLES)
    wait_in_vain(server, pools, WAITS)
    wait_for_rest(server, pools, nodes)
    after = Traces.find(server)
    more = after.objects - before.objects
    blocks, resident = after.blocks - before.blocks, after.resident - before.resident
    print(f"{CYCLES} locks, {WAITS} waits: {after.server}, {dict(more)}, {blocks} blocks, {resident} bytes")  # noqa: T201
    assert after.server == before.server
    assert after.server["zk_watch_count"] == after.server["zk_ephemerals_count"] == 0
    assert after.threads <= before.threads
    # A server of other tests, in this process, may have got a connection meanwhile.
    assert after.descriptors - before.descriptors <= OBJECTS_OF_A_TYPE
    assert [name for name, count in more.items() if count > OBJECTS_OF_A_TYPE] == []
    assert blocks <= BLOCKS
    assert resident <= RESIDENT
