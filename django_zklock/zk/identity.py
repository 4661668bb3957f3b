"""Who stands in a line: the data of a contender's node.

The data is JSON and never more than 4 kB. Anybody with access to ZooKeeper can write anything there, so what
comes back is hostile: every field is checked and cut, nothing is trusted.
"""

from __future__ import annotations

import json
import os
import socket
import threading
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any

from django_zklock.zk.clock import lease_now

MAX_BYTES = 4096
MAX_FIELD = 256
VERSION = 1


@dataclass(frozen=True, kw_only=True)
class Work:
    """What runs under the lock: ``kind`` is "task", "command", "function" or "label"."""

    kind: str
    name: str
    id: str = ""

    def __str__(self) -> str:
        return f"{self.kind} {self.name}" + (f" [{self.id}]" if self.id else "")


@dataclass(frozen=True, kw_only=True)
class Identity:
    """Host, process and work of one contender. Times are seconds since the Unix epoch."""

    host: str
    pid: int
    thread: str = ""
    started: float | None = None
    joined: float | None = None
    work: Work | None = field(default=None)
    # How many may hold at once, as this contender has it; of a semaphore only.
    limit: int | None = None

    def __str__(self) -> str:
        place = f"pid {self.pid} on {self.host}"
        return f"{self.work} ({place})" if self.work else place

    def facts(self) -> dict[str, Any]:
        """Give this as plain values for JSON; several times as fast as ``asdict``, and lists of locks are long."""
        return {**vars(self), "work": dict(vars(self.work)) if self.work else None}

    def encode(self) -> bytes:
        """Give the node data for this identity; long texts are cut until it fits in 4 kB."""
        data = b""
        for limit in (MAX_FIELD, 64, 16):
            facts = _cut(self.facts(), limit)
            facts["v"] = VERSION
            data = json.dumps(facts, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")
            if len(data) <= MAX_BYTES:
                break
        return data


_HOST = socket.gethostname()


def own(work: Work | None, limit: int | None = None) -> Identity:
    """Give the identity of the calling thread, now; ``limit`` is that of a semaphore."""
    return Identity(
        host=_HOST,
        pid=os.getpid(),
        thread=threading.current_thread().name,
        started=_process_started(),
        joined=time.time(),
        work=work,
        limit=limit,
    )


def decode(data: bytes) -> Identity | None:
    """Read node data; ``None`` unless it is an identity in our form (kazoo and Curator write other things)."""
    if len(data) > MAX_BYTES:
        return None
    try:
        # Given bytes, it would first look for what else but UTF-8 they could be.
        facts = json.loads(data.decode())
    except (ValueError, RecursionError):
        return None
    if not isinstance(facts, dict) or facts.get("v") != VERSION:
        return None
    host, pid = facts.get("host"), facts.get("pid")
    if not isinstance(host, str) or not isinstance(pid, int) or not _is_sane(pid):
        return None
    return Identity(
        host=_text(host),
        pid=pid,
        thread=_text(facts.get("thread")),
        started=_number(facts.get("started")),
        joined=_number(facts.get("joined")),
        work=_work(facts.get("work")),
        limit=_limit(facts.get("limit")),
    )


def _cut(facts: dict[str, Any], limit: int) -> dict[str, Any]:
    return {
        name: _cut(value, limit) if isinstance(value, dict) else value[:limit] if isinstance(value, str) else value
        for name, value in facts.items()
    }


def _work(value: object) -> Work | None:
    if not isinstance(value, dict):
        return None
    return Work(**{entry.name: _text(value.get(entry.name)) for entry in fields(Work)})


def _text(value: object) -> str:
    # Error messages and logs repeat it: no line breaks, no orders to a terminal, no lone surrogate, which
    # cannot be written anywhere.
    text = value[:MAX_FIELD] if isinstance(value, str) else ""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


def _number(value: object) -> float | None:
    return float(value) if isinstance(value, (int, float)) and _is_sane(value) else None


def _limit(value: object) -> int | None:
    return value if isinstance(value, int) and _is_sane(value) and value > 0 else None


def _is_sane(value: float) -> bool:
    # JSON has no bound on numbers; beyond this they are no pid and no time, and break whoever formats them.
    return not isinstance(value, bool) and -1e15 < value < 1e15


_started: tuple[int, float] | None = None


def _process_started() -> float:
    """When this process started, by its first lock where the system does not tell (not Linux)."""
    global _started  # noqa: PLW0603 - a cache for this process; a fork makes a new one
    if _started is None or _started[0] != os.getpid():
        try:
            # Field 22 of proc(5)'s stat, in clock ticks since boot; the command in field 2 may hold spaces.
            ticks = int(Path("/proc/self/stat").read_text().rpartition(")")[2].split()[19])
            moment = time.time() - lease_now() + ticks / os.sysconf("SC_CLK_TCK")
        except (OSError, ValueError, IndexError):
            moment = time.time()
        _started = (os.getpid(), moment)
    return _started[1]
