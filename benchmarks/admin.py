"""How long the admin takes to show a page of many locks, and how many requests: ``make bench WHAT=admin``.

The time is that of the view with its template, as Django's test client asks for it. The first round begins a session
too.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Mapping

import django
from kazoo.client import KazooClient

from django_zklock.connections import connections
from tests.toolbox.locks.many_locks import hold_many
from tests.toolbox.network.port import LOOPBACK
from tests.toolbox.zookeeper.any_server import packets_received
from tests.toolbox.zookeeper.server import ZooKeeper

ROUNDS = 15
LIST = "/admin/django_zklock/lock/"
ROOT = "/django_zklock"

# What is looked at, by what a reader calls it.
LOOKS: Mapping[str, tuple[str, Mapping[str, str]]] = {
    "the list": (LIST, {}),
    "the list by key": (LIST, {"o": "0"}),
    "a search": (LIST, {"q": "invoice:07"}),
    "the last page": (LIST, {"p": "100000"}),
    "the list by age": (LIST, {"o": "3"}),
    "the list of one host": (LIST, {"host": "web7"}),
    "one lock": (f"{LIST}default_2Finvoice_3A00042/change/", {}),
}


def main() -> None:
    """Measure, and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--locks", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    options = parser.parse_args()
    with ZooKeeper() as server:
        os.environ |= {
            "DJANGO_SETTINGS_MODULE": "config.settings",
            "TESTPROJECT_DATABASE": ":memory:",
            "TESTPROJECT_DEBUG": "0",
            "ZOOKEEPER_HOSTS": server.hosts,
        }
        django.setup()
        holder = KazooClient(hosts=server.hosts, timeout=60)
        holder.start(timeout=20)
        hold_many(holder, ROOT, options.locks)
        measure(server, options.rounds)
        connections.close_all()
        holder.stop()
        holder.close()


def measure(server: ZooKeeper, rounds: int) -> None:
    """Look at each page so often, and print the medians."""
    from django.contrib.auth.models import User
    from django.core.management import call_command
    from django.test import Client

    call_command("migrate", verbosity=0)
    client = Client(SERVER_NAME=LOOPBACK)
    client.force_login(User.objects.create_superuser("root"))
    for name, (url, parameters) in LOOKS.items():
        times, computing, requests = [], [], []
        for _ in range(rounds):
            before = packets_received(server)
            begin, computed = time.perf_counter(), time.process_time()
            assert client.get(url, parameters).status_code == 200
            times.append(time.perf_counter() - begin)
            computing.append(time.process_time() - computed)
            # One of them is the second question.
            requests.append(packets_received(server) - before - 1)
        print(
            f"{name}: {statistics.median(times) * 1000:.0f} ms, of them {statistics.median(computing) * 1000:.0f} ms "
            f"computing, and the first {times[0] * 1000:.0f} ms; {min(requests)} requests"
        )


if __name__ == "__main__":
    main()
