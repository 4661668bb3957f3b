"""`on_lost="interrupt"`: LockLost is raised in a body whose lock is lost."""

from __future__ import annotations

import asyncio
import pickle
import random
import subprocess
import sys
import threading
import time
from collections.abc import Awaitable, Callable, Iterator
from pathlib import Path
from typing import NoReturn

import pytest

from django_zklock import LockLost, current_lock, interrupt, zk_lock, zk_locked
from django_zklock.zk.held import Held
from tests.toolbox.django.layer import Ensemble
from tests.toolbox.threads import Runner
from tests.toolbox.timing import scaled
from tests.toolbox.zookeeper.any_server import Server

pytest_plugins = ["tests.toolbox.django.settings_fixtures"]

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SAYS = r"lock 'k' was lost after \d+\.\d s: its node was deleted; .*fence with token \d+"
# Seconds; nothing here takes nearly as long unless it was not interrupted.
LONG = scaled(20)


def break_lock(ensemble: Ensemble) -> None:
    """Break the lock of the caller, as an operator does."""
    held = current_lock("k")
    assert held is not None
    ensemble.delete(held)


def spin() -> NoReturn:
    """Run Python code until an exception interrupts it."""
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        time.sleep(0.001)
    raise AssertionError("nothing has interrupted the body")


# Threads. What is thrown into one may arrive in the middle of whatever traces it.


@pytest.mark.asynchronous
@pytest.mark.parametrize("in_main_thread", [True, False])
def test_thread__interrupted(ensemble: Ensemble, in_main_thread: bool) -> None:
    """A body that continues after the loss is ended by LockLost, with the same message as at the end of a call."""

    @zk_locked("k", on_lost="interrupt")
    def body() -> None:
        break_lock(ensemble)
        spin()

    with pytest.raises(LockLost, match=SAYS) as caught:
        body() if in_main_thread else Runner(body).result(LONG)
    assert caught.value.key == "k"
    # The traceback shows where the body was interrupted, and the error can be pickled.
    assert "spin" in [entry.name for entry in caught.traceback]
    assert type(pickle.loads(pickle.dumps(caught.value))) is LockLost
    assert current_lock() is None
    ensemble.wait_empty("k")


@pytest.mark.asynchronous
def test_thread__caught_in_the_body(ensemble: Ensemble) -> None:
    """The body can catch the error, which has its attributes; it comes once, and the call ends with LockLost."""
    seen: list[LockLost] = []

    @zk_locked("k", on_lost="interrupt")
    def body() -> str:
        break_lock(ensemble)
        try:
            spin()
        except LockLost as error:
            seen.append(error)
        for _ in range(200):
            time.sleep(0.001)
        return "done"

    with pytest.raises(LockLost, match=SAYS) as caught:
        body()
    assert [error.key for error in seen] == ["k"]
    assert str(seen[0]).startswith("lock 'k' was lost after")
    assert type(pickle.loads(pickle.dumps(seen[0]))) is LockLost
    assert caught.value is not seen[0]


@pytest.mark.asynchronous
def test_thread__turned_into_another_error(ensemble: Ensemble) -> None:
    """An error that the body raises instead propagates."""

    @zk_locked("k", on_lost="interrupt")
    def body() -> None:
        break_lock(ensemble)
        try:
            spin()
        except LockLost as error:
            raise KeyError("mine") from error

    with pytest.raises(KeyError, match="mine"):
        body()


@pytest.mark.asynchronous
def test_thread__nested(ensemble: Ensemble) -> None:
    """With two nested holds, both bodies end."""
    ended = []

    @zk_locked("k", on_lost="interrupt")
    def inner() -> None:
        break_lock(ensemble)
        try:
            spin()
        finally:
            ended.append("inner")

    @zk_locked("k", on_lost="interrupt")
    def outer() -> None:
        try:
            inner()
        finally:
            ended.append("outer")

    with pytest.raises(LockLost, match=SAYS):
        outer()
    assert ended == ["inner", "outer"]


@pytest.mark.asynchronous
def test_thread__not_lost(ensemble: Ensemble) -> None:
    """No error comes while the lock is held, nor for a loss after the call."""

    @zk_locked("k", on_lost="interrupt")
    def body() -> Held:
        held = current_lock()
        assert held is not None
        return held

    reached = []
    with zk_lock("k") as outer:
        held = body()
        assert held.node == outer.node
        # A long hold keeps no reference to the calls inside of it.
        assert outer._possession._loss_callbacks == []
    with pytest.raises(LockLost, match="was lost after"), zk_lock("k") as outer:  # noqa: PT012
        body()
        # What the body may have left is called before this.
        notified = threading.Event()
        outer._when_lost(notified.set)
        ensemble.end_session()
        assert notified.wait(LONG)
        # In Python code, where an exception would arrive.
        for _ in range(1000):
            time.sleep(0)
        reached.append(True)
    assert reached == [True]
    assert body().token > held.token


@pytest.mark.asynchronous
def test_thread__lost_before_it_begins(ensemble: Ensemble) -> None:
    """A body whose lock is lost when it begins does not get far."""
    with pytest.raises(LockLost), zk_lock("k") as held:  # noqa: PT012
        notified = threading.Event()
        held._when_lost(notified.set)
        break_lock(ensemble)
        assert notified.wait(LONG)
        reached = []

        def body() -> None:
            for _ in range(1000):
                time.sleep(0)
            reached.append(True)

        with pytest.raises(LockLost, match=SAYS):
            interrupt.run(held, body)
        assert reached == []


class Stub:
    """A hold that is lost when the test says so."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def _when_lost(self, call: Callable[[], None]) -> Callable[[], None]:
        self.calls.append(call)
        return lambda: None

    def _loss_error(self) -> LockLost:
        return LockLost("stub", key="stub")


@pytest.fixture
def _hasty() -> Iterator[None]:
    """Make Python switch threads very often."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.asynchronous
@pytest.mark.usefixtures("_hasty")
def test_thread__at_any_moment() -> None:
    """For a loss at any time, the error is raised inside of the call or never, but not after it."""
    go, fallen = threading.Semaphore(0), threading.Semaphore(0)
    stub, chance = Stub(), random.Random(8)
    struck = [0, 0]
    awake: list[bool] = []
    # How long the loss takes to come: longer after each that came early enough, so that it is close to the end.
    pause = 1000

    def fall() -> None:
        while go.acquire(timeout=LONG) and stub.calls:
            awake.append(True)
            for _ in range(pause):
                pass
            stub.calls.pop()()
            fallen.release()

    def body() -> None:
        go.release()
        while not awake:
            pass
        awake.clear()
        for _ in range(chance.randrange(10_000)):
            pass

    other = Runner(fall)
    # On a busy machine until both have happened often enough.
    while sum(struck) < 2000 or min(struck) <= 20:
        try:
            interrupt.run(stub, body)  # type: ignore[arg-type]
        except LockLost as error:
            assert error.key == "stub"  # noqa: PT017 - most of the time there is none
            struck[0] += 1
            pause = min(pause + 200, 20_000)
        else:
            struck[1] += 1
            pause = max(pause - 200, 0)
        # Anything that comes here ends the test.
        assert fallen.acquire(timeout=LONG)
        for _ in range(50):
            str(struck)
    go.release()
    other.result()


# Tasks.


async def forever() -> NoReturn:
    await asyncio.sleep(LONG)
    raise AssertionError("nothing has interrupted the body")


def run_task(body: Callable[[], Awaitable[object]]) -> object:
    """Call a locked coroutine function in a task that goes on afterwards, and shows that it is left alone."""

    async def main() -> object:
        try:
            return await body()
        finally:
            task = asyncio.current_task()
            for _ in range(20):
                await asyncio.sleep(0.001)
            # A caller that counts cancellations finds none.
            assert task is not None
            assert task.cancelling() == 0

    return asyncio.run(main())


def test_task__interrupted(ensemble: Ensemble) -> None:
    """A task that waits is cancelled there, and its call ends with LockLost."""
    ended = []

    @zk_locked("k", on_lost="interrupt")
    async def body() -> None:
        break_lock(ensemble)
        try:
            await forever()
        except asyncio.CancelledError:
            ended.append("cancelled")
            raise

    with pytest.raises(LockLost, match=SAYS):
        run_task(body)
    assert ended == ["cancelled"]
    ensemble.wait_empty("k")


def test_task__caught_in_the_body(ensemble: Ensemble) -> None:
    """A task that swallows the cancellation is not cancelled again, and its call ends with LockLost all the same."""
    seen = []

    @zk_locked("k", on_lost="interrupt")
    async def body() -> str:
        break_lock(ensemble)
        try:
            await forever()
        except asyncio.CancelledError as error:
            seen.append(error)
        await asyncio.sleep(0.05)
        return "done"

    with pytest.raises(LockLost, match=SAYS):
        run_task(body)
    assert len(seen) == 1


def test_task__turned_into_another_error(ensemble: Ensemble) -> None:
    """An error that the body raises instead propagates."""

    @zk_locked("k", on_lost="interrupt")
    async def body() -> None:
        break_lock(ensemble)
        try:
            await forever()
        except asyncio.CancelledError:
            raise KeyError("mine") from None

    with pytest.raises(KeyError, match="mine"):
        run_task(body)


def test_task__ended_before(ensemble: Ensemble) -> None:
    """A body that ends before its loop processes the loss is not cancelled."""

    @zk_locked("k", on_lost="interrupt")
    async def body() -> str:
        held = current_lock()
        assert held is not None
        notified = threading.Event()
        held._when_lost(notified.set)
        break_lock(ensemble)
        assert notified.wait(LONG)
        return "done"

    with pytest.raises(LockLost, match=SAYS):
        run_task(body)


def _set(loop: asyncio.AbstractEventLoop, event: asyncio.Event) -> None:
    loop.call_soon_threadsafe(event.set)


async def test_task__not_lost(ensemble: Ensemble) -> None:
    """No cancellation comes while the lock is held, nor for a loss after the call."""

    @zk_locked("k", on_lost="interrupt")
    async def body() -> str:
        await asyncio.sleep(0.01)
        return "done"

    reached = []

    loop = asyncio.get_running_loop()
    async with zk_lock("k") as outer:
        assert await body() == "done"
        assert outer._possession._loss_callbacks == []
    assert await body() == "done"
    with pytest.raises(LockLost, match="was lost after"):  # noqa: PT012
        async with zk_lock("k") as outer:
            assert await body() == "done"
            # What the body may have left is called before this, and asks the loop for something before this.
            notified = asyncio.Event()
            outer._when_lost(lambda: _set(loop, notified))
            await asyncio.to_thread(ensemble.end_session)
            await asyncio.wait_for(notified.wait(), LONG)
            await asyncio.sleep(0)
            reached.append(True)
    assert reached == [True]


async def test_task__cancelled_by_other_code(ensemble: Ensemble) -> None:
    """Another cancellation stays one, also if the lock is lost at the same time."""
    begun = asyncio.Event()

    @zk_locked("k", template="k", on_lost="interrupt")
    async def body(lose: bool) -> None:
        held = current_lock()
        assert held is not None
        notified = threading.Event()
        held._when_lost(notified.set)
        begun.set()
        if lose:
            break_lock(ensemble)
            assert notified.wait(LONG)
        await forever()

    for lose in (False, True):
        begun.clear()
        task = asyncio.create_task(body(lose))
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert task.cancelled()
    ensemble.wait_empty("k")


async def test_task__timeout_around(ensemble: Ensemble) -> None:
    """A timeout around the call is one, and LockLost inside of it is no timeout."""

    @zk_locked("k", template="k", on_lost="interrupt")
    async def body(lose: bool) -> None:
        if lose:
            break_lock(ensemble)
        await forever()

    with pytest.raises(asyncio.TimeoutError):
        await asyncio.wait_for(body(lose=False), 0.05)
    with pytest.raises(LockLost, match=SAYS):
        await asyncio.wait_for(body(lose=True), LONG)


# Greenlets.


def test_greenlets(server: Server, root: str) -> None:
    """Greenlets of a patched process are interrupted where they wait, and not after the body has ended."""
    program = "from tests.contract.programs.interrupted_greenlets import main; main()"
    start = f"from gevent import monkey; monkey.patch_all()\n{program}"
    command = [sys.executable, "-c", start, server.hosts, root]
    process = subprocess.run(command, check=False, capture_output=True, text=True, cwd=REPOSITORY, timeout=scaled(60))
    assert (process.returncode, process.stdout.splitlines()) == (
        0,
        ["main greenlet interrupted", "greenlet interrupted", "caught once", "left alone", "not lost"],
    ), process.stderr


def test_greenlets__unpatched(server: Server, root: str) -> None:
    """Without patches too the greenlet of the body is interrupted, and not the one that runs in its thread then."""
    start = "from tests.contract.programs.interrupted_greenlets import unpatched; unpatched()"
    command = [sys.executable, "-c", start, server.hosts, root]
    process = subprocess.run(command, check=False, capture_output=True, text=True, cwd=REPOSITORY, timeout=60)
    assert (process.returncode, process.stdout.splitlines()) == (
        0,
        ["greenlet interrupted", "bystander left alone"],
    ), process.stderr
