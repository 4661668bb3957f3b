"""A process whose greenlets ask for one lock: ``main(library)`` with hosts and root as arguments.

It says what has happened in lines on standard output. Whether and when threads are patched is up to the caller.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from django_zklock.exceptions import LockConflict
from django_zklock.zk.held import Held, current
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions
from tests.contract.programs.scripted_child import send
from tests.toolbox.timing import scaled

GREENLETS = 4


class Workers:
    """Greenlets that are in their blocks one after the other, or not."""

    def __init__(self, lock: Lock, sleep: Callable[[float], object]) -> None:
        self.lock = lock
        self.sleep = sleep
        self.arrived = self.inside = self.most = 0
        self.tokens: set[int] = set()

    def work(self) -> None:
        self.arrived += 1
        with self.lock as held:
            self.inside += 1
            while self.arrived < GREENLETS:
                self.sleep(0.005)
            # Long enough for all to come in that can.
            self.sleep(0.05)
            self.most = max(self.most, self.inside)
            with self.lock as nested:
                assert nested.node == held.node
            self.tokens.add(held.token)
            self.inside -= 1


def main(library: str) -> None:
    hosts, root = sys.argv[1:]
    green: Any = import_module(library)
    pool = Pool("p", PoolOptions(connection=ConnectionOptions(hosts=hosts, session_timeout=scaled(10)), root=root))
    lock = Lock("k", pool)
    workers = Workers(lock, green.sleep)
    first = green.spawn(workers.work)
    while not workers.inside:
        green.sleep(0.005)
    for greenlet in [first, *(green.spawn(workers.work) for _ in range(GREENLETS - 1))]:
        wait(greenlet)
    send("inside", workers.most, "tokens", len(workers.tokens))
    pool.close()


def unpatched(library: str) -> None:
    """Ask in a greenlet for what another one of its thread holds, and in the greenlet that the thread is."""
    hosts, root = sys.argv[1:]
    green: Any = import_module(library)
    pool = Pool("p", PoolOptions(connection=ConnectionOptions(hosts=hosts, session_timeout=scaled(10)), root=root))
    lock = Lock("k", pool)
    kept: list[Held] = []

    def hold() -> None:
        kept.append(lock.acquire())
        with lock as nested:
            assert nested.node == kept[0].node
        green.sleep(0.5)
        kept[0].release()

    def ask() -> None:
        try:
            lock.acquire()
        except LockConflict as error:
            send("conflict", "taken in this very thread" in str(error), current(), lock.try_acquire())

    holder = green.spawn(hold)
    while not kept:
        green.sleep(0.005)
    wait(green.spawn(ask))
    ask()
    wait(holder)
    with lock:
        wait(green.spawn(ask))
    pool.close()


def wait(greenlet: Any) -> None:
    """Wait for the end of a greenlet of gevent or eventlet, and raise what it has raised."""
    (greenlet.get if hasattr(greenlet, "get") else greenlet.wait)()


def beside_a_task(library: str) -> None:
    """A greenlet asks while another one runs an event loop, whose task holds and lets other greenlets run."""
    hosts, root = sys.argv[1:]
    green: Any = import_module(library)
    connection = ConnectionOptions(hosts=hosts)
    pool = Pool("p", PoolOptions(connection=connection, root=root, connect_timeout=scaled(30)))
    lock = Lock("k", pool)
    taken: list[bool] = []

    async def hold() -> None:
        async with lock:
            taken.append(True)
            while len(taken) < 2:
                green.sleep(0.01)

    def ask() -> None:
        while not taken:
            green.sleep(0.01)
        send("asked", lock.try_acquire() is None, current() is None)
        taken.append(True)

    greenlets = [green.spawn(asyncio.run, hold()), green.spawn(ask)]
    for greenlet in greenlets:
        greenlet.join()
    pool.close(5)
