"""A client that looks at the tree of a server, and disturbs it."""

from __future__ import annotations

from kazoo.client import KazooClient
from kazoo.exceptions import NoNodeError

from django_zklock.zk.pool import Pool
from tests.toolbox.locks.pools import wire_of
from tests.toolbox.protocol.jute import boolean, buffer, integer, long
from tests.toolbox.protocol.raw_client import RawClient
from tests.toolbox.timing import scaled, wait_until

CLOSE = -11


class Observer:
    """A client of its own that looks at the tree and disturbs it, as an operator would."""

    def __init__(self, hosts: str) -> None:
        self.hosts = hosts
        self.client = KazooClient(hosts=hosts, timeout=scaled(10))
        self.client.start(timeout=scaled(20))

    def children(self, path: str) -> list[str]:
        """Return the names of the contenders in their order."""
        try:
            return sorted(self.client.get_children(path), key=lambda name: name[-10:])
        except NoNodeError:
            return []

    def wait_empty(self, path: str, timeout: float = 30.0) -> None:
        wait_until(lambda: not self.children(path), timeout, f"{path} is empty")

    def wait_count(self, path: str, count: int, timeout: float = 30.0) -> list[str]:
        wait_until(lambda: len(self.children(path)) == count, timeout, f"{count} nodes in {path}")
        return self.children(path)

    def end_session(self, pool: Pool, place: int = 0) -> None:
        """End a session of ``pool`` at the server, from outside, whatever its own way to the server is like."""
        client = wire_of(pool.sessions()[place])._client
        host, _, port = self.hosts.partition(",")[0].rpartition(":")
        with RawClient((host, int(port))) as other:
            resume = integer(0) + long(0) + integer(10_000) + long(client._session_id) + buffer(client._session_passwd)
            # In one piece: a client that loses its connection over this is soon back, and takes the session over again.
            other.send_frame(resume + boolean(False), integer(1) + integer(CLOSE))
            other.receive_all()

    def close(self) -> None:
        self.client.stop()
        self.client.close()
