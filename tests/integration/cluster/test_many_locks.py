"""More locks in one process than the end of one session can be written for, and the ensemble lives on.

A server that gets a transaction beyond twice its ``jute.maxbuffer`` neither follows nor starts again. Here servers have
a smaller one, and sessions a budget that is smaller by as much. ``make soak WHAT=locks`` has the values of production.
"""

from __future__ import annotations

import asyncio
import contextlib
import os

import pytest

from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import SESSION_BUDGET, Pool
from django_zklock.zk.wire import MAX_REQUEST
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.timing import scaled
from tests.toolbox.zookeeper.ensemble import Ensemble
from tests.toolbox.zookeeper.observer import Observer

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow]

FULL = 24_000
COUNT = int(os.environ.get("ZKLOCK_MANY_LOCKS", "1500"))
PART = FULL // COUNT
TOGETHER = 500
# Hanging is all that it is against.
TIMEOUT = scaled(120)


def take_all(pool: Pool) -> list[Held]:
    async def take(begin: int) -> list[Held]:
        locks = [Lock(f"invoice:{number:06}", pool) for number in range(begin, min(begin + TOGETHER, COUNT))]
        return await asyncio.gather(*(lock.aacquire(timeout=TIMEOUT) for lock in locks))

    return [held for begin in range(0, COUNT, TOGETHER) for held in asyncio.run(take(begin))]


@pytest.mark.shows("faults#a-process-has-thousands-of-locks")
@pytest.mark.timeout(900)
def test_many_locks(make_pool: MakePool) -> None:
    """The servers follow their leader after the end of the process, and start again with what they have written."""
    # Beyond the buffer only 1 KB: the least that a server can be set to.
    properties = {"jute.maxbuffer": str(MAX_REQUEST // PART), "zookeeper.jute.maxbuffer.extrasize": "0"}
    with Ensemble(tick_time=0.5, properties=properties) as ensemble:
        pool = make_pool(
            ensemble.hosts,
            session_timeout=30.0,
            connect_timeout=TIMEOUT,
            root="/django_zklock",
            budget=SESSION_BUDGET // PART,
        )
        held = take_all(pool)
        assert not any(each.lost for each in held)
        with contextlib.closing(Observer(ensemble.hosts)) as observer:
            owners = {observer.client.exists(each.node).ephemeralOwner for each in held[:: COUNT // 100]}
        sessions = {session.id: session.used for session in pool.sessions()}
        assert pool.close(TIMEOUT)
        assert_works(ensemble, make_pool)
        assert len(ensemble.followers()) == 2
        for node in ensemble.nodes:
            node.stop()
        ensemble.start()
        assert_works(ensemble, make_pool)
        assert sessions.keys() == owners
        assert max(sessions.values()) <= SESSION_BUDGET // PART


def assert_works(ensemble: Ensemble, make_pool: MakePool) -> None:
    pool = make_pool(ensemble.hosts, connect_timeout=TIMEOUT, root="/django_zklock")
    for number in (0, COUNT - 1):
        Lock(f"invoice:{number:06}", pool).acquire(timeout=TIMEOUT).release(wait=True)
    pool.close()
