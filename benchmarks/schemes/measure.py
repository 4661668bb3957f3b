"""Measure what a hand-over costs: the traffic in one pass, through a tap; times and the server's CPU in another."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from benchmarks.schemes import contenders as schemes
from benchmarks.schemes.catalogue import WRITER_EVERY, Scheme
from benchmarks.schemes.client import Address
from benchmarks.schemes.contenders import Contender
from benchmarks.schemes.group import gather
from benchmarks.schemes.tap import Tap, Traffic, mean

# Seconds.
POLLED_JOIN = 0.005


@dataclass(frozen=True)
class Counts:
    """The traffic of one hand-over, and of one contender that joins; the mean of several."""

    hand_over: Traffic
    join: Traffic


async def count(scheme: Scheme, server: Address, waiters: int, *, turns: int) -> Counts:
    """Count for a number of turns, in each of which one contender releases and joins again."""
    hand_overs, joins = [], []
    async with Tap(server) as tap, gather(scheme, tap.address, waiters) as assembled:

        async def settle_all() -> None:
            # Polls have no end; this is enough for the request of the one that joins.
            await (asyncio.sleep(POLLED_JOIN) if scheme.polls else settle(assembled.contenders, tap))

        await settle_all()
        # The first one does not count: its holder has never waited.
        for _ in range(1 + turns):
            before = tap.traffic
            released, _seconds = await assembled.hand_over()
            await settle_all()
            hand_overs.append(tap.traffic - before)
            assembled.admit()
            before = tap.traffic
            await assembled.rejoin(released)
            await settle_all()
            joins.append(tap.traffic - before)
            assembled.admit()
    return Counts(mean(hand_overs[1:]), mean(joins[1:]))


async def settle(contenders: Sequence[Contender], tap: Tap) -> None:
    """Wait until all that was caused before is over: a round of `sync` by all contenders brings nothing else."""
    before = None
    while before != tap.traffic:
        before = tap.traffic
        await asyncio.gather(*(each.sync() for each in contenders))


@dataclass
class Times:
    """Seconds: from a release to the next holder, and of the server's CPU for one hand-over."""

    next_holder: list[float] = field(default_factory=list)
    server_cpu: list[float] = field(default_factory=list)

    @property
    def median_next_holder(self) -> float:
        """The median of the hand-overs."""
        return statistics.median(self.next_holder)

    @property
    def mean_server_cpu(self) -> float:
        """The mean of the hand-overs."""
        return statistics.fmean(self.server_cpu)


@dataclass(frozen=True)
class Span:
    """How many turns to take: as many as fit in ``seconds``, within two limits, and in groups of ``group``."""

    seconds: float
    least: int
    most: int
    group: int = WRITER_EVERY

    def has_more(self, turns: int, since: float) -> bool:
        """Whether to take another turn."""
        if turns % self.group or turns < self.least:
            return True
        return turns < self.most and time.perf_counter() - since < self.seconds


async def take_times(scheme: Scheme, server: Address, waiters: int, *, span: Span, pid: int) -> Times:
    """Take the times of hand-overs; ``pid`` is the process of the server."""
    times = Times()
    async with gather(scheme, server, waiters) as assembled:
        # Until all have begun to wait.
        await (asyncio.sleep(schemes.POLL_INTERVAL) if scheme.polls else quiet(pid, ASSEMBLED_INTERVALS))
        began, turns = time.perf_counter(), 0
        while span.has_more(turns, began):
            before = cpu_time(pid)
            released, seconds = await assembled.hand_over()
            if seconds is not None:
                times.next_holder.append(seconds)
            # Polls have no end.
            if not scheme.polls:
                await quiet(pid)
            times.server_cpu.append(cpu_time(pid) - before)
            assembled.admit()
            await assembled.rejoin(released)
            await (asyncio.sleep(QUIET_INTERVAL) if scheme.polls else quiet(pid))
            assembled.admit()
            turns += 1
    return times


QUIET_INTERVAL = 0.01
# The server may have little to do for a moment while a thousand clients read what it has sent.
ASSEMBLED_INTERVALS = 20
# Seconds of CPU in that interval; a server with nothing to do takes less.
IDLE_CPU = 0.0005
# Its compiler and its garbage collector may keep a server busy with itself.
MAX_QUIET_INTERVALS = 1000


async def quiet(pid: int, intervals: int = 2) -> None:
    """Wait until the server has had nothing to do for a number of intervals."""
    before, idle = cpu_time(pid), 0
    for _ in range(MAX_QUIET_INTERVALS):
        await asyncio.sleep(QUIET_INTERVAL)
        now = cpu_time(pid)
        idle = idle + 1 if now - before < IDLE_CPU else 0
        if idle == intervals:
            return
        before = now


def cpu_time(pid: int) -> float:
    """Return the CPU time that a process has used, in seconds."""
    # The number of a process's clock for clock_gettime, see clock_getcpuclockid(3).
    return time.clock_gettime((~pid << 3) | 2)
