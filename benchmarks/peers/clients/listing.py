"""Lists all locks and their holders: ``python -m benchmarks.peers.clients.listing NAME HOSTS``."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from io import StringIO

import django
from django.conf import settings
from django.core.management import call_command
from kazoo.client import KazooClient
from kazoo.recipe.lock import Lock

from benchmarks.peers.clients.dialogue import serve

ROOT = "/django_zklock"


def ours(hosts: str) -> Callable[[], int]:
    """Return the command ``zklock list``, which counts the locks in its output."""
    settings.configure(INSTALLED_APPS=["django_zklock"], ZKLOCK={"default": {"HOSTS": hosts, "ROOT": ROOT}})
    django.setup()

    def run() -> int:
        output = StringIO()
        call_command("zklock", "list", stdout=output)
        return output.getvalue().count("invoice:")

    return run


def kazoo(hosts: str) -> Callable[[], int]:
    """Return a loop over all locks that asks kazoo's lock for its contenders."""
    client = KazooClient(hosts)
    client.start(20)

    def run() -> int:
        names = client.get_children(ROOT)
        return sum(bool(Lock(client, f"{ROOT}/{name}", extra_lock_patterns=["-lock-"]).contenders()) for name in names)

    return run


def main(name: str, hosts: str) -> None:
    """Serve."""
    run = {"ours": ours, "kazoo": kazoo}[name](hosts)

    def measure(words: Mapping[str, str]) -> Mapping[str, float]:
        begin, cpu = time.perf_counter(), time.process_time()
        found = run()
        assert found == int(words["count"]), found
        return {"time": time.perf_counter() - begin, "client_cpu": time.process_time() - cpu}

    serve({"list": measure})


if __name__ == "__main__":
    main(*sys.argv[1:])
