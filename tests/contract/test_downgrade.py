"""A writer of Curator that becomes a reader: its read node has the sequence number of its write node (CURATOR-621)."""

from __future__ import annotations

import itertools
import uuid
from collections.abc import Iterator

import pytest
from kazoo.client import KazooClient

from django_zklock.zk.lock import Lock
from django_zklock.zk.ops import snapshots
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import EXCLUSIVE, READ, WRITE, Rule, semaphore
from tests.toolbox.curator.clients import Curator
from tests.toolbox.curator.installation import curator_version
from tests.toolbox.locks.contenders import Contenders, settle
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.threads import waiting_in
from tests.toolbox.zookeeper.any_server import Server
from tests.toolbox.zookeeper.observer import Observer

# The first release whose downgrade keeps the sequence number.
SINCE = (5, 5)
# What may not hold while Java reads.
KEPT_OUT = [EXCLUSIVE, WRITE, semaphore(1), semaphore(3)]
IDS = [f"{rule.kind.value}-{rule.limit or ''}" for rule in KEPT_OUT]


class OfCurator:
    """A client that takes the write lock at ``path``, then the read lock as well, by Curator's own recipe."""

    def __init__(self, program: Curator, hosts: str, path: str) -> None:
        self._client = program.connect(hosts)
        self._path = path

    def write(self) -> None:
        assert self._client.ask(f"acquire write {self._path}") == "acquired"

    def read(self) -> None:
        assert self._client.ask(f"acquire read {self._path}") == "acquired"

    def stop_writing(self) -> None:
        assert self._client.ask(f"release write {self._path}") == "released"

    def stop_reading(self) -> None:
        assert self._client.ask(f"release read {self._path}") == "released"

    def close(self) -> None:
        self._client.close()
        self._client.wait_closed()


class SameNodes:
    """The nodes that Curator 5.5 and later create for it, created by kazoo."""

    def __init__(self, hosts: str, path: str) -> None:
        self._client = KazooClient(hosts=hosts)
        self._client.start(timeout=20)
        self._path = path

    def write(self) -> None:
        stem = f"{self._path}/_c_{uuid.uuid4()}-__WRIT__"
        self._write_node = self._client.create(stem, ephemeral=True, sequence=True, makepath=True)

    def read(self) -> None:
        number = self._write_node.rpartition("__WRIT__")[2]
        self._read_node = self._client.create(f"{self._path}/_c_{uuid.uuid4()}-__READ__{number}", ephemeral=True)

    def stop_writing(self) -> None:
        self._client.delete(self._write_node)

    def stop_reading(self) -> None:
        self._client.delete(self._read_node)

    def close(self) -> None:
        self._client.stop()
        self._client.close()


Downgrading = OfCurator | SameNodes


@pytest.fixture(params=[pytest.param("curator", marks=pytest.mark.once), "same nodes"])
def java(request: pytest.FixtureRequest, server: Server, pool: Pool) -> Iterator[Downgrading]:
    """Return a client that can downgrade its lock at the path of ``k``."""
    client: Downgrading
    if request.param == "same nodes":
        client = SameNodes(server.hosts, pool.path("k"))
    elif curator_version() >= SINCE:
        client = OfCurator(request.getfixturevalue("curator"), server.hosts, pool.path("k"))
    else:
        pytest.skip("this Curator is older; `make matrix WHAT=zookeeper` fetches a newer one")
    yield client
    client.close()


@pytest.fixture
def contenders(observer: Observer, make_pool: MakePool) -> Contenders:
    return Contenders(observer, make_pool)


@pytest.mark.shows("faults#a-writer-of-curator-becomes-a-reader", "interoperate#what-is-tested")
@pytest.mark.parametrize("rule", KEPT_OUT, ids=IDS)
def test_downgrade__seen_with_the_writer(java: Downgrading, contenders: Contenders, rule: Rule) -> None:
    """The waiter next behind the writer, and one that finds both nodes, are not granted before the reader is gone.

    Although its node is the younger one.
    """
    java.write()
    first = contenders.join(rule)
    settle(first.pool)
    java.read()
    second = contenders.join(WRITE)
    settle(second.pool)
    java.stop_writing()
    contenders.expect()
    java.stop_reading()
    contenders.expect(first)
    first.leave()
    contenders.expect(second)
    second.leave()


@pytest.mark.shows("faults#a-writer-of-curator-becomes-a-reader")
def test_downgrade__reader_after_the_writer(java: Downgrading, contenders: Contenders) -> None:
    """The reader keeps out as long as it reads: also where it is found after the writer is gone."""
    java.write()
    writer, reader = contenders.join_all(WRITE, READ)
    java.read()
    java.stop_writing()
    contenders.expect()
    assert Lock("k", writer.pool, rule=WRITE).try_acquire() is None
    java.stop_reading()
    contenders.expect(writer)
    writer.leave()
    contenders.expect(reader)
    reader.leave()


def test_downgrade__our_reader(java: Downgrading, contenders: Contenders) -> None:
    """A reader of ours behind the writer reads together with the one that the writer becomes."""
    java.write()
    reader = contenders.join(READ)
    settle(reader.pool)
    java.read()
    contenders.expect()
    java.stop_writing()
    contenders.expect(reader)
    reader.leave()
    java.stop_reading()


@pytest.mark.shows("faults#a-writer-of-curator-becomes-a-reader")
def test_downgrade__several_keys(java: Downgrading, make_pool: MakePool, observer: Observer) -> None:
    """Several keys are not held while one of them is read."""
    java.write()
    ours = make_pool()
    lock = Lock(["j", "k"], ours)
    waiting = waiting_in(lock)
    observer.wait_count(ours.path("k"), 2)
    settle(ours)
    java.read()
    java.stop_writing()
    settle(ours)
    assert waiting.running
    java.stop_reading()
    waiting.result().release(wait=True)


def test_downgrade__try(java: Downgrading, pool: Pool) -> None:
    """The lock cannot be had at once while it is written, while it is written and read, or while it is read."""
    for step in (java.write, java.read, java.stop_writing):
        step()
        assert Lock("k", pool).try_acquire() is None
    java.stop_reading()
    held = Lock("k", pool).try_acquire()
    assert held is not None
    held.release()


@pytest.mark.parametrize("again", [1, 3])
def test_downgrade__shown(java: Downgrading, contenders: Contenders, pool: Pool, again: int) -> None:
    """The queue is shown in its order: the writer, the reader that it is too, and the waiters; both of Java's hold."""
    java.write()
    waiters = contenders.join_all(*itertools.repeat(EXCLUSIVE, again))
    java.read()
    snapshot = snapshots.one_lock(pool, "k", timeout=10)
    assert [(place.kind, place.held) for place in snapshot.entries] == [
        ("write", True),
        ("read", True),
        *[("exclusive", False)] * again,
    ]
    assert (snapshot.holder_count, snapshot.waiter_count) == (2, again)
    java.stop_writing()
    snapshot = snapshots.one_lock(pool, "k", timeout=10)
    assert [(place.kind, place.held) for place in snapshot.entries] == [("read", True), *[("exclusive", False)] * again]
    java.stop_reading()
    for waiter in waiters:
        waiter.leave()
