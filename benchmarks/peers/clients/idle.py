"""Sessions of this project that hold a lock each: ``python -m benchmarks.peers.clients.idle HOSTS``."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from contextlib import ExitStack, closing

from benchmarks.peers.clients.dialogue import serve
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions


class Holders:
    """The commands ``hold`` and ``release``."""

    def __init__(self, hosts: str) -> None:
        """Remember the servers."""
        self._hosts = hosts
        self._pools = ExitStack()

    def hold(self, words: Mapping[str, str]) -> Mapping[str, float]:
        """Open ``sessions`` with that timeout, and hold a lock in each."""
        connection = ConnectionOptions(hosts=self._hosts, session_timeout=float(words["session_timeout"]))
        for number in range(int(words["sessions"])):
            pool = self._pools.enter_context(closing(Pool(f"pool{number}", PoolOptions(connection=connection))))
            held = Lock(f"idle-{number}", pool).acquire()
            self._pools.callback(held.release)
        return {}

    def release(self, _words: Mapping[str, str]) -> Mapping[str, float]:
        """Release the locks and end the sessions."""
        self._pools.close()
        return {}


def main(hosts: str) -> None:
    """Serve."""
    holders = Holders(hosts)
    serve({"hold": holders.hold, "release": holders.release})


if __name__ == "__main__":
    main(*sys.argv[1:])
