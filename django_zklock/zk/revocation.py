"""Asking a holder to let go. It is a request, written into the data of its node; nobody is forced.

Apache Curator's request (``Revoker``) is honoured too: it replaces all data by ``__REVOKE__``.
"""

from __future__ import annotations

import json
from functools import partial

from django_zklock.exceptions import NotHeld, ZkLockError, ZooKeeperUnavailable
from django_zklock.zk import display
from django_zklock.zk.alarm import Alarm
from django_zklock.zk.pool import Pool
from django_zklock.zk.session import Session
from django_zklock.zk.wire import BadVersionError, KazooException, NoNodeError, ZnodeStat

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
    asking = _Asking(session, node, why)
    session.post(asking.begin)
    try:
        answered = asking.done.wait(timeout)
    finally:
        session.post(partial(session.detach, asking))
    if not answered:
        raise ZooKeeperUnavailable(
            f"ZooKeeper at {session.server} has not answered within {timeout:g} s; whether the owner of {node} was "
            f"asked to let go is not known",
            timeout=timeout,
        )
    error = asking.error
    if isinstance(error, NoNodeError):
        raise NotHeld(f"{node} is gone: its owner has let go, or its session has ended") from error
    if isinstance(error, KazooException):
        raise ZkLockError(f"ZooKeeper at {session.server} refused to write {node}: {error!r}") from error
    if error is not None:
        raise ZooKeeperUnavailable(f"ZooKeeper at {session.server}: {error}", timeout=timeout) from error


class _Asking:
    """One request to let go: a tenant of the session that begins again after a reconnect."""

    def __init__(self, session: Session, node: str, why: str) -> None:
        self.done = Alarm()
        # Written before the alarm rings.
        self.error: Exception | None = None
        self._session = session
        self._node = node
        self._why = why

    def begin(self) -> None:
        """Get in line for a connection, and use it."""
        self._session.attach(self)
        if self._session.connected:
            self.resumed()

    def suspended(self) -> None: ...

    def resumed(self) -> None:
        self._session.wire.get(self._node, self._read)

    def session_ended(self, _reason: str) -> None: ...

    def unavailable(self, reason: str, /) -> None:
        self._finish(ConnectionError(reason))

    def heartbeat(self) -> None: ...

    def lose(self, _reason: str) -> None: ...

    def _read(self, value: tuple[bytes, ZnodeStat] | None, error: KazooException | None) -> None:
        if value is None:
            self._finish(error)
        else:
            data, stat = value
            self._session.wire.set(self._node, marked(data, self._why), self._written, version=stat.version)

    def _written(self, _value: object, error: KazooException | None) -> None:
        if isinstance(error, BadVersionError):
            # Its owner has written to it meanwhile.
            self.resumed()
        else:
            self._finish(error)

    def _finish(self, error: Exception | None) -> None:
        self.error = error
        self._session.detach(self)
        self.done.ring()
