"""Faults at exactly the byte or the request where they hurt most, which no real server can be made to have."""

from __future__ import annotations

import contextlib
import threading
import uuid
from collections.abc import Callable, Iterator

import pytest

from django_zklock.exceptions import LockTimeout, ZkLockError, ZooKeeperUnavailable
from django_zklock.testing import Opcode, ZooKeeperServer
from django_zklock.testing.server import acl
from django_zklock.testing.server.tree import Change, Created, Deleted
from django_zklock.zk.acquire import Acquisition
from django_zklock.zk.contender import MAX_ENSURES, State
from django_zklock.zk.listener import LockValue
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import Kind, name_prefix, new_guid, parse_name, semaphore
from django_zklock.zk.waiting import monotonic
from tests.integration.faults.byte_cuts import HEADER, LANES, LENGTH, TEXT, sweep
from tests.integration.faults.server_hooks import Moments
from tests.toolbox.locks.contenders import is_watching
from tests.toolbox.locks.pools import MakePool, is_idle, session_of
from tests.toolbox.network.tcp_proxy import DOWN, UP, Proxy
from tests.toolbox.threads import Runner, waiting_in
from tests.toolbox.timing import GRACE, scaled, wait_until
from tests.toolbox.zookeeper.observer import Observer

pytest_plugins = ["tests.toolbox.slow_deadlines"]

STAT = 68
# In front of each result of a transaction, and at the end of all: kind, whether it is the end, and error.
RESULT = 4 + 1 + 4
END_OF_NUMBERS = 2**31 - 1


@pytest.fixture
def moments(server: ZooKeeperServer, monkeypatch: pytest.MonkeyPatch) -> Moments:
    return Moments(server, monkeypatch)


def warm(pool: Pool) -> Lock:
    """Return a lock whose session and queue are there."""
    lock = Lock("k", pool)
    lock.acquire(timeout=60).release(wait=True)
    return lock


def change(server: ZooKeeperServer, *changes: Change) -> None:
    server.call(lambda: server.service.commit(*changes))


def delete_all(server: ZooKeeperServer, path: str) -> Callable[[], int]:
    """Return what deletes a queue and all nodes in it, to be called in the server's thread."""

    def delete() -> int:
        names = sorted(server.service.newest.tree.descendants(path))
        return server.service.commit(*map(Deleted, [*names, path]))

    return delete


# Replies.


KEYS = pytest.mark.parametrize("keys", [1, 2], ids=["one key", "several keys"])
LAGGING = pytest.mark.parametrize("lagging", [False, True], ids=["same-server", "lagging-follower"])


def keys_of(count: int, name: object) -> list[str]:
    """Return the keys of a lock of ``count`` keys; those of several are made by one transaction."""
    return [f"{place}-{name}" for place in ("left", "right")[:count]]


def nodes_of(server: ZooKeeperServer, lock: LockValue) -> list[str]:
    """Return the nodes in all the queues of a lock."""
    return [node for path in lock.paths for node in server.paths(path)]


def numbers_of(server: ZooKeeperServer, lock: LockValue) -> list[int]:
    """Return the numbers of these nodes: each node that is made in a queue takes the next one."""
    return [int(node[-10:]) for node in nodes_of(server, lock)]


@pytest.mark.shows("guarantees#at-most-one-holder-whose-lease-runs", "faults#the-reply-to-a-create-is-lost")
@KEYS
@LAGGING
def test_create_reply__cut_at_every_byte(
    server: ZooKeeperServer, make_pool: MakePool, lagging: bool, keys: int
) -> None:
    """Wherever the reply is cut, the one node in each queue that was made is found and held, and no other is made."""
    with Lock(keys_of(keys, 0), make_pool()) as held:
        results = [RESULT * (keys > 1) + TEXT + len(node) for node in nodes_of(server, held.lock)]
    frame = LENGTH + HEADER + sum(results) + (RESULT if keys > 1 else STAT)

    def visit(pool: Pool, size: int) -> None:
        lock = Lock(keys_of(keys, size % LANES), pool)
        with lock.acquire(timeout=120) as held:
            before = numbers_of(server, lock)
            held.release(wait=True)
        session = session_of(pool)
        cut = server.faults.cut_reply("multi" if keys > 1 else "create2", after_bytes=size, session=session)
        with lock.acquire(timeout=120) as held:
            cut.wait()
            made = nodes_of(server, lock)
            assert (len(made), made[0]) == (keys, held.node)
            assert {server.owner(node) for node in made} == {session} == {session_of(pool)}
            assert numbers_of(server, lock) == [number + 1 for number in before]
            held.check()
            held.release(wait=True)
        assert nodes_of(server, lock) == []

    # A follower so late that it knows nothing of all this, but for what its client has seen.
    with server.faults.lag_reads(zxids=10_000) if lagging else contextlib.nullcontext():
        sweep(make_pool, frame, visit)


def creates(server: ZooKeeperServer, session: int) -> int:
    """Count the nodes that a session has asked for."""
    return sum(request.session == session and request.opcode is Opcode.CREATE2 for request in server.requests.all())


@pytest.mark.shows("faults#another-message-is-lost")
@pytest.mark.parametrize("opcode", ["create", "createContainer", "create2", "getChildren", "delete", "connect"])
@pytest.mark.parametrize("size", [0, LENGTH + HEADER])
def test_first_use__cut(server: ZooKeeperServer, pool: Pool, opcode: str, size: int) -> None:
    """Any other reply that is cut during the first use of a lock delays it, and leaves nothing."""
    lock = Lock("k", pool)
    cut = server.faults.cut_reply(opcode, after_bytes=size)
    held = lock.acquire(timeout=120)
    held.check()
    assert server.paths(lock.paths[0]) == [held.node]
    held.release(wait=True)
    cut.wait()
    assert server.paths(lock.paths[0]) == []
    assert is_idle(pool)


@pytest.mark.shows("faults#the-reply-to-a-create-is-lost")
@KEYS
@LAGGING
def test_create_reply__cut_and_expired(server: ZooKeeperServer, pool: Pool, lagging: bool, keys: int) -> None:
    """When the session ends as well, none of its nodes is taken for one of the new session."""
    lock = Lock(keys_of(keys, 0), pool)
    lock.acquire(timeout=60).release(wait=True)
    before = session_of(pool)
    with server.faults.lag_reads(zxids=5) if lagging else contextlib.nullcontext():
        cut = server.faults.cut_reply("multi" if keys > 1 else "create2")
        with server.faults.refuse():
            waiter = waiting_in(lock)
            cut.wait()
            first = nodes_of(server, lock)
            assert [server.owner(node) for node in first] == [before] * keys
            server.faults.expire(before)
        with waiter.result() as held:
            later = nodes_of(server, lock)
            assert later[0] == held.node
            assert not set(first) & set(later)
            assert [server.owner(node) for node in later] == [session_of(pool)] * keys
            assert session_of(pool) != before


@pytest.mark.parametrize("opcode", ["multi", "getChildren", "getData"])
def test_create_reply__cut_and_recovery_cut(server: ZooKeeperServer, pool: Pool, opcode: str) -> None:
    """A waiter cut off again while it looks for its node finds it, at a follower that knows as little as it may.

    The first is the transaction that changes nothing, by which the server catches up; then the list, and the node.
    """
    lock = warm(pool)
    session, created = session_of(pool), creates(server, session_of(pool))
    with server.faults.lag_reads(zxids=10_000):
        cut = server.faults.cut_reply("create2")
        with server.faults.refuse():
            waiter = waiting_in(lock)
            cut.wait()
            again = server.faults.cut_reply(opcode)
        with waiter.result() as held:
            again.wait()
            assert server.paths(lock.paths[0]) == [held.node]
            assert server.owner(held.node) == session == session_of(pool)
            assert creates(server, session) == created + 1
            held.release(wait=True)
        assert server.paths(lock.paths[0]) == []


@pytest.mark.shows("faults#the-reply-to-a-create-is-lost")
@pytest.mark.parametrize("owner", ["nobody", "somebody else"])
def test_create_reply__cut_and_not_ours(server: ZooKeeperServer, pool: Pool, make_pool: MakePool, owner: str) -> None:
    """A node with our id that is not of our session is removed and not taken for ours."""
    lock, other = warm(pool), make_pool()
    warm(other)
    cut = server.faults.cut_reply("create2")
    with server.faults.refuse():
        waiter = waiting_in(lock)
        cut.wait()
        (first,) = server.paths(lock.paths[0])
        forged = Created(first, b"", acl.OPEN, 0 if owner == "nobody" else session_of(other))
        change(server, Deleted(first), forged)
    with waiter.result() as held:
        assert held.node != first
        assert server.paths(lock.paths[0]) == [held.node]
        assert server.owner(held.node) == session_of(pool)


@pytest.mark.shows("faults#another-message-is-lost")
def test_delete_reply__cut_at_every_byte(server: ZooKeeperServer, make_pool: MakePool) -> None:
    """Wherever the reply to the delete of a release is cut, the node is gone and the release is confirmed."""

    def visit(pool: Pool, size: int) -> None:
        held = Lock(f"line-{size}", pool).acquire(timeout=120)
        cut = server.faults.cut_reply("delete", after_bytes=size, session=session_of(pool))
        held.release(wait=True)
        cut.wait()
        assert server.paths(held.lock.paths[0]) == []

    sweep(make_pool, LENGTH + HEADER, visit)


@pytest.mark.shows("guarantees#no-way-out-leaves-a-node")
@pytest.mark.usefixtures("unhurried")
def test_delete_reply__cut_after_a_timeout(server: ZooKeeperServer, make_pool: MakePool) -> None:
    """A waiter that gives up ends in time and leaves no node, although the reply to its delete is cut."""
    pool = make_pool()
    lock = warm(pool)
    with Lock("k", make_pool()) as held:
        cut = server.faults.cut_reply("delete", session=session_of(pool))
        with pytest.raises(LockTimeout):
            lock.acquire(timeout=0.5)
        cut.wait()
        wait_until(lambda: is_idle(pool))
        assert server.paths(lock.paths[0]) == [held.node]


@pytest.mark.shows("faults#another-message-is-lost")
def test_delete__lost(server: ZooKeeperServer, pool: Pool) -> None:
    """A delete that has not arrived when the connection breaks is sent again after the reconnect."""
    lock = warm(pool)
    held = lock.acquire(timeout=60)
    with server.faults.black_hole("requests", session=session_of(pool)) as hole:
        held.release()
        hole.requests.wait_for("delete", path=held.node)
        server.faults.drop(session_of(pool))
        assert server.paths(lock.paths[0]) == [held.node]
    wait_until(lambda: server.paths(lock.paths[0]) == [])
    wait_until(lambda: is_idle(pool))


# The moment between two requests.


@pytest.mark.shows("faults#a-queue-is-deleted")
@pytest.mark.parametrize("times", [1, MAX_ENSURES, MAX_ENSURES + 1])
def test_container__reaped_before_the_create(server: ZooKeeperServer, pool: Pool, moments: Moments, times: int) -> None:
    """A queue that is reaped between its making and our create is made again."""
    warm(pool)
    lock = Lock("other", pool)
    # First queue, create and list; then root, queue, create and list, as often as it takes.
    reaped = [
        moments.before(session_of(pool), 4 * number + 2, lambda: server.service.reap(lock.paths[0]))
        for number in range(times)
    ]
    outcome = waiting_in(lock)
    if times <= MAX_ENSURES:
        with outcome.result() as held:
            assert server.paths(lock.paths[0]) == [held.node]
    else:
        # This server's clock is mad, or another client deletes what we make: waiting for ever would not say so.
        assert isinstance(outcome.outcome(), ZkLockError)
    assert all(moment.happened.is_set() for moment in reaped)
    wait_until(lambda: is_idle(pool))


@pytest.mark.shows("faults#a-queue-is-deleted")
def test_container__reaped_after_the_list(server: ZooKeeperServer, pool: Pool, moments: Moments) -> None:
    """A try that finds an empty queue makes it again if it is reaped before the create comes."""
    lock = warm(pool)
    reaped = moments.before(session_of(pool), 2, lambda: server.service.reap(lock.paths[0]))
    held = lock.try_acquire()
    assert reaped.happened.is_set()
    assert held is not None
    assert server.paths(lock.paths[0]) == [held.node]
    held.release(wait=True)


# A waiter joins by create and list, then reads its own node and the one before it, which is the first here.
JOIN = 4


@pytest.mark.shows("faults#a-queue-is-deleted")
@pytest.mark.parametrize("place", range(1, JOIN + 1))
def test_queue_deleted__joining(server: ZooKeeperServer, make_pool: MakePool, moments: Moments, place: int) -> None:
    """When the queue is deleted before any request of a joining waiter, the waiter queues up anew and is granted."""
    holder, pool = make_pool(session_timeout=1.2), make_pool()
    held = warm(holder).acquire()
    lock = Lock("k", pool)
    Lock("other", pool).acquire(timeout=60).release(wait=True)
    moment = moments.before(session_of(pool), place, delete_all(server, lock.paths[0]))
    with waiting_in(lock).result() as later:
        assert moment.happened.is_set()
        assert server.paths(lock.paths[0]) == [later.node]
        assert later.token > held.token
        later.check()
    wait_until(lambda: held.lost)
    wait_until(lambda: is_idle(pool))


@pytest.mark.shows("faults#another-message-is-lost")
@pytest.mark.parametrize("place", range(1, JOIN + 1))
@pytest.mark.parametrize("fault", ["expire", "drop"])
def test_joining__interrupted(
    server: ZooKeeperServer, make_pool: MakePool, moments: Moments, fault: str, place: int
) -> None:
    """A waiter whose session or connection ends before any of its requests has one place in the queue all the same."""
    holder, pool = make_pool(), make_pool()
    held = warm(holder).acquire()
    lock = warm_elsewhere(pool)
    before = session_of(pool)

    def end() -> None:
        session = server.service.sessions.get(before)
        assert session is not None
        if fault == "expire":
            server.service.end(session)
        else:
            assert session.link is not None
            session.link.close()

    moment = moments.before(before, place, end)
    waiter = waiting_in(lock)
    assert moment.happened.wait(scaled(20))
    wait_until(lambda: waits(pool))
    assert len(server.paths(lock.paths[0])) == 2
    assert waiter.running
    held.check()
    held.release()
    with waiter.result() as later:
        assert server.paths(lock.paths[0]) == [later.node]
        assert server.owner(later.node) == session_of(pool)
        assert (session_of(pool) == before) == (fault == "drop")


def warm_elsewhere(pool: Pool) -> Lock:
    """Return a lock whose session is there, and nothing of its own."""
    Lock("elsewhere", pool).acquire(timeout=60).release(wait=True)
    return Lock("k", pool)


def waits(pool: Pool) -> bool:
    """Whether the pool's only contender stands in the queue and has seen the holder."""
    listeners = [listener for session in pool.sessions() for listener in list(session.listeners)]
    return len(listeners) == 1 and is_watching(listeners[0])


# Sessions.


@pytest.mark.shows("faults#a-session-ends")
def test_session_expired__many_waiting_and_then_an_outage(
    server: ZooKeeperServer, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiters without a timeout whose session expires in an outage stop waiting, wherever in the queue they are."""
    holder, pool = make_pool(), make_pool(connect_timeout=3.0)
    held = Lock("k", holder).acquire()
    lock = Lock("k", pool, reentrant=False)
    # How long each caller sleeps, unless something happens.
    sleeps: dict[Acquisition, float | None] = {}
    next_wakeup = Acquisition.next_wakeup

    def next_wakeup_noted(attempt: Acquisition) -> float | None:
        sleeps[attempt] = next_wakeup(attempt)
        return sleeps[attempt]

    monkeypatch.setattr(Acquisition, "next_wakeup", next_wakeup_noted)
    waiters = []
    for number in range(5):
        waiters.append(Runner(lock.acquire))
        wait_until(lambda number=number: settled_waiters(pool) == number + 1)  # type: ignore[misc]
    for attempt in list(sleeps):
        attempt.wake()
    wait_until(lambda: set(sleeps.values()) == {None})
    before, ended = session_of(pool), pool.sessions()[0].on_ended
    with contextlib.ExitStack() as outage:

        def end_and_cut_off(reason: str, *, final: bool) -> None:
            # The client has learned of the end of its session, and cannot begin another one.
            outage.enter_context(server.faults.refuse())
            ended(reason, final=final)

        monkeypatch.setattr(pool.sessions()[0], "on_ended", end_and_cut_off)
        server.faults.expire(before)
        for waiter in waiters:
            assert isinstance(waiter.outcome(30), ZooKeeperUnavailable)
    held.release()


@pytest.mark.shows("faults#a-session-ends")
def test_session_expired__soon_after_joining(
    server: ZooKeeperServer, make_pool: MakePool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Waiters without a timeout join again, wherever they are, also if the limit for the first answer passes then."""
    holder, pool = make_pool(), make_pool()
    held = Lock("k", holder).acquire()
    lock = Lock("k", pool, reentrant=False)
    attempts: list[Acquisition] = []
    start = Acquisition.start

    def start_noted(attempt: Acquisition) -> None:
        attempts.append(attempt)
        start(attempt)

    monkeypatch.setattr(Acquisition, "start", start_noted)
    waiters = []
    for number in range(5):
        waiters.append(Runner(lambda: lock.acquire().release(wait=True)))
        wait_until(lambda number=number: settled_waiters(pool) == number + 1)  # type: ignore[misc]
    before = session_of(pool)
    for attempt in attempts:
        attempt._response_deadline = monotonic()
        assert attempt.next_wakeup() is None
    with server.faults.refuse():
        server.faults.expire(before)
        wait_until(lambda: all(attempt.contender.state is State.JOINING for attempt in attempts))
        for attempt in attempts:
            assert attempt.next_wakeup() is None
            attempt.wake()
    held.release()
    for waiter in waiters:
        waiter.result(30)


def settled_waiters(pool: Pool) -> int:
    """Return how many contenders of the pool wait and request nothing."""
    listeners = [listener for session in pool.sessions() for listener in list(session.listeners)]
    return sum(is_watching(listener) for listener in listeners)


@pytest.mark.shows("faults#the-connection-stays-open-and-delivers-nothing")
@pytest.mark.parametrize("direction", ["requests", "replies", "both"])
def test_black_hole__holding(server: ZooKeeperServer, make_pool: MakePool, direction: str) -> None:
    """A holder whose link swallows everything, while it goes on asking, drops it, and knows that it has lost before
    another contender holds.
    """
    timeout = 2.0
    pool, other = make_pool(session_timeout=timeout), make_pool(session_timeout=20.0)
    held = Lock("k", pool).acquire()
    session, stop = pool.sessions()[0], threading.Event()
    number = session_of(pool)
    lost_before_the_next_holds: list[bool] = []

    def follow() -> None:
        # The session that it waits for ends when the server has heard nothing for its timeout.
        with Lock("k", other).acquire(timeout=scaled(120)):
            lost_before_the_next_holds.append(held.lost)

    def keep_asking() -> None:
        while not stop.wait(0.01):
            session.post(lambda: session.wire.children("/", lambda *_: None) if session.connected else None)

    follower, asking = Runner(follow), Runner(keep_asking)
    wait_until(lambda: len(server.paths(held.lock.paths[0])) == 2)
    with server.faults.black_hole(direction, session=number):  # type: ignore[arg-type]
        # Without the watchdog of the session it would stay connected for ever.
        wait_until(lambda: not session.connected, timeout + GRACE)
        wait_until(lambda: held.lost, timeout + GRACE)
        stop.set()
        asking.result()
        server.wait_for_end(number, timeout + GRACE)
        follower.result()
    assert lost_before_the_next_holds == [True]
    held.release()
    wait_until(lambda: is_idle(pool))


# Notifications.


@pytest.mark.shows("faults#another-message-is-lost")
def test_notification__cut_at_every_byte(server: ZooKeeperServer, make_pool: MakePool) -> None:
    """Wherever the notification of a waiter is cut, it is granted after the reconnect."""
    holder = make_pool()
    with Lock("line-0", holder) as held:
        # Kind, state and path.
        frame = LENGTH + HEADER + 4 + 4 + TEXT + len(held.node)

    def visit(pool: Pool, size: int) -> None:
        lock = Lock(f"line-{size}", pool)
        held = Lock(lock.key, holder).acquire(timeout=120)
        waiter = waiting_in(lock)
        wait_until(lambda: waits(pool))
        cut = server.faults.cut_reply("notification", after_bytes=size, session=session_of(pool))
        held.release()
        with waiter.result() as later:
            cut.wait()
            assert server.paths(lock.paths[0]) == [later.node]
            later.release(wait=True)

    sweep(make_pool, frame, visit)


@pytest.mark.shows("faults#the-connection-stays-open-and-delivers-nothing")
def test_notification__swallowed(server: ZooKeeperServer, make_pool: MakePool) -> None:
    """A notification that never comes, over a connection that stands, costs its waiter a part of a session."""
    timeout = 1.2
    pool = make_pool(session_timeout=timeout)
    held = Lock("k", make_pool()).acquire()
    waiter = waiting_in(Lock("k", pool))
    wait_until(lambda: len(server.paths(held.lock.paths[0])) == 2 and waits(pool))
    epoch = pool.sessions()[0].epoch
    hole = server.faults.black_hole("replies", session=session_of(pool))
    held.release(wait=True)
    wait_until(lambda: pool.sessions()[0].epoch > epoch, 2 * timeout + GRACE)
    assert waiter.running
    hole.end()
    waiter.result().release()


@pytest.mark.shows("guarantees#a-lost-connection-costs-no-lock-while-the-lease-runs")
@pytest.mark.timely("what is left of a lease after two silent handshakes is enough for a third")
@pytest.mark.parametrize("silences", [1, 2])
def test_handshake__swallowed(server: ZooKeeperServer, make_pool: MakePool, silences: int) -> None:
    """After a short outage a lock is kept, also if new connections are accepted and their handshakes never answered:
    no attempt takes more than half of what is left of the lease, whatever the connect timeout.
    """
    with Proxy(server.address) as proxy:
        pool = make_pool(proxy.hosts, session_timeout=10.0, connect_timeout=60.0)
        held = Lock("k", pool).acquire()
        session = pool.sessions()[0]
        proxy.pause(DOWN)
        proxy.cut()
        for _ in range(silences):
            wait_until(lambda: proxy.holds_back(DOWN), 10.0 + GRACE)
            proxy.resume(drop=True)
            proxy.pause(DOWN)
        proxy.resume()
        wait_until(lambda: session.connected, 10.0 + GRACE)
        held.check()


# Nodes that ZooKeeper has brought back.


@pytest.fixture
def stray(server: ZooKeeperServer, make_pool: MakePool) -> tuple[Lock, str]:
    """Return a lock, and a node in its queue that belongs to its session, which knows nothing of it."""
    lock = warm(make_pool())
    (session,) = lock.pool.sessions()
    stem = f"{lock.paths[0]}/{name_prefix(new_guid(), Kind.EXCLUSIVE)}"
    session.post(lambda: session.wire.create([stem], b"", lambda _names, _error: None))
    (path,) = wait_until(lambda: server.paths(lock.paths[0]))
    return lock, path


@pytest.mark.shows("faults#a-server-has-nodes-that-the-other-servers-do-not-have")
def test_stray__of_our_session(
    stray: tuple[Lock, str], server: ZooKeeperServer, caplog: pytest.LogCaptureFixture
) -> None:
    """A node of a session that none of its locks knows is deleted by the lock that would wait for it."""
    lock, path = stray
    with lock.acquire(timeout=120) as held:
        assert server.paths(lock.paths[0]) == [held.node] != [path]
    assert [record.levelname for record in caplog.records if "event=stray_deleted" in record.message] == ["WARNING"]


@pytest.mark.shows("faults#a-server-has-nodes-that-the-other-servers-do-not-have")
@pytest.mark.usefixtures("unhurried")
def test_stray__creation_unanswered(stray: tuple[Lock, str], server: ZooKeeperServer) -> None:
    """It stays while a lock of the session may have created it, and has no answer."""
    lock, path = stray
    (session,) = lock.pool.sessions()
    other = Acquisition(lock, None, lambda: None).contender
    node = parse_name(path.rpartition("/")[2])
    assert node is not None
    other.guid_in_doubt = node.guid
    with session.monitor:
        session.add_listener(other)
    with pytest.raises(LockTimeout):
        lock.acquire(timeout=0.5)
    wait_until(lambda: server.paths(lock.paths[0]) == [path])
    session.listeners.pop(other)
    lock.acquire(timeout=120).release(wait=True)
    assert not server.paths(lock.paths[0])


# The end of the numbers.


@contextlib.contextmanager
def between_list_and_reads(proxy: Proxy, name: str) -> Iterator[threading.Event]:
    """Hold back what is asked after a list that has ``name`` in it; return what is set when that list is answered."""
    listed = threading.Event()

    def hold_back(direction: str, chunk: bytes) -> bool:
        if direction == DOWN and name.encode() in chunk and not listed.is_set():
            proxy.pause(UP)
            listed.set()
        return False

    proxy.on_chunk = hold_back
    yield listed
    proxy.on_chunk = None
    proxy.resume()


@pytest.mark.shows("faults#the-numbers-come-to-their-end")
def test_sequence_end__deleted_after_the_list(server: ZooKeeperServer, make_pool: MakePool) -> None:
    """A lease that is granted as a node is deleted after the list wakes the waiter that is not in that list."""
    first, later = make_pool(), make_pool()
    lock = warm(first)
    server.faults.set_sequence(lock.paths[0], END_OF_NUMBERS - 7)
    one, two = [waiting_in(Lock("k", first, rule=semaphore(2))).result() for _ in range(2)]
    with Proxy(server.address) as proxy:
        slow = make_pool(proxy.hosts, session_timeout=30.0)
        warm_elsewhere(slow)
        warm_elsewhere(later)
        with between_list_and_reads(proxy, one.node.rpartition("/")[2]) as listed:
            third = waiting_in(Lock("k", slow, rule=semaphore(2)))
            assert listed.wait(scaled(30))
            fourth = waiting_in(Lock("k", later, rule=semaphore(2)))
            wait_until(lambda: waits(later))
            one.release(wait=True)
        with third.result():
            two.release()
            fourth.result().release()


@pytest.mark.shows("faults#the-numbers-come-to-their-end")
def test_sequence_end__downgraded_after_the_list(server: ZooKeeperServer, make_pool: MakePool) -> None:
    """A writer of Curator that becomes a reader after the list is kept before us."""
    path = warm(make_pool()).paths[0]
    server.faults.set_sequence(path, END_OF_NUMBERS - 7)
    with Proxy(server.address) as proxy, contextlib.closing(Observer(server.hosts)) as observer:
        java, pool = observer.client, make_pool(proxy.hosts, session_timeout=30.0)
        warm_elsewhere(pool)
        writer = java.create(f"{path}/{name_prefix(str(uuid.uuid4()), Kind.WRITE)}", ephemeral=True, sequence=True)
        with between_list_and_reads(proxy, writer.rpartition("/")[2]) as listed:
            waiter = waiting_in(Lock("k", pool))
            assert listed.wait(scaled(30))
            reader = java.create(f"{path}/{name_prefix(str(uuid.uuid4()), Kind.READ)}{writer[-10:]}", ephemeral=True)
            java.delete(writer)
        wait_until(lambda: waits(pool) or not waiter.running)
        assert waiter.running
        java.delete(reader)
        waiter.result().release()
