"""Nodes that one server of a real ensemble has alone, and the contenders that wait behind them there."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import pytest
from kazoo.client import KazooClient

from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import EXCLUSIVE, Kind, Rule, name_prefix, new_guid, semaphore
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.threads import waiting_in
from tests.toolbox.timing import wait_until
from tests.toolbox.zookeeper.ensemble import Ensemble
from tests.toolbox.zookeeper.server import ZooKeeper

pytestmark = [pytest.mark.zookeeper, pytest.mark.slow, pytest.mark.xdist_group("strays")]

ROOT = "/strays"
# Of the contenders that wait behind a stray: twenty ticks. They find it after that.
SESSION_TIMEOUT = 4.0
# Longer than an election and several session timeouts, whatever else the machine does.
TIMEOUT = 120.0

# By the lock: what blocks it at one server, and how it is asked for. Other kinds are in `tests/unit/zk/test_strays.py`.
STRAYS: dict[str, tuple[Sequence[Kind], int | None, Rule]] = {
    "exclusive": ([Kind.EXCLUSIVE], None, EXCLUSIVE),
    "semaphore": ([Kind.PERMIT, Kind.PERMIT], 2, semaphore(2)),
    "behind another": ([Kind.EXCLUSIVE], None, EXCLUSIVE),
}


@dataclass
class Split:
    """An ensemble of which one server, ``odd``, has nodes in the queues of all locks that the others do not have."""

    ensemble: Ensemble
    odd: ZooKeeper

    @property
    def hosts(self) -> str:
        """All servers, that one first."""
        return ",".join([self.odd.hosts, *(node.hosts for node in self.ensemble.nodes if node is not self.odd)])


@contextlib.contextmanager
def client_of(node: ZooKeeper) -> Iterator[KazooClient]:
    client = KazooClient(hosts=node.hosts)
    client.start(timeout=60)
    try:
        yield client
    finally:
        client.stop()
        client.close()


def write_alone(node: ZooKeeper) -> None:
    """Run a server of an ensemble without the others for a while, and write nodes that block every lock."""
    settings = node._settings
    node._settings = {key: value for key, value in settings.items() if not key.startswith("server.")}
    node.write_configuration()
    node.launch()
    node.wait_ready(60)
    with client_of(node) as client:
        for lock, (kinds, limit, _rule) in STRAYS.items():
            for number, kind in enumerate(kinds):
                # Before all numbers that the ensemble gives.
                client.create(f"{ROOT}/{lock}/{name_prefix(new_guid(), kind, limit)}{number:010d}")
    node.stop()
    node._settings = settings
    node.write_configuration()


@pytest.fixture(scope="module")
def split() -> Iterator[Split]:
    """Return an ensemble one server of which has strays.

    The server writes alone, by the numbers that the ensemble has not used yet. Before it is back the others use these
    numbers for other transactions. The leader compares numbers, so it sends what comes after them.
    """
    with Ensemble(tick_time=0.2) as ensemble:
        leader, odd = ensemble.leader(), ensemble.followers()[0]
        with client_of(leader) as client:
            for lock in STRAYS:
                client.create(f"{ROOT}/{lock}", makepath=True)
                # The names of the strays come before those that follow.
                for _ in range(3):
                    client.delete(client.create(f"{ROOT}/{lock}/used", sequence=True))
            with client_of(odd) as reader:
                # It has all of it: what it missed now, it would never get.
                reader.sync("/")
            odd.stop()
            write_alone(odd)
            for number in range(100):
                client.create(f"/other-{number}")
            odd.launch()
            odd.wait_ready(60)
        yield Split(ensemble, odd)


def names(node: ZooKeeper, lock: str) -> list[str]:
    with client_of(node) as client:
        found: list[str] = client.get_children(f"{ROOT}/{lock}")
    return sorted(found)


@pytest.fixture
def at_the_odd_one(split: Split, make_pool: MakePool) -> Callable[[], Pool]:
    """Return a function that connects a pool to the server with the strays, as the first of all."""

    def make() -> Pool:
        pool = make_pool(
            split.hosts,
            root=ROOT,
            session_timeout=SESSION_TIMEOUT,
            connect_timeout=20.0,
            extra={"randomize_hosts": False},
        )
        session = pool.session("/")
        wait_until(lambda: session.connected, 60)
        assert session.wire.server == split.odd.hosts
        return pool

    return make


def test_strays__are_there(split: Split) -> None:
    """What the other tests stand on: one server shows nodes that no other has."""
    for lock, (kinds, _limit, _rule) in STRAYS.items():
        shown = names(split.odd, lock)
        assert len(shown) == len(kinds), lock
        for node in split.ensemble.nodes:
            assert node is split.odd or not set(names(node, lock)) & set(shown)


@pytest.mark.shows("faults#a-server-has-nodes-that-the-other-servers-do-not-have")
@pytest.mark.parametrize("lock", ["exclusive", "semaphore"])
def test_wait(split: Split, at_the_odd_one: Callable[[], Pool], caplog: pytest.LogCaptureFixture, lock: str) -> None:
    """A waiter behind nodes that only its own server has goes to another server, and has the lock."""
    pool = at_the_odd_one()
    with Lock(lock, pool, rule=STRAYS[lock][2]).acquire(timeout=TIMEOUT):
        assert any("event=stray_found" in each.message for each in caplog.records)
        assert pool.session("/").wire.server != split.odd.hosts
        # No client has deleted anything.
        assert len(names(split.odd, lock)) > len(STRAYS[lock][0])


@pytest.mark.shows("faults#a-server-has-nodes-that-the-other-servers-do-not-have")
def test_wait__in_the_second_place(split: Split, at_the_odd_one: Callable[[], Pool], make_pool: MakePool) -> None:
    """A waiter watches the node before the last one; if that is the stray, nothing tells it that the last is gone."""
    elsewhere = make_pool(split.ensemble.leader().hosts, root=ROOT, session_timeout=40.0, connect_timeout=20.0)
    held = Lock("behind another", elsewhere).acquire(timeout=60)
    waiter = waiting_in(Lock("behind another", at_the_odd_one()))
    wait_until(lambda: len(names(split.odd, "behind another")) == 3)
    held.release(wait=True)
    waiter.result(TIMEOUT).release()
