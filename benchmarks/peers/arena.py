"""The servers and the programs of one measurement, each started at its first use."""

from __future__ import annotations

import sys
import time
from contextlib import ExitStack
from functools import cached_property
from typing import TYPE_CHECKING

from benchmarks.peers.contestants import CONTESTANTS, REDIS, Contestant
from benchmarks.peers.counters import Counted, CountedRedis, CountedZooKeeper
from benchmarks.peers.load import Load
from benchmarks.peers.program import Program
from benchmarks.peers.team import Team
from benchmarks.peers.warm_up import WarmUp
from tests.toolbox.brokers.redis import Redis
from tests.toolbox.network.port import LOOPBACK
from tests.toolbox.processes.java import QUICK_START
from tests.toolbox.zookeeper.server import ZooKeeper

if TYPE_CHECKING:
    from typing import Self

# Of the options for a short life, this one is kept.
KEPT_OPTION = "-XX:-UsePerfData"
MEMORY = "512m"


class LastingZooKeeper(ZooKeeper):
    """A server with Java's own defaults: the tests' options make it start sooner and work slower."""

    def arguments(self) -> list[str]:
        """Leave out the options for a short life."""
        return [each for each in super().arguments() if each not in QUICK_START or each == KEPT_OPTION]


class Arena:
    """What scenarios share.

    ``warm_up`` is for how many seconds a new server works before it counts, and a turn of new Java programs takes.
    """

    def __init__(self, warm_up: float, seconds: float = 1.0) -> None:
        """Start nothing yet; the lengths of rounds are multiplied by ``seconds``."""
        self.warm_up = warm_up
        self.seconds = seconds
        self._stack = ExitStack()
        # By the name of the contestant, and whether each contender has a program.
        self._teams: dict[tuple[str, bool], Team] = {}
        self._ports: dict[tuple[str, float], int] = {}

    def __enter__(self) -> Self:
        """Return the arena."""
        return self

    def __exit__(self, *_: object) -> None:
        """End everything."""
        self._stack.close()

    @cached_property
    def zookeeper(self) -> CountedZooKeeper:
        """A server alone, without a sync of the disk at each write."""
        server = CountedZooKeeper(self._stack.enter_context(LastingZooKeeper(memory=MEMORY)))
        if self.warm_up:
            load = Load(host=LOOPBACK, port=server.port, key="warm")
            with Program(CONTESTANTS["raw"].arguments()) as program:
                program.ask(f"open {load.words()}")
                program.ask("run", start=time.monotonic(), seconds=self.warm_up)
        return server

    @cached_property
    def redis(self) -> CountedRedis:
        """A server that keeps everything in memory."""
        server = CountedRedis(self._stack.enter_context(Redis()))
        self._stack.callback(server.close)
        return server

    def service(self, name: str) -> Counted:
        """Return the server that a contestant uses."""
        return self.redis if name == REDIS else self.zookeeper

    def port(self, service: str, delay: float) -> int:
        """Return the port of a server, behind a proxy if there is a delay."""
        port = self.service(service).port
        if not delay:
            return port
        if (service, delay) not in self._ports:
            proxy = self._stack.enter_context(module("delay", str(port), str(delay)))
            self._ports[service, delay] = int(proxy.ask("listen")["port"])
        return self._ports[service, delay]

    def team(self, contestant: Contestant, *, processes: bool = False) -> Team:
        """Return the programs of a contestant; they are warmed up if their runtime needs that."""
        apart = contestant.apart if processes else None
        is_apart = apart is not None
        if (contestant.name, is_apart) not in self._teams:
            arguments = apart or contestant.arguments
            # A program with one of several contenders makes exclusive locks alone.
            kinds = ["exclusive"] if is_apart else sorted(contestant.kinds)
            loads = [self._warm_up_load(contestant, kind) for kind in kinds]
            warm_up = WarmUp(self.warm_up if contestant.warms_up else 0.0, loads)
            team = self._teams[contestant.name, is_apart] = Team(
                lambda: Program(arguments()), is_apart=is_apart, warm_up=warm_up
            )
            self._stack.callback(team.end)
        return self._teams[contestant.name, is_apart]

    def _warm_up_load(self, contestant: Contestant, kind: str) -> Load:
        return Load(
            host=LOOPBACK,
            port=self.service(contestant.service).port,
            key=f"warm-{contestant.name}-{kind}",
            kind=kind,
            contenders=2,
            keys=2 if kind == "several" else 1,
        )


def module(name: str, *arguments: str) -> Program:
    """Return a program of this package."""
    return Program([sys.executable, "-m", f"benchmarks.peers.{name}", *arguments])
