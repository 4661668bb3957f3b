"""The owner of a hold: for each pair of places, taken in one and asked for in the other, what happens.

The table of docs/explanation/ownership.md names these tests.
"""

from __future__ import annotations

import asyncio
import contextlib
import contextvars
import copy
import gc
import pickle
import signal
import subprocess
import sys
import threading
import warnings
from collections.abc import AsyncIterator, Callable, Generator, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import greenlet  # noqa: F401 - as Playwright and SQLAlchemy do
import pytest
import uvloop
from asgiref.sync import ThreadSensitiveContext, async_to_sync, sync_to_async

from django_zklock.exceptions import AsyncUnsafe, LockConflict, LockLost, LockTimeout, NotHeld, ZooKeeperUnavailable
from django_zklock.zk import owners
from django_zklock.zk.held import Held, current
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import READ, WRITE, semaphore
from tests.toolbox.locks.pools import MakePool
from tests.toolbox.threads import Runner, run_foreign
from tests.toolbox.timing import scaled, wait_until
from tests.toolbox.zookeeper.any_server import Server
from tests.toolbox.zookeeper.observer import Observer

pytestmark = pytest.mark.oldest

pytest_plugins = ["tests.contract.agents", "tests.toolbox.slow_deadlines"]

REPOSITORY = Path(__file__).resolve().parent.parent.parent
# Seconds, for what must not happen: a wait that never ends.
LONG = scaled(60)

sensitive = pytest.mark.parametrize("sensitive", [True, False], ids=["thread-sensitive", "any thread"])


def ask(lock: Lock) -> str:
    """Say what comes of asking for ``lock`` in plain code: that of a nested hold, or of another owner."""
    outer = current("k")
    held = lock.try_acquire()
    if held is None:
        assert outer is None
        return "waits"
    assert outer is not None
    assert held.node == outer.node
    held.release()
    return "re-enters"


async def aask(lock: Lock) -> str:
    """Say the same in a coroutine."""
    outer = current("k")
    held = await lock.atry_acquire()
    if held is None:
        assert outer is None
        return "waits"
    assert outer is not None
    assert held.node == outer.node
    await held.arelease()
    return "re-enters"


@pytest.fixture
def lock(pool: Pool) -> Lock:
    return Lock("k", pool)


# Threads.


def test_thread__same(lock: Lock) -> None:
    """A thread shares its hold with all that it calls."""
    with lock:
        assert ask(lock) == "re-enters"


@pytest.mark.shows("guarantees#re-entrancy-across-threads-tasks-and-processes")
def test_thread__other(lock: Lock) -> None:
    """A thread is another owner, also one that was started inside the block, and with a copy of the context.

    Python 3.14 may give one to every thread.
    """
    with lock:
        assert Runner(lambda: ask(lock)).result() == "waits"
        context = contextvars.copy_context()
        assert Runner(lambda: context.run(ask, lock)).result() == "waits"


# Threads that Python did not start, such as those of servers in C or Rust.


def test_foreign_thread__same(lock: Lock) -> None:
    """A thread that Python did not start owns what it takes, over a bridge too."""

    def work() -> list[str]:
        with lock:
            return [ask(lock), async_to_sync(aask)(lock), Runner(lambda: ask(lock)).result()]

    assert run_foreign(work)[0] == ["re-enters", "re-enters", "waits"]


def test_foreign_thread__next_one(lock: Lock) -> None:
    """What such a thread has left held does not belong to the next one, also if the system gives it the same ident."""
    for _ in range(100):
        held, first = run_foreign(lock.acquire)
        answer, second = run_foreign(lambda: [ask(lock), async_to_sync(aask)(lock)])
        held.check()
        held.release()
        assert answer == ["waits", "waits"]
        if second == first:
            return
    pytest.fail("no ident was given again")


def test_foreign_thread__never_asked(lock: Lock) -> None:
    """A coroutine of one that has never asked for a lock owns what it takes."""

    async def work() -> str:
        async with lock:
            return await aask(lock)

    assert run_foreign(async_to_sync(work))[0] == "re-enters"


# Jobs of executors.


def test_job__same(lock: Lock) -> None:
    """A job of an executor owns what it takes."""

    def job() -> str:
        with lock:
            return ask(lock)

    with ThreadPoolExecutor(1) as executor:
        assert executor.submit(job).result(LONG) == "re-enters"


@pytest.mark.shows("faults#many-tasks-share-a-thread")
def test_job__next_one_in_its_thread(lock: Lock, observer: Observer) -> None:
    """What a job has left held does not belong to the next job of the same thread; the hold can be released."""
    with ThreadPoolExecutor(1) as executor:
        held = executor.submit(lock.acquire).result(LONG)
        assert executor.submit(ask, lock).result(LONG) == "waits"
        held.check()
        executor.submit(held.release).result(LONG)
    observer.wait_empty(lock.paths[0])


def test_job__of_a_thread_that_holds(lock: Lock) -> None:
    """A job is another owner than the thread that waits for it."""
    with ThreadPoolExecutor(1) as executor, lock:
        assert executor.submit(ask, lock).result(LONG) == "waits"


@pytest.mark.parametrize("start", ["to_thread", "run_in_executor"])
async def test_job__of_a_task_that_holds(lock: Lock, start: str) -> None:
    """The same for a task, although its context is copied."""

    async with lock:
        if start == "to_thread":
            assert await asyncio.to_thread(ask, lock) == "waits"
        else:
            assert await asyncio.get_running_loop().run_in_executor(None, ask, lock) == "waits"


async def test_job__asked_in_its_task(lock: Lock) -> None:
    """What a job of `to_thread` has taken belongs to the job, and not to the task that has waited for it."""

    held = await asyncio.to_thread(lock.acquire)
    assert await aask(lock) == "waits"
    await held.arelease()


# Tasks.


async def test_task__same(lock: Lock) -> None:
    """A task shares its hold with the coroutines that it awaits, also under `asyncio.timeout`."""

    async with lock:
        assert await aask(lock) == "re-enters"
        async with asyncio.timeout(LONG):
            assert await aask(lock) == "re-enters"


async def test_task__wait_for(lock: Lock) -> None:
    """`wait_for` around an acquisition gives the hold to the task that has asked, in every version of Python."""

    held = await asyncio.wait_for(lock.aacquire(), LONG)
    assert current("k") is held
    inner = await asyncio.wait_for(lock.aacquire(), LONG)
    assert inner.node == held.node
    again = await asyncio.wait_for(lock.atry_acquire(), LONG)
    assert again is not None
    assert again.node == held.node
    for each in (again, inner, held):
        await each.arelease()


async def test_task__wait_for_a_coroutine(lock: Lock) -> None:
    """`wait_for` around any other coroutine makes a task of it in Python 3.11, and that is another owner."""

    async with lock:
        expected = "re-enters" if sys.version_info >= (3, 12) else "waits"
        assert await asyncio.wait_for(aask(lock), LONG) == expected


@pytest.mark.shows("guarantees#re-entrancy-across-threads-tasks-and-processes")
@pytest.mark.parametrize("start", ["create_task", "gather", "ensure_future", "TaskGroup"])
async def test_task__child(lock: Lock, start: str) -> None:
    """A child task is another owner, although it has its parent's context."""

    async with lock:
        if start == "gather":
            assert list(await asyncio.gather(aask(lock), aask(lock))) == ["waits", "waits"]
        elif start == "TaskGroup":
            async with asyncio.TaskGroup() as group:
                child = group.create_task(aask(lock))
            assert await child == "waits"
        elif start == "create_task":
            assert await asyncio.create_task(aask(lock)) == "waits"
        else:
            assert await asyncio.ensure_future(aask(lock)) == "waits"


def test_task__in_a_loop_written_in_c(lock: Lock) -> None:
    """A task of uvloop is an owner of its own, also in a process that has imported greenlet."""
    assert "greenlet" in sys.modules

    async def main() -> list[str]:
        async with lock:
            in_thread = await sync_to_async(lambda: [ask(lock), async_to_sync(aask)(lock)])()
            return [await aask(lock), await asyncio.create_task(aask(lock)), *in_thread]

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        assert runner.run(main()) == ["re-enters", "waits", "re-enters", "re-enters"]


async def test_task__acquisitions_in_gather(lock: Lock) -> None:
    """What a task asks for belongs to it, also if `gather` makes tasks of the asking."""

    first, second = await asyncio.gather(lock.aacquire(), Lock("other", lock.pool).aacquire())
    assert current("k") is first
    assert current("other") is second
    for held in (first, second):
        await held.arelease()


async def test_task__same_key_twice_in_gather(lock: Lock, make_pool: MakePool) -> None:
    """The second acquisition would wait for the first, which belongs to the same task."""
    holder = Runner(Lock(lock.key, make_pool()).acquire).result()

    first = asyncio.ensure_future(lock.aacquire())
    second: object
    third: object
    second, third = await asyncio.gather(lock.aacquire(), lock.aacquire(0), return_exceptions=True)
    assert isinstance(second, LockConflict), second
    assert isinstance(third, LockTimeout), third
    assert "is being acquired by this very thread or task" in str(second)
    holder.release()
    held = await first
    nested = await lock.aacquire()
    assert nested.node == held.node
    for each in (nested, held):
        await each.arelease()


async def test_task__again_after_giving_up(lock: Lock, make_pool: MakePool) -> None:
    """An acquisition that has ended, by whatever end, is in the way of no other."""
    holder = Runner(Lock(lock.key, make_pool()).acquire).result()

    for _ in range(20):
        with contextlib.suppress(LockTimeout, ZooKeeperUnavailable):
            await lock.aacquire(0.01)
        task = asyncio.ensure_future(lock.aacquire())
        await asyncio.sleep(0)
        task.cancel()
        await asyncio.wait([task])
        assert await lock.atry_acquire() is None
    holder.release()
    async with lock:
        pass


async def test_task__readers_in_gather(pool: Pool) -> None:
    """Acquisitions that do not exclude each other may be made at once."""
    lock = Lock("k", pool, rule=READ)

    for held in await asyncio.gather(lock.aacquire(), lock.aacquire()):
        await held.arelease()


def test_task__before_the_loop_runs(lock: Lock) -> None:
    """What a thread asks for belongs to the thread, also if a loop is run to get it."""
    held = asyncio.run(lock.aacquire())
    assert current("k") is held
    assert ask(lock) == "re-enters"
    held.release()


@pytest.mark.shows("faults#blocking-code-asks-for-a-lock-in-the-thread-of-an-event-loop")
async def test_task__blocking_code_in_the_loop(lock: Lock) -> None:
    """Blocking code in the loop's thread is refused, with the form to use, unless it re-enters its task's hold."""

    with pytest.raises(AsyncUnsafe, match=r"`async with lock`, `await lock\.aacquire\(\)`"):
        lock.acquire()
    with pytest.raises(AsyncUnsafe, match=r"`await lock\.atry_acquire\(\)`"):
        lock.try_acquire()
    with pytest.raises(AsyncUnsafe), lock:
        pass
    async with lock:
        assert ask(lock) == "re-enters"


@pytest.mark.shows("faults#blocking-code-asks-for-a-lock-in-the-thread-of-an-event-loop")
async def test_task__blocking_code_in_a_callback(lock: Lock) -> None:
    """The same for what the loop calls outside of a task."""

    refused: asyncio.Future[Exception | None] = asyncio.get_running_loop().create_future()

    def call() -> None:
        try:
            lock.acquire(0)
        except AsyncUnsafe as error:
            refused.set_result(error)
        else:
            refused.set_result(None)

    asyncio.get_running_loop().call_soon(call)
    assert isinstance(await refused, AsyncUnsafe)


async def test_task__blocking_code_allowed(lock: Lock, monkeypatch: pytest.MonkeyPatch) -> None:
    """Django's variable for shells that have a loop allows it."""
    monkeypatch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "1")

    with lock.acquire():
        pass


# Greenlets.

PATCH = {
    "gevent": "from gevent import monkey; monkey.patch_all()",
    "eventlet": "import eventlet; eventlet.monkey_patch()",
}
IMPORT = "import django_zklock.zk.lock"


def play(server: Server, root: str, *lines: str) -> list[str]:
    """Run a program of tests/contract/programs/greenlet_owners.py and give what it has said."""
    command = [sys.executable, "-c", "\n".join(lines), server.hosts, root]
    process = subprocess.run(command, check=False, capture_output=True, text=True, cwd=REPOSITORY, timeout=LONG)
    assert process.returncode == 0, process.stderr
    return process.stdout.splitlines()


@pytest.mark.parametrize("library", PATCH)
def test_greenlet__patched_before_import(server: Server, root: str, library: str) -> None:
    """A greenlet of a patched process shares its hold with itself alone, and the others take turns."""
    run = f"from tests.contract.programs.greenlet_owners import main; main({library!r})"
    assert play(server, root, PATCH[library], IMPORT, run) == ["inside 1 tokens 4"]


@pytest.mark.shows("faults#threads-are-patched-after-the-import")
@pytest.mark.parametrize("library", PATCH)
def test_greenlet__patched_after_import(server: Server, root: str, library: str) -> None:
    """The same in a process that is patched when everything is imported, as by gunicorn with --preload."""
    run = f"from tests.contract.programs.greenlet_owners import main; main({library!r})"
    assert play(server, root, IMPORT, PATCH[library], run) == ["inside 1 tokens 4"]


@pytest.mark.parametrize("library", PATCH)
def test_greenlet__unpatched(server: Server, root: str, library: str) -> None:
    """Without patches a greenlet that waits would stop the one that holds, so it is refused."""
    run = f"from tests.contract.programs.greenlet_owners import unpatched; unpatched({library!r})"
    assert play(server, root, IMPORT, run) == ["conflict True None None"] * 3


def test_greenlet__beside_a_task(server: Server, root: str) -> None:
    """A greenlet is not the task of an event loop that runs in another greenlet of its thread."""
    run = "from tests.contract.programs.greenlet_owners import beside_a_task; beside_a_task('gevent')"
    assert play(server, root, PATCH["gevent"], IMPORT, run) == ["asked True True"]


# Bridges: synchronous code for a task.


@pytest.mark.shows("guarantees#re-entrancy-across-threads-tasks-and-processes")
@sensitive
async def test_sync_to_async__of_the_holder(lock: Lock, sensitive: bool) -> None:
    """Code that runs for a task in a thread re-enters what the task holds."""

    async with lock as held:
        assert await sync_to_async(ask, thread_sensitive=sensitive)(lock) == "re-enters"
        assert await sync_to_async(current, thread_sensitive=sensitive)("k") is held


@sensitive
async def test_sync_to_async__taken_inside(lock: Lock, observer: Observer, sensitive: bool) -> None:
    """What that code takes belongs to the task: in its coroutines, and in the next call."""

    held = await sync_to_async(lock.acquire, thread_sensitive=sensitive)()
    assert current("k") is held
    assert await aask(lock) == "re-enters"
    assert await sync_to_async(ask, thread_sensitive=sensitive)(lock) == "re-enters"
    await sync_to_async(held.release, thread_sensitive=sensitive)()
    observer.wait_empty(lock.paths[0])


@pytest.mark.shows("faults#many-tasks-share-a-thread")
@sensitive
async def test_sync_to_async__of_a_child(lock: Lock, sensitive: bool) -> None:
    """Code that runs for a child task, with a copy of a copy of the holder's context, is another owner."""

    async def child() -> str:
        return await sync_to_async(ask, thread_sensitive=sensitive)(lock)

    async with lock:
        assert await asyncio.create_task(child()) == "waits"
        code = sync_to_async(ask, thread_sensitive=sensitive)
        assert list(await asyncio.gather(child(), code(lock))) == ["waits", "waits"]
        assert await child() == "re-enters"


@pytest.mark.shows("faults#a-task-no-longer-waits-for-its-thread-or-a-thread-for-its-coroutine")
@sensitive
def test_sync_to_async__cancelled_while_it_holds(lock: Lock, observer: Observer, sensitive: bool) -> None:
    """Code whose task was cancelled goes on under its lock, re-enters it, and shares it with nothing else."""
    inside, go_on = threading.Event(), threading.Event()
    nested: list[str] = []

    def work() -> None:
        with lock:
            inside.set()
            assert go_on.wait(LONG)
            nested.append(ask(lock))

    async def request() -> None:
        task = asyncio.current_task()
        cancelling = threading.Thread(target=cancel, args=[task, asyncio.get_running_loop()])
        cancelling.start()
        with pytest.raises(asyncio.CancelledError):
            await sync_to_async(work, thread_sensitive=sensitive)()
        cancelling.join(LONG)
        assert await aask(lock) == "waits"
        go_on.set()

    def cancel(task: asyncio.Task[None], loop: asyncio.AbstractEventLoop) -> None:
        assert inside.wait(LONG)
        loop.call_soon_threadsafe(task.cancel)

    asyncio.run(request())
    wait_until(lambda: nested)
    assert nested == ["re-enters"]
    observer.wait_empty(lock.paths[0])


@pytest.mark.shows("faults#a-task-no-longer-waits-for-its-thread-or-a-thread-for-its-coroutine")
async def test_sync_to_async__two_cancelled_readers(lock: Lock, observer: Observer) -> None:
    """Each block ends with its own hold, also if the tasks of both are cancelled."""
    reports = Lock("reports", lock.pool, rule=READ)
    inside, go_on = threading.Barrier(3), threading.Event()

    def work() -> None:
        with reports:
            inside.wait(LONG)
            assert go_on.wait(LONG)

    async def request() -> None:
        await sync_to_async(work, thread_sensitive=False)()

    tasks = [asyncio.create_task(request()) for _ in range(2)]
    await asyncio.to_thread(inside.wait, LONG)
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    del tasks, task
    go_on.set()
    observer.wait_empty(reports.paths[0])


@pytest.mark.shows("faults#a-task-no-longer-waits-for-its-thread-or-a-thread-for-its-coroutine")
def test_async_to_sync__interrupted_while_it_holds(lock: Lock) -> None:
    """A thread that an exception has torn out of its wait does not share what the coroutine goes on to hold."""
    inside, torn, go_on = threading.Event(), threading.Event(), threading.Event()

    class TornError(Exception):
        pass

    async def work() -> None:
        async with lock:
            inside.set()
            await asyncio.to_thread(go_on.wait, LONG)

    def tear(_signal: int, _frame: object) -> None:
        if not torn.is_set():
            torn.set()
            raise TornError

    def strike() -> None:
        assert inside.wait(LONG)
        # Again, because the first may come right before the thread begins to wait.
        while not torn.wait(0.05):
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGUSR1)

    before = signal.signal(signal.SIGUSR1, tear)
    striker = threading.Thread(target=strike)
    striker.start()
    try:
        with pytest.raises(TornError):
            async_to_sync(work)()
        assert lock.try_acquire() is None
    finally:
        torn.set()
        striker.join(LONG)
        signal.signal(signal.SIGUSR1, before)
        go_on.set()
    lock.acquire(timeout=LONG).release()


def test_thread__equal_to_another(lock: Lock) -> None:
    """Threads that compare equal are two owners."""

    class Worker(threading.Thread):
        def __eq__(self, other: object) -> bool:
            return isinstance(other, Worker)

        def __hash__(self) -> int:
            return 1

    asked: list[str] = []

    def hold() -> None:
        with lock:
            other = Worker(target=lambda: asked.append(ask(lock)))
            other.start()
            other.join(LONG)

    holder = Worker(target=hold)
    holder.start()
    holder.join(LONG)
    assert asked == ["waits"]


@pytest.mark.shows("faults#many-tasks-share-a-thread")
async def test_sync_to_async__three_tasks_in_one_thread(lock: Lock) -> None:
    """Of tasks that share asgiref's thread one holds; each that would block that thread by waiting is refused."""

    everybody_has_asked = asyncio.Event()
    asked = 0

    async def work() -> str:
        nonlocal asked
        try:
            held = await sync_to_async(lock.acquire)(LONG)
        except LockConflict as error:
            assert "taken in this very thread by another task" in str(error)  # noqa: PT017 - one of three
            return "refused"
        finally:
            asked += 1
            if asked == 3:
                everybody_has_asked.set()
        await everybody_has_asked.wait()
        held.check()
        await sync_to_async(held.release)()
        return "held"

    assert sorted(await asyncio.gather(work(), work(), work())) == ["held", "refused", "refused"]


async def test_sync_to_async__three_tasks_in_their_threads(lock: Lock) -> None:
    """Tasks whose code runs in threads of their own take turns."""
    inside = 0

    async def work() -> int:
        nonlocal inside
        held = await sync_to_async(lock.acquire, thread_sensitive=False)(LONG)
        inside += 1
        await asyncio.sleep(0.01)
        found = inside
        inside -= 1
        await sync_to_async(held.release, thread_sensitive=False)()
        return found

    assert list(await asyncio.gather(work(), work(), work())) == [1, 1, 1]


async def test_sync_to_async__many_tasks_at_once(lock: Lock) -> None:
    """Each of many tasks finds its own hold in the thread, and nothing of the others."""

    locks = [Lock(f"k{number}", lock.pool) for number in range(40)]

    async def work(number: int) -> None:
        async with locks[number] as held:
            for _ in range(3):
                assert await sync_to_async(current, thread_sensitive=bool(number % 2))() is held

    await asyncio.gather(*map(work, range(40)))


async def test_sync_to_async__under_a_generator(lock: Lock) -> None:
    """The task is found through whatever lies between it and the call: generators, context managers, awaitables."""

    async def numbers() -> AsyncIterator[str]:
        yield await sync_to_async(ask)(lock)

    @contextlib.asynccontextmanager
    async def manager() -> AsyncIterator[str]:
        async for answer in numbers():
            yield answer

    class Wrapped:
        def __await__(self) -> Any:
            return sync_to_async(ask)(lock).__await__()

    class Number:
        async def __anext__(self) -> str:
            return await sync_to_async(ask)(lock)

        def __aiter__(self) -> Number:
            return self

    async with lock, manager() as answer:
        assert answer == "re-enters"
        assert await Wrapped() == "re-enters"
        assert await anext(numbers()) == "re-enters"
        assert await anext(numbers(), "none") == "re-enters"
        assert await anext(Number(), "none") == "re-enters"


async def test_sync_to_async__of_a_task_that_was_cancelled(lock: Lock) -> None:
    """Code whose task does not wait for it any more has no outer owner, and re-enters nothing of that task."""
    begun, go_on = threading.Event(), threading.Event()
    answers: list[str] = []

    def code() -> None:
        begun.set()
        assert go_on.wait(LONG)
        answers.append(ask(lock))

    async def work() -> None:
        async with lock:
            with contextlib.suppress(asyncio.CancelledError):
                await sync_to_async(code, thread_sensitive=False)()
            go_on.set()
            while not answers:  # noqa: ASYNC110 - set by a thread
                await asyncio.sleep(0.005)

    task = asyncio.create_task(work())
    await asyncio.to_thread(begun.wait, LONG)
    task.cancel()
    await task
    assert answers == ["waits"]


@sensitive
async def test_sync_to_async__task_not_found(lock: Lock, monkeypatch: pytest.MonkeyPatch, sensitive: bool) -> None:
    """Code whose task cannot be found, as with another asgiref, has its own holds and no others."""
    monkeypatch.setattr(owners, "_waiting_task", lambda _call: None)

    def alone() -> str:
        with Lock("k", lock.pool):
            return ask(lock)

    async with lock:
        assert await sync_to_async(ask, thread_sensitive=sensitive)(lock) == "waits"
    assert await sync_to_async(alone, thread_sensitive=sensitive)() == "re-enters"
    held = await sync_to_async(lock.acquire, thread_sensitive=sensitive)()
    assert await sync_to_async(ask, thread_sensitive=sensitive)(lock) == "waits"
    await held.arelease()


@pytest.mark.parametrize("loop_is", ["closed", "other"])
def test_waiting_task__cannot_be_found(loop_is: str) -> None:
    """A call whose loop has ended, and one without what asgiref leaves behind, has no task that waits for it."""

    def thread_handler(loop: Any, task_context: Any) -> Any:
        return owners._waiting_task(sys._getframe())

    loop = asyncio.new_event_loop()
    loop.close()
    assert thread_handler(loop if loop_is == "closed" else object(), []) is None
    assert thread_handler(loop, None) is None


async def test_sync_to_async__faster_than_its_task(lock: Lock) -> None:
    """A thread that asks before its task has begun to wait for it finds the task all the same."""

    class Eager(ThreadPoolExecutor):
        """Runs half of each job before `submit` returns."""

        def submit(self, fn: Any, /, *args: Any, **kwargs: Any) -> Any:
            asking = threading.Event()
            future = super().submit(_noting(asking, fn), *args, **kwargs)
            assert asking.wait(LONG)
            return future

    def _noting(asking: threading.Event, call: Callable[..., Any]) -> Callable[..., Any]:
        def noted(*args: Any) -> Any:
            asking_now.append(asking)
            return call(*args)

        return noted

    asking_now: list[threading.Event] = []

    def code() -> str:
        # As late as possible, and still before the task waits.
        asking_now.pop().set()
        return ask(lock)

    with Eager(1) as executor:
        async with lock:
            assert await sync_to_async(code, thread_sensitive=False, executor=executor)() == "re-enters"


async def test_sync_to_async__with_a_context_of_its_own(lock: Lock) -> None:
    """With a thread for each context, as each ASGI request has it, code of different tasks waits for each other."""

    async def work() -> int:
        async with ThreadSensitiveContext():
            held = await sync_to_async(lock.acquire)(LONG)
            await asyncio.sleep(0.01)
            await sync_to_async(held.release)()
            return held.token

    assert len(set(await asyncio.gather(*(work() for _ in range(3))))) == 3


# Bridges: a coroutine for a thread.


def test_async_to_sync__of_the_holder(lock: Lock) -> None:
    """A coroutine that a thread waits for re-enters what the thread holds, and what it takes is the thread's.

    Also of one that has never asked before.
    """

    async def take() -> Held:
        return await lock.aacquire()

    def work() -> str:
        held = async_to_sync(take)()
        assert current("k") is held
        answer = ask(lock)
        held.release()
        return answer

    with lock:
        assert async_to_sync(aask)(lock) == "re-enters"
    assert [work(), Runner(work).result(LONG)] == ["re-enters", "re-enters"]


def test_async_to_sync__of_another(lock: Lock) -> None:
    """A coroutine that another thread runs is another owner."""
    with lock:
        assert Runner(lambda: async_to_sync(aask)(lock)).result(LONG) == "waits"


def test_async_to_sync__child(lock: Lock) -> None:
    """A task that the coroutine starts is another owner."""

    async def parent() -> str:
        return await asyncio.create_task(aask(lock))

    with lock:
        assert async_to_sync(parent)() == "waits"


@pytest.mark.shows("faults#many-tasks-share-a-thread")
def test_async_to_sync__child_back_in_the_thread(lock: Lock) -> None:
    """Code of such a task that runs in the very thread that holds is refused: waiting could only be for itself."""

    async def parent() -> None:
        with pytest.raises(LockConflict, match="taken in this very thread"):
            await asyncio.create_task(sync_to_async(lock.acquire)())

    with lock:
        async_to_sync(parent)()


def there_and_back(lock: Lock) -> list[str]:
    """Say what comes of asking in each place behind some bridges, twice from a task and once from a thread."""

    def innermost() -> str:
        return ask(lock)

    async def back() -> list[str]:
        return [await aask(lock), await sync_to_async(innermost)()]

    def there() -> list[str]:
        return [ask(lock), *async_to_sync(back)(), ask(lock)]

    def take() -> list[str]:
        with lock:
            return there()

    async def main() -> list[str]:
        async with lock:
            inside = await sync_to_async(there)()
        return inside + await sync_to_async(take)()

    return asyncio.run(main()) + take()


def test_bridges__there_and_back(lock: Lock) -> None:
    """Ownership goes over any number of bridges."""
    assert there_and_back(lock) == ["re-enters"] * 12


@pytest.mark.usefixtures("agent")
def test_bridges__traced(lock: Lock) -> None:
    """Ownership is the same in a program that an agent traces, whatever it puts around bridges and coroutines."""
    assert there_and_back(lock) == ["re-enters"] * 12

    async def child() -> str:
        return await asyncio.create_task(aask(lock))

    with lock:
        assert async_to_sync(child)() == "waits"


# Blocks that are left by another one than has entered them.


@pytest.mark.shows("faults#a-block-is-left-by-another-thread-or-task", "ownership#blocks-that-are-left-elsewhere")
def test_block__left_by_another_thread(lock: Lock, observer: Observer) -> None:
    """A generator that is set up in one thread and torn down in another gives the lock back."""

    def fixture() -> Iterator[Held]:
        with lock as held:
            yield held

    generator = fixture()
    held = Runner(lambda: next(generator)).result()
    held.check()
    with pytest.raises(StopIteration):
        next(generator)
    assert held.released
    observer.wait_empty(lock.paths[0])


@pytest.mark.shows("faults#a-block-is-left-by-another-thread-or-task", "ownership#blocks-that-are-left-elsewhere")
def test_block__left_by_another_task(lock: Lock, observer: Observer) -> None:
    """The same for an async generator, as a fixture that a plugin runs in two tasks, and for an AsyncExitStack."""

    async def fixture() -> AsyncIterator[Held]:
        async with lock as held:
            yield held

    with contextlib.closing(asyncio.new_event_loop()) as loop:
        generator = fixture()
        held = loop.run_until_complete(_next(generator))
        held.check()
        with pytest.raises(StopAsyncIteration):
            loop.run_until_complete(_next(generator))
        observer.wait_empty(lock.paths[0])
        stack = contextlib.AsyncExitStack()
        held = loop.run_until_complete(stack.enter_async_context(lock))
        held.check()
        loop.run_until_complete(stack.aclose())
        observer.wait_empty(lock.paths[0])


@pytest.mark.shows("faults#a-block-is-left-by-another-thread-or-task", "ownership#blocks-that-are-left-elsewhere")
def test_block__generator_closed_by_the_loop(lock: Lock, observer: Observer) -> None:
    """An async generator that no code ends is ended by the loop, in a task of its own."""

    async def fixture() -> AsyncIterator[Held]:
        async with lock as held:
            yield held

    async def main() -> AsyncIterator[Held]:
        generator = fixture()
        await _next(generator)
        return generator

    asyncio.run(main())
    observer.wait_empty(lock.paths[0])


@pytest.mark.shows("faults#a-block-is-left-by-another-thread-or-task", "ownership#blocks-that-are-left-elsewhere")
@pytest.mark.parametrize("rule", [READ, semaphore(3)], ids=["read", "lease"])
def test_block__left_by_another_and_ambiguous(pool: Pool, observer: Observer, rule: Any) -> None:
    """Where several blocks of a lock object are open, another caller ends none of those whose owners live."""
    lock = Lock("k", pool, rule=rule)
    leave, entered = threading.Event(), threading.Barrier(3)

    def stay() -> None:
        with lock:
            entered.wait(LONG)
            assert leave.wait(LONG)

    staying = [Runner(stay) for _ in range(2)]
    entered.wait(LONG)
    with pytest.raises(NotHeld, match="several are open"):
        lock.__exit__(None, None, None)
    observer.wait_count(lock.paths[0], 2)
    # Of those whose thread has ended there is one.
    generator = _entering(lock)
    held = Runner(lambda: next(generator)).result()
    gc.collect()
    generator.close()
    assert held.released
    observer.wait_count(lock.paths[0], 2)
    leave.set()
    for runner in staying:
        runner.result()
    observer.wait_empty(lock.paths[0])


@pytest.mark.shows("ownership#blocks-that-are-left-elsewhere")
def test_block__released_inside_while_another_is_open(pool: Pool) -> None:
    """The end of a block whose hold was released inside ends no block of another owner."""
    lock = Lock("k", pool)
    leave, entered = threading.Event(), threading.Event()

    def follow() -> None:
        with lock as held:
            entered.set()
            assert leave.wait(LONG)
            held.check()

    held = lock.__enter__()
    following = Runner(follow)
    held.release()
    assert entered.wait(LONG)
    with pytest.raises(NotHeld, match="released inside its own block"):
        lock.__exit__(None, None, None)
    leave.set()
    following.result()


def _entering(lock: Lock) -> Generator[Held]:
    with lock as held:
        yield held


async def _next(generator: AsyncIterator[Held]) -> Held:
    return await generator.__anext__()


# Holds that are forgotten.


@pytest.mark.parametrize("duplicate", [copy.copy, copy.deepcopy, pickle.dumps])
def test_copied(lock: Lock, duplicate: Callable[[Held], object]) -> None:
    """A hold is released once; a copy would be a second one."""
    with lock.acquire() as held, pytest.raises(TypeError, match="cannot be copied"):
        duplicate(held)


@pytest.mark.shows("faults#a-hold-is-forgotten", "ownership#holds-that-are-forgotten")
@pytest.mark.parametrize("where", ["thread", "foreign thread", "job", "task"])
def test_forgotten(lock: Lock, observer: Observer, where: str) -> None:
    """A hold whose owner ends, and that was handed to no other code, is warned of; the lock stays taken."""

    def forget() -> None:
        lock.acquire()

    async def aforget() -> None:
        await lock.aacquire()

    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", ResourceWarning)
        if where == "thread":
            Runner(forget).result()
        elif where == "foreign thread":
            run_foreign(forget)
        elif where == "job":
            with ThreadPoolExecutor(1) as executor:
                executor.submit(forget).result(LONG)
        else:
            asyncio.run(aforget())
        for _ in range(50):
            gc.collect()
            if caught:
                break
            threading.Event().wait(0.1)
    assert ["lock 'k' was never released" in str(each.message) for each in caught] == [True]
    assert caught[0].category is ResourceWarning
    observer.wait_count(lock.paths[0], 1)
    with pytest.raises(LockTimeout):
        lock.acquire(timeout=0)


@pytest.mark.shows("ownership#holds-that-are-forgotten")
def test_forgotten__not_what_somebody_has(lock: Lock, observer: Observer) -> None:
    """A hold that outlives its owner because other code has it is fine."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", ResourceWarning)
        held = Runner(lock.acquire).result()
        gc.collect()
        held.check()
        held.release()
        del held
        gc.collect()
    observer.wait_empty(lock.paths[0])


def test_alias__same_place(make_pool: MakePool) -> None:
    """Two pools for one place are two ways to one lock: the holder is told, and does not wait for itself."""
    first, second = make_pool(), make_pool()
    first.tree = second.tree = "the same"
    with Lock("k", first):
        for rule in (WRITE, READ):
            with pytest.raises(
                LockConflict, match="through 'pool0', which names the same ensemble and ROOT as 'pool1'"
            ):
                Lock("k", second, rule=rule).acquire()
        assert Runner(lambda: Lock("k", second).try_acquire()).result() is None
    with contextlib.suppress(LockLost), Lock("k", first):
        first.close()
        # What was lost with its pool is in no caller's way.
        with Lock("k", second):
            pass
