"""A group of contenders for one lock, of which each can join again after it has released."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager

from benchmarks.schemes.catalogue import SESSION_TIMEOUT, Scheme
from benchmarks.schemes.client import Address, Client
from benchmarks.schemes.contenders import Contender


class Group:
    """The contenders of one lock: holders, and waiters, of which each has a task."""

    def __init__(self, contenders: list[Contender], tasks: asyncio.TaskGroup) -> None:
        self.contenders = contenders
        # In the order in which they were granted the lock.
        self.holders: deque[Contender] = deque()
        self._tasks = tasks
        self._waiting: set[asyncio.Task[None]] = set()
        # Each with the time of its grant.
        self._granted: asyncio.Queue[tuple[Contender, float]] = asyncio.Queue()

    async def assemble(self) -> None:
        """Let the first contender acquire the lock, and all others wait."""
        first, *others = self.contenders
        await first.acquire()
        self.holders.append(first)
        # All enter before the first one waits: where a change wakes all waiters, each that enters later would wake all.
        for each in others:
            await each.enter()
        for each in others:
            self._start(each)

    async def hand_over(self) -> tuple[Contender, float | None]:
        """Let the first holder release; if it was the only one, wait for the next and return the seconds until then."""
        released = self.holders.popleft()
        began = time.perf_counter()
        await released.release()
        if self.holders:
            return released, None
        contender, granted_at = await self._granted.get()
        self.holders.append(contender)
        return released, granted_at - began

    def admit(self) -> None:
        """Count those as holders that were granted the lock meanwhile."""
        while not self._granted.empty():
            self.holders.append(self._granted.get_nowait()[0])

    async def rejoin(self, contender: Contender) -> None:
        """Let a contender join again."""
        await contender.enter()
        self._start(contender)

    def dismiss(self) -> None:
        """End all tasks that wait."""
        for task in self._waiting:
            task.cancel()

    async def release_all(self) -> None:
        """Let all holders release."""
        self.admit()
        for each in self.holders:
            await each.release()

    def _start(self, contender: Contender) -> None:
        task = self._tasks.create_task(self._wait(contender))
        self._waiting.add(task)
        task.add_done_callback(self._waiting.discard)

    async def _wait(self, contender: Contender) -> None:
        await contender.wait()
        self._granted.put_nowait((contender, time.perf_counter()))


@asynccontextmanager
async def gather(scheme: Scheme, address: Address, waiters: int) -> AsyncIterator[Group]:
    """Connect one holder and this number of waiters, and let them wait for a lock that nothing else uses."""
    folder = f"/{scheme.name}-{waiters}"
    owner = await Client.connect(address, SESSION_TIMEOUT)
    await owner.create(folder)
    await owner.close()
    async with AsyncExitStack() as sessions:
        contenders = []
        for number in range(waiters + 1):
            contender = await scheme.make(address, folder, scheme.kind(number))
            sessions.push_async_callback(contender.close)
            contenders.append(contender)
        # A waiter that fails ends the measurement.
        async with asyncio.TaskGroup() as tasks:
            assembled = Group(contenders, tasks)
            await assembled.assemble()
            yield assembled
            assembled.dismiss()
        await assembled.release_all()
