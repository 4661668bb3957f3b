"""A real server that restarts, or forgets a session, while two hundred stand in one queue."""

from __future__ import annotations

import contextlib
import threading

import pytest

from django_zklock.zk.contender import Contender, State
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from tests.toolbox.locks.contenders import node_of
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.threads import Runner
from tests.toolbox.timing import scaled, wait_until
from tests.toolbox.zookeeper.observer import Observer
from tests.toolbox.zookeeper.server import ZooKeeper

pytestmark = pytest.mark.zookeeper

WAITERS, POOLS = 200, 4
MIDDLE = 70
# Longer than a server takes to come back, whatever else the machine does.
SESSION_TIMEOUT = 40.0
# For all of them together, on a busy machine.
TIMEOUT = scaled(60)


class Queue:
    """Two hundred threads that want one lock, each once, and what they see when they have it."""

    def __init__(self, make_pool: MakePool, hosts: str) -> None:
        self.hosts = hosts
        self.pools = [make_pool(hosts, session_timeout=SESSION_TIMEOUT) for _ in range(POOLS)]
        self.path = Lock("k", self.pools[0]).paths[0]
        self.holds: list[Held] = []
        # The holder in the middle holds until that is set.
        self.go_on = threading.Event()
        self._alone = threading.Lock()
        self.runners = [Runner(lambda number=number: self._enter(number)) for number in range(WAITERS)]  # type: ignore[misc]

    def _enter(self, number: int) -> None:
        with Lock("k", self.pools[number % POOLS]).acquire(timeout=TIMEOUT) as held:
            assert self._alone.acquire(blocking=False), "two at once"
            self.holds.append(held)
            assert len(self.holds) != MIDDLE or self.go_on.wait(TIMEOUT)
            held.check()
            self._alone.release()

    def looking(self) -> contextlib.closing[Observer]:
        """Return a look at the queue that no restart has come between."""
        return contextlib.closing(Observer(self.hosts))

    def stand(self, pool: Pool | None = None) -> list[str]:
        """Wait until all, or those of one session, wait where the server has them, and name their nodes in order."""
        pools = self.pools if pool is None else [pool]
        expected = WAITERS // POOLS * len(pools)

        def found(observer: Observer) -> list[str]:
            nodes = [
                node_of(listener)
                for each in pools
                for listener in list(each.sessions()[0].listeners)
                if isinstance(listener, Contender) and listener.state is State.WAITING and node_of(listener) is not None
            ]
            here = observer.children(self.path)
            return [name for name in here if name in nodes] if len(nodes) == expected else []

        with self.looking() as observer:
            what = f"{expected} wait"
            return list(wait_until(lambda: len(names := found(observer)) == expected and names, TIMEOUT, what))

    def reach_the_middle(self) -> None:
        """Wait until that one holds."""
        wait_until(lambda: len(self.holds) == MIDDLE, TIMEOUT, f"the one in the middle holds after {len(self.holds)}")

    def end(self, order: list[str]) -> None:
        """See that all came, in that order and with growing tokens, and that nothing is left."""
        for runner in self.runners:
            runner.result(TIMEOUT)
        assert [held.node.rpartition("/")[2] for held in self.holds] == order
        tokens = [held.token for held in self.holds]
        assert tokens == sorted(set(tokens))
        with self.looking() as observer:
            observer.wait_empty(self.path)
        wait_until(lambda: not any(session.listeners for pool in self.pools for session in pool.sessions()))


@pytest.mark.shows("faults#a-server-restarts")
@pytest.mark.slow
def test_server_restarted__two_hundred_waiters(own_zookeeper: ZooKeeper, make_pool: MakePool) -> None:
    """Restarts while they wait, and while they take turns, cost no waiter its place: all hold in their order, alone."""
    held = Lock("k", make_pool(own_zookeeper.hosts, session_timeout=SESSION_TIMEOUT)).acquire(timeout=60)
    queue = Queue(make_pool, own_zookeeper.hosts)
    order = queue.stand()
    own_zookeeper.restart()
    assert queue.stand() == order
    held.check()
    held.release()
    queue.reach_the_middle()
    own_zookeeper.kill()
    # Let go while the server is away: the node is deleted, and the next one told, after it has come back.
    queue.go_on.set()
    own_zookeeper.start()
    queue.end(order)


@pytest.mark.shows("faults#a-session-ends")
def test_session_ended__fifty_of_two_hundred_waiters(
    own_zookeeper: ZooKeeper, make_pool: MakePool, own_observer: Observer
) -> None:
    """Waiters whose session ends all come back, behind those whose session lives, and everybody has its turn."""
    held = Lock("k", make_pool(own_zookeeper.hosts, session_timeout=SESSION_TIMEOUT)).acquire(timeout=60)
    queue = Queue(make_pool, own_zookeeper.hosts)
    first = queue.stand()
    unlucky = queue.pools[1]
    before = queue.stand(unlucky)
    own_observer.end_session(unlucky)
    after = wait_until(lambda: not set(names := queue.stand(unlucky)) & set(before) and names, TIMEOUT)
    order = queue.stand()
    assert order == [name for name in first if name not in before] + after
    held.release()
    queue.go_on.set()
    queue.end(order)
