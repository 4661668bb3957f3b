"""Taking a lock away from whoever holds it."""

from __future__ import annotations

import logging
import re
import threading
import time

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Permissions
from services.port import LOOPBACK, free_port

from django_zklock.exceptions import NotHeld, ZkLockError, ZooKeeperUnavailable
from django_zklock.zk import keys, label, revocation
from django_zklock.zk.held import Held
from django_zklock.zk.inspection import breaking, survey
from django_zklock.zk.label import Label, Removal
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from tests.contract.standing import RULES, Standing
from tests.server import Server
from tests.zk.onlooker import MakePool, Onlooker, wait_until
from tests.zk.proxy import DOWN, UP, Proxy, requests
from tests.zk.runner import Runner

DELETION = 14  # a multi
LONG = "invoice:" + "x" * 500


def take_away(pool: Pool, held: Held, why: str = "broken by ada: it hangs", *, token: int | None = None) -> None:
    breaking.remove(pool, held.node, token=held.token if token is None else token, why=why, timeout=5)


def keep_line(client: KazooClient, held: Held) -> None:
    """Have the line stay when nobody stands there: the servers of the tests remove an idle one within half a second."""
    client.create(f"{held.lock.paths[0]}/readme", ephemeral=True)


def loss_of(held: Held) -> str | None:
    """Wait until the loss is told, and give the reason."""
    told = threading.Event()
    held.when_lost(told.set)
    assert told.wait(20)
    assert held.lost
    found = re.search(r" s: (.*); ", str(held.loss()))
    return found and found[1]


@pytest.mark.parametrize("kind", RULES)
def test_remove__holder(make_pool: MakePool, outsider: KazooClient, kind: str) -> None:
    """The holder learns with its next heartbeat that it has lost the lock, and why; the lock is free at once."""
    lock = Lock("k", make_pool(session_timeout=3.0), rule=RULES[kind])
    held = lock.acquire(5)
    keep_line(outsider, held)
    take_away(make_pool(), held)
    with Lock("k", make_pool()).acquire(5) as next_one:
        assert next_one.token > held.token
        assert loss_of(held) == "its node was deleted: broken by ada: it hangs"
    held.release()


@pytest.mark.parametrize("place", [0, 1, 2])
def test_remove__one_of_several(make_pool: MakePool, outsider: KazooClient, place: int) -> None:
    """Who loses one of several keys has lost them all, and learns why."""
    held = Lock(["a", "b", "c"], make_pool(session_timeout=3.0)).acquire(5)
    path = held.lock.paths[place]
    outsider.create(f"{path}/readme", ephemeral=True)
    pool = make_pool()
    (found,) = survey.line(pool, held.keys[place], timeout=5).places
    breaking.remove(pool, found.path, token=found.token, why="broken by ada: it hangs", timeout=5)
    assert loss_of(held) == "its node was deleted: broken by ada: it hangs"
    held.release(wait=True)
    with Lock(["c", "b", "a"], make_pool()).acquire(5) as again:
        again.check()


def test_remove__at_once(make_pool: MakePool, onlooker: Onlooker) -> None:
    """A holder that has waited watches its node, and learns it before the next heartbeat."""
    standing = Standing(onlooker, make_pool)
    first, second = standing.join_all(RULES["exclusive"], RULES["exclusive"])
    first.leave()
    held = second.get()
    take_away(make_pool(), held, "gone \x1b[2J")
    assert loss_of(held) == "its node was deleted: gone \\x1b[2J"
    second.leave()


def test_remove__waiter(make_pool: MakePool, onlooker: Onlooker) -> None:
    """Who waits gets in line again, at its end."""
    standing = Standing(onlooker, make_pool)
    first, second, third = standing.join_all(*[RULES["exclusive"]] * 3)
    pool = make_pool()
    place = survey.line(pool, "k", timeout=5).places[1]
    breaking.remove(pool, place.path, token=place.token, why="let the other one pass", timeout=5)
    standing.follow(second)
    first.leave()
    standing.expect(third)
    third.leave()
    standing.expect(second)
    second.leave()


def test_remove__another_holder_by_now(make_pool: MakePool) -> None:
    """Who has come after the one that was meant is left alone."""
    pool, other = make_pool(), make_pool()
    with Lock("k", pool).acquire(5) as before:
        pass
    with Lock("k", pool).acquire(5) as held:
        with pytest.raises(NotHeld, match="is gone"):
            take_away(other, before)
        with pytest.raises(NotHeld, match="another one by now"):
            take_away(other, held, token=before.token)
        held.check()


def test_remove__of_a_shortened_name(make_pool: MakePool, outsider: KazooClient) -> None:
    """The key that only the line's data tells is still told when that also tells who was removed."""
    pool = make_pool(session_timeout=1.5)
    held = Lock(LONG, make_pool(session_timeout=1.5)).acquire(5)
    keep_line(outsider, held)
    take_away(pool, held)
    again = Lock(LONG, make_pool(session_timeout=1.5)).acquire(5)
    (line,) = survey.lines(pool, timeout=5)
    assert line.key == LONG
    take_away(pool, again, "twice")
    assert loss_of(again) == "its node was deleted: twice"


@pytest.mark.parametrize("data", [b"4 leases", b'{"v":1,"key":"other"}', b"\xff" * 5000], ids=["text", "ours", "long"])
def test_remove__data_of_others(make_pool: MakePool, outsider: KazooClient, data: bytes) -> None:
    """What somebody else has written on the line stays, and the lock is taken away all the same."""
    pool = make_pool(session_timeout=1.5)
    outsider.ensure_path(pool.options.root)
    outsider.create(pool.path("k"), data)
    held = Lock("k", pool).acquire(5)
    take_away(make_pool(), held)
    assert loss_of(held) == "its node was deleted"
    assert outsider.get(pool.path("k"))[0] == data


def test_remove__line_not_ours_to_write(make_pool: MakePool, outsider: KazooClient) -> None:
    """Where the line may not be written to, the reason is not told, and the lock is taken away all the same."""
    pool = make_pool(session_timeout=1.5)
    acl = [ACL(Permissions.ALL & ~Permissions.WRITE, ANYONE_ID_UNSAFE)]
    outsider.ensure_path(pool.options.root)
    outsider.create(pool.path("k"), b"", acl=acl)
    held = Lock("k", pool).acquire(5)
    take_away(make_pool(), held)
    assert loss_of(held) == "its node was deleted"


def test_remove__refused(make_pool: MakePool, outsider: KazooClient) -> None:
    """A node that we may not delete says so."""
    pool = make_pool()
    path = pool.path("k")
    outsider.ensure_path(pool.options.root)
    outsider.create(path, b"", acl=[ACL(Permissions.READ | Permissions.CREATE, ANYONE_ID_UNSAFE)])
    node = outsider.create(f"{path}/lock-", b"x", ephemeral=True, sequence=True)
    token = survey.line(pool, "k", timeout=5).places[0].token
    with pytest.raises(ZkLockError, match=r"refused to delete .*NoAuthError"):
        breaking.remove(pool, node, token=token, why="please", timeout=5)
    assert outsider.exists(node)


def test_remove__written_to_meanwhile(make_pool: MakePool, onlooker: Onlooker) -> None:
    """A holder that somebody has asked to let go in between is removed all the same."""
    held = Lock("k", make_pool(session_timeout=1.5)).acquire(5)
    revocation.ask(make_pool(), held.node, "please", timeout=5)
    take_away(make_pool(), held)
    assert wait_until(lambda: held.lost)


def test_remove__in_the_log(make_pool: MakePool, caplog: pytest.LogCaptureFixture) -> None:
    """Whoever reads the log of the one that did it finds what was removed and why."""
    with caplog.at_level(logging.WARNING, "django_zklock.breaking"), Lock("k", make_pool()).acquire(5) as held:
        take_away(make_pool(), held, "broken by ada:\nit hangs")
    (record,) = (record for record in caplog.records if record.name == "django_zklock.breaking")
    assert f"token={held.token} reason='broken by ada:\\nit hangs'" in record.getMessage()


def test_last_removed(make_pool: MakePool, outsider: KazooClient) -> None:
    """As long as the line is there, it tells who was last removed from it, when and why."""
    pool = make_pool()
    held = Lock("k", make_pool()).acquire(5)
    keep_line(outsider, held)
    path = pool.path("k")
    assert breaking.last_removed(pool, path, timeout=5) is None
    take_away(pool, held, "\x1b[2J")
    removed = breaking.last_removed(pool, path, timeout=5)
    assert removed is not None
    assert f"{path}/{removed.node}" == held.node
    assert removed.why == "\\x1b[2J"
    assert abs(removed.at - time.time()) < 30
    assert breaking.last_removed(pool, pool.path("no such"), timeout=5) is None


@pytest.mark.parametrize("why", ["", "  \n"])
def test_remove__without_a_reason(pool: Pool, why: str) -> None:
    """Nothing is asked of ZooKeeper for somebody who does not say why."""
    with pytest.raises(ValueError, match="say why"):
        breaking.remove(pool, "/k/lock-0000000000", token=1, why=why, timeout=5)
    assert pool.sessions() == []


def test_remove__no_server(make_pool: MakePool) -> None:
    """Without ZooKeeper it ends when its time is up."""
    pool = make_pool(f"{LOOPBACK}:{free_port()}")
    began = time.monotonic()
    with pytest.raises(ZooKeeperUnavailable, match=r"no answer within 0\.3 s; whether that was done"):
        breaking.remove(pool, "/k/lock-0000000000", token=1, why="please", timeout=0.3)
    assert time.monotonic() - began < 2


@pytest.mark.parametrize("way", [UP, DOWN], ids=["request", "answer"])
def test_remove__connection_cut(server: Server, make_pool: MakePool, outsider: KazooClient, way: str) -> None:
    """Whether the request was lost with the connection or its answer: the node is gone, and that is no mistake."""
    held = Lock("k", make_pool(session_timeout=1.5)).acquire(5)
    keep_line(outsider, held)
    with Proxy(server.address) as proxy:
        pool = make_pool(proxy.hosts)
        wait_until(lambda: pool.session("/").connected)
        survey.line(pool, "k", timeout=5)
        proxy.pause(way)
        removing = Runner(lambda: take_away(pool, held))
        if way is DOWN:
            wait_until(lambda: any(requests(chunk) for side, chunk in proxy.chunks[1:] if side == UP))
        assert removing.running
        proxy.resume(drop=True)
        proxy.cut()
        removing.result()
        assert loss_of(held) == "its node was deleted: broken by ada: it hangs"


# What is written on a line.


@pytest.mark.parametrize(
    "written",
    [Label(), Label(key="k"), Label(key='{"v":1}'), Label(key="k", removal=Removal(node="n", why="because"))],
)
def test_label__there_and_back(written: Label) -> None:
    """What was written is read."""
    assert label.decode(written.encode()) == written


@pytest.mark.parametrize(
    "facts",
    ['"x"', "3", '{"node": 1, "why": "x"}', '{"node": "n", "why": ""}', '{"node": "n"}', "[]"],
)
def test_label__forged(facts: str) -> None:
    """What is not as ours would be tells of no removal."""
    assert label.decode(f'{{"v":1,"key":"k","removed":{facts}}}'.encode()) == Label(key="k")


def test_label__hostile() -> None:
    """Neither depth nor length nor bytes that are no text do any harm."""
    assert label.decode(b"[" * 4000) == Label(key="[" * 4000)
    assert label.decode(b"x" * 5000) is None
    assert label.decode(b"\xff") == Label(key="\ufffd")
    assert keys.leads_to("\ud800", "x") is False
