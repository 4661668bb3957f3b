"""How long it takes to list ten thousand locks with their holders."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass
from functools import partial

from kazoo.client import KazooClient

from benchmarks.peers.arena import MEMORY, Arena, LastingZooKeeper, module
from benchmarks.peers.counters import CountedZooKeeper
from benchmarks.peers.program import Figures, Program
from benchmarks.peers.scenario import Round
from tests.toolbox.locks.many_locks import hold_many
from tests.toolbox.zookeeper.server import ZooKeeper


@dataclass(frozen=True)
class ListingScenario:
    """``zklock list``, and what a loop over the locks with kazoo takes."""

    locks: int = 10_000
    name: str = "listing"
    max_rounds: int | None = 3

    @contextmanager
    def open(self, _arena: Arena) -> Iterator[dict[str, Round]]:
        """Hold the locks on a server of their own."""
        with ExitStack() as stack:
            server = stack.enter_context(LastingZooKeeper(memory=MEMORY))
            hold(stack, server, self.locks)
            programs = {name: module("clients.listing", name, server.hosts) for name in ("ours", "kazoo")}
            rounds: dict[str, Round] = {}
            for name, program in programs.items():
                stack.enter_context(program)
                # The first run opens the session.
                program.ask("list", count=self.locks)
                rounds[name] = partial(self._list, CountedZooKeeper(server), program)
            yield rounds

    def _list(self, server: CountedZooKeeper, program: Program, _number: int) -> Figures:
        before = server.read()
        figures = program.ask("list", count=self.locks)
        done = server.read() - before
        return {**figures, "requests": done.requests, "server_cpu": done.cpu}


def hold(stack: ExitStack, server: ZooKeeper, count: int) -> None:
    """Hold ``count`` locks until the end."""
    client = KazooClient(hosts=server.hosts, timeout=60)
    client.start(timeout=20)
    stack.enter_context(closing(client))
    stack.callback(client.stop)
    hold_many(client, "/django_zklock", count)
