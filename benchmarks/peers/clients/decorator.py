"""A block under ``zk_lock`` and a function under ``@zk_locked``: ``… benchmarks.peers.clients.decorator HOSTS``.

The CPU time is that of the calling thread; that of the connection's thread is the same for both.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping

import django
from django.conf import settings

from benchmarks.peers.clients.dialogue import serve

WARM_CALLS = 50


def main(hosts: str) -> None:
    """Serve."""
    settings.configure(INSTALLED_APPS=["django_zklock"], ZKLOCK={"default": {"HOSTS": hosts}})
    django.setup()

    from django_zklock import zk_lock, zk_locked

    def block(number: int) -> None:
        with zk_lock(f"decorator:{number}"):
            pass

    @zk_locked("decorator:{number}")
    def decorated(number: int) -> None:
        pass

    def measure(call: Callable[[int], None]) -> Callable[[Mapping[str, str]], Mapping[str, float]]:
        def run(words: Mapping[str, str]) -> Mapping[str, float]:
            calls = int(words["calls"])
            for _ in range(WARM_CALLS):
                call(1)
            begin, cpu = time.perf_counter(), time.thread_time()
            for _ in range(calls):
                call(1)
            return {
                "caller_cpu": (time.thread_time() - cpu) / calls,
                "time": (time.perf_counter() - begin) / calls,
            }

        return run

    serve({"block": measure(block), "decorated": measure(decorated)})


if __name__ == "__main__":
    main(*sys.argv[1:])
