"""Java, kazoo and ours, many at one lock: nothing that is done under it gets lost."""

from __future__ import annotations

import contextlib

import pytest
from kazoo.client import KazooClient

from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import EXCLUSIVE, WRITE, Rule
from tests.contract.other_recipes import visible_kazoo_lock
from tests.toolbox.curator.clients import Curator
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.threads import Runner
from tests.toolbox.zookeeper.any_server import Server
from tests.toolbox.zookeeper.observer import Observer

ROUNDS = (67, 67, 66)
# Seconds for one turn, and for all of them.
TIMEOUT, LONG = 60, 90
# What Curator does is the same whatever the versions here are.
pytestmark = pytest.mark.once


def increment(client: KazooClient, counter: str) -> None:
    """Read a number and write the next one, with nothing else to keep others out."""
    value = int(client.get(counter)[0])
    client.set(counter, str(value + 1).encode())


def count_with_kazoo(hosts: str, kind: str, path: str, counter: str, rounds: int) -> None:
    client = KazooClient(hosts=hosts)
    client.start(timeout=20)
    try:
        lock = visible_kazoo_lock(client, kind, path)
        for _ in range(rounds):
            assert lock.acquire(timeout=TIMEOUT)
            increment(client, counter)
            lock.release()
    finally:
        client.stop()
        client.close()


def count_with_ours(hosts: str, rule: Rule, pool: Pool, counter: str, rounds: int) -> list[int]:
    client = KazooClient(hosts=hosts)
    client.start(timeout=20)
    tokens = []
    try:
        for _ in range(rounds):
            with Lock("k", pool, rule=rule).acquire(timeout=TIMEOUT) as held:
                increment(client, counter)
                tokens.append(held.token)
    finally:
        client.stop()
        client.close()
    return tokens


@pytest.mark.parametrize(("kind", "rule"), [("mutex", EXCLUSIVE), ("write", WRITE)], ids=["mutex", "write"])
def test_many(server: Server, curator: Curator, make_pool: MakePool, observer: Observer, kind: str, rule: Rule) -> None:
    """Three threads of Java, three clients of kazoo and three of ours add up to 600, each by its own recipe."""
    path = make_pool().path("k")
    counter = f"{make_pool().options.root}-counter"
    observer.client.create(counter, b"0")
    # A container could be reaped between kazoo's look for it and its create, for which kazoo has no answer.
    observer.client.ensure_path(path)
    with contextlib.ExitStack() as stack:
        java = [curator.connect(server.hosts) for _ in ROUNDS]
        for client in java:
            stack.callback(client.wait_closed)
            stack.callback(client.close)
        for client, rounds in zip(java, ROUNDS, strict=True):
            client.send(f"count {kind} {path} {counter} {rounds}")
        python = [Runner(lambda n=n: count_with_kazoo(server.hosts, kind, path, counter, n)) for n in ROUNDS]  # type: ignore[misc]
        ours = [Runner(lambda n=n: count_with_ours(server.hosts, rule, make_pool(), counter, n)) for n in ROUNDS]  # type: ignore[misc]
        for runner in python + ours:
            runner.result(LONG)
        assert [client.answers.get(LONG) for client in java] == [f"= counted {rounds}" for rounds in ROUNDS]
    assert int(observer.client.get(counter)[0]) == 3 * sum(ROUNDS) == 600
    tokens = [runner.result() for runner in ours]
    assert all(each == sorted(each) for each in tokens)
    assert len({token for each in tokens for token in each}) == sum(ROUNDS)
    observer.wait_empty(path)
