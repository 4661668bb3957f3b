"""A round trip: acquire and release a lock of the doctor's own, and compare the clocks."""

from __future__ import annotations

import contextlib
import socket
import time
import uuid
from dataclasses import dataclass
from functools import partial
from typing import Any

from django_zklock.doctor.finding import Finding
from django_zklock.exceptions import ZkLockError, ZooKeeperUnavailable
from django_zklock.zk import requests
from django_zklock.zk.lock import Lock
from django_zklock.zk.node_data import Work
from django_zklock.zk.pool import Pool
from django_zklock.zk.requests import RequestScript
from django_zklock.zk.session import Session
from django_zklock.zk.waiting import Deadline
from django_zklock.zk.wire import KazooException, NoNodeError, ZnodeStat

# Seconds to delete the parent node of the lock.
CLEANUP_TIMEOUT = 1.0
# Seconds. With a larger offset between the clocks, ages and start times mislead.
MAX_CLOCK_OFFSET = 1.0


@dataclass(frozen=True, kw_only=True)
class RoundTrip:
    """A lock that was acquired in ``seconds``; this host's clock is ``clock_offset`` seconds ahead of the server's."""

    token: int
    seconds: float
    clock_offset: float


def examine(pool: Pool) -> list[Finding]:
    """Acquire a lock with a unique key and release it, in at most CONNECT_TIMEOUT plus one second."""
    key = f"zklock-doctor:{socket.gethostname()}:{uuid.uuid4().hex}"
    lock = Lock(key, pool, work=lambda: Work(kind="label", name="zklock doctor"))
    path, root = lock.paths[0], pool.options.root
    session = pool.session(path)
    try:
        trip = _make_round_trip(lock, session, Deadline.after(pool.options.connect_timeout))
        findings = [_success(trip, root), _clock(trip)]
    except ZkLockError as error:
        findings = [_failure(error, root)]
    finally:
        remaining = _clean_up(session, path)
    if remaining is not None:
        findings.append(_release(remaining, root))
    return findings


def _make_round_trip(lock: Lock, session: Session, deadline: Deadline) -> RoundTrip:
    root = lock.pool.options.root
    # Connect first, so that the measured time is that of the lock alone.
    requests.run(session, partial(_connect, session, root), action=f"read {root}", timeout=deadline.remaining())
    began, began_at = time.monotonic(), time.time()
    held = lock.acquire(deadline.remaining())
    seconds = time.monotonic() - began
    try:
        stat: ZnodeStat = requests.run(
            session, partial(_read_stat, session, held.node), action=f"read {held.node}", timeout=deadline.remaining()
        )
    finally:
        held.release()
    # The node was created at some time during the acquisition.
    clock_offset = began_at + seconds / 2 - stat.ctime / 1000
    return RoundTrip(token=held.token, seconds=seconds, clock_offset=clock_offset)


def _connect(session: Session, root: str) -> RequestScript[None]:
    # Every answer proves the connection: ROOT may not exist yet, and a lock does not need permission to read it.
    with contextlib.suppress(KazooException):
        yield [partial(session.wire.get, root)]


def _read_stat(session: Session, node: str) -> RequestScript[Any]:
    ((_data, stat),) = yield [partial(session.wire.get, node)]
    return stat


def _clean_up(session: Session, path: str) -> list[str] | None:
    """Delete the parent at ``path``; return the names of nodes that remain in it, or ``None`` if that is unknown."""
    if session.connected:
        with contextlib.suppress(ZkLockError):
            return requests.run(
                session,
                partial(_delete, session, path),
                action=f"delete {path}",
                timeout=CLEANUP_TIMEOUT,
                mutates=True,
            )
    return None


def _delete(session: Session, path: str) -> RequestScript[list[str]]:
    try:
        (remaining,) = yield [partial(session.wire.children, path)]
    except NoNodeError:
        return []
    # Deleting may be forbidden; the server removes an empty container in about a minute.
    with contextlib.suppress(KazooException):
        yield [partial(session.wire.delete, path)]
    return list(remaining)


def _success(trip: RoundTrip, root: str) -> Finding:
    return Finding(
        id="lock.trial",
        level="ok",
        subject=root,
        found=f"a lock was acquired in {trip.seconds * 1000:.1f} ms, with the token {trip.token}",
    )


def _failure(error: ZkLockError, root: str) -> Finding:
    advice = "Let these credentials create and delete nodes below ROOT, or correct AUTH and SASL."
    if isinstance(error, ZooKeeperUnavailable):
        advice = "Check the findings of the servers above, HOSTS, TLS, AUTH, and the network path to ZooKeeper."
    return Finding(id="lock.trial", level="error", subject=root, found=str(error), advice=advice)


def _release(remaining: list[str], root: str) -> Finding:
    finding = partial(Finding, id="lock.release", subject=root)
    if remaining:
        return finding(
            level="error",
            found=f"the lock was released, but its node {', '.join(remaining)} stays until the session ends",
            advice="Let these credentials delete nodes below ROOT.",
        )
    return finding(level="ok", found="the lock was released, and all of its nodes are deleted")


def _clock(trip: RoundTrip) -> Finding:
    finding = partial(Finding, id="clock.offset", subject="clocks")
    offset = abs(trip.clock_offset)
    if offset - trip.seconds / 2 <= MAX_CLOCK_OFFSET:
        return finding(level="ok", found=f"the clocks of this host and of ZooKeeper differ by {offset:.1f} s")
    return finding(
        level="warning",
        found=f"the clock of this host is {offset:.1f} s {'ahead of' if trip.clock_offset > 0 else 'behind'} "
        "ZooKeeper's: no lock depends on clocks, but the ages and times that are shown do",
        advice="Set the clocks of this host and of the servers by NTP or chrony.",
    )
