"""Breaking a lock."""

from __future__ import annotations

import asyncio
import logging
import re
import threading
import time
from functools import partial

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Permissions

from django_zklock.exceptions import LockLost, NotHeld, ZkLockError
from django_zklock.zk import node_data, paths
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import LockNodeData, Removal
from django_zklock.zk.ops import actions, search, snapshots
from django_zklock.zk.pool import Pool
from django_zklock.zk.waiting import AsyncAutoResetEvent
from tests.toolbox.locks.contenders import RULES
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.threads import Runner
from tests.toolbox.timing import scaled, wait_until

DELETION = 14  # a multi
LONG = "invoice:" + "x" * 500


def take_away(pool: Pool, held: Held, why: str = "broken by ada: it hangs", *, token: int | None = None) -> None:
    actions.break_lock(pool, held.node, token=held.token if token is None else token, why=why, timeout=60)


def keep_queue(client: KazooClient, held: Held) -> None:
    """Keep the lock node when its queue is empty: the servers for tests delete an idle one within half a second."""
    client.create(f"{held.lock.paths[0]}/readme", ephemeral=True)


def loss_of(held: Held) -> str | None:
    """Wait for the notification of the loss, and return its reason."""
    notified = threading.Event()
    held._when_lost(notified.set)
    assert notified.wait(scaled(20))
    assert held.lost
    found = re.search(r" s: (.*); ", str(held._loss_error()))
    return found and found[1]


@pytest.mark.parametrize("kind", RULES)
def test_remove__holder(make_pool: MakePool, kazoo_client: KazooClient, kind: str) -> None:
    """The lock is free at once; the holder learns of its loss and the reason with the next heartbeat."""
    lock = Lock("k", make_pool(session_timeout=3.0), rule=RULES[kind])
    held = lock.acquire(60)
    keep_queue(kazoo_client, held)
    take_away(make_pool(), held)
    with Lock("k", make_pool()).acquire(60) as next_one:
        assert next_one.token > held.token
        assert loss_of(held) == "its node was deleted: broken by ada: it hangs"
    held.release()


@pytest.mark.parametrize("place", [0, 1, 2])
def test_remove__one_of_several(make_pool: MakePool, kazoo_client: KazooClient, place: int) -> None:
    """A holder that loses one of several keys has lost all of them, and learns the reason."""
    held = Lock(["a", "b", "c"], make_pool(session_timeout=3.0)).acquire(60)
    path = held.lock.paths[place]
    kazoo_client.create(f"{path}/readme", ephemeral=True)
    pool = make_pool()
    (found,) = snapshots.one_lock(pool, held.keys[place], timeout=60).entries
    actions.break_lock(pool, found.path, token=found.token, why="broken by ada: it hangs", timeout=60)
    assert loss_of(held) == "its node was deleted: broken by ada: it hangs"
    held.release(wait=True)
    with Lock(["c", "b", "a"], make_pool()).acquire(60) as again:
        again.check()


@pytest.mark.parametrize("keys", ["k", ["a", "k"]])
def test_remove__reason_of_each_error(
    make_pool: MakePool, kazoo_client: KazooClient, keys: str | list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A holder that checks each millisecond gets the reason of each break in the very error that ends its work."""
    # A round trip may take long on a busy machine.
    monkeypatch.setattr("django_zklock.zk.held.REASON_TIMEOUT", 20.0)
    pool, breaker = make_pool(), make_pool()
    with Lock("k", pool).acquire(60) as held:
        keep_queue(kazoo_client, held)
    for number in range(10):
        with Lock("k", pool).acquire(60):
            # A holder that has waited watches its node, and so learns of its loss by an event.
            granted = threading.Event()
            waiting = Runner(partial(check_until_lost, Lock(keys, pool), granted))
            wait_until(lambda: snapshots.one_lock(breaker, "k", timeout=60).waiter_count == 1)
        # Its node is the first before it knows that, and until then a break only makes it join the queue again.
        assert granted.wait(30)
        # The node before it was released in this process, and is the first until the server deletes it.
        wait_until(lambda: snapshots.one_lock(breaker, "k", timeout=60).waiter_count == 0)
        (holder,) = snapshots.one_lock(breaker, "k", timeout=60).holders
        actions.break_lock(breaker, holder.path, token=holder.token, why=f"reason {number}", timeout=60)
        assert f"its node was deleted: reason {number}; " in str(waiting.result())


def check_until_lost(lock: Lock, granted: threading.Event) -> LockLost:
    """Acquire the lock, check it each millisecond, and return the error."""
    try:
        with lock.acquire(120) as held:
            granted.set()
            while True:
                held.check()
                time.sleep(0.001)
    except LockLost as error:
        return error


def test_remove__reason_in_a_task(make_pool: MakePool, kazoo_client: KazooClient) -> None:
    """The end of an asynchronous block has the reason too."""
    pool, breaker = make_pool(session_timeout=3.0), make_pool()

    async def hold() -> None:
        async with Lock("k", pool) as held:
            keep_queue(kazoo_client, held)
            take_away(breaker, held)
            notified = AsyncAutoResetEvent()
            held._when_lost(notified.set)
            await notified.wait(scaled(20))

    with pytest.raises(LockLost, match="its node was deleted: broken by ada: it hangs; "):
        asyncio.run(hold())


def test_remove__another_holder_by_now(make_pool: MakePool) -> None:
    """A later holder than the one with the given token keeps its lock."""
    pool, other = make_pool(), make_pool()
    with Lock("k", pool).acquire(60) as before:
        pass
    with Lock("k", pool).acquire(60) as held:
        with pytest.raises(NotHeld, match="is gone"):
            take_away(other, before)
        with pytest.raises(NotHeld, match="another one by now"):
            take_away(other, held, token=before.token)
        held.check()


def test_remove__of_a_shortened_name(make_pool: MakePool, kazoo_client: KazooClient) -> None:
    """A key that is only in the data of the lock node is kept when the reason of a break is added there."""
    pool = make_pool(session_timeout=4.0)
    held = Lock(LONG, make_pool(session_timeout=4.0)).acquire(60)
    keep_queue(kazoo_client, held)
    take_away(pool, held)
    again = Lock(LONG, make_pool(session_timeout=4.0)).acquire(60)
    (queue,) = search.find(pool, timeout=60)
    assert queue.key == LONG
    take_away(pool, again, "twice")
    assert loss_of(again) == "its node was deleted: twice"


@pytest.mark.parametrize("data", [b"4 leases", b'{"v":1,"key":"other"}', b"\xff" * 5000], ids=["text", "ours", "long"])
def test_remove__data_of_others(make_pool: MakePool, kazoo_client: KazooClient, data: bytes) -> None:
    """Data of another client in the lock node stays, and the lock is broken."""
    pool = make_pool(session_timeout=4.0)
    kazoo_client.ensure_path(pool.options.root)
    kazoo_client.create(pool.path("k"), data)
    held = Lock("k", pool).acquire(60)
    take_away(make_pool(), held)
    assert loss_of(held) == "its node was deleted"
    assert kazoo_client.get(pool.path("k"))[0] == data


def test_remove__queue_not_ours_to_write(make_pool: MakePool, kazoo_client: KazooClient) -> None:
    """Without the permission to write the lock node, the lock is broken without a reason."""
    pool = make_pool(session_timeout=4.0)
    acl = [ACL(Permissions.ALL & ~Permissions.WRITE, ANYONE_ID_UNSAFE)]
    kazoo_client.ensure_path(pool.options.root)
    kazoo_client.create(pool.path("k"), b"", acl=acl)
    held = Lock("k", pool).acquire(60)
    take_away(make_pool(), held)
    assert loss_of(held) == "its node was deleted"


def test_remove__refused(make_pool: MakePool, kazoo_client: KazooClient) -> None:
    """A missing permission to delete is an error that says so."""
    pool = make_pool()
    path = pool.path("k")
    kazoo_client.ensure_path(pool.options.root)
    kazoo_client.create(path, b"", acl=[ACL(Permissions.READ | Permissions.CREATE, ANYONE_ID_UNSAFE)])
    node = kazoo_client.create(f"{path}/lock-", b"x", ephemeral=True, sequence=True)
    token = snapshots.one_lock(pool, "k", timeout=60).entries[0].token
    with pytest.raises(ZkLockError, match=r"refused to delete .*NoAuthError"):
        actions.break_lock(pool, node, token=token, why="please", timeout=60)
    assert kazoo_client.exists(node)


def test_remove__in_the_log(make_pool: MakePool, caplog: pytest.LogCaptureFixture) -> None:
    """The process that breaks a lock logs the node, the token and the reason."""
    with caplog.at_level(logging.WARNING, "django_zklock.breaking"), Lock("k", make_pool()).acquire(60) as held:
        take_away(make_pool(), held, "broken by ada:\nit hangs")
    (record,) = (record for record in caplog.records if record.name == "django_zklock.breaking")
    assert f"token={held.token} reason='broken by ada:\\nit hangs'" in record.getMessage()


def test_last_removed(make_pool: MakePool, kazoo_client: KazooClient) -> None:
    """The lock node keeps the last break: its node, its time and its reason."""
    pool = make_pool()
    held = Lock("k", make_pool()).acquire(60)
    keep_queue(kazoo_client, held)
    path = pool.path("k")
    assert actions.last_break(pool, path, timeout=60) is None
    take_away(pool, held, "\x1b[2J")
    removed = actions.last_break(pool, path, timeout=60)
    assert removed is not None
    assert f"{path}/{removed.node}" == held.node
    assert removed.why == "\\x1b[2J"
    assert abs(removed.at - time.time()) < scaled(60)
    assert actions.last_break(pool, pool.path("no such"), timeout=60) is None


@pytest.mark.parametrize("why", ["", "  \n"])
def test_remove__without_a_reason(pool: Pool, why: str) -> None:
    """A break without a reason is refused before any request."""
    with pytest.raises(ValueError, match="say why"):
        actions.break_lock(pool, "/k/lock-0000000000", token=1, why=why, timeout=60)
    assert pool.sessions() == []


# What is written on a queue.


@pytest.mark.parametrize(
    "written",
    [
        LockNodeData(),
        LockNodeData(key="k"),
        LockNodeData(key='{"v":1}'),
        LockNodeData(key="k", removal=Removal(node="n", why="because")),
    ],
)
def test_label__there_and_back(written: LockNodeData) -> None:
    """Encoded data is decoded to the same values."""
    assert node_data.decode_lock_node(written.encode()) == written


@pytest.mark.parametrize(
    "facts",
    ['"x"', "3", '{"node": 1, "why": "x"}', '{"node": "n", "why": ""}', '{"node": "n"}', "[]"],
)
def test_label__forged(facts: str) -> None:
    """Data in another form than ours has no last break."""
    assert node_data.decode_lock_node(f'{{"v":1,"key":"k","removed":{facts}}}'.encode()) == LockNodeData(key="k")


def test_label__hostile() -> None:
    """Deep, long and undecodable data causes no error."""
    assert node_data.decode_lock_node(b"[" * 4000) == LockNodeData(key="[" * 4000)
    assert node_data.decode_lock_node(b"x" * 5000) is None
    assert node_data.decode_lock_node(b"\xff") == LockNodeData(key="\ufffd")
    assert paths.names_key("\ud800", "x") is False
