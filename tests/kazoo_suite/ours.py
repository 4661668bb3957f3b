"""The test server, set up as nearly like the real ones as it can be."""

from __future__ import annotations

from django_zklock.testing import ZooKeeperServer

from .cluster import Cluster

TICK = 2.0


class OurNode:
    """The one server."""

    # Nobody listens there: the test server knows no TLS.
    secure_address = "127.0.0.1:1"

    def __init__(self, server: ZooKeeperServer) -> None:
        self._server = server

    @property
    def address(self) -> str:
        return self._server.hosts

    @property
    def running(self) -> bool:
        return self._server.running

    def run(self) -> None:
        self._server.start()

    def stop(self) -> None:
        self._server.stop()

    def get_logs(self, num_lines: int = 100) -> list[str]:
        return []


def make_ours(**_: object) -> Cluster:
    """Make a cluster of one; the settings of ``zoo.cfg`` and Java that kazoo's harness gives mean nothing here."""
    Cluster.close()
    server = ZooKeeperServer(min_session_timeout=2 * TICK, max_session_timeout=20 * TICK)
    return Cluster([OurNode(server)], papers={}, end=server.close)
