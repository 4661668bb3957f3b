"""`on_lost="interrupt"`: breaking into a body whose lock is lost."""

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

from django_zklock import LockLost, current_lock, interruption, zk_lock, zk_locked
from django_zklock.zk.held import Held
from tests.bystanders import Ensemble
from tests.server import Server
from tests.zk.runner import Runner

pytest_plugins = ["tests.configured"]

REPOSITORY = Path(__file__).resolve().parent.parent.parent
SAYS = r"lock 'k' was lost after \d+\.\d s: its node was deleted; .*fence with token \d+"
# Seconds; nothing here takes nearly as long unless it was not interrupted.
LONG = 20.0


def break_lock(ensemble: Ensemble) -> None:
    """Do what an operator does to the lock of the caller."""
    held = current_lock("k")
    assert held is not None
    ensemble.delete(held)


def spin() -> NoReturn:
    """Go on in Python code until somebody breaks in."""
    end = time.monotonic() + LONG
    while time.monotonic() < end:
        time.sleep(0.001)
    raise AssertionError("nobody has broken in")


# Threads. What is thrown into one may arrive in the middle of whatever traces it.


@pytest.mark.asynchronous
@pytest.mark.parametrize("in_main_thread", [True, False])
def test_thread__interrupted(ensemble: Ensemble, in_main_thread: bool) -> None:
    """A body that goes on after the loss is ended by LockLost, which says as much as the one at the end would."""

    @zk_locked("k", on_lost="interrupt")
    def body() -> None:
        break_lock(ensemble)
        spin()

    with pytest.raises(LockLost, match=SAYS) as caught:
        body() if in_main_thread else Runner(body).result(LONG)
    assert caught.value.key == "k"
    # The place where it came, for whoever reads the traceback, and an error that can go to another process.
    assert "spin" in [entry.name for entry in caught.traceback]
    assert type(pickle.loads(pickle.dumps(caught.value))) is LockLost
    assert current_lock() is None
    ensemble.wait_empty("k")


@pytest.mark.asynchronous
def test_thread__caught_in_the_body(ensemble: Ensemble) -> None:
    """The body may catch it, and finds in it what it needs; it comes once, and the call ends with LockLost."""
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
    """An error that the body makes of it propagates."""

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
    """Of a hold inside of another both bodies end."""
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
    """Nothing comes while the lock is held, and what happens to it afterwards concerns nobody."""

    @zk_locked("k", on_lost="interrupt")
    def body() -> Held:
        held = current_lock()
        assert held is not None
        return held

    with zk_lock("k") as outer:
        held = body()
        assert held.node == outer.node
        # A hold that lives long keeps nothing of the calls inside of it.
        assert outer._when_lost == []
    ensemble.end_session()
    time.sleep(0.2)
    assert body().token > held.token


@pytest.mark.asynchronous
def test_thread__lost_before_it_begins(ensemble: Ensemble) -> None:
    """A body whose lock is lost when it begins does not get far."""
    with pytest.raises(LockLost), zk_lock("k") as held:  # noqa: PT012
        told = threading.Event()
        held.when_lost(told.set)
        break_lock(ensemble)
        assert told.wait(LONG)
        reached = []

        def body() -> None:
            for _ in range(1000):
                time.sleep(0)
            reached.append(True)

        with pytest.raises(LockLost, match=SAYS):
            interruption.run(held, body)
        assert reached == []


class Stub:
    """A hold that is lost when the test says so."""

    def __init__(self) -> None:
        self.calls: list[Callable[[], None]] = []

    def when_lost(self, call: Callable[[], None]) -> Callable[[], None]:
        self.calls.append(call)
        return lambda: None

    def loss(self) -> LockLost:
        return LockLost("stub", key="stub")


@pytest.fixture
def _hasty() -> Iterator[None]:
    """Have threads change places as often as can be."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(interval)


@pytest.mark.asynchronous
@pytest.mark.usefixtures("_hasty")
def test_thread__at_any_moment() -> None:
    """Whenever the loss comes, the error arrives inside of the call or never: not a bit later."""
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
    for _ in range(2000):
        try:
            interruption.run(stub, body)  # type: ignore[arg-type]
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
    assert min(struck) > 20, struck


# Tasks.


async def forever() -> NoReturn:
    await asyncio.sleep(LONG)
    raise AssertionError("nobody has broken in")


def run_task(body: Callable[[], Awaitable[object]]) -> object:
    """Call a locked coroutine function in a task that goes on afterwards, and shows that it is left alone."""

    async def main() -> object:
        try:
            return await body()
        finally:
            task = asyncio.current_task()
            for _ in range(20):
                await asyncio.sleep(0.001)
            # Those who count cancellations find none; Python 3.10 does not count.
            assert getattr(task, "cancelling", int)() == 0

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
    """An error that the body makes of it propagates."""

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
    """A body that ends before its loop hears of the loss is left alone: the loop comes to nothing in between."""

    @zk_locked("k", on_lost="interrupt")
    async def body() -> str:
        held = current_lock()
        assert held is not None
        told = threading.Event()
        held.when_lost(told.set)
        break_lock(ensemble)
        assert told.wait(LONG)
        return "done"

    with pytest.raises(LockLost, match=SAYS):
        run_task(body)


def test_task__not_lost(ensemble: Ensemble) -> None:
    """Nothing comes while the lock is held, nor of what happens to it afterwards."""

    @zk_locked("k", on_lost="interrupt")
    async def body() -> str:
        await asyncio.sleep(0.01)
        return "done"

    async def main() -> None:
        async with zk_lock("k") as outer:
            assert await body() == "done"
            assert outer._when_lost == []
        assert await body() == "done"
        await asyncio.to_thread(ensemble.end_session)
        await asyncio.sleep(0.2)

    asyncio.run(main())


def test_task__cancelled_by_somebody_else(ensemble: Ensemble) -> None:
    """A cancellation that is not ours stays one, also if the lock is lost at the same time."""
    begun = asyncio.Event()

    @zk_locked("k", on_lost="interrupt")
    async def body(lose: bool) -> None:
        held = current_lock()
        assert held is not None
        told = threading.Event()
        held.when_lost(told.set)
        begun.set()
        if lose:
            break_lock(ensemble)
            assert told.wait(LONG)
        await forever()

    async def main() -> None:
        for lose in (False, True) if sys.version_info >= (3, 11) else (False,):
            begun.clear()
            task = asyncio.create_task(body(lose))
            await begun.wait()
            task.cancel()
            with pytest.raises(asyncio.CancelledError):
                await task
            assert task.cancelled()

    asyncio.run(main())
    ensemble.wait_empty("k")


def test_task__timeout_around(ensemble: Ensemble) -> None:
    """A timeout around the call is one, and LockLost inside of it is no timeout."""

    @zk_locked("k", on_lost="interrupt")
    async def body(lose: bool) -> None:
        if lose:
            break_lock(ensemble)
        await forever()

    async def main() -> None:
        with pytest.raises(asyncio.TimeoutError):
            await asyncio.wait_for(body(lose=False), 0.05)
        with pytest.raises(LockLost, match=SAYS):
            await asyncio.wait_for(body(lose=True), LONG)

    asyncio.run(main())


# Greenlets.


def test_greenlets(server: Server, root: str) -> None:
    """Greenlets of a patched process are interrupted where they wait, and not after the body has ended."""
    start = "from gevent import monkey; monkey.patch_all()\nfrom tests.contract.greenlets import main; main()"
    command = [sys.executable, "-c", start, server.hosts, root]
    process = subprocess.run(command, check=False, capture_output=True, text=True, cwd=REPOSITORY, timeout=60)
    assert (process.returncode, process.stdout.splitlines()) == (
        0,
        ["main greenlet interrupted", "greenlet interrupted", "caught once", "left alone", "not lost"],
    ), process.stderr
