"""A hold follows the work: a job in a thread that goes on after its coroutine keeps the lock until it has ended."""

from __future__ import annotations

import asyncio
import contextvars
import logging
import sys
import threading
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from asgiref.sync import async_to_sync, sync_to_async

from django_zklock.exceptions import LockCancelled, LockConflict, LockLost, LockTimeout, NotHeld
from django_zklock.zk import jobs, owners
from django_zklock.zk.held import Held, current
from django_zklock.zk.listener import LockListener, LockValue
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import EXCLUSIVE, READ, WRITE, Rule, semaphore
from django_zklock.zk.waiting import Cancellation
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.processes.forked_child import fork
from tests.toolbox.threads import Runner
from tests.toolbox.timing import wait_until
from tests.toolbox.zookeeper.observer import Observer

pytestmark = pytest.mark.oldest

pytest_plugins = ["tests.contract.agents", "tests.toolbox.slow_deadlines"]

# Seconds, for what must not happen: a wait that never ends.
LONG = 60.0

Start = Callable[[Callable[[], Any]], Awaitable[Any]]


def _in_context(call: Callable[[], Any]) -> Awaitable[Any]:
    return asyncio.get_running_loop().run_in_executor(None, contextvars.copy_context().run, call)


STARTS: dict[str, Start] = {
    "thread-sensitive": lambda call: sync_to_async(call)(),
    "any thread": lambda call: sync_to_async(call, thread_sensitive=False)(),
    "to_thread": asyncio.to_thread,
    "run_in_executor": _in_context,
}
start_by = pytest.mark.parametrize("start", STARTS.values(), ids=STARTS.keys())


class Work:
    """What goes on in a thread: it says when it has begun, and ends when it may."""

    def __init__(self, last: Callable[[], Any] = lambda: None) -> None:
        self.begun, self.may_end, self.ended = threading.Event(), threading.Event(), threading.Event()
        self.last = last
        self.value: Any = None

    def __call__(self) -> None:
        self.run()

    def run(self) -> None:
        """Begin, and end when it may."""
        self.begun.set()
        assert self.may_end.wait(LONG)
        try:
            self.value = self.last()
        except BaseException as error:  # noqa: BLE001 - looked at by the test
            self.value = error
        self.ended.set()

    def end(self) -> Any:
        """Let it end; return what its last call has returned or raised."""
        self.may_end.set()
        assert self.ended.wait(LONG)
        return self.value


async def cancel(task: asyncio.Task[Any], work: Work) -> None:
    """Cancel a task as soon as its work has begun, and wait for the end of the task."""
    assert await asyncio.to_thread(work.begun.wait, LONG)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


def is_taken(lock: Lock) -> bool:
    """Whether another thread cannot have the lock."""
    held: Held | None = Runner(lock.try_acquire).result()
    if held is not None:
        held.release()
    return held is None


def acquired_by_another(lock: Lock) -> None:
    """Wait for the lock in another thread."""
    Runner(lambda: lock.acquire(timeout=LONG).release()).result(LONG)


@pytest.fixture
def lock(pool: Pool) -> Lock:
    return Lock("k", pool)


async def by_block(lock: Lock, body: Callable[[], Awaitable[Any]]) -> None:
    async with lock:
        await body()


async def by_hold(lock: Lock, holds: list[Held], *works: Work) -> None:
    """Hold, and wait for works in threads."""
    async with lock as held:
        holds.append(held)
        await asyncio.gather(*map(asyncio.to_thread, works))


async def by_call(lock: Lock, body: Callable[[], Awaitable[Any]]) -> None:
    held = await lock.aacquire()
    try:
        await body()
    finally:
        await held.arelease()


async def by_try(lock: Lock, body: Callable[[], Awaitable[Any]]) -> None:
    held = await lock.atry_acquire()
    assert held is not None
    async with held:
        await body()


async def by_nested(lock: Lock, body: Callable[[], Awaitable[Any]]) -> None:
    async with lock, lock:
        await body()


async def by_wait_for(lock: Lock, body: Callable[[], Awaitable[Any]]) -> None:
    async with await asyncio.wait_for(lock.aacquire(), LONG):
        await body()


@pytest.mark.shows(
    "guarantees#a-hold-follows-the-work-into-threads",
    "faults#a-task-no-longer-waits-for-its-thread-or-a-thread-for-its-coroutine",
)
@start_by
@pytest.mark.parametrize("form", [by_block, by_call, by_try, by_nested, by_wait_for])
async def test_cancelled(lock: Lock, observer: Observer, form: Any, start: Start) -> None:
    """The lock stays until the thread of a cancelled coroutine has ended, whatever form the block has."""
    work = Work()

    await cancel(asyncio.create_task(form(lock, lambda: start(work))), work)
    assert is_taken(lock)
    observer.wait_count(lock.paths[0], 1)
    work.end()
    acquired_by_another(lock)
    observer.wait_empty(lock.paths[0])


@pytest.mark.usefixtures("agent")
@pytest.mark.parametrize("waits", [False, True], ids=["loop", "thread that waits"])
@pytest.mark.parametrize("start", [sync_to_async, asyncio.to_thread])
def test_cancelled__traced(
    lock: Lock, observer: Observer, start: Any, waits: bool, caplog: pytest.LogCaptureFixture
) -> None:
    """The same in a program that an agent traces, whatever it puts around the call; the log has the function.

    Thread-sensitive code of a thread that waits runs in that thread: here the one of the test.
    """
    work = Work()
    seen: list[bool] = []

    async def body() -> None:
        async with lock:
            await (sync_to_async(work.run)() if start is sync_to_async else asyncio.to_thread(work.run))

    async def main() -> None:
        await cancel(asyncio.create_task(body()), work)
        seen.append(await asyncio.to_thread(is_taken, lock))
        work.may_end.set()

    if waits:
        async_to_sync(main)()
    else:
        asyncio.run(main())
    assert seen == [True]
    assert work.ended.wait(LONG)
    observer.wait_empty(lock.paths[0])
    assert "Work.run'" in next(message for message in caplog.messages if "release_deferred" in message)


async def _timeout(work: Work) -> None:
    async def limited() -> None:
        async with asyncio.timeout(None) as limit:
            task = asyncio.create_task(asyncio.to_thread(work.begun.wait, LONG))
            task.add_done_callback(lambda _task: limit.reschedule(0))
            await sync_to_async(work, thread_sensitive=False)()

    with pytest.raises(TimeoutError):
        await limited()


async def _task_group(work: Work) -> None:
    async def fail() -> None:
        await asyncio.to_thread(work.begun.wait, LONG)
        raise RuntimeError("the sibling has failed")

    async def both() -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(asyncio.to_thread(work))
            group.create_task(fail())

    with pytest.raises(ExceptionGroup):
        await both()


async def _left(work: Work) -> None:
    left.append(asyncio.create_task(asyncio.to_thread(work)))
    await asyncio.to_thread(work.begun.wait, LONG)


left: list[asyncio.Task[None]] = []


async def ended() -> None:
    """Wait for the end of the calls that a test has left running."""
    await asyncio.gather(*left)
    left.clear()


@pytest.mark.shows(
    "guarantees#a-hold-follows-the-work-into-threads",
    "faults#a-task-no-longer-waits-for-its-thread-or-a-thread-for-its-coroutine",
)
@pytest.mark.parametrize("body", [_timeout, _task_group, _left])
async def test_block_ends_before_the_thread(lock: Lock, body: Callable[[Work], Awaitable[None]]) -> None:
    """It does not matter what has ended the wait for the thread, nor whether the block ends with an error."""
    work = Work()

    async with lock:
        await body(work)
    assert is_taken(lock)
    work.end()
    acquired_by_another(lock)
    await ended()


RULES = {"exclusive": EXCLUSIVE, "read": READ, "semaphore": semaphore(1)}


@pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())
async def test_kinds(pool: Pool, observer: Observer, rule: Rule) -> None:
    """Locks of all kinds, and of several keys, stay as long as the thread."""
    keys = ["a", "b"] if rule is EXCLUSIVE else "a"
    lock, other = Lock(keys, pool, rule=rule), Lock("a", pool)
    work = Work()

    await cancel(asyncio.create_task(by_block(lock, lambda: asyncio.to_thread(work))), work)
    for path in lock.paths:
        observer.wait_count(path, 1)
    assert is_taken(other)
    work.end()
    acquired_by_another(other)
    for path in lock.paths:
        observer.wait_empty(path)


def test_inside_of_a_thread_that_holds(lock: Lock) -> None:
    """What a coroutine, nested in the hold of a thread, has left running keeps the lock when that thread releases."""
    work = Work()

    async def inner() -> None:
        async with lock:
            left.append(asyncio.create_task(asyncio.to_thread(work)))
            await asyncio.to_thread(work.begun.wait, LONG)

    def outer() -> None:
        with lock:
            async_to_sync(inner)()

    async def request() -> None:
        await sync_to_async(outer)()
        assert is_taken(lock)
        work.end()
        acquired_by_another(lock)
        await ended()

    asyncio.run(request())


# What the thread may do.


@start_by
async def test_thread__takes_the_lock(lock: Lock, start: Start) -> None:
    """The thread re-enters the lock that is kept for it, and its token is the same."""
    tokens: list[int] = []

    def nested() -> list[int]:
        found = current("k")
        with lock as held:
            return [held.token, 0 if found is None else found.token]

    work = Work(nested)

    async def body() -> None:
        async with lock as held:
            tokens.append(held.token)
            await start(work)

    await cancel(asyncio.create_task(body()), work)
    assert await asyncio.to_thread(work.end) == tokens * 2
    acquired_by_another(lock)


@pytest.mark.shows("ownership#blocks-whose-threads-go-on")
async def test_thread__checks(lock: Lock) -> None:
    """To the thread the hold of its block is held; to all others it is released."""
    holds: list[Held] = []
    work = Work(lambda: holds[0].check())  # noqa: PLW0108 - there is none yet

    await cancel(asyncio.create_task(by_hold(lock, holds, work)), work)
    with pytest.raises(NotHeld):
        holds[0].check()
    assert work.end() is None


@pytest.mark.shows("ownership#blocks-whose-threads-go-on")
async def test_thread__lock_is_lost(lock: Lock, observer: Observer) -> None:
    """The thread learns that the lock that is kept for it is lost."""
    holds: list[Held] = []

    def check() -> None:
        wait_until(lambda: holds[0].lost, timeout=LONG)
        holds[0].check()

    work = Work(check)

    await cancel(asyncio.create_task(by_hold(lock, holds, work)), work)
    observer.client.delete(holds[0].node)
    assert isinstance(work.end(), LockLost)
    acquired_by_another(lock)


@pytest.mark.shows("ownership#blocks-whose-threads-go-on")
async def test_thread__releases(lock: Lock) -> None:
    """A thread that was handed the hold releases it when it wants, and not at its end."""
    work = Work()

    def release(held: Held) -> None:
        held.release()
        work()

    held = await lock.aacquire()
    job = asyncio.create_task(asyncio.to_thread(release, held))
    assert await asyncio.to_thread(work.begun.wait, LONG)
    await asyncio.to_thread(acquired_by_another, lock)
    work.end()
    await job


async def test_thread__one_of_two_that_go_on(lock: Lock, observer: Observer) -> None:
    """While the lock is kept for two threads neither takes it again; it then waits, and gets it after the other one."""
    first, second = Work(), Work(lambda: lock.acquire(timeout=LONG).release())

    task = asyncio.create_task(by_hold(lock, [], first, second))
    assert await asyncio.to_thread(first.begun.wait, LONG)
    await cancel(task, second)
    second.may_end.set()
    observer.wait_count(lock.paths[0], 2)
    assert not second.ended.is_set()
    first.end()
    assert second.end() is None
    observer.wait_empty(lock.paths[0])


async def test_thread__last_of_two_that_go_on(lock: Lock) -> None:
    """When the other one has ended the last thread re-enters."""
    holds: list[Held] = []

    def reenter() -> int:
        with lock.acquire(timeout=0) as held:
            return held.token

    first, second = Work(), Work(reenter)

    task = asyncio.create_task(by_hold(lock, holds, first, second))
    assert await asyncio.to_thread(first.begun.wait, LONG)
    await cancel(task, second)
    first.end()
    await asyncio.to_thread(wait_until, lambda: len(holds[0]._possession._handles.handles) == 1)
    assert second.end() == holds[0].token


@pytest.mark.shows("ownership#blocks-whose-threads-go-on")
@pytest.mark.parametrize("rule", [EXCLUSIVE, READ], ids=["exclusive", "read"])
async def test_thread__waits_for_the_lock_already(pool: Pool, observer: Observer, rule: Rule) -> None:
    """A thread that waits for the lock when its block ends is no reason to keep it: it gets it in its turn."""
    lock, inner = Lock("k", pool), Lock("k", pool, rule=rule)
    work = Work(lambda: inner.acquire(timeout=LONG).release())

    async with lock:
        job = asyncio.create_task(asyncio.to_thread(work))
        work.may_end.set()
        await asyncio.to_thread(observer.wait_count, lock.paths[0], 2)
    await job
    assert work.value is None
    observer.wait_empty(lock.paths[0])


def waits(lock: Lock) -> Callable[[], bool]:
    """Return what says whether a job waits for the lock, for which it is kept or which its block has."""
    return lambda: any(owner.acquiring(lock.paths) for owner in list(owners._owners.values()))


async def ends_last(lock: Lock, first: Work, second: Work) -> None:
    """Fail unless the lock is kept for the second work when the first one has ended."""
    assert await asyncio.to_thread(second.begun.wait, LONG)
    first.end()
    assert is_taken(lock)
    second.end()
    acquired_by_another(lock)
    await ended()


@pytest.mark.shows("ownership#blocks-whose-threads-go-on")
@pytest.mark.usefixtures("unhurried")
@pytest.mark.parametrize("rule", [EXCLUSIVE, READ], ids=["exclusive", "read"])
async def test_thread__waits_in_vain(pool: Pool, rule: Rule) -> None:
    """A job that has only tried, or whose wait has ended without the lock, keeps what it goes on under."""
    lock, inner = Lock("k", pool), Lock("k", pool, rule=rule)
    first, second = Work(), Work()

    def ask() -> None:
        with pytest.raises(LockTimeout):
            inner.acquire(timeout=0)
        assert inner.try_acquire() is None
        with pytest.raises(LockTimeout):
            inner.acquire(timeout=0.05)
        second()

    async def body() -> None:
        async with lock:
            left.extend(asyncio.create_task(asyncio.to_thread(job)) for job in (first, ask))
            await asyncio.to_thread(first.begun.wait, LONG)

    await body()
    await ends_last(lock, first, second)


@pytest.mark.shows("ownership#blocks-whose-threads-go-on")
async def test_thread__waits_in_vain_already(lock: Lock) -> None:
    """The same for one that waited in the queue when the block ended, and gave up later."""
    first, second, end = Work(), Work(), Cancellation()

    def ask() -> None:
        with pytest.raises(LockCancelled):
            lock.acquire(cancellation=end)
        second()

    async with lock:
        left.extend(asyncio.create_task(asyncio.to_thread(job)) for job in (first, ask))
        await asyncio.to_thread(first.begun.wait, LONG)
        await asyncio.to_thread(wait_until, waits(lock), LONG)
    end.cancel()
    await ends_last(lock, first, second)


@pytest.mark.shows("ownership#blocks-whose-threads-go-on")
@pytest.mark.parametrize("by", ["thread", "async_to_sync"])
@pytest.mark.parametrize("count", [1, 3])
async def test_thread__several_wait(lock: Lock, observer: Observer, by: str, count: int) -> None:
    """Jobs that wait for the lock when their block ends get it one after the other; each keeps it until its end."""
    works = [Work() for _ in range(count)]
    inside: list[int] = []
    peaks: list[int] = []

    def enter() -> None:
        inside.append(1)
        peaks.append(len(inside))

    async def by_task() -> None:
        async with lock:
            enter()
            await asyncio.sleep(0.01)
            inside.pop()

    def job(work: Work) -> None:
        if by == "thread":
            with lock:
                enter()
                threading.Event().wait(0.01)
                inside.pop()
        else:
            async_to_sync(by_task)()
        work()

    async with lock:
        left.extend(asyncio.create_task(asyncio.to_thread(partial(job, work))) for work in works)
        await asyncio.to_thread(observer.wait_count, lock.paths[0], 1 + count)
    for number in range(count):
        await asyncio.to_thread(wait_until, lambda: any(work.begun.is_set() for work in works), LONG)
        work = next(work for work in works if work.begun.is_set())
        # It has had the lock, and goes on.
        assert len(peaks) == number + 1
        assert is_taken(lock)
        works.remove(work)
        work.may_end.set()
    await ended()
    acquired_by_another(lock)
    assert peaks == [1] * count
    observer.wait_empty(lock.paths[0])


@pytest.mark.shows("ownership#blocks-whose-threads-go-on")
async def test_thread__wants_more_than_is_kept(pool: Pool, observer: Observer) -> None:
    """A job that waits to write is refused when the lock is kept for it to read: it would wait for itself."""
    reading, writing = Lock("k", pool, rule=READ), Lock("k", pool, rule=WRITE)
    work = Work()

    def job() -> None:
        with pytest.raises(LockConflict, match="cannot be taken as"):
            writing.acquire()
        work()

    async with reading:
        left.append(asyncio.create_task(asyncio.to_thread(job)))
        await asyncio.to_thread(observer.wait_count, reading.paths[0], 2)
    await asyncio.to_thread(work.begun.wait, LONG)
    assert is_taken(writing)
    work.end()
    await ended()
    acquired_by_another(writing)


@pytest.mark.shows("guarantees#a-release-never-fails")
async def test_release__waits_for_the_thread(lock: Lock, observer: Observer) -> None:
    """`release(wait=True)` returns when the lock is free, which is after the end of what keeps it."""
    work = Work()

    def release_and_look(held: Held) -> list[Any]:
        held.release(wait=True)
        return [work.ended.is_set(), observer.children(lock.paths[0])]

    held = await lock.aacquire()
    call = asyncio.create_task(asyncio.to_thread(work))
    assert await asyncio.to_thread(work.begun.wait, LONG)
    release = Runner(partial(release_and_look, held))
    await asyncio.to_thread(wait_until, lambda: held.released, LONG)
    await asyncio.to_thread(work.end)
    assert await asyncio.to_thread(release.result, LONG) == [True, []]
    await call


# What the task may do.


async def test_task__goes_on(lock: Lock) -> None:
    """A task that was cancelled and goes on does not take the lock beside its own thread, and waits for its end."""
    work = Work()

    async def body() -> None:
        with pytest.raises(asyncio.CancelledError):
            async with lock:
                await sync_to_async(work)()
        assert current("k") is None
        assert await lock.atry_acquire() is None
        asking = asyncio.create_task(asyncio.to_thread(work.end))
        async with lock:
            assert work.ended.is_set()
        await asking

    task = asyncio.create_task(body())
    assert await asyncio.to_thread(work.begun.wait, LONG)
    task.cancel()
    await task


@pytest.mark.shows("guarantees#that-nothing-goes-on-after-the-release")
async def test_task__child_goes_on(lock: Lock) -> None:
    """The lock is kept for what a child that goes on has in a thread at the end of the block, and not for more."""
    first, second = Work(), Work()

    async def child() -> None:
        await asyncio.to_thread(first)
        await asyncio.to_thread(second)

    async with lock:
        task = asyncio.create_task(child())
        await asyncio.to_thread(first.begun.wait, LONG)
    assert is_taken(lock)
    first.end()
    assert await asyncio.to_thread(second.begun.wait, LONG)
    acquired_by_another(lock)
    second.end()
    await task


# Jobs that have not begun.


async def test_queued__cancelled(lock: Lock, observer: Observer) -> None:
    """A call that was cancelled before a thread was free is never made, and keeps nothing."""
    busy, work = Work(), Work()

    async def body(inside: asyncio.Event) -> None:
        async with lock:
            inside.set()
            await sync_to_async(work, thread_sensitive=False)()

    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(1))
    blocking = asyncio.create_task(asyncio.to_thread(busy))
    inside = asyncio.Event()
    task = asyncio.create_task(body(inside))
    await inside.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    observer.wait_empty(lock.paths[0])
    busy.end()
    await blocking
    assert not work.begun.is_set()


@pytest.mark.shows("guarantees#a-hold-follows-the-work-into-threads")
@pytest.mark.parametrize("waits", [False, True], ids=["loop", "thread that waits"])
def test_queued__sibling_goes_on(lock: Lock, observer: Observer, waits: bool) -> None:
    """A call that was not cancelled keeps the lock while it waits for its thread."""
    works = [Work(), Work(), Work()]

    def fail() -> None:
        works[0]()
        raise RuntimeError("the first has failed")

    calls: list[Callable[[], None]] = [fail, *works[1:]]

    async def body() -> None:
        async with lock:
            left.extend(asyncio.create_task(sync_to_async(call)()) for call in calls)
            await asyncio.to_thread(works[0].end)
            await asyncio.gather(*left)

    async def main() -> None:
        with pytest.raises(RuntimeError, match="first"):
            await body()
        for work in works[1:]:
            assert await asyncio.to_thread(is_taken, lock)
            await asyncio.to_thread(work.end)
        await asyncio.gather(*left, return_exceptions=True)
        left.clear()
        await asyncio.to_thread(acquired_by_another, lock)

    if waits:
        # Thread-sensitive code runs in the thread of the test then.
        async_to_sync(main)()
    else:
        asyncio.run(main())
    observer.wait_empty(lock.paths[0])


class HeldBack:
    """Stands for the method that runs a job: the thread that has taken ``work`` out of its queue does not begin it."""

    def __init__(self, run: Callable[[Any], None], work: Work) -> None:
        self.taken, self.may_begin = threading.Event(), threading.Event()
        self._run, self._work = run, work

    def __get__(self, job: Any, kind: type) -> Callable[..., None]:
        if job is None:
            return self._run
        if any(part is self._work for part in jobs._parts(job)):
            self.taken.set()
            assert self.may_begin.wait(LONG)
        return partial(self._run, job)


@pytest.mark.parametrize("module", ["concurrent.futures.thread", "asgiref.current_thread_executor"])
def test_queued__taken_out(lock: Lock, observer: Observer, module: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """A call that a thread has taken out of its queue, and has not begun, keeps the lock."""
    kind: Any = vars(sys.modules[module])["_WorkItem"]
    work = Work()
    held_back = HeldBack(kind.run, work)
    seen: list[bool] = []

    async def main() -> None:
        async with lock:
            call = asyncio.create_task(sync_to_async(work)())
            assert await asyncio.to_thread(held_back.taken.wait, LONG)
        seen.append(await asyncio.to_thread(is_taken, lock))
        held_back.may_begin.set()
        work.may_end.set()
        await call

    monkeypatch.setattr(kind, "run", held_back)
    if "asgiref" in module:
        # Thread-sensitive code runs in the thread of the test then.
        async_to_sync(main)()
    else:
        asyncio.run(main())
    assert seen == [True]
    observer.wait_empty(lock.paths[0])


# What is said of it, and what ends otherwise.


async def test_reported(lock: Lock, caplog: pytest.LogCaptureFixture) -> None:
    """The log says once which function keeps the lock, and when it was released; the listener hears of one release."""
    caplog.set_level(logging.INFO, "django_zklock.held")
    heard: list[str] = []

    class Listener(LockListener):
        def notify(self, event: str, lock: LockValue, /, **_facts: Any) -> None:
            heard.append(event)

        async def anotify(self, event: str, lock: LockValue, /, **_facts: Any) -> None:
            heard.append(event)

    lock.listener = Listener()
    work = Work()

    def export() -> None:
        work()

    await cancel(asyncio.create_task(by_block(lock, sync_to_async(partial(export)))), work)
    assert heard == ["acquired"]
    work.end()
    await asyncio.to_thread(wait_until, lambda: len(caplog.messages) > 1)
    deferred, released = caplog.messages
    assert deferred.startswith("event=release_deferred key='k' token=")
    assert "test_reported.<locals>.export" in deferred
    assert released.startswith("event=released_after_job key='k' token=")
    assert heard == ["acquired", "released"]


@pytest.mark.shows("guarantees#that-nothing-goes-on-after-the-release")
async def test_cannot_be_known(lock: Lock, caplog: pytest.LogCaptureFixture) -> None:
    """A thread without a copy of the context keeps nothing; the log says that a cancellation has ended the block."""
    caplog.set_level(logging.INFO, "django_zklock.held")
    work = Work()

    async def body() -> None:
        async with lock:
            await asyncio.get_running_loop().run_in_executor(None, work)

    await cancel(asyncio.create_task(body()), work)
    acquired_by_another(lock)
    work.end()
    assert [message.split()[0] for message in caplog.messages] == ["event=released_at_cancellation"]


async def test_nothing_goes_on(lock: Lock, monkeypatch: pytest.MonkeyPatch) -> None:
    """At the end of a block whose context has no copy, no thread is looked at."""
    monkeypatch.setattr(jobs, "started_in", pytest.fail)

    async with lock, lock:
        await asyncio.sleep(0)
    held = await lock.aacquire()
    held.release()
    tried = await lock.atry_acquire()
    assert tried is not None
    await tried.arelease()


@pytest.mark.shows("faults#a-task-no-longer-waits-for-its-thread-or-a-thread-for-its-coroutine")
async def test_executor_is_another(
    lock: Lock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """If what an executor does cannot be seen, as in a version to come, the lock is released, and an error logged."""
    monkeypatch.setattr(jobs, "_running", lambda: iter([object()]))
    work = Work()

    await cancel(asyncio.create_task(by_block(lock, lambda: asyncio.to_thread(work))), work)
    acquired_by_another(lock)
    work.end()
    assert caplog.messages[0].startswith("event=jobs_not_found key='k' token=")


async def test_coroutine_is_closed(lock: Lock) -> None:
    """A coroutine that is closed, and cannot await anything, keeps the lock for its thread too."""
    work = Work()

    calls: list[asyncio.Task[None]] = []

    async def body() -> None:
        async with lock:
            calls.append(asyncio.create_task(asyncio.to_thread(work)))
            await asyncio.sleep(LONG)

    coroutine = body()
    future = coroutine.send(None)
    while not calls:
        await asyncio.wait([future])
        future = coroutine.send(None)
    assert await asyncio.to_thread(work.begun.wait, LONG)
    coroutine.close()
    assert is_taken(lock)
    work.end()
    await asyncio.gather(*calls)
    acquired_by_another(lock)


async def test_pool_is_closed(make_pool: MakePool) -> None:
    """A pool may be closed while a thread goes on; its end releases what is no longer there."""
    pool = make_pool()
    lock, work = Lock("k", pool), Work()

    await cancel(asyncio.create_task(by_block(lock, lambda: asyncio.to_thread(work))), work)
    await asyncio.to_thread(pool.close)
    work.end()
    acquired_by_another(Lock("k", make_pool()))


def _release_in_fork(held: Held, report: Callable[[object], None]) -> None:
    held.release()
    report(len(held._possession._handles.handles))


async def test_fork(lock: Lock, observer: Observer) -> None:
    """A fork that releases the hold releases nothing of its parent's, and keeps nothing for threads that it has not."""
    work = Work()

    async with lock as held:
        call = asyncio.create_task(asyncio.to_thread(work))
        assert await asyncio.to_thread(work.begun.wait, LONG)
        with fork(partial(_release_in_fork, held)) as child:
            assert child.receive() == 1
        observer.wait_count(lock.paths[0], 1)
        work.end()
        await call
    observer.wait_empty(lock.paths[0])
