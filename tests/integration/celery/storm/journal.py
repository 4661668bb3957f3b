"""The journal of the processes of the storm; the time of each row is on the clock that all processes share."""

from __future__ import annotations

import functools
import json
import os
import time
from typing import Any

import redis

ROWS = "storm:rows"

Row = dict[str, Any]


@functools.cache
def _connection(_pid: int) -> redis.Redis:
    return redis.Redis.from_url(os.environ["STORM_RECORDS"], decode_responses=True, socket_timeout=None)


def records() -> redis.Redis:
    """Return this process's connection to the server for rows and results, which has no faults."""
    return _connection(os.getpid())


def write(what: str, *, at: float | None = None, **facts: Any) -> None:
    """Add a row."""
    row = {"at": time.monotonic() if at is None else at, "what": what, "pid": os.getpid(), **facts}
    records().rpush(ROWS, json.dumps(row))
