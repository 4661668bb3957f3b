"""What a server refuses for now is asked again until it is done; what can never be done is an error at once."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable
from functools import partial

import pytest
from kazoo.exceptions import EXCEPTIONS

from django_zklock.exceptions import AlreadyAwaited, ZkLockError, ZooKeeperUnavailable
from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.background import TimerHandle
from django_zklock.zk.listener import LockValue
from django_zklock.zk.lock import Lock
from django_zklock.zk.ops import search
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import semaphore
from django_zklock.zk.wire.requests import EncodingError, error_of, is_temporary
from tests.integration.refusing_server import NO_AUTH, QUOTA_EXCEEDED, THROTTLED, Refusals
from tests.toolbox.locks.pools import MakePool, is_idle, session_of, timers_of
from tests.toolbox.protocol.error_codes import CODES_OF_ZOOKEEPER, UNKNOWN
from tests.toolbox.threads import Runner, waiting_in
from tests.toolbox.timing import scaled, wait_until

ENDING = [code for code, meaning in CODES_OF_ZOOKEEPER.items() if meaning.kind in {"connection", "session"}]


def end(server: ZooKeeperServer, pool: Pool, lock: LockValue) -> None:
    """See that nothing is left."""
    wait_until(lambda: is_idle(pool))
    assert [path for each in lock.paths for path in server.paths(each)] == []


# All that end the connection or the session, and of the others one of each kind. Where a node is missing that must be
# there, a queue is made again first.
@pytest.mark.shows("faults#a-server-demands-an-identity-or-answers-any-other-error")
@pytest.mark.parametrize("code", [-1, -8, -101, UNKNOWN, *ENDING])
def test_code(server: ZooKeeperServer, make_pool: MakePool, refusals: Refusals, code: int) -> None:
    """What a server answers to the creation of a node reaches the error; the request is repeated only if that helps."""
    meaning, lock = CODES_OF_ZOOKEEPER[code], Lock("k", make_pool(session_timeout=30))
    refusal = refusals.refuse("create2", code=code, times=math.inf)
    caller = Runner(lambda: lock.acquire(timeout=3))
    if meaning.kind in {"passing", "connection"}:
        refusal.wait_for(3)
    error = caller.outcome()
    assert meaning.name in str(error)
    if meaning.kind == "final":
        assert type(error) is ZkLockError
        assert f"refused: {meaning.name} at {lock.paths[0]}" in str(error)
    else:
        assert isinstance(error, ZooKeeperUnavailable)
    if meaning.kind == "connection":
        assert f"(the connection ends at create2 or getChildren: the answer to create2 is {meaning.name})" in str(error)
    if meaning.kind == "session":
        assert refusal.count == 1


def test_code__all() -> None:
    """The table has every error that kazoo knows, except the codes that only mark the parts of a transaction."""
    assert set(CODES_OF_ZOOKEEPER) - {UNKNOWN} == {code for code in EXCEPTIONS if code < 0}


def test_is_temporary() -> None:
    """What passes is repeated, also after an error in a part of a transaction; our own errors of encoding are final."""
    for code, meaning in CODES_OF_ZOOKEEPER.items():
        is_repeated = meaning.kind in {"passing", "connection"}
        assert is_temporary(error_of(code)) == is_repeated, meaning
        assert meaning.kind == "session" or repr(error_of(code)) == meaning.name
    assert not is_temporary(EncodingError())
    assert not is_temporary(ValueError())


# One key.


@pytest.mark.shows("faults#a-server-refuses-a-request-temporarily")
@pytest.mark.parametrize("done", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize("opcode", ["create", "createContainer", "create2", "getChildren", "delete"])
def test_first_use(server: ZooKeeperServer, pool: Pool, refusals: Refusals, opcode: str, done: bool) -> None:
    """Whatever is refused during the first use of a lock, done or not, delays it, and leaves nothing."""
    lock = Lock("k", pool)
    refusal = refusals.refuse(opcode, done=done)
    held = lock.acquire(timeout=120)
    assert server.paths(lock.paths[0]) == [held.node]
    held.check()
    held.release(wait=True)
    assert server.paths(lock.paths[0]) == []
    # What was done although it was refused need not be asked again, if it was only to be there. The container is asked
    # for twice in any case: before and after what is above it.
    assert refusal.count == (1 if done and opcode == "create" else 2)
    end(server, pool, lock)


@pytest.mark.shows("faults#a-server-refuses-a-request-temporarily")
@pytest.mark.parametrize("times", range(1, 5))
@pytest.mark.parametrize("opcode", ["getData", "getChildren"])
def test_waiting(
    server: ZooKeeperServer,
    pool: Pool,
    make_pool: MakePool,
    refusals: Refusals,
    opcode: str,
    times: int,
) -> None:
    """A waiter that is refused the queue, its own node or its predecessor keeps its place and is granted in turn."""
    held = Lock("k", make_pool()).acquire(timeout=120)
    Lock("elsewhere", pool).acquire(timeout=120).release(wait=True)
    refusal = refusals.refuse(opcode, times=times, session=session_of(pool))
    waiter = waiting_in(Lock("k", pool))
    refusal.wait_for(times)
    wait_until(lambda: len(server.paths(held.lock.paths[0])) == 2)
    place = max(server.paths(held.lock.paths[0]), key=lambda path: path[-10:])
    held.release()
    with waiter.result(30) as later:
        assert later.node == place
        assert server.paths(held.lock.paths[0]) == [place]


def test_try(server: ZooKeeperServer, pool: Pool, refusals: Refusals) -> None:
    """A try whose look is refused tries again, within the time that ZooKeeper has for an answer."""
    lock = Lock("k", pool)
    lock.acquire(timeout=120).release(wait=True)
    refusal = refusals.refuse("getChildren")
    held = lock.try_acquire()
    assert held is not None
    assert refusal.count == 2
    held.release(wait=True)
    end(server, pool, lock)


@pytest.mark.shows("faults#a-server-refuses-a-request-temporarily")
def test_deadline(server: ZooKeeperServer, pool: Pool, refusals: Refusals) -> None:
    """When everything is refused, the caller's deadline ends the wait, the error says why, and no node is left."""
    lock = Lock("k", pool)
    lock.acquire(timeout=120).release(wait=True)
    refusal = refusals.refuse("create2", "getChildren", times=math.inf, done=True)
    with pytest.raises(ZooKeeperUnavailable, match=r"lock 'k': ZooKeeper at .* has refused for .* ThrottledOpError"):
        lock.acquire(timeout=scaled(1))
    assert len(server.paths(lock.paths[0])) == 1
    refusal.end()
    end(server, pool, lock)


def test_no_deadline(pool: Pool, make_pool: MakePool, refusals: Refusals) -> None:
    """Without a timeout the wait for a first answer is bounded by the connect timeout."""
    pool = make_pool(connect_timeout=1.0)
    refusals.refuse("create2", times=math.inf)
    with pytest.raises(ZooKeeperUnavailable, match="ThrottledOpError"):
        Lock("k", pool).acquire()


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        (QUOTA_EXCEEDED, "raise the quota of ROOT or of a node above it"),
        (THROTTLED, "`manage.py zklock doctor` examines it"),
    ],
)
def test_advice(make_pool: MakePool, refusals: Refusals, code: int, advice: str) -> None:
    """The error says what helps against the refusal, and does not ask whether the settings are right."""
    refusals.refuse("create2", code=code, times=math.inf)
    with pytest.raises(ZooKeeperUnavailable, match=rf"has refused for [\d.]+ s: \w+Error\(\); {advice}") as caught:
        Lock("k", make_pool()).acquire(timeout=scaled(1))
    assert "HOSTS" not in str(caught.value)


# Release.


@pytest.mark.shows("faults#a-server-refuses-a-request-temporarily")
@pytest.mark.parametrize("done", [False, True], ids=["not done", "done"])
def test_release__waits(server: ZooKeeperServer, make_pool: MakePool, refusals: Refusals, done: bool) -> None:
    """A release that waits does not return before the delete has succeeded."""
    pool = make_pool(connect_timeout=60)
    held = Lock("k", pool).acquire(timeout=120)
    refusal = refusals.refuse("delete", times=math.inf, done=done)
    release = Runner(lambda: held.release(wait=True))
    refusal.wait_for(3)
    assert release.running
    refusal.end()
    release.result(30)
    end(server, pool, held.lock)


@pytest.mark.shows("guarantees#a-release-never-fails")
@pytest.mark.parametrize("code", [THROTTLED, NO_AUTH])
def test_release__unconfirmed(
    server: ZooKeeperServer,
    make_pool: MakePool,
    refusals: Refusals,
    caplog: pytest.LogCaptureFixture,
    code: int,
) -> None:
    """It returns unconfirmed after its bound only, and says so in the log."""
    pool = make_pool(connect_timeout=0.5)
    held = Lock("k", pool).acquire(timeout=120)
    refusal = refusals.refuse("delete", code=code, times=math.inf)
    with caplog.at_level(logging.WARNING):
        held.release(wait=True)
    assert server.paths(held.lock.paths[0]) == [held.node]
    assert [record for record in caplog.records if "event=release_unconfirmed" in record.getMessage()]
    refusal.end()
    wait_until(lambda: is_idle(pool))
    # Pursued as long as it can succeed.
    assert server.paths(held.lock.paths[0]) == ([held.node] if code == NO_AUTH else [])


def test_release__many_share_the_pause(
    server: ZooKeeperServer, pool: Pool, refusals: Refusals, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many deletes are refused, they wait for the same pause, and its end is the only timer."""
    holds = [Lock(f"k{number}", pool).acquire(timeout=120) for number in range(50)]
    session = pool.sessions()[0]
    timers: list[float] = []
    call_later = timers_of(session).call_later

    def counted(delay: float, call: Callable[[], None]) -> TimerHandle:
        # Heartbeats have timers too.
        if isinstance(call, partial) and session._end_pause in call.args:
            timers.append(delay)
        return call_later(delay, call)

    monkeypatch.setattr(session._timer_thread, "call_later", counted)
    refusal = refusals.refuse("delete", times=50)
    for held in holds:
        held.release()
    refusal.wait_for(50)
    wait_until(lambda: is_idle(pool))
    assert not any(server.paths(held.lock.paths[0]) for held in holds)
    # Those that arrive at the server one by one, while it answers the first of them, meet a pause each at most.
    assert 1 <= len(timers) < 25


# After a reply to a create that was lost.


@pytest.mark.shows("faults#a-server-refuses-a-request-temporarily")
@pytest.mark.parametrize("opcode", ["multi", "getChildren", "getData"])
def test_search(server: ZooKeeperServer, pool: Pool, refusals: Refusals, opcode: str) -> None:
    """If the search for a node whose creation was not answered is refused, it goes on, and finds that node.

    Nothing is concluded from a list before the server has caught up.
    """
    lock = Lock("k", pool)
    lock.acquire(timeout=120).release(wait=True)
    with server.faults.lag_reads(zxids=10_000):
        cut = server.faults.cut_reply("create2")
        with server.faults.refuse():
            waiter = waiting_in(lock)
            cut.wait()
            refusal = refusals.refuse(opcode)
        with waiter.result(30) as held:
            assert refusal.count == 2
            assert server.paths(lock.paths[0]) == [held.node]
        end(server, pool, lock)


@pytest.mark.parametrize("left", [False, True], ids=["waiting", "left"])
@pytest.mark.parametrize(("opcode", "times"), [("getData", 1), ("getChildren", math.inf)], ids=["node", "list"])
def test_search__forbidden(
    server: ZooKeeperServer, pool: Pool, refusals: Refusals, opcode: str, times: float, left: bool
) -> None:
    """An attempt that may not search, waiting or given up, ends; a node with our id that we may not read goes."""
    lock = Lock("k", pool)
    lock.acquire(timeout=120).release(wait=True)
    cut = server.faults.cut_reply("create2")
    with server.faults.refuse():
        waiter = Runner(lambda: lock.acquire(timeout=scaled(1 if left else 30)))
        cut.wait()
        refusal = refusals.refuse(opcode, code=NO_AUTH, times=times)
        if left:
            assert isinstance(waiter.outcome(30), ZooKeeperUnavailable)
    error = waiter.outcome(30)
    assert isinstance(error, ZkLockError)
    wait_until(lambda: is_idle(pool))
    if opcode == "getData":
        assert left or "NoAuthError" in str(error)
        assert (refusal.count, server.paths(lock.paths[0])) == (1, [])


# Other kinds.


@pytest.mark.parametrize("done", [False, True], ids=["not done", "done"])
def test_semaphore__telling_the_next(
    server: ZooKeeperServer, make_pool: MakePool, refusals: Refusals, done: bool
) -> None:
    """A lease that comes in tells the one behind it, also if that is refused at first: no contender waits in vain."""
    first = [Lock("k", make_pool(), rule=semaphore(2)).acquire(timeout=120) for _ in range(2)]
    path = first[0].lock.paths[0]
    waiters = []
    for number in range(3, 6):
        waiters.append(waiting_in(Lock("k", make_pool(), rule=semaphore(2))))
        wait_until(lambda number=number: len(server.paths(path)) == number)  # type: ignore[misc]
    refusal = refusals.refuse("setData", times=2, done=done)
    for held in first:
        held.release()
    for waiter in waiters:
        waiter.result(30).release(wait=True)
    assert refusal.count == 2


@pytest.mark.parametrize("done", [False, True], ids=["not done", "done"])
def test_coalesced(server: ZooKeeperServer, make_pool: MakePool, refusals: Refusals, done: bool) -> None:
    """A call leaves for one that waits to run the same, also if its leave is refused at first."""
    held = Lock("k", make_pool()).acquire(timeout=120)
    waiter = Runner(lambda: Lock("k", make_pool(), coalesces="work").acquire(None))
    wait_until(lambda: len(server.paths(held.lock.paths[0])) == 2)
    pool = make_pool()
    refusal = refusals.refuse("multi", done=done)
    with pytest.raises(AlreadyAwaited):
        Lock("k", pool, coalesces="work").acquire(timeout=120)
    assert refusal.count == 2
    wait_until(lambda: is_idle(pool))
    assert len(server.paths(held.lock.paths[0])) == 2
    held.release()
    waiter.result(30).release(wait=True)


@pytest.mark.shows("faults#a-server-refuses-a-request-temporarily")
@pytest.mark.parametrize("done", [False, True], ids=["not done", "done"])
@pytest.mark.parametrize("opcode", ["create", "createContainer", "multi", "getChildren", "getData", "delete"])
def test_several(server: ZooKeeperServer, pool: Pool, refusals: Refusals, opcode: str, done: bool) -> None:
    """The same for several keys: the lock is granted, with one node for each key, and nothing is left."""
    lock = Lock(["a", "b", "c"], pool)
    cause = None
    if opcode == "getData":
        lock.acquire(timeout=120).release(wait=True)
        # So that the nodes are searched for; nothing else reads them.
        cause = refusals.refuse("multi", times=1, done=True)
    refusal = refusals.refuse(opcode, done=done)
    held = lock.acquire(timeout=120)
    assert [len(server.paths(path)) for path in lock.paths] == [1, 1, 1]
    held.check()
    held.release(wait=True)
    assert refusal.count >= 1
    assert cause is None or cause.count == 1
    end(server, pool, lock)


# What is no lock.


def test_survey(server: ZooKeeperServer, pool: Pool, refusals: Refusals) -> None:
    """Reading what is there goes on after a refusal."""
    held = Lock("k", pool).acquire(timeout=120)
    refusal = refusals.refuse("getChildren", "multiRead", "getData", times=3)
    (snapshot,) = search.find(pool, timeout=30)
    assert snapshot.key == "k"
    assert refusal.count == 3
    held.release(wait=True)


def test_survey__deadline(pool: Pool, refusals: Refusals) -> None:
    """If the refusals do not end, its own time does, and the error says what was refused."""
    refusals.refuse("getChildren", times=math.inf)
    with pytest.raises(ZooKeeperUnavailable, match=r"has refused for [\d.]+ s: ThrottledOpError"):
        search.find(pool, timeout=scaled(1))


# An answer that says that the connection is not good.


@pytest.mark.parametrize("code", [-4, -112, -118])
def test_connection_error(server: ZooKeeperServer, pool: Pool, refusals: Refusals, code: int) -> None:
    """A server that answers that the session or the connection is gone is left, and the next one is asked."""
    lock = Lock("k", pool)
    held = lock.acquire(timeout=120)
    refusal = refusals.refuse("delete", code=code)
    held.release(wait=True)
    assert refusal.count == 2
    end(server, pool, lock)
