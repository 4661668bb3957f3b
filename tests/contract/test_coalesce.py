"""`on_conflict="coalesce"`: one runs, at most one waits, and the rest skip, for what waits will run after them."""

from __future__ import annotations

import asyncio
import itertools
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

from django_zklock import LockTimeout, ZkLockError, zk_locked
from django_zklock.exceptions import AlreadyAwaited
from django_zklock.zk.lock import Lock
from django_zklock.zk.rules import EXCLUSIVE, READ, WRITE, Rule, semaphore
from tests.support.any_server import Server
from tests.support.django_layer import Ensemble, Recorder, Stranger
from tests.support.tcp_proxy import UP, Proxy, requests
from tests.support.threads import Runner
from tests.support.tree_reader import MakePool, Onlooker

pytest_plugins = ["tests.support.settings_fixtures", "tests.support.slow_deadlines"]

MULTI = 14


def sole(make_pool: MakePool, rule: Rule = EXCLUSIVE) -> Lock:
    return Lock("k", make_pool(), rule=rule, sole_waiter=True)


# The line.


@pytest.mark.parametrize(
    ("rule", "room"),
    [(EXCLUSIVE, 1), (WRITE, 1), (semaphore(1), 1), (semaphore(3), 3)],
    ids=["exclusive", "write", "1", "3"],
)
def test_line__one_waits(make_pool: MakePool, onlooker: Onlooker, rule: Rule, room: int) -> None:
    """As many hold as may, one waits, and the others are told who holds and leave no node."""
    holding = [sole(make_pool, rule).acquire(timeout=5) for _ in range(room)]
    waiting = Runner(partial(sole(make_pool, rule).acquire, 20))
    path = holding[0].lock.paths[0]
    onlooker.wait_count(path, room + 1)
    for _ in range(3):
        with pytest.raises(AlreadyAwaited, match=r"'k' is taken, and another caller waits for it already; held by pid"):
            sole(make_pool, rule).acquire(timeout=10)
    onlooker.wait_count(path, room + 1)
    assert waiting.running
    holding.pop().release()
    later = waiting.result()
    # Now it holds, and there is room for one who waits.
    another = Runner(partial(sole(make_pool, rule).acquire, 20))
    onlooker.wait_count(path, room + 1)
    later.release()
    another.result().release()


def test_line__others_who_wait_are_of_another_kind(make_pool: MakePool, onlooker: Onlooker) -> None:
    """Only who wants the same counts: a reader waits although a writer does, and one more reader does not."""
    with sole(make_pool).acquire(timeout=5) as held:
        writer = Runner(partial(sole(make_pool, WRITE).acquire, 20))
        onlooker.wait_count(held.lock.paths[0], 2)
        reader = Runner(partial(sole(make_pool, READ).acquire, 20))
        onlooker.wait_count(held.lock.paths[0], 3)
        with pytest.raises(AlreadyAwaited):
            sole(make_pool, READ).acquire(timeout=10)
    writer.result().release()
    reader.result().release()


@pytest.mark.parametrize(("rule", "room"), [(EXCLUSIVE, 1), (semaphore(2), 2)], ids=["exclusive", "two leases"])
def test_line__who_waits_gets_in_meanwhile(
    server: Server, make_pool: MakePool, onlooker: Onlooker, rule: Rule, room: int
) -> None:
    """Who is about to leave stays if the one that waited begins to run just then: that is too early to run for both."""
    with Proxy(server.address) as proxy:
        holding = [sole(make_pool, rule).acquire(timeout=5) for _ in range(room)]
        second = Runner(partial(sole(make_pool, rule).acquire, 20))
        path = holding[0].lock.paths[0]
        onlooker.wait_count(path, room + 1)
        late = Lock("k", make_pool(proxy.hosts), rule=rule, sole_waiter=True)
        asked = threading.Event()

        def watch(direction: str, chunk: bytes) -> bool:
            if direction == UP and not asked.is_set() and MULTI in requests(chunk):
                asked.set()
                onlooker.client.delete(holding[-1].node)
            return False

        proxy.on_chunk = watch
        waiting = Runner(partial(late.acquire, 20))
        held = second.result()
        assert asked.is_set()
        onlooker.wait_count(path, room + 1)
        assert waiting.running
        held.release()
        waiting.result().release()


def test_line__reply_lost(server: Server, make_pool: MakePool, onlooker: Onlooker) -> None:
    """If nobody knows whether it has left, it looks again, and leaves no node."""
    with Proxy(server.address) as proxy:
        first, second = Lock("k", make_pool()).acquire(timeout=5), Runner(partial(Lock("k", make_pool()).acquire, 20))
        path = first.lock.paths[0]
        onlooker.wait_count(path, 2)
        late = Lock("k", make_pool(proxy.hosts), sole_waiter=True)
        asked = threading.Event()

        def watch(direction: str, chunk: bytes) -> bool:
            if direction == UP and not asked.is_set() and MULTI in requests(chunk):
                asked.set()
                proxy.pause("down")
            return False

        proxy.on_chunk = watch
        waiting = Runner(partial(late.acquire, 20))
        assert asked.wait(10)
        onlooker.wait_count(path, 2)
        proxy.resume(drop=True)
        proxy.cut()
        with pytest.raises(AlreadyAwaited):
            waiting.result()
        onlooker.wait_count(path, 2)
    first.release()
    second.result().release()


def test_line__may_not_ask(make_pool: MakePool, outsider: KazooClient, onlooker: Onlooker) -> None:
    """If the server does not say whether a node is there, nobody can say who waits."""
    with Lock("k", make_pool()).acquire(timeout=5) as held:
        path = held.lock.paths[0]
        outsider.set_acls(held.node, [make_acl("world", "anyone", delete=True)])
        outsider.create(f"{path}/_c_{uuid.uuid4()}-lock-", ephemeral=True, sequence=True)
        with pytest.raises(ZkLockError, match="refused: NoAuthError"):
            sole(make_pool).acquire(timeout=10)
        onlooker.wait_count(path, 2)


def test_several_keys__refused(make_pool: MakePool) -> None:
    """Of several keys nobody could say who waits for which."""
    with pytest.raises(TypeError, match="for one key only, got a, b"):
        Lock(["a", "b"], make_pool(), sole_waiter=True)
    with pytest.raises(TypeError, match="for one key"):
        zk_locked(["a", "b"], on_conflict="coalesce")


# Functions.


@pytest.fixture(params=["sync", "async"])
def make(request: pytest.FixtureRequest, ensemble: Ensemble) -> Callable[..., Callable[..., Any]]:
    """Return a function that decorates, plain or async; what it gives is called as a plain one."""

    def make(body: Callable[[], Any], **options: Any) -> Callable[..., Any]:
        if request.param == "sync":

            @zk_locked("k", on_conflict="coalesce", **options)
            def work() -> Any:
                return body()

            return work

        @zk_locked("k", on_conflict="coalesce", **options)
        async def awork() -> Any:
            return body()

        return lambda: asyncio.run(awork())

    return make


def test_call__rest_skips(
    make: Callable[..., Callable[..., Any]], stranger: Stranger, ensemble: Ensemble, recorder: Recorder
) -> None:
    """The first call waits for who holds, and the others skip, say why, and send the signal."""
    held = stranger.take("k")
    work = make(lambda: "done")
    waiting = Runner(work)
    ensemble.wait_count("k", 2)
    for _ in range(3):
        result = Runner(work).result()
        assert (result["zklock"], result["key"], result["reason"]) == ("skipped", "k", "coalesced")
        assert result["holder"].startswith("label the stranger")
    assert recorder.facts("skipped")["reason"] == "coalesced"
    held.release()
    assert waiting.result() == "done"


def test_call__times_out(make: Callable[..., Callable[..., Any]], stranger: Stranger, ensemble: Ensemble) -> None:
    """Who has waited in vain has nobody to run for it, and is told so."""
    stranger.take("k")
    with pytest.raises(LockTimeout):
        make(lambda: "done", timeout=0.5)()
    ensemble.wait_count("k", 1)


def test_call__crowd(make: Callable[..., Callable[..., Any]]) -> None:
    """Whatever happens at once, after each call there is a run that began after it, and most calls skip."""
    clock = itertools.count()
    begun: list[int] = []
    skipped: list[int] = []

    def body() -> str:
        begun.append(next(clock))
        time.sleep(0.002)
        return "done"

    work = make(body)

    def call_again() -> None:
        for _ in range(15):
            now = next(clock)
            if work() != "done":
                skipped.append(now)

    for runner in [Runner(call_again) for _ in range(8)]:
        runner.result(60)
    assert len(begun) + len(skipped) == 120
    assert skipped
    assert all(now < begun[-1] for now in skipped)
