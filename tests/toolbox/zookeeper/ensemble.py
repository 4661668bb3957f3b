"""Several ZooKeeper servers on the loopback interface that elect a leader."""

from __future__ import annotations

import time
from contextlib import ExitStack
from typing import TYPE_CHECKING

from tests.toolbox.network.port import LOOPBACK, free_port
from tests.toolbox.processes.process import POLL_INTERVAL
from tests.toolbox.processes.started import Started
from tests.toolbox.zookeeper.server import ZooKeeper

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Self


class Ensemble(Started):
    """A quorum; each of its ``nodes`` can be stopped, killed, paused and started again on its own."""

    def __init__(
        self,
        size: int = 3,
        *,
        new_server: Callable[..., ZooKeeper] = ZooKeeper,
        tick_time: float = 0.5,
        min_session_timeout: float = 1.0,
        sync_limit: int = 10,
        peer: Callable[[int, int, int], int] = lambda _of, _to, port: port,
        properties: Mapping[str, str] | None = None,
        settings: Mapping[str, str] | None = None,
    ) -> None:
        """Choose the ports and write each server's configuration, with ``new_server``; nothing runs yet.

        ``peer`` returns the port by which the server ``of`` reaches the port ``port`` of the server ``to``: something
        may stand between the two. ``sync_limit`` is in ticks; ``properties`` are Java's, and ``settings`` further lines
        of ``zoo.cfg``.
        """
        numbers = range(1, size + 1)
        ports = {number: (free_port(), free_port()) for number in numbers}

        def member(of: int, to: int) -> str:
            quorum, election = (peer(of, to, port) if of != to else port for port in ports[to])
            return f"{LOOPBACK}:{quorum}:{election}:participant"

        self._folders = ExitStack()
        self.nodes: list[ZooKeeper] = []
        for number in numbers:
            node = new_server(
                tick_time=tick_time,
                min_session_timeout=min_session_timeout,
                server_id=number,
                properties=properties,
                settings={
                    "syncLimit": str(sync_limit),
                    **(settings or {}),
                    **{f"server.{to}": member(number, to) for to in numbers},
                },
            )
            self._folders.callback(node.close)
            self.nodes.append(node)

    @property
    def hosts(self) -> str:
        """All addresses as clients write them."""
        return ",".join(node.hosts for node in self.nodes)

    def start(self) -> Self:
        """Start all servers and wait until each is the leader or follows it."""
        # One server alone is never ready, so all are launched before the first is waited for.
        for node in self.nodes:
            node.launch()
        for node in self.nodes:
            node.wait_ready()
        return self

    def stop(self) -> None:
        """Stop all servers and keep their data."""
        for node in self.nodes:
            node.stop()

    def close(self) -> None:
        """Stop all servers and remove their data."""
        self._folders.close()

    def leader(self, timeout: float = 60.0) -> ZooKeeper:
        """Return the server that leads now, waiting for an election that is under way."""
        deadline = time.monotonic() + timeout * ZooKeeper.slowness
        while True:
            for node in self.nodes:
                if _state(node) == "leader":
                    return node
            if time.monotonic() > deadline:
                msg = f"no leader among {self.hosts} after {timeout:g} s"
                raise TimeoutError(msg)
            time.sleep(POLL_INTERVAL)

    def followers(self) -> list[ZooKeeper]:
        """Return the servers that follow a leader now."""
        return [node for node in self.nodes if _state(node) == "follower"]


def _state(node: ZooKeeper) -> str | None:
    if not node.is_running():
        return None
    try:
        return node.mntr(timeout=1.0).get("zk_server_state")
    except OSError:
        return None
