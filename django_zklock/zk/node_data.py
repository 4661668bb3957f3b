"""The data of nodes: the owner of a contender's node, a request to release it, and the data of the lock's own node.

The data is JSON of at most 4 kB. Every client of ZooKeeper can write anything there, so nothing that is read is
trusted: each field is checked and cut.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple

from django_zklock.zk.formatting import escape_controls

MAX_BYTES = 4096
# Every identity can be cut to this number of bytes.
MIN_BYTES = 512
MAX_FIELD = 256
# The reason of a request to release.
MAX_REVOKE_REASON = 256
# The reason of a break, and the name of the broken node.
MAX_BREAK_REASON = 512
MAX_NODE = 256
VERSION = 1

# What Apache Curator writes instead of the data to request a release (``Revoker``).
CURATOR_REVOKE = b"__REVOKE__"
REVOKE = "revoke"


_HOST = socket.gethostname()


# The owner of a contender's node.


@dataclass(frozen=True, kw_only=True)
class Work:
    """What runs under the lock: ``kind`` is "task", "command", "function" or "label".

    ``command`` is the management command in whose process a function runs, such as "runserver".
    Of a task: ``worker`` is the node name of its Celery worker, ``child`` the pid of the pool's child process that runs
    it (0 while that is not known, ``None`` where the process of the identity runs it itself, in no child), and
    ``time_limit`` its hard time limit in seconds, if it has one. A ``forgotten`` task runs, and its worker cannot end
    it any more: with the first ``terminate`` Celery forgets a task, whether its child ends or not. ``arguments`` are
    those in the key of its lock, as in ``invoice_id=42``.
    """

    kind: str
    name: str
    id: str = ""
    worker: str = ""
    child: int | None = None
    time_limit: float | None = None
    forgotten: bool = False
    command: str = ""
    arguments: str = ""

    def __str__(self) -> str:
        command = f" in command {self.command}" if self.command else ""
        return f"{self.kind} {self.name}" + (f" [{self.id}]" if self.id else "") + command


@dataclass(frozen=True, kw_only=True)
class Identity:
    """The host, process, thread and work of one contender.

    ``pid`` is the process that has the node: for a task at the gate the main process of its worker.
    """

    host: str
    pid: int
    thread: str = ""
    work: Work | None = None

    def __str__(self) -> str:
        return f"{self.work} ({self.process})" if self.work else self.process

    @property
    def process(self) -> str:
        """The process that runs the work, its host and its worker; a main process is named as such."""
        if self.work is None or not self.work.worker:
            return f"pid {self.pid} on {self.host}"
        if self.work.child == 0:
            return f"worker {self.work.worker}, main pid {self.pid} on {self.host}"
        return f"pid {self.work.child or self.pid} on {self.host}, worker {self.work.worker}"

    @property
    def as_holder(self) -> str:
        """The text for a caller that was refused: a program that waits for itself is told so."""
        own = self.host == _HOST and self.pid == os.getpid() and not (self.work and self.work.worker)
        return f"{self}, which is this very process, thread {self.thread}" if own else str(self)

    def as_dict(self) -> dict[str, Any]:
        """Return plain values for JSON; several times as fast as ``asdict``, as lists of locks are long."""
        return {**vars(self), "work": dict(vars(self.work)) if self.work else None}

    def encode(self, room: int = MAX_BYTES, *, keys: int = 1) -> bytes:
        """Return the node data for this identity; long texts are cut until it fits in ``room`` bytes, at least 512.

        ``keys`` is how many keys the contender takes at once.
        """
        data = b""
        for limit in (MAX_FIELD, 64, 16, 4):
            values = _cut(self.as_dict(), limit)
            values["v"] = VERSION
            if keys > 1:
                values["keys"] = keys
            data = _dump(values)
            if len(data) <= room:
                break
        return data


class Owner(NamedTuple):
    """What the owner of a contender's node has written about itself.

    ``identity`` is ``None`` if the data is not in our form, as that of kazoo and Curator. ``granted`` is when the owner
    was granted the lock, if it has written that, and ``keys`` how many keys it takes at once, if these are several.
    """

    identity: Identity | None
    granted: float | None = None
    keys: int | None = None


def current_identity(work: Work | None) -> Identity:
    """Return the identity of the calling thread."""
    return Identity(host=_HOST, pid=os.getpid(), thread=threading.current_thread().name, work=work)


# A thread that acquires again mostly has the same identity.
@lru_cache(maxsize=128)
def encode_identity(pid: int, thread: str, work: Work | None, room: int, keys: int) -> bytes:
    """Return the node data for this process of this host, which takes so many keys, in at most ``room`` bytes."""
    return Identity(host=_HOST, pid=pid, thread=thread, work=work).encode(room, keys=keys)


def decode_identity(data: bytes) -> Identity | None:
    """Return the owner that node data names; ``None`` if it is not in our form, as that of kazoo and Curator."""
    return decode_owner(data).identity


def decode_owner(data: bytes) -> Owner:
    """Return what node data says about its owner."""
    values = load(data)
    if values is None:
        return Owner(None)
    granted, keys = _number(values.get("granted")), _number(values.get("keys"))
    several = keys if isinstance(keys, int) and keys > 1 else None
    host, pid = values.get("host"), _number(values.get("pid"))
    if values.get("v") != VERSION or not isinstance(host, str) or not isinstance(pid, int):
        return Owner(None, granted, several)
    thread, work = _text(values.get("thread")), _work(values.get("work"))
    return Owner(Identity(host=_text(host), pid=pid, thread=thread, work=work), granted, several)


def _cut(values: dict[str, Any], limit: int) -> dict[str, Any]:
    """Return ``values`` without those that are empty or false, with each text cut to ``limit`` characters."""
    return {
        name: _cut(value, limit) if isinstance(value, dict) else value[:limit] if isinstance(value, str) else value
        for name, value in values.items()
        if value is not None and value != "" and value is not False
    }


def _work(value: object) -> Work | None:
    if not isinstance(value, dict):
        return None
    given = value.get
    child = _number(given("child"))
    return Work(
        kind=_text(given("kind")),
        name=_text(given("name")),
        id=_text(given("id")),
        worker=_text(given("worker")),
        child=child if isinstance(child, int) else None,
        time_limit=_number(given("time_limit")),
        forgotten=given("forgotten") is True,
        command=_text(given("command")),
        arguments=_text(given("arguments")),
    )


def add_run(data: bytes, *, child: int | None, granted: float, forgotten: bool) -> bytes | None:
    """Return the node data of a task that was granted its lock, with what has become of it since.

    ``child`` and ``forgotten`` are those of :class:`Work`; without a slot of its worker, ``child`` is 0. ``granted`` is
    in seconds since the Unix epoch. Return ``None`` if the data is not in our form.
    """
    values = load(data)
    if values is None or not isinstance(values.get("work"), dict):
        return None
    work = {**values["work"], "child": child} | ({"forgotten": True} if forgotten else {})
    changed = _dump({**values, "granted": round(granted, 3), "work": work})
    return changed if len(changed) <= MAX_BYTES else None


def _number(value: object) -> int | float | None:
    # JSON has no bound on numbers; a larger one is no pid, and breaks the code that formats it.
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not -1e15 < value < 1e15:
        return None
    return value


def _text(value: object) -> str:
    # Error messages and logs repeat it: no line breaks, no control characters, no lone surrogate, which has no UTF-8.
    text = value[:MAX_FIELD] if isinstance(value, str) else ""
    return text if text.isprintable() else "".join(sign if sign.isprintable() else "\ufffd" for sign in text)


# A request to release.


def decode_revoke(data: bytes) -> str | None:
    """Return the reason for which node data requests a release; ``None`` if it does not."""
    if data == CURATOR_REVOKE:
        return "asked by a client of Apache Curator"
    values = load(data, max_bytes=None) if REVOKE.encode() in data else None
    reason = None if values is None else values.get(REVOKE)
    return escape_controls(reason[:MAX_REVOKE_REASON]) if isinstance(reason, str) and reason else None


def encode_revoke(data: bytes, reason: str) -> bytes:
    """Return ``data`` with a request to release added; the reason is cut to 256 characters."""
    values = load(data, max_bytes=None)
    return CURATOR_REVOKE if values is None else _dump({**values, REVOKE: reason[:MAX_REVOKE_REASON]})


# The lock's own node, which is the parent of the queue.


@dataclass(frozen=True, kw_only=True)
class Removal:
    """The name of a node that was deleted to break the lock, why, and when, if that is known; ``id`` is of this break.

    The server stores when the data of the lock's node was written; here it is in seconds since the Unix epoch.
    """

    node: str
    why: str
    at: float = 0.0
    id: str = ""


@dataclass(frozen=True, kw_only=True)
class LockNodeData:
    """The key of the lock, where the name of its node has not room for it, and the last break."""

    key: str = ""
    removal: Removal | None = None

    def encode(self) -> bytes:
        """Return the node data: the bare key until the lock is broken. The reason is cut to 512 characters."""
        if self.removal is None:
            return self.key.encode()
        removed = {"node": self.removal.node, "why": self.removal.why[:MAX_BREAK_REASON], "id": self.removal.id}
        return _dump({"v": VERSION, "key": self.key, "removed": removed})


def decode_lock_node(data: bytes) -> LockNodeData | None:
    """Return what the data of a lock's node says; ``None`` for data that is longer than ours can be."""
    if len(data) > MAX_BYTES:
        return None
    values = load(data)
    if values is None or values.get("v") != VERSION or not isinstance(values.get("key"), str):
        return LockNodeData(key=data.decode(errors="replace"))
    removed = values.get("removed")
    removed = removed if isinstance(removed, dict) else {}
    node, why = removed.get("node"), removed.get("why")
    if not (isinstance(node, str) and isinstance(why, str) and why):
        return LockNodeData(key=values["key"])
    number = removed.get("id")
    known = number[:MAX_NODE] if isinstance(number, str) else ""
    removal = Removal(node=node[:MAX_NODE], why=why[:MAX_BREAK_REASON], id=known)
    return LockNodeData(key=values["key"], removal=removal)


# JSON.


def _dump(values: dict[str, Any]) -> bytes:
    return json.dumps(values, ensure_ascii=False, separators=(",", ":")).encode(errors="replace")


def load(data: bytes, max_bytes: int | None = MAX_BYTES) -> dict[str, Any] | None:
    """Return the object in node data; ``None`` if it is longer, or something else."""
    if max_bytes is not None and len(data) > max_bytes:
        return None
    try:
        # Decoded here: given bytes, json would first detect their encoding.
        values = json.loads(data.decode())
    except (ValueError, RecursionError):
        return None
    return values if isinstance(values, dict) else None
