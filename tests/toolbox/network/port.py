"""A free port on the loopback interface."""

from __future__ import annotations

import random
import socket
from pathlib import Path

LOOPBACK = "127.0.0.1"
ATTEMPTS = 200

# A server binds its port some time after it was told which, some only when it becomes the leader.
_given: set[int] = set()


def free_port(preferred: int | None = None) -> int:
    """Return a port that nothing listens on, the preferred one if it is free.

    The port is below the system's range for outgoing connections. A port from that range (what binding to
    port 0 gives) can be taken by any client while the server is being restarted, even by a client of that
    very server: on loopback a connection attempt to a port nothing listens on can be given the same port as
    its source and connect to itself. Nor is it one that this process was given before.
    """
    if preferred is not None and _is_free(preferred):
        return preferred
    candidates = range(10_000, min(_first_outgoing_port(), 65_536))
    for port in random.SystemRandom().sample(candidates, min(ATTEMPTS, len(candidates))):
        if port not in _given and _is_free(port):
            _given.add(port)
            return port
    msg = f"no free port on {LOOPBACK} between {candidates.start} and {candidates.stop - 1}"
    raise OSError(msg)


def _is_free(port: int) -> bool:
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        try:
            probe.bind((LOOPBACK, port))
        except OSError:
            return False
    return True


def _first_outgoing_port() -> int:
    try:
        first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii").split()[0])
    except (OSError, ValueError):
        first = 32_768
    # A machine may use nearly all ports for outgoing connections; then there is nothing better to choose
    # from.
    return first if first > 11_000 else 65_536
