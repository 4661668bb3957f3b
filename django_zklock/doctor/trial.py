"""A lock of the doctor's own, taken and given back: the whole way from here to ZooKeeper and back."""

from __future__ import annotations

import contextlib
import socket
import time
import uuid
from dataclasses import dataclass
from functools import partial
from typing import Any

from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.findings import Finding
from django_zklock.zk import inquiry
from django_zklock.zk.deadline import Deadline
from django_zklock.zk.identity import Work
from django_zklock.zk.inquiry import Script
from django_zklock.zk.lock import Lock
from django_zklock.zk.pool import Pool
from django_zklock.zk.session import Session
from django_zklock.zk.wire import KazooException, NoNodeError, ZnodeStat

# How long the tidying up may take, in seconds.
TIDYING = 1.0
# Clocks further apart than this make ages and start times misleading, in seconds.
TOLERANCE = 1.0


@dataclass(frozen=True, kw_only=True)
class Trial:
    """How it went. ``took`` is in seconds, and so is ``ahead``, by which this host's clock is ahead of the server's."""

    token: int
    took: float
    ahead: float
    containers: bool


def examine(pool: Pool) -> list[Finding]:
    """Take a lock that nobody else can want, and give it back, in at most CONNECT_TIMEOUT and a second."""
    key = f"zklock-doctor:{socket.gethostname()}:{uuid.uuid4().hex}"
    lock = Lock(key, pool, work=lambda: Work(kind="label", name="zklock doctor"))
    path, root = lock.paths[0], pool.options.root
    try:
        session = pool.session(path)
    except ValueError as error:  # kazoo cannot do what the settings ask for
        return [_failure(error, root)]
    try:
        findings = _judge(_attempt(lock, session, Deadline.after(pool.options.connect_timeout)), root)
    except ZkLockError as error:
        findings = [_failure(error, root)]
    finally:
        left = _tidy_up(session, path)
    if left is not None:
        findings.append(_release(left, root))
    return findings


def _attempt(lock: Lock, session: Session, deadline: Deadline) -> Trial:
    root = lock.pool.options.root
    # Connected first, so that the time that is taken is that of a lock.
    inquiry.ask(session, partial(_reach, session, root), aim=f"read {root}", timeout=deadline.remaining())
    began, began_here = time.monotonic(), time.time()
    held = lock.acquire(deadline.remaining())
    took = time.monotonic() - began
    try:
        stat: ZnodeStat = inquiry.ask(
            session, partial(_look_at, session, held.node), aim=f"read {held.node}", timeout=deadline.remaining()
        )
    finally:
        held.release()
    return Trial(
        token=held.token,
        took=took,
        # The node was made at some time in between.
        ahead=began_here + took / 2 - stat.ctime / 1000,
        containers=session.containers,
    )


def _reach(session: Session, root: str) -> Script[None]:
    # Any answer will do; a lock need not be allowed to read that, and there may have been none yet.
    with contextlib.suppress(KazooException):
        yield [partial(session.wire.get, root)]


def _look_at(session: Session, node: str) -> Script[Any]:
    ((_data, stat),) = yield [partial(session.wire.get, node)]
    return stat


def _tidy_up(session: Session, path: str) -> list[str] | None:
    """Remove the line at ``path``, and give the names of nodes that are in it still; ``None`` if nobody can say."""
    if session.connected:
        with contextlib.suppress(ZkLockError):
            return inquiry.ask(
                session, partial(_remove, session, path), aim=f"remove {path}", timeout=TIDYING, changes=True
            )
    return None


def _remove(session: Session, path: str) -> Script[list[str]]:
    try:
        (left,) = yield [partial(session.wire.children, path)]
    except NoNodeError:
        return []
    # Not allowed, perhaps: the server removes containers too, in a minute or so.
    with contextlib.suppress(KazooException):
        yield [partial(session.wire.delete, path)]
    return list(left)


def _judge(trial: Trial, root: str) -> list[Finding]:
    return [
        Finding(
            id="lock.trial",
            level="ok",
            subject=root,
            found=f"a lock was taken in {trial.took * 1000:.1f} ms, with the token {trial.token}",
        ),
        _containers(trial),
        _clock(trial),
    ]


def _failure(error: ZkLockError | ValueError, root: str) -> Finding:
    advice = "Let these credentials create and delete nodes below ROOT, or correct AUTH and SASL."
    if isinstance(error, ValueError):
        advice = "Correct ZKLOCK; what the system checks say above may help."
    if isinstance(error, ZooKeeperUnavailable):
        advice = "Look at what the servers tell above, at HOSTS, TLS and AUTH, and at what is on the way to ZooKeeper."
    return Finding(id="lock.trial", level="error", subject=root, found=str(error), advice=advice)


def _release(left: list[str], root: str) -> Finding:
    finding = partial(Finding, id="lock.release", subject=root)
    if left:
        return finding(
            level="error",
            found=f"the lock was given back, but not its node {', '.join(left)}, which stays until the session ends",
            advice="Let these credentials delete nodes below ROOT.",
        )
    return finding(level="ok", found="the lock was given back, and nothing is left of it")


def _containers(trial: Trial) -> Finding:
    finding = partial(Finding, id="lock.containers", subject="container nodes")
    if trial.containers:
        return finding(level="ok", found="the servers remove the parents of locks that are not in use")
    return finding(
        level="warning",
        found="the servers do not know them, so that each key that was ever used leaves a node",
        advice="Update ZooKeeper, or have `manage.py zklock prune` run regularly.",
    )


def _clock(trial: Trial) -> Finding:
    finding = partial(Finding, id="clock.offset", subject="clocks")
    apart = abs(trial.ahead)
    if apart - trial.took / 2 <= TOLERANCE:
        return finding(level="ok", found=f"this host and ZooKeeper are {apart:.1f} s apart")
    return finding(
        level="warning",
        found=f"this host is {apart:.1f} s {'ahead of' if trial.ahead > 0 else 'behind'} ZooKeeper: locks depend on no "
        f"clock, but ages and times that are shown do",
        advice="Have NTP or chrony set the clocks of this host and of the servers.",
    )
