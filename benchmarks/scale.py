"""What very many locks cost the commands and the admin: ``make bench WHAT=scale``.

Each look has a process of its own, whose peak of memory it determines. The time of a command is that of its own work,
without Python's start and Django's. A page of the admin is asked for a second time, as of a site that runs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing
from dataclasses import astuple, dataclass, field
from itertools import chain
from multiprocessing import get_context
from pathlib import Path

import django
from kazoo.client import KazooClient

from django_zklock.connections import connections
from django_zklock.management.subcommands.exit_codes import FOUND_PROBLEM
from tests.toolbox.locks.many_locks import hold_many, leave_many
from tests.toolbox.network.port import LOOPBACK
from tests.toolbox.zookeeper.server import ZooKeeper

COUNTS = (1_000, 100_000, 300_000)
ROUNDS = 3
# The transaction that ends a session must not be too long for a server.
LOCKS_OF_A_SESSION = 5_000
MEMORY = "3g"
ROOT = "/django_zklock"
# Where no queue is in use.
IDLE_ROOT = "/idle"
KIB_OF_A_MB = 1024
# Seconds, and those of computing.
Times = tuple[float, float]
LIST = "/admin/django_zklock/lock/"


@dataclass(frozen=True)
class Look:
    """What a look took: seconds, of them those of computing in this process, and MB of memory at most."""

    seconds: float
    computing: float
    memory: float

    @classmethod
    def median(cls, looks: Sequence[Look]) -> Look:
        """Return the medians of several looks."""
        return cls(*map(statistics.median, zip(*map(astuple, looks), strict=True)))


@dataclass
class Clock:
    """What has passed since it was made: seconds, and those of computing."""

    began: float = field(default_factory=time.perf_counter)
    computed: float = field(default_factory=time.process_time)

    def read(self) -> Times:
        """Return both."""
        return time.perf_counter() - self.began, time.process_time() - self.computed


def command(*arguments: str) -> Callable[[], Times]:
    """Return what runs ``zklock``."""

    def run() -> Times:
        from django.core.management import CommandError, call_command

        clock = Clock()
        with open(os.devnull, "w", encoding="utf-8") as out:  # noqa: PTH123 - no path
            try:
                call_command("zklock", *arguments, stdout=out)
            except CommandError as error:
                # That there are very many queues is a finding of the doctor.
                if error.returncode != FOUND_PROBLEM:
                    raise
        return clock.read()

    return run


def page(url: str, **parameters: str) -> Callable[[], Times]:
    """Return what shows a page of the admin."""

    def show() -> Times:
        from django.contrib.auth.models import User
        from django.core.management import call_command
        from django.test import Client

        call_command("migrate", verbosity=0)
        client = Client(SERVER_NAME=LOOPBACK)
        client.force_login(User.objects.create_superuser("root"))
        for _ in range(2):
            clock = Clock()
            answer = client.get(url, parameters)
            took = clock.read()
            assert answer.status_code == 200
        return took

    return show


# By what a reader calls them. The last one leaves nothing to look at.
LOOKS: Mapping[str, Callable[[], Times]] = {
    "`zklock list`": command("list"),
    "`zklock list --json`": command("list", "--json"),
    "`zklock list --sort age --limit 20`": command("list", "--sort", "age", "--limit", "20"),
    "`zklock list invoice:0007`": command("list", "invoice:0007"),
    "`zklock show`, of a lock in use": command("show", "invoice:00042"),
    "`zklock show`, of another key": command("show", "invoice:0x042"),
    "`zklock doctor`": command("doctor"),
    "admin, the first page": page(LIST),
    "admin, a search": page(LIST, q="invoice:0007"),
    "admin, the last page": page(LIST, p="100000"),
    "admin, the contended ones": page(LIST, state="contended"),
    "admin, one lock": page(f"{LIST}default_2Finvoice_3A00042/change/"),
    "`zklock prune --dry-run`": command("prune", "--dry-run"),
    "`zklock prune`": command("prune"),
}
*_, LAST = LOOKS


def look(name: str, hosts: str) -> Look:
    """Look once, as the first thing that this process does."""
    from django.test import override_settings

    django.setup()
    root = IDLE_ROOT if "prune" in name else ROOT
    with override_settings(ZKLOCK={"default": {"HOSTS": hosts, "ROOT": root}}):
        took = LOOKS[name]()
        connections.reset()
    status = Path("/proc/self/status").read_text(encoding="ascii")
    # The peak that the system reports by `getrusage` may be that of the process that has started this one.
    peak = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM:"))
    return Look(*took, peak / KIB_OF_A_MB)


def measure(count: int, names: Sequence[str], rounds: int) -> dict[str, Look]:
    """Return the medians of all looks at ``count`` locks, or at as many empty queues."""
    found: dict[str, list[Look]] = {name: [] for name in names}
    with ExitStack() as stack:
        server = stack.enter_context(ZooKeeper(memory=MEMORY))
        for first in range(0, count, LOCKS_OF_A_SESSION):
            client = KazooClient(hosts=server.hosts, timeout=60)
            client.start(timeout=20)
            stack.enter_context(closing(client))
            stack.callback(client.stop)
            hold_many(client, ROOT, min(LOCKS_OF_A_SESSION, count - first), first=first)
        leave_many(client, IDLE_ROOT, count)
        for _ in range(rounds):
            for name in names:
                if name != LAST:
                    found[name].append(look_apart(name, server.hosts))
        if LAST in names:
            found[LAST].append(look_apart(LAST, server.hosts))
    return {name: Look.median(looks) for name, looks in found.items()}


def look_apart(name: str, hosts: str) -> Look:
    """Look in a new process."""
    with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as process:
        found = process.submit(look, name, hosts).result()
    print(
        f"  {name}: {found.seconds:.2f} s, {found.computing:.2f} s computing, {found.memory:.0f} MB",
        file=sys.stderr,
        flush=True,
    )
    return found


def table(found: Mapping[int, Mapping[str, Look]], names: Sequence[str]) -> str:
    """Return a table in Markdown: a row for each look, three columns for each number of locks."""
    head = ["", *(f"{count:,}: {unit}" for count in found for unit in ("s", "CPU, s", "MB"))]
    rows = [head, ["---", *["---:"] * (len(head) - 1)]]
    for name in names:
        looks = [looks[name] for looks in found.values()]
        cells = ((f"{each.seconds:.2f}", f"{each.computing:.2f}", f"{each.memory:.0f}") for each in looks)
        rows.append([name, *chain.from_iterable(cells)])
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--locks", type=int, nargs="+", default=COUNTS)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--only", nargs="+", metavar="WORDS", help="the looks that have one of them in their name")
    options = parser.parse_args()
    names = [name for name in LOOKS if options.only is None or any(words in name for words in options.only)]
    os.environ |= {
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "TESTPROJECT_DATABASE": ":memory:",
        "TESTPROJECT_DEBUG": "0",
    }
    found = {}
    for count in options.locks:
        print(f"{count:,} locks", file=sys.stderr, flush=True)
        found[count] = measure(count, names, options.rounds)
    print(table(found, names))


if __name__ == "__main__":
    main()
