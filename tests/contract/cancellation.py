"""Cancelling a task at a chosen moment of what it awaits, and not after a time."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator
from typing import Any, Literal

from django_zklock.zk.contender import Contender, State
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from tests.toolbox.timing import wait_until

# "asleep": the task waits for a future. "woken": that future is done, and the task has not gone on yet.
Moment = Literal["asleep", "woken"]
# Whether an answer of the server meets the task in one state or the next is not for a test to say: it tries again.
TRIES = 500


class Cancelling:
    """Awaits a coroutine, and cancels the task that does once it is in the chosen moment and state of its lock."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any], moment: Moment, when: Callable[[], bool]) -> None:
        self.hit = False
        self._coroutine = coroutine
        self._moment = moment
        self._when = when

    def __await__(self) -> Generator[Any, Any, Any]:
        error: BaseException | None = None
        while True:
            try:
                future = self._coroutine.send(None) if error is None else self._coroutine.throw(error)
            except StopIteration as end:
                return end.value
            error = None
            task = asyncio.current_task()
            assert task is not None
            if self._moment == "asleep" or future is None:
                self._strike(task)
            else:
                # Called before what wakes the task, which is added later.
                future.add_done_callback(lambda _future, task=task: self._strike(task))
            try:
                yield future
            except BaseException as caught:  # noqa: BLE001 - it is for the coroutine
                error = caught

    def _strike(self, task: asyncio.Task[Any]) -> None:
        if not self.hit and self._when():
            self.hit = True
            task.cancel()


def nothing_left(pool: Pool) -> bool:
    """Tell whether no attempt of ``pool`` has anything left at the server."""
    return not any(session.listeners for session in pool.sessions())


# It has asked for its place, and not heard of it.
BEFORE = frozenset({State.NEW, State.JOINING})
WAITING = frozenset({State.WAITING})
HELD = frozenset({State.HELD})


class Canceller:
    """Tries for a lock, and cancels the task that does."""

    def __init__(self, lock: Lock) -> None:
        self._lock = lock
        self._made: list[Contender] = []
        make = lock._new_contender

        def contender(**options: Any) -> Any:
            self._made.append(made := make(**options))
            return made

        lock._new_contender = contender  # type: ignore[method-assign]

    @property
    def state(self) -> State:
        """The state of the newest try."""
        return self._made[-1].state

    async def cancel(self, moment: Moment, states: frozenset[State], *, limit: float = 1.0) -> None:
        """Try until a task was cancelled in that moment and one of those states; it must end as cancelled then.

        A try that waits for more than ``limit`` seconds has missed the moment.
        """
        for _ in range(TRIES):
            cancelling = Cancelling(self._lock.aacquire(), moment, lambda: self.state in states)
            task = asyncio.create_task(_acquire_and_release(cancelling))
            await asyncio.wait([task], timeout=limit)
            if cancelling.hit:
                await asyncio.wait([task])
                assert task.cancelled(), task
                return
            task.cancel()
            await asyncio.wait([task])
            await asyncio.to_thread(wait_until, lambda: nothing_left(self._lock.pool), 30.0)
        raise AssertionError(f"no task was {moment} while its lock was {[state.value for state in states]}")

    async def cancel_with_the_grant(self, blocker: Held) -> None:
        """Wait behind ``blocker``, have that released, and cancel the task with the news of its grant."""
        cancelled = asyncio.create_task(self.cancel("woken", HELD, limit=60.0))
        await asyncio.to_thread(wait_until, lambda: self.state is State.WAITING, 30.0)
        await asyncio.to_thread(blocker.release, wait=True)
        await cancelled


async def _acquire_and_release(cancelling: Cancelling) -> None:
    held = await cancelling
    await held.arelease()
