"""What a hand-over costs with the classic lock schemes and with this package: ``make bench WHAT=herd``.

The program prints a table, writes ``benchmarks/results/herd.json``, and draws the curves and writes the tables of
``docs/explanation/figures.md``. With other numbers of waiters than the page has, it only prints.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import resource
import time
from dataclasses import replace
from datetime import UTC, datetime

from benchmarks.schemes import contenders, plots, report
from benchmarks.schemes.catalogue import ONE_NODE, PARENT, PREDECESSOR, SCHEMES, SESSION_TIMEOUT, Scheme
from benchmarks.schemes.measure import Span, count, take_times
from benchmarks.schemes.report import Result, Results
from tests.toolbox.zookeeper.server import ZooKeeper

WAITERS = (2, 10, 20, 100, 1000)
# Of each kind, one for each waiter: a socket of the client, and two of the proxy.
DESCRIPTORS_PER_WAITER = 3
# A thousand waiters that list a queue of a thousand get sixty megabytes, and the server has all of it in memory.
SERVER_MEMORY = "1g"
SPAN = Span(seconds=1.0, least=5, most=60)
WARM_UP = Span(seconds=2.0, least=5, most=1000)
# Waiters that poll come by chance, so more of their hand-overs are taken.
POLLED_TURNS, POLLED_SPAN = 10, replace(SPAN, seconds=4.0)
TURNS = 5
# For one line of the table.
MAX_SECONDS = 120.0


async def measure(scheme: Scheme, server: ZooKeeper, waiters: int) -> Result:
    """Measure one scheme with one number of waiters."""
    turns, span = (POLLED_TURNS, POLLED_SPAN) if scheme.polls else (TURNS, SPAN)
    counts = await count(scheme, server.address, waiters, turns=turns)
    times = await take_times(scheme, server.address, waiters, span=span, pid=server.pid)
    return Result(
        scheme.name,
        waiters,
        counts.hand_over,
        counts.join,
        next_holder_ms=round(times.median_next_holder * 1000, 3),
        server_cpu_ms=round(times.mean_server_cpu * 1000, 3),
        hand_overs_timed=len(times.server_cpu),
    )


async def run(server: ZooKeeper, waiters: list[int]) -> Results:
    """Measure all schemes, and print each result when it is there."""
    for scheme in (ONE_NODE, PARENT, PREDECESSOR):
        # The server compiles its code while it runs. Another folder than that of the measurement.
        await take_times(replace(scheme, name=f"warm-{scheme.name}"), server.address, 50, span=WARM_UP, pid=server.pid)
    results = []
    print(f"{'':22}{'waiters':>8}{'requests':>9}{'notified':>9}{'bytes':>10}{'next':>10}{'CPU':>10}{'to join':>8}")
    for each in waiters:
        for scheme in SCHEMES:
            # A waiter that is never woken is an error.
            async with asyncio.timeout(MAX_SECONDS):
                result = await measure(scheme, server, each)
            requests, notifications, size, next_holder, cpu, join, _size = report.cells(result)
            print(
                f"{scheme.name:22}{each:8}{requests:>9}{notifications:>9}{size:>10}{next_holder:>10}{cpu:>10}{join:>8}",
                flush=True,
            )
            results.append(result)
    return Results(
        date=datetime.now(UTC).date().isoformat(),
        server=server.description(),
        machine=f"{os.cpu_count()} cores, which the server and all waiters share",
        poll_interval=contenders.POLL_INTERVAL,
        results=tuple(results),
    )


def publish(results: Results) -> None:
    """Draw the curves, and write the tables."""
    plots.draw(results)
    report.FIGURES.write_text(report.figures(results), encoding="utf-8")


def main() -> None:
    """Measure, print, and publish."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiters", type=int, nargs="+", default=list(WAITERS), help="(default: %(default)s)")
    parser.add_argument("--publish", action="store_true", help="only draw and write again, from the last results")
    options = parser.parse_args()
    if options.publish:
        publish(Results.load())
        return
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(limits[0], (DESCRIPTORS_PER_WAITER + 1) * max(options.waiters))
    resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, limits[1]))
    # At the end of a measurement the sessions of waiters are closed, which is reported as a loss.
    logging.getLogger("django_zklock").setLevel(logging.ERROR)
    began = time.perf_counter()
    with ZooKeeper(max_session_timeout=SESSION_TIMEOUT, memory=SERVER_MEMORY) as server:
        results = asyncio.run(run(server, options.waiters))
    print(f"took {time.perf_counter() - began:.0f} s")
    if options.waiters == list(WAITERS):
        results.save()
        publish(results)


if __name__ == "__main__":
    main()
