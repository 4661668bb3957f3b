"""What locks promise, on each kind of server: every test of this folder runs on all of them, and is the same."""

from __future__ import annotations

import asyncio
import contextlib
import inspect
from collections.abc import Callable, Iterator

import pytest

from django_zklock.testing import ZooKeeperServer
from tests.toolbox.locks.contenders import Contenders
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.zookeeper.any_server import Server
from tests.toolbox.zookeeper.observer import Observer
from tests.toolbox.zookeeper.server import ZooKeeper

KINDS: dict[str, Callable[[], contextlib.AbstractContextManager[Server]]] = {
    "zookeeper": ZooKeeper,
    "testserver": ZooKeeperServer,
}


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    """Run a test that is a coroutine function as the main task of an event loop."""
    if not inspect.iscoroutinefunction(pyfuncitem.obj):
        return None
    names = inspect.signature(pyfuncitem.obj).parameters
    asyncio.run(pyfuncitem.obj(**{name: pyfuncitem.funcargs[name] for name in names}))
    return True


@pytest.fixture(
    params=[
        pytest.param("zookeeper", marks=pytest.mark.zookeeper),
        pytest.param("testserver", marks=pytest.mark.twin),
    ]
)
def kind_of_server(request: pytest.FixtureRequest) -> str:
    """Say which server a test's locks are on: one after the other."""
    kind: str = request.param
    return kind


@pytest.fixture
def own_server(kind_of_server: str) -> Iterator[Server]:
    """Return a server that no other test talks to, and that leaves empty queues alone."""
    with KINDS[kind_of_server]() as server:
        yield server


@pytest.fixture(params=["one session", "many sessions", "full sessions"])
def contenders(request: pytest.FixtureRequest, observer: Observer, make_pool: MakePool) -> Contenders:
    """Return a queue whose contenders share a session, as threads of a process do, and two where each has its own.

    The last one is of one process, where each session has room for one contender.
    """
    if request.param == "many sessions":
        return Contenders(observer, make_pool)
    pool = make_pool(budget=1) if request.param == "full sessions" else make_pool()
    return Contenders(observer, lambda: pool)
