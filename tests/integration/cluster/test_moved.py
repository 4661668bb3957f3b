"""Sessions that move to another server of a real ensemble, with what they hold and what they wait for."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest

from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import EXCLUSIVE, READ, WRITE, Rule, semaphore
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.network.tcp_proxy import DOWN, UP, Proxy, requests
from tests.toolbox.threads import Runner, waiting_in
from tests.toolbox.timing import wait_until
from tests.toolbox.zookeeper.ensemble import Ensemble
from tests.toolbox.zookeeper.observer import Observer
from tests.toolbox.zookeeper.server import ZooKeeper

pytestmark = [pytest.mark.zookeeper, pytest.mark.xdist_group("moved")]

TWO = semaphore(2)
CREATES = {14, 15}  # multi and create2
# Longer than an election takes, whatever else the machine does.
SESSION_TIMEOUT = 40.0


@pytest.fixture(scope="module")
def ensemble() -> Iterator[Ensemble]:
    """Return three servers; each test leaves all of them running."""
    with Ensemble(tick_time=0.2) as ensemble:
        yield ensemble


@dataclass
class Way:
    """The way of one pool to the ensemble: by a link to one server, and then to another."""

    proxy: Proxy
    pool: Pool
    at: ZooKeeper

    def lead_to(self, node: ZooKeeper) -> None:
        """Send the next connection to another server."""
        self.at, self.proxy.target = node, node.address


@pytest.fixture
def away(ensemble: Ensemble) -> Iterator[list[ZooKeeper]]:
    """Return a list for the servers that a test kills; they are back afterwards."""
    killed: list[ZooKeeper] = []
    yield killed
    for node in killed:
        node.launch()
    for node in killed:
        node.wait_ready()


def looking(ensemble: Ensemble) -> contextlib.closing[Observer]:
    """Return a look at the tree, before servers are killed or after: kazoo may wait for ever for what it then loses."""
    return contextlib.closing(Observer(ensemble.hosts))


@pytest.fixture
def make_way(make_pool: MakePool) -> Iterator[Callable[[ZooKeeper], Way]]:
    """Return a function that leads a new pool to a server."""
    with contextlib.ExitStack() as links:

        def make(node: ZooKeeper) -> Way:
            proxy = links.enter_context(Proxy(node.address))
            pool = make_pool(proxy.hosts, session_timeout=SESSION_TIMEOUT, connect_timeout=20.0)
            # While there is a way.
            links.callback(pool.close)
            wait_until(lambda: pool.session("/").connected)
            return Way(proxy, pool, node)

        yield make


def cut_off(way: Way, ensemble: Ensemble, away: list[ZooKeeper]) -> None:
    """Break the link to a follower that lives on, and lead to the other follower."""
    way.lead_to(next(node for node in ensemble.followers() if node is not way.at))
    way.proxy.cut()


def follower_killed(way: Way, ensemble: Ensemble, away: list[ZooKeeper]) -> None:
    """Kill the follower, and lead to the leader."""
    killed = way.at
    way.lead_to(ensemble.leader())
    away.append(killed)
    killed.kill()


def leader_killed(way: Way, ensemble: Ensemble, away: list[ZooKeeper]) -> None:
    """Kill the leader, so that the followers end all connections, and lead to the other of them."""
    killed = ensemble.leader()
    way.lead_to(next(node for node in ensemble.followers() if node is not way.at))
    away.append(killed)
    killed.kill()


KINDS: dict[str, tuple[list[str] | str, Rule, Rule]] = {
    # What is held or waited for, and what keeps it waiting.
    "several": (["a", "b"], EXCLUSIVE, EXCLUSIVE),
    "read": ("r", READ, WRITE),
    "write": ("w", WRITE, READ),
    "lease": ("s", TWO, TWO),
}


class Stage:
    """One session that holds a lock of every kind and waits for one of every kind, and one that is in its way."""

    def __init__(self, pool: Pool, others: Pool, observer: Observer) -> None:
        self.pool, self.others = pool, others
        self.held: dict[str, Held] = {}
        self.blockers: dict[str, list[Held]] = {}
        self.waiters: dict[str, Runner] = {}
        self.followers: dict[str, Runner] = {}
        for kind, (key, rule, blocking) in KINDS.items():
            self.held[kind] = self._lock("held", key, rule, pool).acquire(timeout=120)
            self.blockers[kind] = [
                Runner(self._lock("awaited", key, blocking, others).acquire).result(20)
                for _ in range(blocking.limit or 1)
            ]
            awaited = self._lock("awaited", key, rule, pool)
            self.waiters[kind] = waiting_in(awaited)
            for path in awaited.paths:
                observer.wait_count(path, (blocking.limit or 1) + 1)
        for kind, (key, _rule, blocking) in KINDS.items():
            follower = self._lock("held", key, blocking if kind != "lease" else EXCLUSIVE, others)
            self.followers[kind] = waiting_in(follower)
            for path in follower.paths:
                observer.wait_count(path, 2)
        self.tree = self.look(observer)

    def _lock(self, part: str, key: list[str] | str, rule: Rule, pool: Pool) -> Lock:
        several = [f"{part}-{each}" for each in key] if isinstance(key, list) else f"{part}-{key}"
        return Lock(several, pool, rule=rule)

    def look(self, observer: Observer) -> dict[str, list[tuple[str, int]]]:
        """Return every node that there is, with its owner."""
        client, root = observer.client, self.pool.options.root
        client.sync(root)
        return {
            parent: [
                (name, client.get(f"{root}/{parent}/{name}")[1].ephemeralOwner)
                for name in observer.children(f"{root}/{parent}")
            ]
            for parent in sorted(client.get_children(root))
        }

    def play_to_the_end(self, number: int | None) -> None:
        """Let all contenders acquire, one after the other; waiters hold the node with which they waited."""
        for kind, waiter in self.waiters.items():
            first, *more = self.blockers[kind]
            first.release()
            granted = waiter.result(20)
            for blocker in more:
                blocker.release()
            assert (granted.node.rpartition("/")[2], number) in self.tree[granted.lock.paths[0].rpartition("/")[2]]
            granted.check()
            granted.release()
        for kind, held in self.held.items():
            assert self.followers[kind].running
            held.release()
            later = self.followers[kind].result(20)
            assert later.token > held.token
            later.release(wait=True)


@pytest.mark.shows("faults#a-session-moves-to-another-server-of-the-ensemble")
@pytest.mark.parametrize("move", [cut_off, follower_killed, leader_killed])
def test_session_moved__every_kind(
    ensemble: Ensemble,
    make_way: Callable[[ZooKeeper], Way],
    make_pool: MakePool,
    away: list[ZooKeeper],
    move: Callable[[Way, Ensemble, list[ZooKeeper]], None],
) -> None:
    """A session takes all that it holds, and its place in all queues, to another server, and goes on from there."""
    way = make_way(ensemble.followers()[0])
    others = make_pool(ensemble.hosts, session_timeout=SESSION_TIMEOUT, connect_timeout=20.0)
    with looking(ensemble) as observer:
        stage = Stage(way.pool, others, observer)
    session = way.pool.sessions()[0]
    number, epoch = session.id, session.epoch
    tokens = {kind: held.tokens for kind, held in stage.held.items()}
    move(way, ensemble, away)
    wait_until(lambda: session.epoch > epoch and session.connected, 30)
    assert session.id == number
    assert f"sid=0x{number:x}" in way.at.command("cons")
    with looking(ensemble) as observer:
        assert stage.look(observer) == stage.tree
        for kind, held in stage.held.items():
            held.check()
            assert held.tokens == tokens[kind]
            assert stage.waiters[kind].running
            assert stage.followers[kind].running
        stage.play_to_the_end(number)
        wait_until(lambda: not any(stage.look(observer).values()))


@pytest.mark.shows("faults#the-reply-to-a-create-is-lost", "faults#a-session-moves-to-another-server-of-the-ensemble")
@pytest.mark.parametrize("key", ["k", ["k", "l"]], ids=["one", "several"])
def test_create_reply__lost_with_its_server(
    ensemble: Ensemble,
    make_way: Callable[[ZooKeeper], Way],
    away: list[ZooKeeper],
    key: str | list[str],
) -> None:
    """Nodes whose creation was never confirmed are found again on another server, which may lag behind."""
    first, second = ensemble.followers()
    way = make_way(first)
    lock = Lock(key, way.pool)
    lock.acquire(timeout=120).release(wait=True)

    def swallow(direction: str, chunk: bytes) -> bool:
        if direction == UP and CREATES & set(requests(chunk)):
            way.proxy.pause(DOWN)
        return False

    way.proxy.on_chunk = swallow
    waiter = waiting_in(lock)
    with looking(ensemble) as observer:
        made = [observer.wait_count(path, 1) for path in lock.paths]
    way.proxy.on_chunk = None
    way.lead_to(second)
    away.append(first)
    way.proxy.refusing = True
    first.kill()
    way.proxy.cut()
    way.proxy.resume(drop=True)
    way.proxy.refusing = False
    held = waiter.result(30)
    assert f"sid=0x{way.pool.sessions()[0].id:x}" in second.command("cons")
    held.check()
    with looking(ensemble) as observer:
        # Its server may know less than that of the lock.
        observer.client.sync("/")
        assert [observer.children(path) for path in lock.paths] == made
        assert held.node == f"{lock.paths[0]}/{made[0][0]}"
        held.release(wait=True)
        observer.client.sync("/")
        assert [observer.children(path) for path in lock.paths] == [[]] * len(made)


@pytest.mark.timely("what is left of a lease when its server freezes is enough for another server")
def test_frozen_server__lock_is_kept(ensemble: Ensemble, make_pool: MakePool) -> None:
    """A lock is kept when the server behind it freezes: the session moves to another one in time."""
    follower, other = ensemble.followers()
    hosts = f"{follower.hosts},{other.hosts},{ensemble.leader().hosts}"
    pool = make_pool(hosts, session_timeout=6.0, connect_timeout=3.0, extra={"randomize_hosts": False})
    held = Lock("k", pool).acquire(timeout=60)
    session = pool.sessions()[0]
    assert session.wire.server == follower.hosts
    before = session.id
    follower.pause()
    try:
        wait_until(lambda: session.epoch and session.connected, 10)
        held.check()
        assert session.id == before
        assert session.wire.server != follower.hosts
        held.release(wait=True)
    finally:
        follower.resume()
    follower.wait_ready()
