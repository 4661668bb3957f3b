"""Pools, locks and an onlooker for the tests of the recipe."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from services.zookeeper import ZooKeeper

from django_zklock.zk import holds
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions
from tests.zk.onlooker import Onlooker

_numbers = itertools.count(1)


@pytest.fixture(autouse=True)
def no_holds() -> Iterator[None]:
    """Keep what a failed test holds out of the next one."""
    yield
    holds.stack().clear()


@pytest.fixture
def root() -> str:
    """Give a part of the tree that no other test uses."""
    return f"/zk-{next(_numbers)}"


@pytest.fixture
def make_pool(request: pytest.FixtureRequest, root: str) -> Iterator[Callable[..., Pool]]:
    """Give a function that makes pools, of the shared server unless told otherwise, closed at the end."""
    pools: list[Pool] = []

    def make(
        hosts: str | None = None,
        *,
        session_timeout: float = 6.0,
        connect_timeout: float = 5.0,
        strict: bool = False,
        size: int = 1,
        root: str = root,
        **connection: Any,
    ) -> Pool:
        if hosts is None:
            hosts = request.getfixturevalue("zookeeper").hosts
        assert hosts is not None
        pool = Pool(
            f"pool{len(pools)}",
            PoolOptions(
                connection=ConnectionOptions(hosts=hosts, session_timeout=session_timeout, **connection),
                root=root,
                connect_timeout=connect_timeout,
                strict=strict,
                size=size,
            ),
        )
        pools.append(pool)
        return pool

    yield make
    for pool in pools:
        pool.close(1.0)


@pytest.fixture
def pool(make_pool: Callable[..., Pool]) -> Pool:
    """Give a pool of the shared server."""
    return make_pool()


@pytest.fixture(scope="session")
def shared_onlooker(zookeeper: ZooKeeper) -> Iterator[Onlooker]:
    onlooker = Onlooker(zookeeper.hosts)
    yield onlooker
    onlooker.close()


@pytest.fixture
def onlooker(shared_onlooker: Onlooker) -> Onlooker:
    """Give a look at the tree of the shared server."""
    return shared_onlooker


@pytest.fixture
def own_zookeeper() -> Iterator[ZooKeeper]:
    """Give a server that the test may stop, pause and restart."""
    with ZooKeeper(tick_time=0.2, min_session_timeout=0.8) as server:
        yield server
        server.resume()


@pytest.fixture
def own_onlooker(own_zookeeper: ZooKeeper) -> Iterator[Onlooker]:
    """Give a look at the tree of the test's own server."""
    onlooker = Onlooker(own_zookeeper.hosts)
    yield onlooker
    own_zookeeper.resume()
    onlooker.close()
