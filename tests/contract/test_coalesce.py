"""`on_conflict="coalesce"`: one runs, at most one waits, and the rest skip, for what waits will run after them."""

from __future__ import annotations

import asyncio
import itertools
import logging
import threading
import time
import uuid
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.security import make_acl

from django_zklock import ZkLockError, zk_locked
from django_zklock.exceptions import AlreadyAwaited
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import EXCLUSIVE, READ, WRITE, Kind, Rule, name_prefix, new_guid, semaphore
from tests.toolbox.django.layer import Ensemble, OtherClient, Recorder
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.network.tcp_proxy import UP, Proxy, requests
from tests.toolbox.threads import Runner
from tests.toolbox.timing import wait_until
from tests.toolbox.zookeeper.any_server import Server
from tests.toolbox.zookeeper.observer import Observer

pytest_plugins = ["tests.toolbox.django.settings_fixtures"]

MULTI = 14


def coalescing(pool: Pool, rule: Rule = EXCLUSIVE, *, runs: str = "work", task: str = "") -> Lock:
    """Return the lock of one call, which runs ``runs``, in the task of that id if there is one."""
    work = Work(kind="task", name="t", id=task) if task else None
    return Lock("k", pool, rule=rule, coalesces=runs, work=lambda: work)


def waiting(lock: Lock) -> Runner:
    """Wait for the lock without a timeout, in a thread."""
    return Runner(partial(lock.acquire, None))


# The queue.


@pytest.mark.parametrize(
    ("rule", "room"),
    [(EXCLUSIVE, 1), (WRITE, 1), (semaphore(1), 1), (semaphore(3), 3)],
    ids=["exclusive", "write", "1", "3"],
)
def test_queue__one_waits(make_pool: MakePool, observer: Observer, rule: Rule, room: int) -> None:
    """As many calls hold as may, one waits, and the others are told the holder and leave no node."""
    holding = [coalescing(make_pool(), rule).acquire(timeout=60) for _ in range(room)]
    second = waiting(coalescing(make_pool(), rule))
    path = holding[0].lock.paths[0]
    observer.wait_count(path, room + 1)
    for _ in range(3):
        with pytest.raises(
            AlreadyAwaited, match=r"'k' is taken, and another call of the function waits for it already; held by pid"
        ):
            coalescing(make_pool(), rule).acquire(timeout=120)
    observer.wait_count(path, room + 1)
    assert second.running
    holding.pop().release()
    later = second.result()
    # Now it holds, and there is room for one that waits.
    another = waiting(coalescing(make_pool(), rule))
    observer.wait_count(path, room + 1)
    later.release()
    another.result().release()


def test_queue__many(make_pool: MakePool, observer: Observer) -> None:
    """Of many that come at once while one runs, one waits and all others leave."""
    pools = [make_pool() for _ in range(3)]
    with coalescing(pools[0]).acquire(timeout=60) as held:
        runners = [waiting(coalescing(pools[number % 3])) for number in range(12)]
        wait_until(lambda: sum(each.running for each in runners) == 1)
        (last,) = (each for each in runners if each.running)
        assert all(isinstance(each.error, AlreadyAwaited) for each in runners if each is not last)
        observer.wait_count(held.lock.paths[0], 2)
    last.result().release()


@pytest.mark.shows("faults#a-call-was-skipped-for-a-waiter-that-ends")
@pytest.mark.parametrize("other", ["another function", "a block", "a timeout", "an older version", "Curator"])
def test_queue__who_waits_does_something_else(
    make_pool: MakePool, kazoo_client: KazooClient, observer: Observer, other: str
) -> None:
    """A call waits behind all that will not run its function, or may give up before that, and is skipped for none."""
    first = Lock("k", make_pool()).acquire(timeout=60)
    path = first.lock.paths[0]
    second: Runner | str
    if other == "another function":
        second = waiting(coalescing(make_pool(), runs="other"))
    elif other == "a block":
        second = waiting(Lock("k", make_pool()))
    elif other == "a timeout":
        second = Runner(partial(coalescing(make_pool()).acquire, 60))
    else:
        guid = new_guid() if other == "an older version" else str(uuid.uuid4())
        second = kazoo_client.create(f"{path}/{name_prefix(guid, Kind.EXCLUSIVE)}", ephemeral=True, sequence=True)
    observer.wait_count(path, 2)
    third = waiting(coalescing(make_pool()))
    observer.wait_count(path, 3)
    # Behind others it counts as well.
    with pytest.raises(AlreadyAwaited):
        coalescing(make_pool()).acquire(timeout=120)
    observer.wait_count(path, 3)
    first.release()
    if isinstance(second, str):
        kazoo_client.delete(second)
    else:
        second.result().release()
    third.result().release()


@pytest.mark.shows("faults#a-call-was-skipped-for-a-waiter-that-ends")
def test_queue__own_earlier_delivery(make_pool: MakePool, observer: Observer) -> None:
    """A task that is delivered again waits behind its first delivery: that process may be dead, and never run it."""
    with Lock("k", make_pool()).acquire(timeout=60) as held:
        path = held.lock.paths[0]
        first = waiting(coalescing(make_pool(), task="1"))
        observer.wait_count(path, 2)
        again = waiting(coalescing(make_pool(), task="1"))
        observer.wait_count(path, 3)
        with pytest.raises(AlreadyAwaited):
            coalescing(make_pool(), task="2").acquire(timeout=120)
    first.result().release()
    again.result().release()


@pytest.mark.parametrize(
    ("holds", "waits", "rule"),
    [(EXCLUSIVE, WRITE, READ), (semaphore(1), semaphore(1), semaphore(2))],
    ids=["of another kind", "with another limit"],
)
def test_queue__who_waits_is_different(
    make_pool: MakePool, observer: Observer, holds: Rule, waits: Rule, rule: Rule
) -> None:
    """Only a waiter of the same kind and limit counts: another one is not what the call would be."""
    with coalescing(make_pool(), holds).acquire(timeout=60) as held:
        other = waiting(coalescing(make_pool(), waits))
        observer.wait_count(held.lock.paths[0], 2)
        same = waiting(coalescing(make_pool(), rule))
        observer.wait_count(held.lock.paths[0], 3)
        with pytest.raises(AlreadyAwaited):
            coalescing(make_pool(), rule).acquire(timeout=120)
    other.result().release()
    same.result().release()


@pytest.mark.shows("faults#a-call-was-skipped-for-a-waiter-that-ends")
@pytest.mark.parametrize("event", ["gets in", "leaves"])
@pytest.mark.parametrize(("rule", "room"), [(EXCLUSIVE, 1), (semaphore(2), 2)], ids=["exclusive", "two leases"])
def test_queue__who_waits_is_gone_meanwhile(
    server: Server, make_pool: MakePool, observer: Observer, rule: Rule, room: int, event: str
) -> None:
    """A call about to leave stays if the one that waited does no more: it runs, too early for both, or never will."""
    with Proxy(server.address) as proxy:
        holding = [coalescing(make_pool(), rule).acquire(timeout=60) for _ in range(room)]
        path = holding[0].lock.paths[0]
        second = waiting(coalescing(make_pool(), rule))
        (*_, behind) = observer.wait_count(path, room + 1)
        late = coalescing(make_pool(proxy.hosts), rule)
        asked = threading.Event()

        def watch(direction: str, chunk: bytes) -> bool:
            if direction == UP and not asked.is_set() and MULTI in requests(chunk):
                asked.set()
                if event == "gets in":
                    observer.client.delete(holding[-1].node)
                else:
                    # It joins again, behind the late one.
                    observer.client.delete(f"{path}/{behind}")
            return False

        proxy.on_chunk = watch
        third = waiting(late)
        if event == "gets in":
            held = second.result()
            assert asked.is_set()
            observer.wait_count(path, room + 1)
            assert third.running
            held.release()
        else:
            with pytest.raises(AlreadyAwaited):
                second.result()
            assert asked.is_set()
            assert third.running
        for each in holding:
            each.release()
        third.result().release()


def test_queue__reply_lost(server: Server, make_pool: MakePool, observer: Observer) -> None:
    """If it is not known whether a call has left, the call looks again, and leaves no node."""
    with Proxy(server.address) as proxy:
        first, second = coalescing(make_pool()).acquire(timeout=60), waiting(coalescing(make_pool()))
        path = first.lock.paths[0]
        observer.wait_count(path, 2)
        late = coalescing(make_pool(proxy.hosts))
        asked = threading.Event()

        def watch(direction: str, chunk: bytes) -> bool:
            if direction == UP and not asked.is_set() and MULTI in requests(chunk):
                asked.set()
                proxy.pause("down")
            return False

        proxy.on_chunk = watch
        third = Runner(partial(late.acquire, 20))
        assert asked.wait(10)
        observer.wait_count(path, 2)
        proxy.resume(drop=True)
        proxy.cut()
        with pytest.raises(AlreadyAwaited):
            third.result()
        observer.wait_count(path, 2)
    first.release()
    second.result().release()


def test_queue__may_not_ask(make_pool: MakePool, kazoo_client: KazooClient, observer: Observer) -> None:
    """If the server does not say whether a node is there, it cannot be said which calls wait."""
    with Lock("k", make_pool()).acquire(timeout=60) as held:
        path = held.lock.paths[0]
        kazoo_client.set_acls(held.node, [make_acl("world", "anyone", delete=True)])
        waiter = coalescing(held.lock.pool)._new_contender(wait=True, notify=lambda: None, stays=True)
        guid = new_guid(waiter.mark)
        kazoo_client.create(f"{path}/{name_prefix(guid, Kind.EXCLUSIVE)}", ephemeral=True, sequence=True)
        with pytest.raises(ZkLockError, match="refused: NoAuthError"):
            coalescing(make_pool()).acquire(timeout=120)
        observer.wait_count(path, 2)


def test_several_keys__refused(make_pool: MakePool) -> None:
    """Of several keys it could not be said which call waits for which."""
    with pytest.raises(TypeError, match="for one key only, got a, b"):
        Lock(["a", "b"], make_pool(), coalesces="work")
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
    make: Callable[..., Callable[..., Any]],
    other_client: OtherClient,
    ensemble: Ensemble,
    recorder: Recorder,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The first call waits for the holder, and the others skip, say why, send the signal, and log no warning."""
    caplog.set_level(logging.INFO, "django_zklock.locked_call")
    held = other_client.take("k")
    work = make(lambda: "done")
    waiting = Runner(work)
    ensemble.wait_count("k", 2)
    for _ in range(3):
        result = Runner(work).result()
        assert (result["zklock"], result["key"], result["reason"]) == ("skipped", "k", "coalesced")
        assert result["holder"].startswith("label the other client")
    assert recorder.facts("skipped")["reason"] == "coalesced"
    assert [each.levelname for each in caplog.records if "event=skipped" in each.getMessage()] == ["INFO"] * 3
    held.release()
    assert waiting.result() == "done"


def test_call__another_function(other_client: OtherClient, ensemble: Ensemble) -> None:
    """A call waits behind a call of another function, whatever the policy of that one is."""

    @zk_locked("k", on_conflict="coalesce")
    def one() -> str:
        return "one"

    @zk_locked("k", on_conflict="coalesce")
    def two() -> str:
        return "two"

    held = other_client.take("k")
    first = Runner(one)
    ensemble.wait_count("k", 2)
    second = Runner(two)
    ensemble.wait_count("k", 3)
    for call in (one, two):
        result: Any = call()
        assert result["reason"] == "coalesced"
    held.release()
    assert (first.result(), second.result()) == ("one", "two")


def test_call__many(make: Callable[..., Callable[..., Any]]) -> None:
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
