"""Asking a holder to let go. It is a request, written into the data of its node; nobody is forced.

Apache Curator's request (``Revoker``) is honoured too: it replaces all data by ``__REVOKE__``.
"""

from __future__ import annotations

import json
from typing import Any

from django_zklock.exceptions import NotHeld, ZkLockError, ZooKeeperUnavailable
from django_zklock.zk import display
from django_zklock.zk.alarm import Alarm
from django_zklock.zk.pool import Pool
from django_zklock.zk.wire import KazooException, NoNodeError, ZnodeStat

CURATOR = b"__REVOKE__"
FIELD = "revoke"
MAX_REASON = 256


def reason(data: bytes) -> str | None:
    """Give why the owner of a node with such data is asked to let go; ``None`` if it is not."""
    if data == CURATOR:
        return "asked by a client of Apache Curator"
    if FIELD.encode() not in data:
        return None
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError):
        return None
    asked = facts.get(FIELD) if isinstance(facts, dict) else None
    return display.visible(asked[:MAX_REASON]) if isinstance(asked, str) and asked else None


def marked(data: bytes, why: str) -> bytes:
    """Give data that says what ``data`` says, and that its owner is asked to let go."""
    try:
        facts = json.loads(data)
    except (ValueError, RecursionError):
        return CURATOR
    if not isinstance(facts, dict):
        return CURATOR
    return json.dumps({**facts, FIELD: why[:MAX_REASON]}, ensure_ascii=False, separators=(",", ":")).encode(
        errors="replace"
    )


def ask(pool: Pool, node: str, why: str, *, timeout: float) -> None:
    """Ask the owner of the node at the full path ``node`` to let go, for the reason ``why``.

    Takes at most ``timeout`` seconds. Raises ``NotHeld`` if the node is gone, ``ZooKeeperUnavailable`` if ZooKeeper
    does not answer in time, ``ZkLockError`` if it refuses, ``ValueError`` without a reason.
    """
    if not why.strip():
        raise ValueError("say why the holder should let go")
    # The session of its line, for the path of a node is that of its line and a name.
    session = pool.session(node.rpartition("/")[0])
    done = Alarm()
    outcome: list[KazooException | None] = []

    def finish(_value: Any, error: KazooException | None) -> None:
        outcome.append(error)
        done.ring()

    def read(value: tuple[bytes, ZnodeStat] | None, error: KazooException | None) -> None:
        if value is None:
            finish(None, error)
        else:
            session.wire.set(node, marked(value[0], why), finish)

    def begin() -> None:
        session.wire.get(node, read)

    session.post(begin)
    if not done.wait(timeout) or not outcome:
        raise ZooKeeperUnavailable(
            f"ZooKeeper at {session.server} has not answered within {timeout:g} s; whether the owner of {node} was "
            f"asked to let go is not known",
            timeout=timeout,
        )
    error = outcome[0]
    if isinstance(error, NoNodeError):
        raise NotHeld(f"{node} is gone: its owner has let go, or its session has ended") from error
    if error is not None:
        raise ZkLockError(f"ZooKeeper at {session.server} refused to write {node}: {error!r}") from error
