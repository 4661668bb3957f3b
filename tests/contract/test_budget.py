"""Sessions that are full: the next contenders of the process join in other sessions, and no caller notices."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from django_zklock.exceptions import LockTimeout, ZooKeeperUnavailable
from django_zklock.zk import pool as pool_module
from django_zklock.zk.contender import Contender
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import SESSION_BUDGET, Pool
from django_zklock.zk.queue import READ, WRITE, semaphore
from django_zklock.zk.wire import MAX_REQUEST
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.processes.forked_child import fork
from tests.toolbox.threads import Runner, waiting_in
from tests.toolbox.timing import wait_until
from tests.toolbox.zookeeper.any_server import Server
from tests.toolbox.zookeeper.observer import Observer

# Before the path in ZooKeeper's CloseSessionTxn.
LENGTH = 4
# So many contenders have room in a session of the pool below.
ROOM = 3


@pytest.fixture
def small(make_pool: MakePool, root: str) -> Pool:
    """Return a pool whose sessions have room for three locks with a short key."""
    return make_pool(budget=ROOM * size_of(root, "k0"))


def size_of(root: str, key: str) -> int:
    """Return the bytes of the node of an exclusive lock in the transaction that ends its session."""
    return LENGTH + len(f"{root}/{key}/_c_00000000-0000-8000-8000-000000000000-lock-") + 11


def take(pool: Pool, count: int) -> list[Held]:
    return [Lock(f"k{number}", pool).acquire(timeout=120) for number in range(count)]


def used(pool: Pool) -> list[int]:
    return [session.used for session in pool.sessions()]


def owners(observer: Observer, held: list[Held]) -> list[int]:
    """Return the session of each node, as the server has it."""
    return [observer.client.exists(each.node).ephemeralOwner for each in held]


def wait_for_nothing(pool: Pool, observer: Observer, root: str) -> None:
    """Wait until no session counts or serves a contender any more, and the server has no node of one."""
    wait_until(lambda: not any(used(pool)) and not any(session.listeners for session in pool.sessions()))
    try:
        queues = observer.client.get_children(root)
    except NoNodeError:
        queues = []
    for queue in queues:
        observer.wait_empty(f"{root}/{queue}")


# Where contenders go.


def test_budget__is_half_of_what_servers_read() -> None:
    """A server with the default jute.maxbuffer reads the end of a full session, even without its extra size."""
    assert SESSION_BUDGET == MAX_REQUEST // 2 == 524_287


@pytest.mark.shows("faults#a-process-has-thousands-of-locks")
def test_full__the_next_ones_elsewhere(small: Pool, observer: Observer, root: str) -> None:
    """Locks for which their session has no room are held in other sessions; each is counted until it is deleted."""
    held = take(small, 2 * ROOM + 1)
    sessions = [session.id for session in small.sessions()]
    assert Counter(owners(observer, held)) == dict(zip(sessions, (ROOM, ROOM, 1), strict=True))
    assert used(small) == [ROOM * size_of(root, "k0")] * 2 + [size_of(root, "k0")]
    assert len(small.overflow_sessions()) == 2
    for each in held:
        each.check()
        each.release()
    wait_for_nothing(small, observer, root)
    # There is room again.
    again = take(small, 1)
    assert owners(observer, again) == [small.sessions()[0].id]


def test_full__while_the_home_begins_anew(small: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    """A contender finds a session while another thread starts that of its home, and the one beside it is full."""
    take(small, 2 * ROOM)
    home, _full = small.sessions()
    state = small._of_this_process()
    waiting = Lock("k0", small, reentrant=False)._new_contender(wait=True, notify=lambda: None)
    inside, go_on = threading.Event(), threading.Event()
    start = small._start_session

    def start_late(*args: Any, **options: Any) -> Any:
        monkeypatch.undo()
        ended = state.sessions.pop("0")
        inside.set()
        assert go_on.wait(60)
        state.sessions["0"] = ended
        return start(*args, **options)

    monkeypatch.setattr(small, "_start_session", start_late)
    home.close(10.0)
    starter = Runner(lambda: small.session("k0"))
    assert inside.wait(60)
    waiting.post(waiting.join)
    wait_until(lambda: waiting.session is not home)
    go_on.set()
    assert starter.result() is not home
    waiting.post(waiting.leave)


@pytest.mark.parametrize("rule", [WRITE, READ, semaphore(12)], ids=str)
def test_size__with_a_chroot(
    make_pool: MakePool, server: Server, kazoo_client: KazooClient, root: str, rule: object
) -> None:
    """What is counted is at least what the server writes: full paths, the chroot included."""
    kazoo_client.ensure_path(f"{root}/inside")
    pool = make_pool(f"{server.hosts}{root}/inside")
    with Lock("kä", pool, rule=rule).acquire(timeout=120) as held:  # type: ignore[arg-type]
        length = LENGTH + len(f"{root}/inside{held.node}".encode())
        assert used(pool) == [length + 1]
    with Lock(["one", "two"], pool).acquire(timeout=120):
        wait_until(lambda: used(pool) == [2 * (size_of(f"{root}/inside{root}", "one"))])


@pytest.mark.shows("faults#a-process-has-thousands-of-locks")
def test_key__in_several_sessions(small: Pool, observer: Observer, root: str) -> None:
    """Contenders of one key in several sessions of a process are granted in the order of their nodes."""
    order: list[int] = []
    first = Lock("k0", small).acquire(timeout=120)

    def take_a_turn(number: int) -> None:
        with Lock("k0", small).acquire(timeout=60) as held:
            order.append(number)
            held.check()

    waiting = []
    for number in range(2 * ROOM):
        waiting.append(Runner(lambda number=number: take_a_turn(number)))  # type: ignore[misc]
        observer.wait_count(f"{root}/k0", number + 2)
    assert len(small.sessions()) == 3
    first.release()
    for each in waiting:
        each.result()
    assert order == list(range(2 * ROOM))
    wait_for_nothing(small, observer, root)


def test_try_acquire(small: Pool, observer: Observer, root: str) -> None:
    """In a full session a free lock is acquired at once, and a taken one is refused and leaves nothing."""
    held = take(small, ROOM)
    assert Lock("k0", small, reentrant=False).try_acquire() is None
    assert Runner(lambda: Lock("k0", small).try_acquire()).result() is None
    other = Lock("other", small).try_acquire()
    assert other is not None
    with pytest.raises(LockTimeout, match="is taken"):
        Runner(lambda: Lock("k0", small).acquire(timeout=0)).result()
    for each in [*held, other]:
        each.release()
    wait_for_nothing(small, observer, root)


def test_several_keys(small: Pool, observer: Observer, root: str) -> None:
    """All nodes of a lock of several keys are in one session; more than the budget go into an empty one."""
    take(small, 1)
    keys = [f"k{number}" for number in range(1, 3 * ROOM)]
    with Lock(keys, small).acquire(timeout=120) as held:
        nodes = [f"{root}/{key}/{observer.children(f'{root}/{key}')[0]}" for key in keys]
        assert {observer.client.exists(node).ephemeralOwner for node in nodes} == {small.sessions()[1].id}
        assert used(small) == [size_of(root, "k0"), len(keys) * size_of(root, "k0")]
        # No contender joins it there.
        single = Lock(["a0", "a1", "a2"], small).acquire(timeout=120)
        assert owners(observer, [single]) == [small.sessions()[2].id]
        held.check()


def test_several_keys__node_deleted(small: Pool, observer: Observer, make_pool: MakePool, root: str) -> None:
    """Nodes that are given up for new ones count until they are deleted."""
    other = Lock("k1", make_pool()).acquire(timeout=120)
    waiter = waiting_in(Lock(["k0", "k1"], small))
    observer.wait_count(f"{root}/k1", 2)
    (name,) = observer.children(f"{root}/k0")
    observer.client.delete(f"{root}/k0/{name}")
    wait_until(lambda: observer.children(f"{root}/k0") not in ([], [name]))
    wait_until(lambda: used(small) == [2 * size_of(root, "k0")])
    other.release()
    waiter.result().release()
    wait_for_nothing(small, observer, root)


async def test_herd__opens_what_is_needed(small: Pool, observer: Observer, root: str) -> None:
    """Of many contenders that find the session full at once, one starts the next session, and the others use it."""

    locks = [Lock(str(number), small) for number in range(10, 10 + 10 * ROOM)]
    held = await asyncio.gather(*(lock.aacquire(timeout=60) for lock in locks))
    assert len(small.sessions()) == 10
    assert set(Counter(owners(observer, held)).values()) == {ROOM}
    for each in held:
        await each.arelease()
    wait_for_nothing(small, observer, root)


def test_session_ended(make_pool: MakePool, observer: Observer) -> None:
    """The sessions of one process live apart: the end of one costs the locks of no other, and waiters join again."""
    pool = make_pool(budget=1)
    first, second = Lock("a", pool).acquire(timeout=120), Lock("b", pool).acquire(timeout=120)
    waiter = waiting_in(Lock("a", pool))
    before = observer.wait_count(Lock("a", pool).paths[0], 2)
    observer.end_session(pool, 1)
    wait_until(lambda: second.lost)
    observer.end_session(pool, 2)
    wait_until(lambda: len(now := observer.children(Lock("a", pool).paths[0])) == 2 and now != before)
    first.check()
    wait_until(lambda: pool.sessions()[1].used == 0)
    first.release()
    waiter.result().release()


# Contenders that leave.


@pytest.fixture
def halted(small: Pool) -> Iterator[threading.RLock]:
    """Fill the home, and halt contenders that move on from it until the end of the test, or until it is released."""
    take(small, ROOM)
    lock = small._of_this_process().overflow_guard
    lock.acquire()
    yield lock
    if lock._is_owned():  # type: ignore[attr-defined]
        lock.release()


@pytest.mark.shows("faults#a-process-has-thousands-of-locks")
def test_leave__on_the_way(small: Pool, halted: threading.RLock, observer: Observer, root: str) -> None:
    """A caller that gives up while its contender moves to another session leaves nothing, wherever that is by then."""
    with pytest.raises((LockTimeout, ZooKeeperUnavailable)):
        Lock("other", small).acquire(timeout=0.3)
    halted.release()
    wait_until(lambda: len(small.sessions()) == 2)
    with Lock("later", small).acquire(timeout=120) as later:
        assert owners(observer, [later]) == [small.sessions()[1].id]
        # T1 acquires the later lock there, while the contender of T2, which has left, is still on its way in or out.
        wait_until(lambda: small.sessions()[1].used == size_of(root, "later"))
    observer.wait_empty(f"{root}/other")


def test_cancelled__on_the_way(small: Pool, halted: threading.RLock, observer: Observer, root: str) -> None:
    """Tasks that are cancelled while their contenders move leave nothing."""

    async def main() -> None:
        tasks = [asyncio.create_task(Lock(f"c{number}", small).aacquire(timeout=60)) for number in range(20)]
        # Each has begun, and so its contender is on its way.
        await asyncio.sleep(0)
        for task in tasks:
            task.cancel()
        await asyncio.wait(tasks)
        halted.release()
        # Posted to the home after all of them.
        await (await Lock("later", small).aacquire(timeout=120)).arelease()

    asyncio.run(main())
    # What moves on from a session is posted to a later one, where nothing is used before it comes.
    passed = 0
    while passed < len(small.sessions()):
        arrived = threading.Event()
        small.sessions()[passed].post(arrived.set)
        assert arrived.wait(20)
        passed += 1
    wait_until(lambda: [session.used for session in small.sessions()][1:] == [0] * (len(small.sessions()) - 1))
    for number in range(20):
        assert observer.children(f"{root}/c{number}") == []


def test_close__on_the_way(small: Pool, halted: threading.RLock, observer: Observer, root: str) -> None:
    """A pool that is closed opens no further session: the contender on its way to one fails."""
    state = small._of_this_process()
    waiter = Runner(lambda: Lock("other", small).acquire(timeout=120))
    wait_until(lambda: small.sessions()[0]._is_emptying)
    state.closed = True
    halted.release()
    with pytest.raises(ZooKeeperUnavailable, match="the session was closed"):
        waiter.result()
    assert len(small.sessions()) == 1
    assert observer.children(f"{root}/other") == []


@pytest.mark.shows("faults#a-process-has-thousands-of-locks")
def test_close(small: Pool, observer: Observer, root: str) -> None:
    """Closing the pool frees the locks of all sessions at once, and the waiters fail."""
    held = take(small, 3 * ROOM)
    waiter = waiting_in(Lock("k0", small))
    observer.wait_count(f"{root}/k0", 2)
    assert small.close(10)
    with pytest.raises(ZooKeeperUnavailable):
        waiter.result()
    for number in range(3 * ROOM):
        assert observer.children(f"{root}/k{number}") == []
    assert all(each.lost for each in held)
    assert small.sessions() == []


# Sessions that end.


def test_idle__overflow_session_ends(
    small: Pool, observer: Observer, root: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A further session ends when it was not used for a while, its home does not; the next ones begin another."""
    monkeypatch.setattr(pool_module, "IDLE_TIMEOUT", 0.3)
    home = take(small, ROOM)
    for _ in range(2):
        other = Lock("other", small).acquire(timeout=120)
        (session,) = small.overflow_sessions()
        other.release()
        wait_until(lambda session=session: session.ended is not None)  # type: ignore[misc]
        assert small.overflow_sessions() == []
    for each in home:
        each.check()


def test_idle__a_contender_on_its_way(small: Pool, observer: Observer) -> None:
    """A contender that was given a session which ends before it has joined goes on to another one."""
    take(small, ROOM)
    Lock("other", small).acquire(timeout=120).release(wait=True)
    (session,) = small.overflow_sessions()
    state = small._of_this_process()
    inside, go_on = threading.Event(), threading.Event()

    def halt() -> None:
        inside.set()
        assert go_on.wait(60)

    session.post(halt)
    assert inside.wait(10)
    waiter = Runner(lambda: Lock("other", small).acquire(timeout=120))
    # It is posted there, behind `halt`; what ends the session comes first.
    wait_until(lambda: any(getattr(call, "__name__", "") == "join" for call in list(session._inbox)))
    session.used_at = 0.0
    session._inbox.appendleft(lambda: small._close_if_idle(state, "0+1", session))
    go_on.set()
    held = waiter.result()
    assert session.closing
    assert owners(observer, [held]) == [small.overflow_sessions()[0].id]
    held.release()


def test_ended__replaced(small: Pool, observer: Observer) -> None:
    """A further session that has ended for good is replaced by another one."""
    take(small, ROOM)
    Lock("other", small).acquire(timeout=120).release(wait=True)
    (session,) = small.overflow_sessions()
    assert session.close(10)
    wait_until(lambda: session.ended is not None)
    held = Lock("other", small).acquire(timeout=120)
    assert small.overflow_sessions() != [session]
    assert owners(observer, [held]) == [small.overflow_sessions()[0].id]


def room_of(held: Held) -> int:
    """Return what its nodes take of the budget."""
    contender = held._possession.contender
    assert isinstance(contender, Contender)
    room: int = contender._size(contender.places)
    return room


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_fork(small: Pool, observer: Observer) -> None:
    """A child begins with empty sessions, and ends none of its parent's."""
    held = take(small, ROOM + 1)

    def work(report: object) -> None:
        assert small.sessions() == []
        own = Lock("own", small).acquire(timeout=120)
        assert used(small) == [room_of(own)]
        assert small.close(10)

    with fork(work) as child:
        assert child.receive() == "done"
    for each in held:
        each.check()
    assert sum(used(small)) == sum(map(room_of, held))


def test_left_behind(make_pool: MakePool, server: Server, kazoo_client: KazooClient, root: str) -> None:
    """Nodes that the server refuses to delete count until their session ends."""
    from django_zklock.zk.wire import parse_acl

    kazoo_client.create(root, acl=parse_acl(["world:anyone:cdrwa"]))
    pool = make_pool(acl=["world:anyone:cra"])
    held = Lock("k", pool).acquire(timeout=120)
    held.release()
    (session,) = pool.sessions()
    wait_until(lambda: not session.listeners)
    assert used(pool) == [room_of(held)]
    end = Observer(server.hosts)
    try:
        before = session.id
        end.end_session(pool)
        wait_until(lambda: session.connected and session.id != before)
    finally:
        end.close()
    assert used(pool) == [0]
