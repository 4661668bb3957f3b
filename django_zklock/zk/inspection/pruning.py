"""Idle lines: made for locks that nobody holds any more.

A container goes by itself, a while after the last node in it. What servers and clients that know no containers have
made stays, and so does a container that nobody ever joined; reading the tree takes ever longer. A server does not tell
which lines are containers, so all that are idle are taken alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from django_zklock.zk import inquiry
from django_zklock.zk.deadline import Deadline
from django_zklock.zk.inquiry import Reply, Script
from django_zklock.zk.inspection import survey
from django_zklock.zk.pool import Pool
from django_zklock.zk.session import Session
from django_zklock.zk.wire import KazooException, NoNodeError, NotEmptyError, Read, ZnodeStat

# So many are deleted at once: the locks of the session come behind them.
TURN = 128


def idle(pool: Pool, *, timeout: float | None) -> list[str]:
    """Give the names of the lines in which nobody stands.

    Takes at most ``timeout`` seconds. Raises as :func:`django_zklock.zk.inspection.survey.lines`.
    """
    deadline = Deadline.after(timeout)
    root = pool.options.root
    session = pool.session(root)
    names = survey.names(pool, timeout=deadline.remaining())
    script = partial(inquiry.read_many, session, [Read(f"{root}/{name}") for name in names])
    found = inquiry.ask(session, script, aim=f"read what is in {root}", timeout=deadline.remaining())
    return [name for name, outcome in zip(names, found, strict=True) if _is_idle(outcome)]


def remove(pool: Pool, names: Sequence[str], *, timeout: float | None) -> list[str]:
    """Remove the lines of these names in which nobody stands, and give the names of those that are gone.

    Whoever is about to join such a line makes it again. Takes at most ``timeout`` seconds. Raises
    ``ZooKeeperUnavailable`` if ZooKeeper does not answer in time, and ``ZkLockError`` if it refuses.
    """
    root = pool.options.root
    session = pool.session(root)
    script = partial(_remove, session, root, names)
    return inquiry.ask(session, script, aim=f"delete what is in {root}", timeout=timeout, changes=True)


def _is_idle(outcome: Any) -> bool:
    """Whether the line was read and has nobody in it; an ephemeral node can have nobody."""
    if not isinstance(outcome, tuple):
        return False
    stat: ZnodeStat = outcome[1]
    return (stat.numChildren, stat.ephemeralOwner) == (0, 0)


def _remove(session: Session, root: str, names: Sequence[str]) -> Script[list[str]]:
    gone: list[str] = []
    for start in range(0, len(names), TURN):
        turn = names[start : start + TURN]
        answers = yield [partial(_delete, session, f"{root}/{name}") for name in turn]
        gone += (name for name, is_gone in zip(turn, answers, strict=True) if is_gone)
    return gone


def _delete(session: Session, path: str, reply: Reply) -> None:
    """Delete a node; the reply says whether it is gone, and not for somebody in it."""

    def answered(_value: Any, error: KazooException | None) -> None:
        refusal = None if isinstance(error, (NoNodeError, NotEmptyError)) else error
        reply(not isinstance(error, NotEmptyError), refusal)

    session.wire.delete(path, answered)
