"""The lock schemes of the benchmark: they exclude each other, and cost what the theory of each says."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from contextlib import AsyncExitStack

import pytest

from benchmarks.schemes import contenders, measure
from benchmarks.schemes.catalogue import (
    ONE_NODE,
    OURS,
    PARENT,
    POLLING,
    PREDECESSOR,
    SCHEMES,
    SESSION_TIMEOUT,
    SHARED_PARENT,
    SHARED_PREDECESSOR,
    Scheme,
)
from benchmarks.schemes.client import Address, Client, RequestError
from benchmarks.schemes.contenders import Contender, OneNode
from benchmarks.schemes.group import gather
from benchmarks.schemes.measure import Span, count, settle, take_times
from benchmarks.schemes.tap import Tap
from django_zklock.testing import ZooKeeperServer
from django_zklock.zk.queue import Kind
from tests.toolbox.timing import scaled

pytestmark = pytest.mark.once

# For one scenario, on a machine that is busy with other things.
TIMEOUT = scaled(60)
TURNS = 3
SHARED = [scheme for scheme in SCHEMES if scheme.is_shared]


@pytest.fixture
def address(monkeypatch: pytest.MonkeyPatch) -> Iterator[Address]:
    """Return the address of a server of ours; waiters that poll do so often."""
    monkeypatch.setattr(contenders, "POLL_INTERVAL", 0.01)
    with ZooKeeperServer(max_session_timeout=SESSION_TIMEOUT) as server:
        yield server.address


class Referee:
    """Sees which contenders hold, and fails when two hold that exclude each other."""

    def __init__(self) -> None:
        self.holders: list[Kind] = []
        self.turns = 0

    async def watch(self, contender: Contender, kind: Kind) -> None:
        for _ in range(TURNS):
            await contender.acquire()
            assert not self.holders or (kind is Kind.READ and set(self.holders) == {Kind.READ})
            self.holders.append(kind)
            for _ in range(5):
                await asyncio.sleep(0)
            self.holders.remove(kind)
            self.turns += 1
            await contender.release()


async def compete(scheme: Scheme, address: Address, number: int) -> int:
    """Let contenders of a scheme take turns; return how many there were."""
    referee = Referee()
    async with AsyncExitStack() as sessions:
        owner = await Client.connect(address, SESSION_TIMEOUT)
        sessions.push_async_callback(owner.close)
        await owner.create("/lock")
        kinds = [scheme.kind(each) for each in range(number)]
        async with asyncio.timeout(TIMEOUT), asyncio.TaskGroup() as tasks:
            for kind in kinds:
                contender = await scheme.make(address, "/lock", kind)
                sessions.push_async_callback(contender.close)
                tasks.create_task(referee.watch(contender, kind))
    return referee.turns


@pytest.mark.parametrize("scheme", SCHEMES, ids=lambda scheme: scheme.name)
def test_schemes__exclude_each_other(scheme: Scheme, address: Address) -> None:
    """Two never hold that exclude each other, and each gets every turn."""
    assert asyncio.run(compete(scheme, address, 7)) == 7 * TURNS


def test_the_referee(address: Address) -> None:
    """A scheme whose contenders do not wait is found out."""

    met = asyncio.Barrier(2)

    class Careless(OneNode):
        async def wait(self) -> None:
            await self.client.create(f"/lock/{id(self)}")
            # The first one meets the second one, however slow the machine is.
            await met.wait()

        async def release(self) -> None:
            pass

    async def make(server: Address, folder: str, kind: Kind) -> Contender:
        return Careless(await Client.connect(server, SESSION_TIMEOUT), folder, kind)

    with pytest.raises(ExceptionGroup) as caught:
        asyncio.run(compete(Scheme("careless", "", make), address, 7))
    assert caught.group_contains(AssertionError)


@pytest.mark.parametrize("scheme", SHARED, ids=lambda scheme: scheme.name)
def test_shared__readers_together(scheme: Scheme, address: Address) -> None:
    """All readers hold at the same time, and the writer behind them when the last of them has released."""

    async def run() -> None:
        async with asyncio.timeout(TIMEOUT), gather(scheme, address, 5) as assembled:
            writer, *readers, next_writer = assembled.contenders
            assert (await assembled.hand_over())[0] is writer
            while len(assembled.holders) < len(readers):
                await asyncio.sleep(0.001)
                assembled.admit()
            assert set(assembled.holders) == set(readers)
            for _ in readers[1:]:
                await assembled.hand_over()
            assembled.admit()
            assert len(assembled.holders) == 1
            await assembled.hand_over()
            assert list(assembled.holders) == [next_writer]

    asyncio.run(run())


@pytest.mark.parametrize(
    ("scheme", "kinds"),
    [
        *((scheme, [Kind.EXCLUSIVE] * 3) for scheme in (POLLING, ONE_NODE, PARENT, PREDECESSOR)),
        *((scheme, [Kind.READ, Kind.READ, Kind.WRITE]) for scheme in (SHARED_PARENT, SHARED_PREDECESSOR)),
    ],
    ids=lambda each: each.name if isinstance(each, Scheme) else "",
)
def test_schemes__a_predecessor_that_leaves(scheme: Scheme, kinds: list[Kind], address: Address) -> None:
    """The last of three does not hold when the second leaves, a waiter or a reader, but when the first releases."""

    async def run() -> None:
        owner = await Client.connect(address, SESSION_TIMEOUT)
        await owner.create("/lock")
        await owner.close()
        async with asyncio.timeout(TIMEOUT), Tap(address) as tap:
            first, second, third = [await scheme.make(tap.address, "/lock", kind) for kind in kinds]
            await first.acquire()
            before = asyncio.create_task(second.acquire())
            await settle([first, second], tap)
            last = asyncio.create_task(third.acquire())
            await settle([first, second, third], tap)
            before.cancel()
            await second.close()
            await settle([first, third], tap)
            assert not last.done()
            await first.release()
            await last
            await first.close()
            await third.close()

    asyncio.run(run())


@pytest.mark.parametrize("waiters", [2, 5, 20])
@pytest.mark.parametrize(
    ("scheme", "hand_over", "join"),
    [
        # To delete; each waiter creates, and those that could not set a watch again.
        (ONE_NODE, lambda n: (1 + n + (n - 1), n), lambda _n: (2, 0)),
        # To delete or create; each of the others lists, and so does the new one.
        (PARENT, lambda n: (1 + n, n), lambda n: (1 + (n - 1) + 1, n)),
        # To delete, and the next one lists; to create, to list, and to watch.
        (PREDECESSOR, lambda _n: (2, 1), lambda _n: (3, 0)),
    ],
    ids=lambda each: each.name if isinstance(each, Scheme) else "",
)
def test_counts(scheme: Scheme, hand_over: object, join: object, waiters: int, address: Address) -> None:
    """A hand-over takes as many requests and notifications as the scheme says, and so does a join."""
    assert callable(hand_over)
    assert callable(join)
    found = asyncio.run(count(scheme, address, waiters, turns=3))
    assert (found.hand_over.requests, found.hand_over.notifications) == hand_over(waiters)
    assert (found.join.requests, found.join.notifications) == join(waiters)


@pytest.mark.parametrize("waiters", [4, 19])
def test_counts__shared(waiters: int, address: Address) -> None:
    """Where all watch the parent, each change wakes all; where each watches one node, a few, however many wait."""
    naive = asyncio.run(count(SHARED_PARENT, address, waiters, turns=5)).hand_over
    # Up to four readers hold together, and do not wait.
    assert waiters - 4 <= naive.notifications <= waiters
    improved = asyncio.run(count(SHARED_PREDECESSOR, address, waiters, turns=5)).hand_over
    # In five turns four readers are woken once each, and the writer behind them at most four times. So it takes five
    # deletes, eight lists and three watches, if the readers release last come first.
    assert improved.notifications <= 8 / 5
    assert improved.requests <= 16 / 5


def test_counts__ours(address: Address) -> None:
    """A hand-over of ours takes three requests and three notifications, and a join five, however many wait."""
    few, many = [asyncio.run(count(OURS, address, waiters, turns=3)) for waiters in (5, 20)]
    assert many.hand_over.requests <= 3
    assert many.hand_over.notifications <= 3
    assert many.join.requests <= 5
    assert (many.hand_over.requests, many.join.requests) == (few.hand_over.requests, few.join.requests)


def test_tap__counts_bytes(address: Address) -> None:
    """The bytes are those of the frames with their lengths; what opens, keeps and ends a session does not count."""

    async def run() -> None:
        async with Tap(address) as tap:
            client = await Client.connect(tap.address, SESSION_TIMEOUT)
            await client.sync()
            assert tap.traffic.bytes == 0
            await client.create("/n")
            traffic = tap.traffic
            # Length, xid, opcode; path, data, one entry of the ACL, flags. Length, xid, zxid, error; path.
            assert traffic.bytes == (4 + 4 + 4 + 4 + 2 + 4 + 4 + 4 + 4 + 5 + 4 + 6 + 4) + (4 + 4 + 8 + 4 + 4 + 2)
            assert (traffic.requests, traffic.notifications) == (1, 0)
            await client.close()
            assert tap.traffic == traffic

    asyncio.run(run())


def test_client__refusals(address: Address) -> None:
    """A node that exists or is missing is a result; another refusal is an error."""

    async def run() -> None:
        client = await Client.connect(address, SESSION_TIMEOUT)
        assert await client.create("/n") == "/n"
        assert await client.create("/n") is None
        assert await client.watch("/missing") is None
        with pytest.raises(RequestError, match="-101"):
            await client.delete("/missing")
        await client.close()

    asyncio.run(run())


def test_client__without_a_server() -> None:
    """A client whose server stops does not wait for ever."""

    async def run() -> None:
        with ZooKeeperServer() as server:
            client = await Client.connect(server.address, 10.0)
            await client.create("/n")
            watch = await client.watch("/n")
            assert watch is not None
            server.stop()
            with pytest.raises(ConnectionError):
                await watch

    asyncio.run(run())


def test_take_times(address: Address, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each turn has its CPU time, and each hand-over its time; turns end in whole groups."""
    # The server is this process, which may have other things to do.
    monkeypatch.setattr(measure, "MAX_QUIET_INTERVALS", 10)
    span = Span(seconds=0, least=3, most=100)
    times = asyncio.run(take_times(PREDECESSOR, address, 2, span=span, pid=os.getpid()))
    assert len(times.next_holder) == len(times.server_cpu) == span.group
    assert 0 < times.median_next_holder < TIMEOUT
