"""Keys that are used once: how many queues they leave, and what that costs the server: ``make bench WHAT=once``.

Processes acquire and release locks, each with a key of its own, at a fixed rate as far as the machine allows. In the
meantime the nodes of the tree are counted, and the memory of the server, and after the last lock for how long there are
empty queues.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import statistics
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path

import django
from django.conf import settings

from tests.toolbox.zookeeper.server import ZooKeeper

RATE = 1_000
SECONDS = 300.0
PROCESSES = 4
# Seconds of delay that a process catches up on.
MAX_DELAY = 1.0
# Seconds between two looks at the server.
INTERVAL = 30.0
MEMORY = "1g"
KIB_OF_A_MB = 1024
# Containers that ZooKeeper removes in a minute, by default.
PER_MINUTE = 10_000


@dataclass(frozen=True)
class Part:
    """What one process did: the number of locks, and how long each took, in seconds."""

    locks: int
    took: Sequence[float]


def use_keys(hosts: str, number: int, rate: float, seconds: float, pipe: Connection) -> None:
    """Be one process, which takes ``rate`` locks a second if it can."""
    settings.configure(INSTALLED_APPS=["django_zklock"], ZKLOCK={"default": {"HOSTS": hosts, "SESSION_TIMEOUT": 30}})
    django.setup()
    from django_zklock import zk_lock
    from django_zklock.connections import connections

    took = []
    with zk_lock(f"warm:{number}"):
        pass
    pipe.send(None)
    begin: float = pipe.recv()
    due, end = begin, begin + seconds
    for count in itertools.count():
        # What is more is left out.
        due = max(due + 1 / rate, time.monotonic() - MAX_DELAY)
        time.sleep(max(0.0, due - time.monotonic()))
        started = time.monotonic()
        if started > end:
            break
        with zk_lock(f"order:{number}:{count:08}"):
            pass
        took.append(time.monotonic() - started)
    pipe.send(Part(len(took), took))
    connections.reset()


@contextmanager
def users(hosts: str, count: int, rate: float, seconds: float) -> Iterator[list[Connection]]:
    """Start the processes, which are warm when this begins."""
    context = multiprocessing.get_context("spawn")
    pipes, children = [], []
    for number in range(count):
        ours, theirs = context.Pipe()
        child = context.Process(target=use_keys, args=(hosts, number, rate / count, seconds, theirs), daemon=True)
        child.start()
        pipes.append(ours)
        children.append(child)
    for pipe in pipes:
        pipe.recv()
    yield pipes
    for child in children:
        child.join()


def look(server: ZooKeeper, seconds: float, before: tuple[float, int]) -> tuple[float, int]:
    """Print the state of the server; return the time and its nodes."""
    counters = server.mntr(timeout=30)
    nodes = int(counters["zk_znode_count"])
    status = Path(f"/proc/{server.pid}/status").read_text(encoding="ascii")
    memory = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:")) / KIB_OF_A_MB
    growth = (nodes - before[1]) / max(1.0, seconds - before[0])
    print(f"| {seconds:.0f} | {nodes:,} | {growth:+,.0f} | {memory:.0f} |", flush=True)
    return seconds, nodes


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rate", type=float, default=RATE, help="new keys a second")
    parser.add_argument("--seconds", type=float, default=SECONDS)
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--per-minute", type=int, default=PER_MINUTE, help="znode.container.maxPerMinute")
    parser.add_argument("--after", type=float, default=SECONDS, help="seconds to look on after the last lock")
    options = parser.parse_args()
    with ExitStack() as stack:
        properties = {"znode.container.maxPerMinute": str(options.per_minute)}
        server = stack.enter_context(ZooKeeper(memory=MEMORY, properties=properties))
        pipes = stack.enter_context(users(server.hosts, options.processes, options.rate, options.seconds))
        print("| s | nodes | nodes a second | memory of the server, MB |")
        print("| ---: | ---: | ---: | ---: |")
        begin = time.monotonic()
        for pipe in pipes:
            pipe.send(begin)
        seen = look(server, 0.0, (0.0, 0))
        for number in itertools.count(1):
            time.sleep(max(0.0, begin + number * INTERVAL - time.monotonic()))
            seconds = time.monotonic() - begin
            seen = look(server, seconds, seen)
            if seconds >= options.seconds + options.after or (seconds > options.seconds + INTERVAL and seen[1] < 100):
                break
        parts = [pipe.recv() for pipe in pipes]
    took = [one for part in parts for one in part.took]
    locks = sum(part.locks for part in parts)
    print(
        f"{locks:,} locks in {options.seconds:.0f} s, {locks / options.seconds:,.0f} a second, each in "
        f"{statistics.median(took) * 1000:.1f} ms (median); at most {options.per_minute:,} queues are removed a minute"
    )


if __name__ == "__main__":
    main()
