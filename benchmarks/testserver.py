"""How fast the server for tests is, beside a real ZooKeeper under the same load: ``make bench WHAT=testserver``.

Each figure is the median of several rounds, in which the servers take turns, so that what else the machine does
meets all of them.
"""

from __future__ import annotations

import argparse
import resource
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from benchmarks.pipeline import SESSIONS, Address, mixed, prepare, rate, set_up_sessions
from django_zklock.testing import ZooKeeperServer
from tests.toolbox.network.port import LOOPBACK
from tests.toolbox.protocol.operations import Create, Exists, GetData
from tests.toolbox.zookeeper.devserver import DevServer
from tests.toolbox.zookeeper.server import ZooKeeper

ROUNDS = 5
REQUESTS = 30_000


@dataclass(frozen=True)
class Contestant:
    """A server under measurement."""

    name: str
    address: Address
    # Starts another one like it, and gives the seconds until it was ready.
    start: Callable[[], float]


def start_in_a_thread() -> float:
    """Make a server ready in a thread of this process, as a fixture does; return the seconds it took."""
    begin = time.perf_counter()
    with ZooKeeperServer():
        return time.perf_counter() - begin


def start_process(make: Callable[[], DevServer | ZooKeeper]) -> float:
    """Make a server ready that is a process of its own; return the seconds it took."""
    begin = time.perf_counter()
    with make():
        return time.perf_counter() - begin


@contextmanager
def contestants() -> Iterator[list[Contestant]]:
    """Start the servers."""
    with ZooKeeperServer() as thread, DevServer() as process, ZooKeeper() as real:
        yield [
            Contestant("in a thread", thread.address, start_in_a_thread),
            Contestant("own process", (LOOPBACK, process.port), lambda: start_process(DevServer)),
            Contestant("ZooKeeper", real.address, lambda: start_process(ZooKeeper)),
        ]


@dataclass(frozen=True)
class Discipline:
    """Something that is measured; ``more`` is better, or less."""

    name: str
    unit: str
    more: bool
    # What to do in a round of this number, and the figure that it gives.
    measure: Callable[[Contestant, int], float]


DISCIPLINES = [
    Discipline("ready", "ms", more=False, measure=lambda who, _: who.start() * 1000),
    Discipline(
        "create, getData, getChildren",
        "1/s",
        more=True,
        measure=lambda who, number: rate(who.address, mixed(REQUESTS, f"mixed-{number}")),
    ),
    Discipline("getData", "1/s", more=True, measure=lambda who, _: rate(who.address, [GetData("/read")] * REQUESTS)),
    Discipline("exists", "1/s", more=True, measure=lambda who, _: rate(who.address, [Exists("/read")] * REQUESTS)),
    Discipline(
        "create",
        "1/s",
        more=True,
        measure=lambda who, number: rate(who.address, [Create(f"/n{number}-{each}") for each in range(REQUESTS)]),
    ),
    Discipline(f"{SESSIONS} sessions", "ms", more=False, measure=lambda who, _: set_up_sessions(who.address) * 1000),
]


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="per figure (default: %(default)s)")
    options = parser.parse_args()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(limits[0], 3 * SESSIONS), limits[1]))
    with contestants() as servers:
        for server in servers:
            prepare(server.address)
        print(f"{'':32}" + "".join(f"{server.name:>16}" for server in servers) + f"{'ratio':>10}")
        for discipline in DISCIPLINES:
            figures: list[list[float]] = [[] for _ in servers]
            for number in range(options.rounds):
                for server, found in zip(servers, figures, strict=True):
                    found.append(discipline.measure(server, number))
            medians = [statistics.median(found) for found in figures]
            _, own, real = medians
            ratio = own / real if discipline.more else real / own
            name = f"{discipline.name}, {discipline.unit}"
            print(f"{name:32}" + "".join(f"{figure:16,.1f}" for figure in medians) + f"{ratio:10.2f}")
    print("ratio: own process to ZooKeeper; above 1 the own one is faster")


if __name__ == "__main__":
    main()
