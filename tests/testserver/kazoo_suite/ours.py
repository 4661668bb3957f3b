"""The test server, configured as similar to the real ones as possible."""

from __future__ import annotations

from django_zklock.testing import ZooKeeperServer

from .cluster import Cluster

TICK = 2.0


class OurNode:
    """The one server."""

    # Nothing listens here: the test server has no TLS.
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


def make_ours(*, jaas_config: str | None = None, **_: object) -> Cluster:
    """Create a cluster of one; other settings of kazoo's harness for real servers are ignored.

    Raises NotImplementedError if SASL is requested. With any server without SASL kazoo repeats the request for ever,
    and cannot be stopped.
    """
    if jaas_config is not None:
        msg = "the test server knows no SASL"
        raise NotImplementedError(msg)
    Cluster.close()
    server = ZooKeeperServer(min_session_timeout=2 * TICK, max_session_timeout=20 * TICK)
    return Cluster([OurNode(server)], papers=None, end=server.close)
