"""A WSGI application whose requests ask for one lock: one after another, while the first is in its block."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable

from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool, PoolOptions
from django_zklock.zk.wire import ConnectionOptions
from tests.toolbox.timing import scaled

REQUESTS = 4
# Seconds.
TIMEOUT = scaled(30)

lock = Lock(
    "k",
    Pool("greedy", PoolOptions(connection=ConnectionOptions(hosts=os.environ["HOSTS"]), root=os.environ["ROOT"])),
)
arrived = 0
inside = 0


def application(_environ: object, start_response: Callable[[str, list[tuple[str, str]]], object]) -> Iterable[bytes]:
    """Answer with how many were in the block at once, and with the token."""
    global arrived, inside  # noqa: PLW0603 - what all requests of the process share
    arrived += 1
    is_first = arrived == 1
    deadline = time.monotonic() + TIMEOUT
    while not (is_first or inside) and time.monotonic() < deadline:
        time.sleep(0.01)
    with lock as held:
        inside += 1
        while arrived < REQUESTS and time.monotonic() < deadline:
            time.sleep(0.01)
        # Long enough for all to come in that can.
        time.sleep(0.1)
        answer = f"{inside} {held.token}"
        inside -= 1
    start_response("200 OK", [("Content-Type", "text/plain")])
    return [answer.encode()]
