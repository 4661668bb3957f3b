"""What equal calls cost while one of them waits in the broker: ``make bench WHAT=unique``.

One process with some threads sends the same task again and again, and no worker takes it. Beside ours are Celery alone,
celery-once and celery-singleton, which need not be installed: ``--packages`` names a folder that has them
(``pip install --target FOLDER --no-deps celery-once celery-singleton``). All in one run, on Redis and a real ZooKeeper.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import re
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import django
import redis
from celery import Celery

from tests.toolbox.brokers.redis import Redis
from tests.toolbox.zookeeper.server import ZooKeeper

TASK = "search.rebuild"


def sync(day: int) -> None:
    """Do nothing: no worker runs it."""


def plain(app: Celery) -> Any:
    """Return the task of Celery alone."""
    return app.task(name=TASK, shared=False)(sync)


def celery_once(app: Celery) -> Any:
    from celery_once import QueueOnce  # type: ignore[import-not-found]

    settings = {"url": app.conf.broker_url, "default_timeout": 3600}
    app.conf["ONCE"] = {"backend": "celery_once.backends.Redis", "settings": settings}
    base: Any = QueueOnce
    make: Any = app.task(name=TASK, shared=False, base=base, once={"graceful": True})
    return make(sync)


def celery_singleton(app: Celery) -> Any:
    from celery_singleton import Singleton  # type: ignore[import-not-found]

    app.conf.update(singleton_backend_url=app.conf.broker_url)
    base: Any = Singleton
    make: Any = app.task(name=TASK, shared=False, base=base, lock_expiry=3600)
    return make(sync)


def ours(app: Celery) -> Any:
    """Return the task of this package."""
    from django_zklock import zk_locked
    from django_zklock.contrib.celery import install

    install()
    return zk_locked("sync:{day}", unique_until="start")(app.task(name=TASK, shared=False)(sync))


CONTESTANTS: dict[str, tuple[Callable[[Celery], Any], str]] = {
    "Celery alone": (plain, "celery"),
    "celery-once": (celery_once, "celery_once"),
    "celery-singleton": (celery_singleton, "celery_singleton"),
    "unique_until": (ours, "django_zklock"),
}


def received(zookeeper: ZooKeeper) -> int:
    """Return how many requests the server has received."""
    found = re.search(r"zk_packets_received\s+(\d+)", zookeeper.command("mntr"))
    assert found is not None
    return int(found[1])


def measure(make: Callable[[Celery], Any], url: str, zookeeper: ZooKeeper, *, calls: int, threads: int) -> list[str]:
    """Return messages in the broker, requests to ZooKeeper, seconds, and calls in a second."""
    with redis.Redis.from_url(url) as client:
        client.flushall()
        app = Celery("once", broker=url, set_as_current=False)
        task = make(app)
        app.finalize()
        # What is loaded and connected at the first use.
        task.delay(0)
        before, begun = received(zookeeper), time.perf_counter()
        with ThreadPoolExecutor(threads) as pool:
            for _ in pool.map(lambda _number: task.delay(1), range(calls)):
                pass
        seconds = time.perf_counter() - begun
        messages = int(client.llen("celery")) - 1
        requests = received(zookeeper) - before
        app.close()
    return [f"{messages:,}", f"{requests:,}", f"{seconds:.1f}", f"{calls / seconds:,.0f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=100_000)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--packages", help="a folder with celery-once and celery-singleton")
    options = parser.parse_args()
    if options.packages:
        sys.path.append(options.packages)
    with ZooKeeper() as zookeeper, Redis() as broker:
        os.environ |= {"DJANGO_SETTINGS_MODULE": "config.settings", "ZOOKEEPER_HOSTS": zookeeper.hosts}
        django.setup()
        print(f"{options.calls:,} equal calls in {options.threads} threads of one process")
        print(f"{'':18}{'messages':>12}{'requests':>12}{'seconds':>10}{'calls/s':>10}")
        for name, (make, module) in CONTESTANTS.items():
            if importlib.util.find_spec(module) is None:
                print(f"{name:18}is not installed")
                continue
            row = measure(make, broker.url, zookeeper, calls=options.calls, threads=options.threads)
            print(f"{name:18}{row[0]:>12}{row[1]:>12}{row[2]:>10}{row[3]:>10}", flush=True)
        from django_zklock.connections import connections

        connections.close_all()


if __name__ == "__main__":
    main()
