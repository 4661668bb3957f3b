"""A new connection costs few requests and restores all watches; a session that is refused for good is replaced."""

from __future__ import annotations

import contextlib
import math
import shutil
from collections import Counter
from collections.abc import Callable, Iterator

import pytest

from django_zklock.testing import Opcode, ZooKeeperServer
from django_zklock.testing.server.client import Client
from django_zklock.testing.server.tree import Deleted
from django_zklock.zk.contender import Contender, State
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import READ, Rule, semaphore
from django_zklock.zk.session import Session
from django_zklock.zk.wire.connection import MAX_DOUBTS
from django_zklock.zk.wire.options import DATA_LOST, REFUSED
from django_zklock.zk.wire.watches import MAX_PATHS, WatchKey
from tests.integration.faults.conftest import MAX_SESSION_TIMEOUT
from tests.integration.refusing_server import Refusals
from tests.toolbox.locks.contenders import is_watching
from tests.toolbox.locks.losses import Losses
from tests.toolbox.locks.pools import MakePool, wire_of
from tests.toolbox.threads import Runner, waiting_in
from tests.toolbox.timing import scaled, wait_until
from tests.toolbox.zookeeper.server import ZooKeeper

LONG = MAX_SESSION_TIMEOUT


def session_of(pool: Pool) -> Session:
    (session,) = pool.sessions()
    return session


def watches(server: ZooKeeperServer) -> Counter[str]:
    """Return how many clients watch each node, as a server tells operators."""
    table = server.call(lambda: server.service.newest.watches)
    return Counter(
        {path: len(clients) for each in (table.data, table.children) for path, clients in each._by_path.items()}
    )


def settled(pool: Pool, count: int) -> bool:
    """Return whether as many wait, and have asked for all that they want to know."""
    listeners = [each for session in pool.sessions() for each in list(session.listeners)]
    waiting = [each for each in listeners if getattr(each, "state", None) is State.WAITING]
    return len(waiting) == count and all(is_watching(each) for each in waiting)


def drop(server: ZooKeeperServer, pool: Pool) -> None:
    """Cut the connection, and wait until the next one has taken its place and every watch is set again."""
    session = session_of(pool)
    epoch = session.epoch
    assert server.faults.drop(session.id) == 1
    wait_until(lambda: session.epoch > epoch and session.connected and session.watching)


def caught_up(pool: Pool) -> None:
    """Wait until everything that was asked on this connection has been answered."""
    session = session_of(pool)
    wait_until(lambda: not wire_of(session)._client._queue and not wire_of(session)._client._pending)


# Restored watches.

WAITERS, HOLDS = 400, 20


@pytest.mark.shows("faults#another-message-is-lost")
def test_reconnect__four_hundred_waiters(server: ZooKeeperServer, make_pool: MakePool) -> None:
    """A reconnect of a session with many waiters and holds takes a handful of requests, whatever their number."""
    pool, other = make_pool(session_timeout=LONG), make_pool(session_timeout=LONG)
    holds = [Lock(f"held-{number}", pool).acquire(timeout=60) for number in range(HOLDS)]
    held = Lock("k", other).acquire(timeout=60)
    tokens: list[int] = []

    def take_a_turn() -> None:
        with Lock("k", pool).acquire(timeout=600) as mine:
            tokens.append(mine.token)

    waiters = [Runner(take_a_turn) for _ in range(WAITERS)]
    wait_until(lambda: settled(pool, WAITERS), 120, "all wait")
    # What is held is watched from the first heartbeat on.
    session_of(pool).post(session_of(pool)._beat)
    wait_until(lambda: len(watches(server)) == WAITERS + 1 + HOLDS)
    before, seen = watches(server), len(server.requests.all())
    drop(server, pool)
    caught_up(pool)
    # The watch on the own node and on the one before it, of each, and nothing else.
    assert watches(server) == before
    mine = [request for request in server.requests.all()[seen:] if request.session == session_of(pool).id]
    kinds = Counter(request.opcode for request in mine)
    assert kinds[Opcode.CONNECT] >= 1
    size = sum(len(path) for path in before.elements())
    assert {opcode: count for opcode, count in kinds.items() if opcode not in {Opcode.CONNECT, Opcode.PING}} == {
        Opcode.MULTI: 1,
        Opcode.SET_WATCHES: math.ceil(size / MAX_PATHS),
    }
    # The lease comes first.
    assert next(each.opcode for each in mine if each.opcode in {Opcode.MULTI, Opcode.SET_WATCHES}) is Opcode.MULTI
    for each in holds:
        each.check()
        each.release()
    held.release()
    for waiter in waiters:
        waiter.result(120)
    assert len(tokens) == WAITERS
    assert tokens == sorted(set(tokens))


def test_reconnect__young_holds(server: ZooKeeperServer, make_pool: MakePool) -> None:
    """What is held for less than a heartbeat is read after a reconnect, and its loss is found."""
    pool = make_pool(session_timeout=LONG)
    kept, gone = (Lock(key, pool).acquire(timeout=60) for key in ("kept", "gone"))
    with server.faults.refuse():
        server.faults.drop(session_of(pool).id)
        server.call(lambda: server.service.commit(Deleted(gone.node)))
    wait_until(lambda: gone.lost)
    kept.check()
    assert watches(server) == {kept.node: 1}


@pytest.mark.shows("faults#another-message-is-lost")
@pytest.mark.parametrize("refused", [False, True], ids=["at once", "refused at first"])
@pytest.mark.parametrize("what", ["predecessor", "own", "both"])
@pytest.mark.parametrize("lagging", [False, True], ids=["same-server", "lagging-follower"])
def test_reconnect__overtaken(
    server: ZooKeeperServer, make_pool: MakePool, refusals: Refusals, what: str, lagging: bool, refused: bool
) -> None:
    """A waiter hears of what has happened while it was away: its predecessor or its own node is gone."""
    pool, other = make_pool(session_timeout=LONG), make_pool(session_timeout=LONG)
    held = Lock("k", other).acquire(timeout=60)
    path = held.lock.paths[0]
    waiter = waiting_in(Lock("k", pool))
    wait_until(lambda: settled(pool, 1))
    (own,) = [node for node in server.paths(path) if node != held.node]
    refusal = refusals.refuse("setWatches", times=2 if refused else 0)
    with server.faults.lag_reads(zxids=10_000) if lagging else contextlib.nullcontext():
        with server.faults.refuse():
            server.faults.drop(session_of(pool).id)
            if what != "own":
                # Deleted by hand, as the holder would over the connection that it has.
                server.call(lambda: server.service.commit(Deleted(held.node)))
            if what != "predecessor":
                server.call(lambda: server.service.commit(Deleted(own)))
        if what == "own":
            wait_until(lambda: len(server.paths(path)) == 2)
            held.release()
    later = waiter.result(60)
    later.check()
    assert (later.node == own) is (what == "predecessor")
    assert server.paths(path) == [later.node]
    assert refusal.count == (2 if refused else 0)
    later.release(wait=True)


@pytest.mark.shows("faults#another-message-is-lost")
def test_reconnect__while_the_last_is_restored(
    server: ZooKeeperServer, make_pool: MakePool, refusals: Refusals
) -> None:
    """What happened between two connections is heard of on the third, if the second broke before it could tell."""
    pool = make_pool(session_timeout=LONG)
    held = Lock("k", make_pool(session_timeout=LONG)).acquire(timeout=60)
    waiter = waiting_in(Lock("k", pool))
    wait_until(lambda: settled(pool, 1))
    session = session_of(pool)
    with server.faults.refuse():
        server.faults.drop(session.id)
        held.release(wait=True)
    refusal = refusals.refuse("setWatches", times=math.inf)
    refusal.wait_for(1)
    # A transaction of this session, which it has seen, after the one of which it has not heard.
    Lock("other", pool).acquire(timeout=60).release(wait=True)
    assert waiter.running
    epoch = session.epoch
    server.faults.drop(session.id)
    wait_until(lambda: session.epoch > epoch and session.connected)
    refusal.end()
    waiter.result(60).release(wait=True)


@pytest.mark.parametrize("rule", [READ, semaphore(2)], ids=["read", "semaphore"])
def test_reconnect__other_kinds(server: ZooKeeperServer, make_pool: MakePool, rule: Rule) -> None:
    """Readers and leases hear of it as well, one that watches the whole queue too."""
    pool = make_pool(session_timeout=LONG)
    if rule is READ:
        first = [Lock("k", make_pool(session_timeout=LONG)).acquire(timeout=60)]
    else:
        first = [Lock("k", make_pool(session_timeout=LONG), rule=rule).acquire(timeout=60) for _ in range(2)]
    waiters = [waiting_in(Lock("k", pool, rule=rule)) for _ in range(3)]
    wait_until(lambda: settled(pool, 3))
    with server.faults.refuse():
        server.faults.drop(session_of(pool).id)
        for held in first:
            held.release(wait=True)
    for _ in range(3):
        wait_until(lambda: any(not waiter.running for waiter in waiters), 60)
        done = next(waiter for waiter in waiters if not waiter.running)
        waiters.remove(done)
        done.result(60).release(wait=True)


def test_reconnect__given_up_while_away(server: ZooKeeperServer, make_pool: MakePool) -> None:
    """What a waiter watched that has left meanwhile is not watched again."""
    pool = make_pool(session_timeout=LONG)
    held = Lock("k", make_pool(session_timeout=LONG)).acquire(timeout=60)
    waiter = Runner(lambda: Lock("k", pool).acquire(timeout=scaled(3)))
    wait_until(lambda: settled(pool, 1))
    with server.faults.refuse():
        server.faults.drop(session_of(pool).id)
        assert waiter.outcome(30) is not None
    wait_until(lambda: server.paths(held.lock.paths[0]) == [held.node])
    wait_until(lambda: not session_of(pool).listeners)
    wait_until(lambda: watches(server) == {})
    held.release(wait=True)


class Contended(dict[WatchKey, None]):
    """Watches that another thread wants to give up as soon as the first of them has been gone through."""

    def __init__(self, watches: dict[WatchKey, None], give_up: Callable[[], None]) -> None:
        super().__init__(watches)
        self.iterations = 0
        self._give_up = give_up

    def __iter__(self) -> Iterator[WatchKey]:
        self.iterations += 1
        for number, key in enumerate(super().__iter__()):
            yield key
            if number == 0:
                Runner(self._give_up).result()


def test_reconnect__given_up_as_it_comes_back(server: ZooKeeperServer, make_pool: MakePool) -> None:
    """No other thread gives up watches while the connection's thread goes through them."""
    pool = make_pool(session_timeout=LONG)
    held = Lock("k", make_pool(session_timeout=LONG)).acquire(timeout=60)
    waiter = waiting_in(Lock("k", pool))
    wait_until(lambda: settled(pool, 1))
    session = session_of(pool)
    (contender,) = session.listeners
    assert isinstance(contender, Contender)

    def give_up() -> None:
        # As the timers' thread does it, but without waiting for its turn.
        if session.monitor.acquire(blocking=False):  # type: ignore[attr-defined]
            contender.leave()
            session.monitor.release()  # type: ignore[attr-defined]

    with server.faults.refuse():
        server.faults.drop(session.id)
        wait_until(lambda: not session.connected)
        lost = session.wire.watches.lost = Contended(session.wire.watches.lost, give_up)
        assert len(lost) == 2
    wait_until(lambda: session.connected)
    assert lost.iterations
    held.release(wait=True)
    waiter.result().release(wait=True)


# A session that the servers refuse.


@pytest.fixture
def wiped(server: ZooKeeperServer) -> Iterator[ZooKeeperServer]:
    """Return a server without data, to be started in the place of the other."""
    yield (other := ZooKeeperServer(port=server.address[1], max_session_timeout=LONG))
    other.close()


@pytest.mark.shows("faults#the-ensemble-has-lost-its-data")
def test_wiped(server: ZooKeeperServer, wiped: ZooKeeperServer, make_pool: MakePool) -> None:
    """When the ensemble has lost its data, the session is given up as soon as it has outlived its timeout."""
    losses = Losses()
    pool = make_pool(session_timeout=2.0, connect_timeout=60)
    for _ in range(50):
        Lock("k", pool).acquire(timeout=120).release(wait=True)
    held = Lock("held", pool, listener=losses).acquire(timeout=120)
    blocking = Lock("k", pool).acquire(timeout=120)
    waiter = waiting_in(Lock("k", pool, reentrant=False))
    wait_until(lambda: settled(pool, 1))
    before = session_of(pool).id
    server.close()
    wiped.start()
    with waiter.result(60) as later:
        assert session_of(pool).id != before
        assert wiped.owner(later.node) == session_of(pool).id
        # kazoo's count of what the ensemble has done begins anew.
        assert wire_of(session_of(pool))._client.last_zxid <= wiped.service.newest.zxid
        later.check()
    assert held.lost
    assert blocking.lost
    wait_until(lambda: losses.notified)
    held.release()
    blocking.release()
    Lock("held", pool).acquire(timeout=120).release(wait=True)


class Door:
    """Refuses some of the clients, as servers do, by closing the connection; keeps the sessions they claim."""

    def __init__(self, server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> None:
        self.claims: list[int] = []
        self.refuses: Callable[[int], bool] = lambda _session: False
        connect = Client.connect

        def connected(client: Client, frame: bytes) -> None:
            if client._service is server.service:
                self.claims.append(client.requested_session)
                if self.refuses(client.requested_session):
                    client._connection.close()
                    return
            connect(client, frame)

        monkeypatch.setattr(Client, "connect", connected)


@pytest.mark.shows("faults#the-ensemble-has-lost-its-data")
def test_refused__while_the_session_may_live(
    server: ZooKeeperServer, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that lags refuses too: as long as the session may live, no other is asked for."""
    pool = make_pool(session_timeout=LONG)
    held = Lock("k", pool).acquire(timeout=120)
    session, door = session_of(pool), Door(server, monkeypatch)
    before = session.id
    door.refuses = lambda _session: True
    server.faults.drop(before)
    wait_until(lambda: len(door.claims) > 5)
    # Told between two attempts; during one the server is named alone.
    wait_until(lambda: "instead of accepting" in session.wire.server)
    door.refuses = lambda _session: False
    wait_until(lambda: session.connected)
    assert set(door.claims) == {before}
    assert session.id == before
    held.check()


@pytest.mark.shows("faults#the-ensemble-has-lost-its-data")
def test_refused__no_quorum(server: ZooKeeperServer, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Servers without a quorum refuse everybody, and keep what they have: the session is taken up again after that."""
    pool = make_pool(session_timeout=1.0)
    lock = Lock("k", pool)
    lock.acquire(timeout=120).release(wait=True)
    session, door = session_of(pool), Door(server, monkeypatch)
    before = session.id
    door.refuses = lambda _session: True

    def lose_quorum() -> None:
        for connection in list(server.connections):
            connection.abort()
        # Without a leader no session ends.
        server.service.sessions.suspend()

    server.call(lose_quorum)
    # Whether they serve at all was asked, and they do not.
    wait_until(lambda: 0 in door.claims)
    door.refuses = lambda _session: False
    wait_until(lambda: session.connected)
    server.call(server.service.sessions.resume)
    assert session.id == before
    lock.acquire(timeout=120).release(wait=True)


@pytest.mark.shows("faults#the-ensemble-has-lost-its-data")
def test_refused__by_some(server: ZooKeeperServer, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Behind one address some servers serve, and others only just start: the session is taken up by one that serves."""
    pool = make_pool(session_timeout=1.0)
    lock = Lock("k", pool)
    lock.acquire(timeout=120).release(wait=True)
    session, door = session_of(pool), Door(server, monkeypatch)
    before = session.id
    server.call(server.service.sessions.suspend)
    # Those that were asked for a new session serve, and those that were asked for the old one do not, three times.
    door.refuses = lambda claimed: claimed == before and door.claims.count(0) < 3
    server.faults.drop(before)
    wait_until(lambda: door.claims.count(0) >= 3)
    wait_until(lambda: session.connected)
    server.call(server.service.sessions.resume)
    assert door.claims.count(0) < MAX_DOUBTS
    assert session.id == before
    lock.acquire(timeout=120).release(wait=True)


@pytest.mark.shows("faults#the-ensemble-has-lost-its-data")
@pytest.mark.parametrize("tells", [True, False])
def test_refused__for_lost_data(
    server: ZooKeeperServer,
    wiped: ZooKeeperServer,
    make_pool: MakePool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    tells: bool,
) -> None:
    """A server that lacks what was seen ends the session at once; one that does not tell, because of authentication."""
    pool = make_pool(session_timeout=1.0)
    for _ in range(20):
        Lock("k", pool).acquire(timeout=120).release(wait=True)
    session, door = session_of(pool), Door(wiped, monkeypatch)
    before = session.id
    refusal = None if tells else Refusals(wiped, monkeypatch).refuse("sync", code=-124, times=MAX_DOUBTS)
    server.close()
    wiped.start()
    wait_until(lambda: session.id not in {None, before} and session.connected)
    if refusal is None:
        assert door.claims.count(0) < MAX_DOUBTS
    else:
        assert refusal.count == MAX_DOUBTS
    reason = DATA_LOST if tells else REFUSED
    assert [record for record in caplog.records if record.getMessage().endswith(f"reason={reason}")]
    Lock("k", pool).acquire(timeout=120).release(wait=True)


@pytest.mark.shows("faults#the-ensemble-has-lost-its-data")
def test_refused__alone(server: ZooKeeperServer, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch) -> None:
    """If servers serve others and refuse this session, a new one is begun, and only one is left at the server."""
    losses = Losses()
    pool = make_pool(session_timeout=1.0)
    held = Lock("k", pool, listener=losses).acquire(timeout=120)
    session, door = session_of(pool), Door(server, monkeypatch)
    before = session.id
    door.refuses = lambda claimed: claimed == before
    server.faults.drop(before)
    wait_until(lambda: session.id != before and session.connected)
    assert session.id not in {None, before}
    assert held.lost
    wait_until(lambda: losses.notified)
    assert "the servers refuse it" in losses.notified[0][1] or "the lease ran out" in losses.notified[0][1]
    wait_until(lambda: [each.id for each in server.sessions()] == [session.id])
    held.release()
    Lock("k", pool).acquire(timeout=120).release(wait=True)


@pytest.mark.shows("faults#the-ensemble-has-lost-its-data")
@pytest.mark.zookeeper
def test_wiped__real_server(own_zookeeper: ZooKeeper, make_pool: MakePool) -> None:
    """A worker that runs on while its server loses all data locks again, within the two timeouts of its settings."""
    pool = make_pool(own_zookeeper.hosts, session_timeout=3.0, connect_timeout=10.0)
    both = pool.options.connection.session_timeout + pool.options.connect_timeout
    for _ in range(20):
        Lock("k", pool).acquire(timeout=120).release(wait=True)
    before = session_of(pool).id
    own_zookeeper.stop()
    shutil.rmtree(own_zookeeper.folder / "data" / "version-2")
    own_zookeeper.start()
    with Lock("k", pool).acquire(timeout=both) as held:
        held.check()
    assert session_of(pool).id != before
