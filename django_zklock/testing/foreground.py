"""The server in the foreground of a process, until a signal ends it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable

from .server import ZooKeeperServer

# ZooKeeper's own.
DEFAULT_PORT = 2181


def run(host: str, port: int, write: Callable[[str], object]) -> None:
    """Serve until SIGINT or SIGTERM; say with ``write``, in one line, where.

    To be called in the main thread. Raises OSError if the address cannot be had.
    """
    ended = threading.Event()
    previous = {number: signal.signal(number, lambda *_: ended.set()) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        with ZooKeeperServer(host=host, port=port) as server:
            write(f"A ZooKeeper for development listens at {server.hosts}; it keeps everything in memory.\n")
            ended.wait()
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)
