"""What sessions cost the server: to open them, and to keep them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

from benchmarks.peers.arena import Arena, module
from benchmarks.peers.program import Figures, Program
from benchmarks.peers.scenario import Round

COUNT = 1000
# Sessions of ours that each hold a lock, and their timeout in seconds. Heartbeats come in fractions of it.
HOLDING = 20
SESSION_TIMEOUT = 4
TIMEOUTS = 2


@dataclass(frozen=True)
class SessionScenario:
    """Raw sessions that are opened, ping and are closed, and sessions of ours that hold a lock each."""

    name: str = "sessions"
    max_rounds: int | None = 2

    @contextmanager
    def open(self, arena: Arena) -> Iterator[dict[str, Round]]:
        """Start the two programs."""
        with (
            module("clients.surge", str(arena.zookeeper.port)) as raw,
            module("clients.idle", arena.zookeeper.server.hosts) as ours,
        ):
            yield {"raw": partial(open_and_ping, arena, raw), "ours": partial(hold, arena, ours)}


def open_and_ping(arena: Arena, program: Program, _number: int) -> Figures:
    """Return what it takes to open a session, to ping once, and to close it."""
    start = arena.zookeeper.read()
    opened = program.ask("connect", sessions=COUNT)
    connected = arena.zookeeper.read()
    pings = program.ask("ping")["pings"]
    pinged = arena.zookeeper.read()
    program.ask("disconnect")
    return {
        "open_time": opened["elapsed"] / COUNT,
        "open_cpu": (connected - start).cpu / COUNT,
        "ping_cpu": (pinged - connected).cpu / pings,
    }


def hold(arena: Arena, program: Program, _number: int) -> Figures:
    """Return how many requests a session sends in one session timeout while it holds a lock."""
    program.ask("hold", sessions=HOLDING, session_timeout=SESSION_TIMEOUT)
    before = arena.zookeeper.read()
    time.sleep(SESSION_TIMEOUT * TIMEOUTS)
    done = arena.zookeeper.read() - before
    program.ask("release")
    return {"requests_per_timeout": done.requests / HOLDING / TIMEOUTS}
