"""Several locks are made by one transaction, whose reply can be cut anywhere like any other."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest

from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.listener import LockValue
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from tests.integration.faults.byte_cuts import HEADER, LANES, LENGTH, TEXT, sweep
from tests.toolbox.locks.pools import MakePool, session_of
from tests.toolbox.threads import waiting_in

# In front of each result, and at the end of all: kind, whether it is the end, and error.
RESULT = 4 + 1 + 4


@pytest.fixture
def server() -> Iterator[ZooKeeperServer]:
    """Return a server of the test's own, which removes no empty queue."""
    with ZooKeeperServer(reap_interval=3600) as server:
        yield server


def keys(number: int) -> list[str]:
    """Return the keys that one session of a sweep takes together."""
    return [f"left-{number}", f"right-{number}"]


def nodes(server: ZooKeeperServer, lock: LockValue) -> list[str]:
    """Return the nodes in all the queues of a lock."""
    return [node for path in lock.paths for node in server.paths(path)]


def numbers(server: ZooKeeperServer, lock: LockValue) -> list[int]:
    """Return the numbers of the nodes in all the queues of a lock; each node that was made has taken the next one."""
    return [int(node[-10:]) for node in nodes(server, lock)]


@pytest.mark.shows("faults#the-reply-to-a-create-is-lost")
@pytest.mark.parametrize("lagging", [False, True], ids=["same-server", "lagging-follower"])
def test_transaction_reply__cut_at_every_byte(server: ZooKeeperServer, make_pool: MakePool, lagging: bool) -> None:
    """Wherever the reply is cut, the one node in each queue that was made is found and held, and no other is made."""
    with Lock(keys(0), make_pool()) as held:
        frame = LENGTH + HEADER + sum(RESULT + TEXT + len(node) for node in nodes(server, held.lock)) + RESULT

    def visit(pool: Pool, size: int) -> None:
        lock = Lock(keys(size % LANES), pool)
        with lock.acquire(timeout=120) as held:
            before = numbers(server, lock)
            held.release(wait=True)
        session = session_of(pool)
        cut = server.faults.cut_reply("multi", after_bytes=size, session=session)
        with lock.acquire(timeout=120) as held:
            cut.wait()
            made = nodes(server, lock)
            assert len(made) == 2
            assert made[0] == held.node
            assert [server.owner(node) for node in made] == [session, session]
            assert session_of(pool) == session
            # Heartbeats are transactions too, so these are not counted.
            assert numbers(server, lock) == [number + 1 for number in before]
            held.check()
            held.release(wait=True)
        assert nodes(server, lock) == []

    # A follower so late that it knows nothing of all this, but for what its client has seen.
    with server.faults.lag_reads(zxids=10_000) if lagging else contextlib.nullcontext():
        sweep(make_pool, frame, visit)


@pytest.mark.shows("faults#the-reply-to-a-create-is-lost")
@pytest.mark.parametrize("lagging", [False, True], ids=["same-server", "lagging-follower"])
def test_transaction_reply__cut_and_expired(server: ZooKeeperServer, pool: Pool, lagging: bool) -> None:
    """When the session ends as well, none of its nodes is taken for one of the new session."""
    lock = Lock(keys(0), pool)
    lock.acquire(timeout=60).release(wait=True)
    before = session_of(pool)
    with server.faults.lag_reads(zxids=5) if lagging else contextlib.nullcontext():
        cut = server.faults.cut_reply("multi")
        with server.faults.refuse():
            waiter = waiting_in(lock)
            cut.wait()
            first = nodes(server, lock)
            assert [server.owner(node) for node in first] == [before, before]
            server.faults.expire(before)
        with waiter.result() as held:
            later = nodes(server, lock)
            assert later[0] == held.node
            assert not set(first) & set(later)
            assert [server.owner(node) for node in later] == [session_of(pool)] * 2
            assert session_of(pool) != before
