"""Conversations that are no locks: scripts of requests, many reads in one, disturbed and not."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import ACL, ANYONE_ID_UNSAFE, Permissions

from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.testing import ZooKeeperServer
from django_zklock.zk import scripts
from django_zklock.zk.ops import actions, search
from django_zklock.zk.pool import Pool
from django_zklock.zk.scripts import MAX_READS, RequestScript
from django_zklock.zk.session import Session
from django_zklock.zk.wire import MAX_READS_PER_REQUEST, NoAuthError, NoNodeError, Read
from django_zklock.zk.wire.requests import MultiRead
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.network.tcp_proxy import DOWN, Proxy
from tests.toolbox.threads import Runner
from tests.toolbox.timing import GRACE, wait_until
from tests.toolbox.zookeeper.any_server import Server

UNKNOWN_OPCODE = 77
MANY = MAX_READS + MAX_READS_PER_REQUEST + 3


@pytest.fixture
def tree(kazoo_client: KazooClient, root: str) -> str:
    """Return a part of the tree with a few nodes to read."""
    kazoo_client.create(f"{root}/a", b"one", makepath=True)
    kazoo_client.create(f"{root}/a/ü", b"")
    kazoo_client.create(f"{root}/secret", b"", acl=[ACL(Permissions.DELETE, ANYONE_ID_UNSAFE)])
    return root


def read(pool: Pool, *reads: Read, timeout: float = 10) -> list[Any]:
    session = pool.session("/")
    return scripts.run(session, partial(scripts.read_many, session, reads), action="read", timeout=timeout)


def test_read_many__outcomes(pool: Pool, tree: str) -> None:
    """Each read has an outcome of its own: what is there, nothing, or the refusal."""
    data, names, empty, missing, unlisted, secret = read(
        pool,
        Read(f"{tree}/a"),
        Read(f"{tree}/a", children=True),
        Read(f"{tree}/a/ü"),
        Read(f"{tree}/b"),
        Read(f"{tree}/b", children=True),
        Read(f"{tree}/secret"),
    )
    content, stat = data
    assert (content, stat.version, stat.numChildren) == (b"one", 0, 1)
    assert stat.czxid < empty[1].czxid
    assert names == ["ü"]
    assert empty[0] == b""
    assert (missing, unlisted) == (None, None)
    assert isinstance(secret, NoAuthError)


def test_read_many__more_than_leave_together(pool: Pool, tree: str) -> None:
    """The outcomes of very many reads come in the order of the reads."""
    reads = [Read(f"{tree}/a", children=number % 3 == 0) for number in range(MANY)]
    reads[-2] = Read(f"{tree}/missing")
    outcomes = read(pool, *reads)
    assert len(outcomes) == MANY
    assert outcomes[-2] is None
    del outcomes[-2], reads[-2]
    assert [isinstance(outcome, list) for outcome in outcomes] == [read.children for read in reads]


def test_read_many__without_waiting_in_between(testserver: ZooKeeperServer, make_pool: MakePool) -> None:
    """All requests that leave together have come to the server before the first of them is answered."""
    with Proxy(testserver.address) as proxy:
        pool = make_pool(proxy.hosts)
        wait_until(lambda: pool.session("/").connected)
        proxy.pause(DOWN)
        testserver.requests.clear()
        reading = Runner(lambda: read(pool, *[Read("/")] * MAX_READS))
        testserver.requests.wait_for("multiRead", MAX_READS // MAX_READS_PER_REQUEST)
        assert reading.running
        proxy.resume()
        assert len(reading.result()) == MAX_READS


def test_read_many__server_too_old(pool: Pool, tree: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that does not know the request is older than ZooKeeper 3.6, and the error says so."""
    monkeypatch.setattr(MultiRead, "type", UNKNOWN_OPCODE)
    with pytest.raises(ZooKeeperUnavailable, match=r"ZooKeeper 3\.6 or newer is required"):
        read(pool, Read(f"{tree}/a"))


def test_read_many__nothing(pool: Pool) -> None:
    """No reads have no outcomes."""
    assert read(pool) == []


def test_read_many__chroot(make_pool: MakePool, server: Server, tree: str) -> None:
    """A chroot in HOSTS is part of every path."""
    ((data, _stat),) = read(make_pool(f"{server.hosts}{tree}"), Read("/a"))
    assert data == b"one"


def test_ask__refusal_in_the_script(pool: Pool, tree: str) -> None:
    """A refusal is raised where the script has asked, and what is raised in it reaches the caller."""
    session = pool.session("/")

    def script() -> RequestScript[str]:
        with pytest.raises(NoNodeError):
            yield [partial(session.wire.get, f"{tree}/a"), partial(session.wire.get, f"{tree}/b")]
        yield []
        ((data, _stat),) = yield [partial(session.wire.get, f"{tree}/a")]
        raise LookupError(data.decode())

    with pytest.raises(LookupError, match="one"):
        scripts.run(session, script, action="see", timeout=60)


def test_ask__refused(pool: Pool, tree: str) -> None:
    """A refusal that the script does not mind is an error that says what was wanted."""
    session = pool.session("/")

    def script() -> RequestScript[None]:
        yield [partial(session.wire.get, f"{tree}/secret")]

    with pytest.raises(ZkLockError, match=r"refused to look into it: NoAuthError") as caught:
        scripts.run(session, script, action="look into it", timeout=60)
    assert not isinstance(caught.value, ZooKeeperUnavailable)


def test_ask__connection_cut(server: Server, make_pool: MakePool, tree: str) -> None:
    """After a reconnect the script begins anew; answers of before are not taken for those of now."""
    begun = []
    with Proxy(server.address) as proxy:
        session = make_pool(proxy.hosts).session("/")
        wait_until(lambda: session.connected)

        def script() -> RequestScript[bytes]:
            begun.append(session.epoch)
            ((data, _stat),) = yield [partial(session.wire.get, f"{tree}/a")]
            return data  # type: ignore[no-any-return]

        proxy.pause(DOWN)
        asking = Runner(lambda: scripts.run(session, script, action="read", timeout=10))
        wait_until(lambda: begun)
        proxy.resume(drop=True)
        proxy.cut()
        assert asking.result() == b"one"
    assert len(begun) == 2
    assert begun[0] < begun[1]


def test_ask__time_is_up(server: Server, make_pool: MakePool, tree: str, kazoo_client: KazooClient) -> None:
    """Nothing is sent for a caller whose time is up, even when the answer comes after all."""
    with Proxy(server.address) as proxy:
        session = make_pool(proxy.hosts).session("/")
        wait_until(lambda: session.connected)

        def script() -> RequestScript[None]:
            yield [partial(session.wire.get, f"{tree}/a")]
            yield [partial(session.wire.set, f"{tree}/a", b"too late")]

        proxy.pause(DOWN)
        with pytest.raises(
            ZooKeeperUnavailable,
            match=r"no answer from ZooKeeper at .* within [\d.]+ s; whether that was done is not known",
        ):
            scripts.run(session, script, action="write", timeout=0.2, mutates=True)
        proxy.resume()
        # Its answer comes after that of the script's first request.
        ((data, _stat),) = read_on(session, f"{tree}/a")
    assert data == b"one"
    assert kazoo_client.get(f"{tree}/a")[0] == b"one"


def read_on(session: Session, path: str) -> list[Any]:
    return scripts.run(session, partial(scripts.read_many, session, [Read(path)]), action="read", timeout=10)


NO_SERVER = r"no connection to ZooKeeper at .* within [\d.]+ s; "
NODE = "/k/lock-0000000000"


@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (lambda pool: read(pool, Read("/"), timeout=0.3), "is it running and reachable"),
        (lambda pool: search.find(pool, timeout=0.3), "is it running and reachable"),
        (lambda pool: [*actions.find_idle(pool, timeout=0.3)], "is it running and reachable"),
        (lambda pool: actions.revoke(pool, NODE, "please", timeout=0.3), "whether that was done"),
        (lambda pool: actions.break_lock(pool, NODE, token=1, why="please", timeout=0.3), "whether that was done"),
    ],
    ids=["read", "search", "prune", "revoke", "break"],
)
def test_ask__no_server(make_pool: MakePool, ask: Callable[[Pool], object], message: str) -> None:
    """Without ZooKeeper each operation ends when its time is up, and leaves nothing behind in the session."""
    pool = make_pool(f"{LOOPBACK}:{free_port()}", connect_timeout=60.0)
    began = time.monotonic()
    with pytest.raises(ZooKeeperUnavailable, match=NO_SERVER + message):
        ask(pool)
    assert time.monotonic() - began < 0.3 + GRACE
    wait_until(lambda: not (pool.session("/").listeners or pool.inspection().listeners))


def test_ask__leaves_nothing(pool: Pool, tree: str) -> None:
    """A script that has got its answer is no listener of the session any more."""
    read(pool, Read(f"{tree}/a"))
    assert not pool.session("/").listeners
