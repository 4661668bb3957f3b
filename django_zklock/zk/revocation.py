"""Asking a holder to let go. It is a request, written into the data of its node; nobody is forced.

Apache Curator's request (``Revoker``) is honoured too: it replaces all data by ``__REVOKE__``.
"""

from __future__ import annotations

import json
from functools import partial

from django_zklock.exceptions import NotHeld
from django_zklock.zk import display, inquiry
from django_zklock.zk.inquiry import Script
from django_zklock.zk.pool import Pool
from django_zklock.zk.wire import BadVersionError, NoNodeError

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

    def script() -> Script[None]:
        try:
            ((data, stat),) = yield [partial(session.wire.get, node)]
            yield [partial(session.wire.set, node, marked(data, why), version=stat.version)]
        except BadVersionError:
            # Its owner has written to it meanwhile.
            yield from script()
        except NoNodeError as error:
            raise NotHeld(f"{node} is gone: its owner has let go, or its session has ended") from error

    inquiry.ask(session, script, aim=f"write {node}", timeout=timeout, changes=True)
