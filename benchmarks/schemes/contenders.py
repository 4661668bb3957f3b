"""The schemes: how a contender learns that it holds the lock. Each contender has a session of its own.

The contenders of a queue create the same node names as this package, so lists of equal length have equal size.
"""

from __future__ import annotations

import asyncio
import random
from abc import ABC, abstractmethod

from benchmarks.schemes.client import Client
from django_zklock.zk.held import Held
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.queue import RULES, Kind, name_prefix, new_guid
from tests.toolbox.protocol.operations import EPHEMERAL, SEQUENCE

# The time between two lists of a waiter that polls, in seconds.
POLL_INTERVAL = 1.0
# The time between two checks whether a contender of ours has joined, in seconds.
ENTERING_INTERVAL = 0.002
# Digits of a sequence number.
DIGITS = 10


class Contender(ABC):
    """One contender for one lock."""

    async def acquire(self) -> None:
        """Wait for the lock."""
        await self.enter()
        await self.wait()

    @abstractmethod
    async def enter(self) -> None:
        """Take a position in the queue, if the scheme has one."""

    @abstractmethod
    async def wait(self) -> None:
        """Wait until the lock is held."""

    @abstractmethod
    async def release(self) -> None:
        """Release the lock."""

    @abstractmethod
    async def sync(self) -> None:
        """Wait until the client has received everything that the server had to send before."""

    @abstractmethod
    async def close(self) -> None:
        """End the session."""


class OneNode(Contender):
    """One node stands for the lock: the contender that creates it is the holder, and all others watch it."""

    def __init__(self, client: Client, folder: str, _kind: Kind) -> None:
        self.client = client
        self._path = f"{folder}/lock"

    async def enter(self) -> None:
        pass

    async def wait(self) -> None:
        while await self.client.create(self._path, EPHEMERAL) is None:
            deleted = await self.client.watch(self._path)
            if deleted is not None:
                await deleted

    async def release(self) -> None:
        await self.client.delete(self._path)

    async def sync(self) -> None:
        await self.client.sync()

    async def close(self) -> None:
        await self.client.close()


class Queued(Contender):
    """A sequential node in a queue; the schemes differ in what a waiter does between two lists."""

    def __init__(self, client: Client, folder: str, kind: Kind) -> None:
        self.client = client
        self.folder = folder
        self._kind = kind
        self._own = ""

    async def enter(self) -> None:
        path = await self.client.create(f"{self.folder}/{name_prefix(new_guid(), self._kind)}", EPHEMERAL | SEQUENCE)
        assert path is not None, "a sequential node has a new name"
        self._own = path

    async def release(self) -> None:
        await self.client.delete(self._own)

    async def sync(self) -> None:
        await self.client.sync()

    async def close(self) -> None:
        await self.client.close()

    def blockers(self, names: list[str]) -> list[str]:
        """Return the predecessors in a list of the queue that must be deleted first."""
        own = self._own[-DIGITS:]
        before = [name for name in names if name[-DIGITS:] < own]
        if self._kind is Kind.READ:
            return [name for name in before if "__READ__" not in name]
        return before


class Polling(Queued):
    """A waiter lists the queue again after a fixed time."""

    async def wait(self) -> None:
        # Waiters that come together do not poll together.
        pause = random.uniform(0, POLL_INTERVAL)
        while self.blockers(await self.client.children(self.folder)):
            await asyncio.sleep(pause)
            pause = POLL_INTERVAL


class ParentWatched(Queued):
    """All waiters watch the parent, and list the queue again at each change."""

    async def wait(self) -> None:
        names, changed = await self.client.watch_children(self.folder)
        while self.blockers(names):
            await changed
            names, changed = await self.client.watch_children(self.folder)


class PredecessorWatched(Queued):
    """A waiter watches the last of its blockers: a reader the last writer before it, any other its predecessor."""

    async def wait(self) -> None:
        while blockers := self.blockers(await self.client.children(self.folder)):
            last = max(blockers, key=lambda name: name[-DIGITS:])
            deleted = await self.client.watch(f"{self.folder}/{last}")
            if deleted is not None:
                await deleted


class Ours(Contender):
    """The lock of this package, each with a session of its own, as if each were a process."""

    def __init__(self, pool: Pool, kind: Kind) -> None:
        self._pool = pool
        self._lock = Lock("key", pool, rule=RULES[kind], reentrant=False)

    async def enter(self) -> None:
        self._acquiring = asyncio.create_task(self._acquire())
        while not (self._acquiring.done() or self._has_position()):  # noqa: ASYNC110 - see _has_position()
            await asyncio.sleep(ENTERING_INTERVAL)

    def _has_position(self) -> bool:
        # A listener would have the waiter read the holder, which costs a request.
        contenders = list(self._pool.session(self._lock.paths[0]).listeners)
        return any(getattr(each, "answered", False) and not getattr(each, "open", ()) for each in contenders)

    async def wait(self) -> None:
        self._held = await self._acquiring

    async def release(self) -> None:
        await self._held.arelease()

    async def sync(self) -> None:
        loop = asyncio.get_running_loop()
        answered = loop.create_future()
        session = self._pool.session(self._lock.paths[0])

        def reply(_value: object, _error: object) -> None:
            loop.call_soon_threadsafe(answered.set_result, None)

        session.post(lambda: session.wire.sync("/", reply))
        await answered

    async def close(self) -> None:
        # It waits for the server.
        await asyncio.to_thread(self._pool.close)

    async def _acquire(self) -> Held:
        # The task that calls is the owner.
        return await self._lock.aacquire()
