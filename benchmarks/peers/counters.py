"""What the servers count, and what the system counts of a process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import redis

from tests.toolbox.brokers.redis import Redis
from tests.toolbox.zookeeper.server import ZooKeeper

TICKS = os.sysconf("SC_CLK_TCK")


def cpu_seconds(pid: int) -> float:
    """Return the CPU time that a process has used, in hundredths of a second."""
    # The name of the program, in parentheses, may have spaces.
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / TICKS


@dataclass(frozen=True)
class Reading:
    """What a server has done since it started: requests, and seconds of CPU."""

    requests: int
    cpu: float

    def __sub__(self, other: Reading) -> Reading:
        """Return what was done between two readings."""
        return Reading(self.requests - other.requests, self.cpu - other.cpu)


class Counted(Protocol):
    """A server under measurement."""

    port: int

    def read(self) -> Reading:
        """Read its counters."""
        ...


class CountedZooKeeper:
    """ZooKeeper counts packets: a transaction of several changes is one."""

    def __init__(self, server: ZooKeeper) -> None:
        """Read from that server."""
        self.server = server
        self.port = server.port

    def read(self) -> Reading:
        """Read ``mntr``, without the four-letter words themselves."""
        return Reading(self.server.packets_received(), cpu_seconds(self.server.pid))


class CountedRedis:
    """Redis counts commands, also those that a script runs."""

    def __init__(self, server: Redis) -> None:
        """Read from that server."""
        self.server = server
        self.port = server.port
        self._client = redis.Redis(port=server.port)

    def read(self) -> Reading:
        """Read the counters, without these questions and what a new connection sends."""
        stats = self._client.info("commandstats")
        ours = ("cmdstat_info", "cmdstat_client", "cmdstat_hello", "cmdstat_auth", "cmdstat_select")
        calls = sum(each["calls"] for name, each in stats.items() if not name.startswith(ours))
        return Reading(calls, cpu_seconds(self.server.pid))

    def close(self) -> None:
        """Close the connection for the questions."""
        self._client.close()
