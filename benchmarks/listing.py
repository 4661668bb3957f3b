"""How long the command takes to list many locks, and how many requests: ``make bench WHAT=listing``.

The time is that of the command's own work, without Python's start and Django's; the first round begins a session too.
On a machine that is busy with other things the time of this process's threads tells more.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Sequence
from dataclasses import dataclass
from io import StringIO

import django
from django.conf import settings
from django.core.management import call_command
from kazoo.client import KazooClient

from django_zklock.connections import connections
from tests.toolbox.locks.many_locks import hold_many
from tests.toolbox.zookeeper.any_server import packets_received
from tests.toolbox.zookeeper.server import ZooKeeper

ROUNDS = 7


@dataclass(frozen=True)
class Run:
    """What one run took, in seconds, and how many requests it made."""

    took: float
    computing: float
    requests: int


def measure(server: ZooKeeper, arguments: Sequence[str]) -> Run:
    """Run ``zklock``."""
    before = packets_received(server)
    computed, begin = time.process_time(), time.perf_counter()
    call_command("zklock", *arguments, stdout=StringIO())
    took, computing = time.perf_counter() - begin, time.process_time() - computed
    # One of them is the second question.
    return Run(took, computing, packets_received(server) - before - 1)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--locks", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    with ZooKeeper() as server:
        settings.configure(
            INSTALLED_APPS=["django_zklock"], ZKLOCK={"default": {"HOSTS": server.hosts, "SESSION_TIMEOUT": 60}}
        )
        django.setup()
        client = KazooClient(hosts=server.hosts, timeout=60)
        client.start(timeout=20)
        hold_many(client, "/django_zklock", options.locks)
        for arguments in (["list"], ["list", "--format", "json"], ["list", "--sort", "age", "--limit", "20"]):
            connections.reset()
            runs = [measure(server, arguments) for _ in range(options.rounds)]
            median = statistics.median(run.took for run in runs)
            computing = statistics.median(run.computing for run in runs)
            requests = min(run.requests for run in runs)
            print(
                f"zklock {' '.join(arguments)}: {median:.2f} s, of them {computing:.2f} s computing, "
                f"and the first {runs[0].took:.2f} s; {requests} requests for {options.locks} locks"
            )
        client.stop()
        client.close()


if __name__ == "__main__":
    main()
